"""The command line as a process: signals, pipes, terminals, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shop import Shop
from test_cli import leftovers
from test_sweeper import in_doubt, prepare_at

from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

PGMIP = [sys.executable, "-m", "pgmip.cli"]
INTERRUPTED, CLOSED_PIPE = 130, 141
PATIENCE = 60
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(shop: Shop, tmp_path: Path) -> Iterator[Start]:
    """Starts `pgmip WORDS...` with the sites in the environment."""
    processes: list[subprocess.Popen[str]] = []
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    environ = {
        **known,
        "TERM": "xterm",
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PGMIP_SITES": "\n".join(f"{name}={conninfo}" for name, conninfo in shop.conninfos().items()),
    }

    def begin(*words: str, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [*PGMIP, *words], text=True, cwd=tmp_path, env={**environ, **(environment or {})}, **pipes
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.02)


def test_exit_codes(start: Start, shop: Shop) -> None:
    assert start("status").wait(PATIENCE) == 0
    assert start("show", "never").wait(PATIENCE) == 4
    assert start("status", "--site", "a=host=127.0.0.1 port=1").wait(PATIENCE) == 3
    assert start("status", "--nonsense").wait(PATIENCE) == 2
    assert start("doctor").wait(PATIENCE) == 1


def test_without_the_extra(start: Start) -> None:
    process = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['typer'] = None; from pgmip.cli import main; main()"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert process.returncode == 2
    hint = "in the clone of pg_mip, pip install './python[cli]'"
    assert process.stderr == f"pgmip: the command line needs typer: {hint}\n"


@pytest.mark.parametrize(
    "command",
    [
        *("status", "doctor", "top", "sweep --interval=0.1"),
        *("status --json", "doctor --json", "top --json", "sweep --interval=0.1 --json", "show nobody-knows --json"),
    ],
)
def test_a_closed_pipe(start: Start, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*command.split(), stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("command", ["status", "status --json", "show nobody-knows --json", "sweep --interval=0.1"])
def test_a_full_disk(start: Start, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        process = start(*command.split(), stdout=full)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (1, "pgmip: [Errno 28] No space left on device\n")


def test_ctrl_c(start: Start) -> None:
    process = start("top", "--json", "--interval", "0.1")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (INTERRUPTED, "")


def test_an_interrupted_bench_cleans_up(start: Start, shop: Shop) -> None:
    process = start("bench", "--seconds", "3600")
    wait_until(lambda: len(leftovers(shop)) > 10)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (INTERRUPTED, "")
    assert leftovers(shop) == []
    shop.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_sweep_until_told_to_stop(start: Start, shop: Shop, number: signal.Signals) -> None:
    process = start("sweep", "--cancel-unknown", "--older-than", "0", "--interval", "0.2", "--json")
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in shop.clusters]
    assert {(line["event"], line["site"]) for line in lines} == {("listening", "store"), ("listening", "bank")}
    xid = new_xid()
    prepare_at(shop, xid, "store")
    line = json.loads(process.stdout.readline())
    assert (line["event"], line["xid"], line["site"], line["error"]) == ("cancelled", xid, None, None)
    process.send_signal(number)
    rest, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest, errors) == (0, "", "")
    assert in_doubt(shop) == [0, 0]


def test_two_sweep_processes_at_once(start: Start, shop: Shop) -> None:
    processes = [start("sweep", "--cancel-unknown", "--older-than", "0", "--interval", "0.2") for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
    xids = [new_xid() for _ in range(8)]
    for number, xid in enumerate(xids):
        prepare_at(shop, xid, "store", *(["bank"] if number % 2 else []))
    wait_until(lambda: in_doubt(shop) == [0, 0])
    for process in processes:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    for number, xid in enumerate(xids):
        results = {
            row for site in shop.clusters
            for row in shop.sql(site, f"SELECT result FROM mip.instances('{xid}') WHERE state = 'committed'")
        }  # fmt: skip
        assert results == {('"of 1"' if number % 2 else None,)}


def on_terminal(
    start: Start, *words: str, says: bytes = b"", environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output of a command that has a terminal; it is told `says` once it asks."""
    mine, its = pty.openpty()
    process = start(*words, stdin=its, stdout=its, stderr=its, environment=environment)
    os.close(its)
    output = b""
    while True:
        try:
            chunk = os.read(mine, 4096)
        except OSError:  # the other end is closed
            break
        output += chunk
        if says and b"[y/N]" in output:
            os.write(mine, says)
            says = b""
    os.close(mine)
    return process.wait(PATIENCE), output.decode()


def test_colours_are_for_terminals(start: Start) -> None:
    assert "\x1b[" in on_terminal(start, "status")[1]
    assert "\x1b[" not in on_terminal(start, "status", environment={"NO_COLOR": "1"})[1].replace("\x1b[1m", "").replace(
        "\x1b[0m", ""
    )
    piped, _ = start("status").communicate(timeout=PATIENCE)
    assert "\x1b" not in piped
    assert "\x1b" not in on_terminal(start, "status", "--json")[1]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_it_asks_before_it_cancels_something_young(start: Start, shop: Shop, answer: str) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    code, output = on_terminal(start, "resolve", xid, "--cancel", says=f"{answer}\n".encode())
    assert "may be working on the request" in output
    assert code == (0 if answer == "y" else 1)
    assert in_doubt(shop) == ([0, 0] if answer == "y" else [1, 0])


def test_top_on_a_terminal(start: Start) -> None:
    code, output = on_terminal(start, "top", "--count", "2", "--interval", "0.1")
    assert code == 0
    assert "Nothing is in doubt" in output


def test_connections_are_named(start: Start, shop: Shop) -> None:
    """An operator sees who is there."""
    start("sweep")

    def names() -> set[str]:
        return {name for (name,) in shop.sql("store", "SELECT application_name FROM pg_stat_activity")}

    wait_until(lambda: "pgmip sweeper" in names())
