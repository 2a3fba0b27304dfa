"""However a run ends, nothing of it stays behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, thread.read_text().split()):
                yield child
                yield from descendants(child)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def data_directories(pids: list[int]) -> set[Path]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "-D" in words:
                found.add(Path(words[words.index("-D") + 1]))
    return found


@pytest.mark.parametrize(
    ("number", "options", "clusters"),
    [(signal.SIGTERM, [], 6), (signal.SIGINT, [], 6), (signal.SIGTERM, ["--replicated"], 4)],
)
def test_nothing_stays(number: signal.Signals, options: list[str], clusters: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "faults", "--work", str(tmp_path / "work"), "--minutes", "5", "--seed", "1"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "processes are there" in line:
                break
        family = list(descendants(run.pid))
        directories = data_directories(family)
        run.stdout.readline()  # the first fault
        run.send_signal(number)
        assert run.stdout.read().endswith("stopped\n")
        assert run.wait() == 130
    assert len(directories) == clusters
    while any(map(lives, family)):
        time.sleep(0.05)
    assert not any(directory.exists() for directory in directories)
