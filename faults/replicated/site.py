"""The servers of a run: three replicas, and the log, whose disk can be full."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path

import psycopg
from pgmip.testing import Cluster, Setting

from workload.replicas import LOG, Replicas

from ..sites import send
from .log import Log, NatsLog, PostgresLog
from .plan import MEMBERS, PARTS

__all__ = ["DATABASE", "Site"]

DATABASE = "bank"
PATIENCE = 300.0
"""Seconds after which something will not happen any more."""
WINDOW = 500
"""Positions for which replicas remember: so short that a run outlasts it, and the log is trimmed."""
LOG_SETTINGS: dict[str, Setting] = {"max_wal_size": "96MB", "min_wal_size": "32MB", "checkpoint_timeout": "30s"}
SETTINGS: dict[str, Setting] = {
    **LOG_SETTINGS,
    # What nobody waits for is lost in a crash as often as can be.
    "wal_writer_delay": "10s",
    "deadlock_timeout": "500ms",
    "log_min_messages": "warning",
    "autovacuum_naptime": "5s",
}

_UNDER_WAY = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name LIKE 'clients%' AND state <> 'idle'
"""


class Site:
    """Its methods block, and one thread at a time may call those that change anything."""

    def __init__(self, log: str) -> None:
        """`log`: what it is kept in."""
        self.parts = PARTS[log]
        """Of the log."""
        self._nats = NatsLog() if log == "jetstream" else None
        where = None if self._nats is None else self._nats.where
        self._clusters = Replicas(DATABASE, MEMBERS, settings=SETTINGS, log_settings=LOG_SETTINGS, log=where)
        self.servers: dict[str, Cluster] = dict(self._clusters.replicas)
        if self._nats is None:
            self.servers[LOG] = self._clusters.log
        self.log: Log = self._nats or PostgresLog(self._clusters.log)

    def start(self) -> None:
        if self._nats is not None:
            self._nats.launch()
        schema = (resources.files(__package__) / "schema.sql").read_text()
        self._clusters.start(schema, window=WINDOW)
        self.log.begin()

    def port(self, to: str) -> int | None:
        """Where a replica, or a part of the log, listens; None while it is not there."""
        if to in self.parts:
            return self.log.port(to)
        return self.servers[to].port if self.servers[to].running else None

    def conninfo(self, member: str, port: int | None = None) -> str:
        """Over TCP through `port`, else by its own socket, for whoever looks on."""
        if port is None:
            return self.servers[member].conninfo(DATABASE, application_name="onlooker", connect_timeout=2)
        return self.servers[member].conninfo(DATABASE, tcp=True, port=port, sslmode="disable", gssencmode="disable")

    def until_quiet(self) -> int:
        """Wait until nothing is under way, when all clients have gone, and everything else is at work; until then
        somebody's COMMIT may still be waiting. All replicas have applied the position that it returns.
        """
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            with suppress(psycopg.OperationalError):
                end = self.log.end()
                for member in MEMBERS:
                    self.servers[member].run_sql(f"SELECT mip.wait_for({end})", dbname=DATABASE)
                time.sleep(2.5)
                if end == self.log.end() and not any(map(self._under_way, MEMBERS)):
                    return end
        raise TimeoutError("the site does not come to rest")

    def _under_way(self, member: str) -> bool:
        return self.servers[member].run_sql(_UNDER_WAY) != [(0,)]

    def remove(self, folder: Path) -> None:
        """What the log has logged goes to that folder."""
        for cluster in self.servers.values():
            send(cluster.pids, signal.SIGCONT)
        self._clusters.remove()
        self.log.remove(folder)
