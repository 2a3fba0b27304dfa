"""`pgmip replica ... --log nats://...`: made once, followed by an agent; and what is said where that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas import Replica
from test_cli import OK, PROBLEMS, UNREACHABLE, USAGE, Cli
from test_cli_process import wait_until

from pgmip._nats_servers import NatsServers, find_nats_server
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration
needs_nats = pytest.mark.skipif(find_nats_server() is None, reason="there is no nats-server: ./run test jetstream")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("replica", preload=()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsServers]:
    with NatsServers() as servers:
        yield servers


@needs_nats
def test_a_log_from_its_beginning(cluster: Cluster, servers: NatsServers, tmp_path: Path) -> None:
    cli, replica, log = Cli({}), Replica(cluster, "replica"), servers.address("log")
    options = ["--database", replica.conninfo, "--log", log]
    assert "no such stream" in cli("replica", "status", *options, code=PROBLEMS).stderr
    assert cli.json("replica", "init", *options)["made"] is True
    assert cli.json("replica", "init", *options)["made"] is False
    replica.commit(b"one", b"two")
    command = [sys.executable, "-m", "pgmip.cli", "replica", "run", *options]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    agent = subprocess.Popen(command, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: replica.applied == [b"one", b"two"])
    finally:
        agent.terminate()
        assert agent.wait() == OK
    replica.sql("TRUNCATE mip.applied")
    assert "has gone on to position 3" in cli("replica", "init", *options, code=PROBLEMS).stderr


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        ("nats://127.0.0.1:1", USAGE, "no name of a stream"),
        ("nats://127.0.0.1:1/log?colour=red", USAGE, "not an option: colour"),
        ("nats://127.0.0.1:1/log", UNREACHABLE, "NATS cannot be reached"),
    ],
)
def test_where_there_is_none(cluster: Cluster, log: str, code: int, said: str) -> None:
    database = Replica(cluster, f"none_{abs(hash(log))}").conninfo
    assert said in Cli({})("replica", "init", "--database", database, "--log", log, code=code).stderr


def test_without_the_package(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pgmip.replication.jetstream", raising=False)
    monkeypatch.delitem(sys.modules, "pgmip.replication.jetstream_client", raising=False)
    monkeypatch.delattr("pgmip.replication.jetstream", raising=False)
    for name in ("nats", "nats.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    said = Cli({})("replica", "init", "--database", cluster.conninfo(), "--log", "nats://a/log", code=USAGE).stderr
    assert "pip install './python[jetstream]'" in " ".join(said.split())
