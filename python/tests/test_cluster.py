"""The private clusters themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import pgmip
from pgmip.testing import Cluster, ClusterError, find_bindir


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.05)


def test_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ClusterError, match="root"):
        Cluster()


@pytest.mark.integration
def test_life_of_a_cluster() -> None:
    with Cluster("life", settings={"work_mem": "1MB", "application_name": "it's"}, preload=()) as cluster:
        cluster.create_database("a b")
        cluster.run_sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)", dbname="a b")
        assert cluster.run_sql("SELECT 0; TABLE t", dbname="a b") == [(1,)]
        assert cluster.run_sql("SHOW work_mem") == [("1MB",)]
        with psycopg.connect(cluster.conninfo(tcp=True)) as conn:
            cluster.kill_postmaster()
            with pytest.raises(psycopg.OperationalError):
                conn.execute("SELECT 1")
        assert not cluster.running
        cluster.start()
        cluster.restart()
        assert cluster.run_sql("TABLE t", dbname="a b") == [(1,)]
        assert "automatic recovery" in cluster.log_tail(1000)
        directory = cluster.directory
    assert not directory.exists()
    cluster.remove()


@pytest.mark.integration
def test_a_standby_takes_over() -> None:
    with Cluster("first", preload=()) as first, Cluster("second", preload=(), standby_of=first) as second:
        first.configure({"synchronous_standby_names": "second"})
        wait_for(lambda: first.run_sql("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        first.run_sql("CHECKPOINT")  # whose process lets commits wait, once it has read the setting
        first.run_sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        first.kill_postmaster()
        second.promote()
        second.run_sql("INSERT INTO t VALUES (2)")
        second.restart()
        assert second.run_sql("TABLE t") == [(1,), (2,)]
        psycopg.connect(second.conninfo(tcp=True)).close()


@pytest.mark.integration
def test_a_postmaster_dies_alone() -> None:
    with Cluster("alone", preload=()) as cluster:
        assert len(cluster.pids) > 1
        cluster.kill_postmaster(alone=True)
        assert cluster.pids == ()
        cluster.start()  # which is refused while anything of it is left


@pytest.mark.integration
def test_a_cluster_that_cannot_start_says_why() -> None:
    cluster = Cluster("wrong", settings={"shared_buffers": "nonsense"}, preload=())
    with pytest.raises(ClusterError, match="nonsense"):
        cluster.start()
    cluster.remove()


@pytest.mark.integration
def test_sigterm_removes_it() -> None:
    script = """
import time
from pgmip.testing import Cluster
cluster = Cluster("term", preload=()).start()
print(cluster.directory, flush=True)
time.sleep(60)
"""
    path = str(Path(pgmip.__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert directory.exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    time.sleep(0.1)
    assert not directory.exists()


@pytest.mark.integration
def test_pg_config_is_respected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bindir = find_bindir()
    script = tmp_path / "pg_config"
    script.write_text(f"#!/bin/sh\necho {bindir}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PG_CONFIG", str(script))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_bindir() == bindir
