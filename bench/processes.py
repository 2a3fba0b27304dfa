"""The nodes of bench/coordinators.py as processes, and what they have written down."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .places import ACCOUNTS, PYTHON, THREADS, Places

NODES = Path(__file__).parent / "nodes"
TOP = Path(__file__).parent.parent


@dataclass
class Journal:
    """What a node has written down; see nodes/node.py."""

    begun: dict[str, tuple[int, int]] = field(default_factory=dict)
    ended: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        """One that has been written since."""
        kind, key, *rest = line.split(" ")
        if kind == "b":
            self.begun[key] = (int(rest[0]), int(rest[1]))
        elif kind == "e" and len(rest) == 2:
            self.ended[key] = (int(rest[0]), int(rest[1]))

    @property
    def under_way(self) -> dict[str, tuple[int, int]]:
        return {key: accounts for key, accounts in self.begun.items() if key not in self.ended}


class Node:
    """A process of nodes/."""

    def __init__(
        self, places: Places, folder: Path, classpath: str, contender: str, name: str, sessions: int, journal: str,
        *, ports: Sequence[int] | None = None, requests: Path | None = None,
    ) -> None:  # fmt: skip
        self._journal, self._read = Journal(), 0
        self.journal_path = folder / journal
        self.journal_path.write_text("")
        self.log = (folder / f"{journal}.log").open("w")
        program = [sys.executable, "-m", "bench.nodes.threads" if contender == THREADS else "bench.nodes.node"]
        if contender not in PYTHON:
            program = ["java", "-cp", classpath, "bench.Node"]
        arguments = [
            contender, name, *places.conninfos(contender, ports), str(sessions), str(ACCOUNTS),
            str(folder), str(self.journal_path), *([str(requests)] if requests else []),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [*program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            cwd=TOP if contender in PYTHON else folder,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        sys.exit(f"a node has not started, see {self.log.name}:\n{Path(self.log.name).read_text()[-2000:]}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def journal(self) -> Journal:
        """As it is now. What has been read once is not read again."""
        with self.journal_path.open() as file:
            file.seek(self._read)
            for line in file.readlines():
                self._journal.take(line)
            self._read = file.tell()
        return self._journal
