"""`pgmip replica`: a log is made once, an agent runs until it is told to stop, or cannot go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from replicas import Replica
from test_cli import NOWHERE, OK, PROBLEMS, UNREACHABLE, USAGE, Cli
from test_cli_process import wait_until

from pgmip.replication.agent import Agent
from pgmip.replication.embedded import EmbeddedLog
from pgmip.replication.metrics import ReplicaMetrics
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

PATIENCE = 60
LARGE = 1 << 30
Start = Callable[..., "subprocess.Popen[str]"]
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("replica", preload=(), fsync=True) as cluster:
        yield cluster


@pytest.fixture
def replica(cluster: Cluster) -> Replica:
    return Replica(cluster, f"replica_{next(_numbers)}")


@pytest.fixture
def log(cluster: Cluster) -> str:
    """A database without a log."""
    name = f"log_{next(_numbers)}"
    cluster.create_database(name)
    return cluster.conninfo(name)


@pytest.fixture
def cli() -> Cli:
    return Cli({})


@pytest.fixture
def start(replica: Replica, log: str, tmp_path: Path) -> Iterator[Start]:
    """Starts `pgmip replica WORDS...` with this replica and log."""
    processes: list[subprocess.Popen[str]] = []
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pgmip.cli", "replica", *words, "--database", replica.conninfo, "--log", log]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, cwd=tmp_path, env=environ, **pipes)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def first_of(log: str) -> bytes:
    async def read() -> bytes:
        async with EmbeddedLog(log) as engine:
            return (await engine.read(0, LARGE, wait=0))[0].content

    return asyncio.run(read())


def test_init(cli: Cli, replica: Replica, log: str) -> None:
    options = ("--database", replica.conninfo, "--log", log)
    assert "is made" in cli("replica", "init", *options, code=OK).stdout
    first = first_of(log)
    assert first.startswith(b"S 100000 ")
    assert cli.json("replica", "init", *options) == {"command": "replica init", "made": False, "window": 100_000}
    assert first_of(log) == first
    assert "another beginning" in cli("replica", "init", *options, "--window=5", code=PROBLEMS).stderr


def test_the_log_of_another_database(cli: Cli, cluster: Cluster, replica: Replica, log: str) -> None:
    other = Replica(cluster, f"replica_{next(_numbers)}")
    cli("replica", "init", "--database", replica.conninfo, "--log", log, "--window=5", code=OK)
    assert first_of(log).startswith(b"S 5 ")
    said = cli("replica", "init", "--database", other.conninfo, "--log", log, "--window=5", code=PROBLEMS)
    assert "another beginning" in said.stderr


def forget(replica: Replica) -> None:
    """As who is to begin a new log."""
    replica.sql("TRUNCATE mip.applied")


def test_init_with_a_log_that_is_another_one(cli: Cli, cluster: Cluster, replica: Replica, log: str) -> None:
    """Though it has been made for the same database."""
    options = ("--database", replica.conninfo, "--log")
    cluster.create_database(f"{(other := f'log_{next(_numbers)}')}")
    cli("replica", "init", *options, log, code=OK)
    assert "follows one already" in cli("replica", "init", *options, cluster.conninfo(other), code=PROBLEMS).stderr
    forget(replica)
    cli("replica", "init", *options, cluster.conninfo(other), code=OK)
    assert "another log" in cli("replica", "init", *options, log, code=PROBLEMS).stderr


def test_init_with_a_log_that_has_gone_on(cli: Cli, replica: Replica, log: str, start: Start) -> None:
    """Whoever does not know of any would take all that is in it."""
    options = ("--database", replica.conninfo, "--log", log)
    cli("replica", "init", *options, code=OK)
    forget(replica)
    assert "is there already" in cli("replica", "init", *options, code=OK).stdout
    replica.commit(b"one")
    agent = start("run")
    wait_until(lambda: replica.applied == [b"one"])
    assert "an agent is at work" in cli("replica", "init", *options, code=PROBLEMS).stderr
    agent.kill()
    agent.wait()
    forget(replica)
    wait_until(lambda: replica.sql("SELECT FROM mip.replication WHERE applier_pid IS NULL") != [])
    assert "gone on to position 2" in cli("replica", "init", *options, code=PROBLEMS).stderr
    assert "follows no log yet" in cli("replica", "init", *options, code=PROBLEMS).stderr
    assert replica.applied == []


def test_init_where_the_log_has_lost_messages(cli: Cli, replica: Replica, log: str) -> None:
    options = ("--database", replica.conninfo, "--log", log)
    cli("replica", "init", *options, code=OK)
    replica.sql("INSERT INTO mip.applied VALUES (2, 'one')")
    assert "it has lost messages" in cli("replica", "init", *options, code=PROBLEMS).stderr


@pytest.mark.parametrize("command", ["init", "status"])
def test_what_cannot_be_done(cli: Cli, cluster: Cluster, replica: Replica, log: str, command: str) -> None:
    def said(database: str, log: str, code: int) -> str:
        return str(cli("replica", command, "--database", database, "--log", log, code=code).stderr)

    said("nonsense", log, USAGE)
    assert "--log: not a connection string" in said(replica.conninfo, "nonsense", USAGE)
    assert "the database: " in said(NOWHERE, log, UNREACHABLE)
    assert "the log: " in said(replica.conninfo, NOWHERE, UNREACHABLE)
    assert "CREATE EXTENSION" in said(cluster.conninfo(), log, PROBLEMS)


def test_status(cli: Cli, replica: Replica, log: str, start: Start) -> None:
    options = ("--database", replica.conninfo, "--log", log)
    assert "no log in this database" in cli("replica", "status", *options, code=PROBLEMS).stderr
    cli("replica", "init", *options, code=OK)
    document = cli.json("replica", "status", *options, code=PROBLEMS)
    assert (document["end"], document["behind"], document["replication"]["applied"]) == (1, 0, 1)
    assert "no agent" in cli("replica", "status", *options, code=PROBLEMS).stderr
    replica.commit(b"one")
    start("run")
    wait_until(lambda: replica.applied == [b"one"])
    document = cli.json("replica", "status", *options, code=OK)
    assert (document["end"], document["behind"], document["replication"]["applied"]) == (2, 0, 2)
    assert "behind" in cli("replica", "status", *options, code=OK).stdout


def test_members(cli: Cli, replica: Replica, log: str) -> None:
    options = ("--database", replica.conninfo)
    cli("replica", "init", *options, "--log", log, code=OK)
    document = cli.json("replica", "status", *options, "--log", log, code=PROBLEMS)
    members = document["members"]
    assert [member["member"] for member in members] == ["at work", "gone", "one"]
    at_work = {"member": "at work", "applied": 1, "behind": 2, "behind_bytes": 200, "lag": "00:00:02", "heard": None}
    assert members[0] == at_work
    assert document["refusals"] == [
        {"relation": "mip.members", "reason": "conflict", "refused": 3},
        {"relation": None, "reason": "definition", "refused": 1},
    ]
    shown = cli("replica", "status", *options, "--log", log, code=PROBLEMS).stdout
    assert "at work" in shown
    assert "conflict" in shown
    assert cli("replica", "leave", "gone", *options, code=OK).stdout == "gone has left\n"
    assert "no member is called gone" in cli("replica", "leave", "gone", *options, code=PROBLEMS).stderr
    still = cli("replica", "leave", "at work", *options, "--timeout=0.1", code=PROBLEMS)
    assert "at work is still a member" in still.stderr
    assert cli.json("replica", "leave", "one", *options) == {"command": "replica leave", "member": "one"}
    assert "the database: " in cli("replica", "leave", "one", "--database", NOWHERE, code=UNREACHABLE).stderr
    assert "--database: not a" in cli("replica", "leave", "one", "--database", "nonsense", code=USAGE).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_until_told_to_stop(replica: Replica, start: Start, number: signal.Signals) -> None:
    assert start("init").wait(PATIENCE) == OK
    process = start("run", "--json")
    assert process.stdout is not None
    begun = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert {(line["event"], line["part"], line["error"]) for line in begun} == {
        ("begun", "taker", None),
        ("begun", "applier", None),
    }
    replica.commit(b"one", b"two")
    assert json.loads(process.stdout.readline())["event"] == "progress"
    wait_until(lambda: replica.waiting == 0)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (OK, "")
    assert replica.applied == [b"one", b"two"]


def test_lines_for_people(replica: Replica, start: Start) -> None:
    process = start("run")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    lost = "lost        applier: Refused: this replica follows no log yet (let it begin: pgmip replica init)"
    assert any(lost in line for line in lines)
    assert start("init").wait(PATIENCE) == OK
    replica.commit(b"one")
    while "progress" not in (line := process.stdout.readline()):
        pass
    assert "one has applied 2, 0 behind" in line


def test_metrics(replica: Replica, start: Start, cli: Cli) -> None:
    """While the agent runs; of this machine only, unless it is told otherwise."""
    port = free_port()
    assert start("init").wait(PATIENCE) == OK
    process = start("run", "--metrics", str(port))

    def value(name: str) -> float | None:
        with suppress(httpx.TransportError):
            for line in httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines():
                if line.startswith(f"pgmip_replica_{name} "):
                    return float(line.split()[-1])
        return None

    replica.commit(b"one", b"two")
    wait_until(lambda: value("applied") == 3)
    wait_until(lambda: value("waiting") == 0)
    wait_until(lambda: value("appended_total") == 2)
    assert value('received_total{result="committed"}') == 2
    assert (value("up"), value("log_up"), value("log_end"), value("behind"), value("applier")) == (1, 1, 3, 0, 1)
    assert value('member_behind{member="at work"}') == 2
    assert value('member_behind_bytes{member="at work"}') == 200
    assert value('member_lag_seconds{member="at work"}') == 2
    assert value('refusals{reason="conflict",relation="mip.members"}') == 3
    assert value('refusals{reason="definition",relation=""}') == 1
    assert value('member_silent_seconds{member="at work"}') is None
    assert value('member_silent_seconds{member="one"}') is not None
    taken = start("run", "--metrics", f":{port}")
    assert "pgmip: --metrics: Address already in use" in taken.communicate(timeout=PATIENCE)[1]
    assert taken.returncode == UNREACHABLE
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == OK
    for wrong in ("nonsense", "0", "65536", "host:"):
        options = ("--database", replica.conninfo, "--log", NOWHERE)
        assert "not [HOST:]PORT" in cli("replica", "run", *options, "--metrics", wrong, code=USAGE).stderr


async def test_metrics_of_what_cannot_be_asked(replica: Replica, log: str) -> None:
    registry = CollectorRegistry()
    async with EmbeddedLog(NOWHERE, patience=5) as engine:
        agent = Agent(replica.conninfo, engine)
        there = ReplicaMetrics(replica.conninfo, agent, registry)
        value = registry.get_sample_value
        assert list(registry.collect()) == []
        await there.look()
        assert (value("pgmip_replica_up"), value("pgmip_replica_log_up")) == (1, 0)
        assert (value("pgmip_replica_applied"), value("pgmip_replica_behind")) == (0, None)
        assert value("pgmip_replica_applier") == 0
        await ReplicaMetrics(NOWHERE, agent, other := CollectorRegistry()).look()
        assert other.get_sample_value("pgmip_replica_up") == 0
        assert other.get_sample_value("pgmip_replica_applied") is None


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_output_to_a_full_disk(replica: Replica, log: str, start: Start) -> None:
    """It may go on when it is started again."""
    assert start("init").wait(PATIENCE) == OK
    command = [sys.executable, "-m", "pgmip.cli", "replica", "run", "--database", replica.conninfo, "--log", log]
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == UNREACHABLE
    assert "No space left" in process.stderr


def test_run_cannot_go_on(replica: Replica, start: Start) -> None:
    assert start("init").wait(PATIENCE) == OK
    replica.sql("UPDATE mip.applied SET message = 'something else'")
    process = start("run")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == PROBLEMS
    assert errors == "pgmip: another log\nhint: Look at the logs.\n"
    last = start("run", "--json").communicate(timeout=PATIENCE)[0].splitlines()[-1]
    assert json.loads(last) == {
        "command": "replica run",
        "error": {"message": "another log", "hint": "Look at the logs.", "exit_code": PROBLEMS},
    }
