"""The log: a PostgreSQL server, or three NATS servers of which the leader is killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

import psycopg
from pgmip._nats_servers import NatsServers
from pgmip.testing import Cluster

from workload.replicas import LOG

LOGS = ("postgresql", "jetstream")


class Log(Protocol):
    def kill(self) -> Callable[[], object]:
        """Kill what keeps it, with SIGKILL. To be called to start it again."""

    def end(self) -> int:
        """The position of its last entry."""


class PostgresLog:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def kill(self) -> Callable[[], object]:
        self._cluster.kill_postmaster()
        return self._cluster.start

    def end(self) -> int:
        with psycopg.connect(self._cluster.conninfo(LOG), autocommit=True) as conn:
            row = conn.execute("SELECT max(position) FROM mip_log.message").fetchone()
        assert row is not None
        return int(row[0])


class JetStreamLog:
    def __init__(self, stack: ExitStack) -> None:
        """They run until the stack ends."""
        self._servers = stack.enter_context(NatsServers())
        self.address = self._servers.address(LOG)

    def kill(self) -> Callable[[], object]:
        """A leader, or any of them while there is none. Another one takes over after some seconds."""
        victim = self._servers.leader(LOG) or self._servers.servers[0]
        victim.kill()
        return self._servers.start

    def end(self) -> int:
        return self._servers.end(LOG)
