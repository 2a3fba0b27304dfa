"""A replicated site of private clusters: the log's server, a first replica, and copies of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from pgmip.testing import Cluster, Setting

__all__ = ["LOG", "Replicas", "start_agent"]

LOG = "log"
"""The log's server, and its database there."""

# The log is what is durable. Replicas need not flush, and their own crashes are crashes of a process here.
_LOG_SETTINGS: dict[str, Setting] = {"wal_level": "minimal", "max_wal_senders": 0}


class Replicas:
    """Several clusters, and their log."""

    def __init__(
        self,
        database: str,
        members: Sequence[str],
        *,
        settings: Mapping[str, Setting] | None = None,
        log_settings: Mapping[str, Setting] | None = None,
        log: str | None = None,
    ) -> None:
        """`settings`: of every replica. `log`: where it is to be made, if not at a server of its own."""
        self.database = database
        self._given_log = log
        self.log = Cluster(LOG, settings={**_LOG_SETTINGS, **(log_settings or {})}, preload=(), fsync=True)
        first, *others = members
        self.replicas = {first: Cluster(first, settings={"mip.member": first, **(settings or {})})}
        for name in others:
            known = {"mip.member": name, "mip.replicated_database": database, **(settings or {})}
            self.replicas[name] = Cluster(name, settings=known, copy_of=self.replicas[first])

    def start(self, schema: str, **options: object) -> None:
        """`schema` makes all tables, and is carried out at one replica, of which the others become copies. `options`
        are those of `pgmip replica init`.
        """
        if self._given_log is None:
            self.log.start()
            self.log.create_database(LOG)
        first, *others = self.replicas.values()
        first.start()
        first.create_database(self.database)
        first.run_sql(schema, dbname=self.database)
        first.configure({"mip.replicated_database": self.database})
        first.restart()
        words = [f"--{name}={value}" for name, value in options.items()]
        _pgmip("init", "--database", first.conninfo(self.database), "--log", self.where_log_is, *words)
        for other in others:
            other.start()

    @property
    def where_log_is(self) -> str:
        """For --log, once they have started."""
        return self._given_log or self.log.conninfo(LOG)

    def remove(self) -> None:
        for cluster in (*self.replicas.values(), self.log):
            cluster.remove()


def start_agent(database: str, log: str, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """A replica's agent, until it is killed; both are given by connection strings."""
    command = _command("run", "--database", database, "--log", log)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def _pgmip(*arguments: str) -> None:
    subprocess.run(_command(*arguments), check=True, stdout=subprocess.DEVNULL)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pgmip.cli", "replica", *arguments]
