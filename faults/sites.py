"""A site: a primary, its synchronous standby, and how the one takes over from the other."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psycopg
from pgmip.testing import Cluster, ClusterError, Setting

__all__ = ["DATABASE", "Site", "backends", "send"]

T = TypeVar("T")

DATABASE = "postgres"
PATIENCE = 300.0
"""Seconds after which something will not happen any more."""
SETTINGS: dict[str, Setting] = {
    # What is lost is noticed soon, and nobody waits long for what comes back.
    "wal_sender_timeout": "20s",
    "wal_receiver_timeout": "20s",
    "wal_retrieve_retry_interval": "200ms",
    "deadlock_timeout": "500ms",
    "mip.push_after": "2s",
    # What nobody waits for is lost in a crash as often as can be, and missed by who takes it for written.
    "wal_writer_delay": "10s",
    # Small disks: a standby follows synchronously, so it never needs much of the past.
    "max_wal_size": "96MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "64MB",
    "checkpoint_timeout": "30s",
    "log_min_messages": "warning",
}


class Site:
    """Its methods block, and one thread at a time may call those that change anything."""

    def __init__(self, name: str, schema: str) -> None:
        self.name = name
        self._schema = schema
        self._numbers = itertools.count(1)
        self.primary = self._cluster(None)
        self.standby: Cluster | None = None

    @property
    def port(self) -> int | None:
        """Where the primary listens; None while there is none."""
        return self.primary.port if self.primary.running else None

    def start(self) -> None:
        self.primary.start()
        self.primary.run_sql("CREATE EXTENSION pg_mip", dbname=DATABASE)
        self.primary.run_sql(self._schema, dbname=DATABASE)
        self.add_standby()

    def conninfo(self, port: int | None = None) -> str:
        """Of the primary: over TCP through `port`, else by its own socket, for whoever looks on."""
        if port is None:
            return self.primary.conninfo(DATABASE, application_name="onlooker")
        return self.primary.conninfo(DATABASE, tcp=True, port=port, sslmode="disable", gssencmode="disable")

    def add_standby(self) -> None:
        """From now on nothing is told that would be lost with the primary."""
        standby = self._copy()
        self.primary.configure({"synchronous_standby_names": f'"{standby.name}"'})
        self.standby = standby
        self.until_in_step()

    def _copy(self) -> Cluster:
        """A new standby. One of the primary's server processes may be killed meanwhile, and with it the copying."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self._cluster(self.primary).start(timeout=PATIENCE)
            except ClusterError:
                if time.monotonic() > end:
                    raise

    def until_in_step(self) -> None:
        """Wait until the standby has all that is visible at the primary, and commits wait for it."""
        standby = self.standby
        assert standby is not None
        query = f"SELECT sync_state FROM pg_stat_replication WHERE application_name = '{standby.name}'"
        _until(lambda: self.primary.run_sql(query) == [("sync",)], f"{standby.name} does not become synchronous")
        # Commits that nobody has waited for are visible before they are even written: a checkpoint flushes them. And
        # its process is the one that has commits wait for the standby, as soon as it has read the setting.
        [(flushed,)] = _until(
            lambda: self.primary.run_sql("CHECKPOINT; SELECT pg_current_wal_flush_lsn()"),
            f"{self.primary.name} makes no checkpoint",
        )
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{flushed}'"
        _until(lambda: standby.run_sql(replayed) == [(True,)], f"{standby.name} does not follow")

    def fail_over(self) -> None:
        """Lose the primary for good, and make the standby the primary."""
        assert self.standby is not None
        lost, self.standby = self.primary, self.standby
        lost.kill_postmaster()
        self.standby.promote()
        self.primary, self.standby = self.standby, None
        lost.remove()

    def clusters(self) -> tuple[Cluster, ...]:
        return (self.primary, self.standby) if self.standby else (self.primary,)

    def remove(self) -> None:
        for cluster in self.clusters():
            send(cluster.pids, signal.SIGCONT)
            cluster.remove()

    def _cluster(self, primary: Cluster | None) -> Cluster:
        return Cluster(
            f"{self.name}-{next(self._numbers)}",
            settings={"mip.site_name": self.name, **SETTINGS},
            max_prepared_transactions=200,
            max_connections=300,
            standby_of=primary,
        )


def backends(cluster: Cluster) -> list[int]:
    """Its server processes for clients, one by one."""
    return [pid for pid in cluster.pids[1:] if b"127.0.0.1" in _title(pid)]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _until(ask: Callable[[], T], complaint: str) -> T:
    """Ask until the answer is not empty or false."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(psycopg.OperationalError):
            if answer := ask():
                return answer
        time.sleep(0.05)
    raise ClusterError(complaint)
