"""The servers of a run: three replicas, and the log, whose disk can be full."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from importlib import resources

import psycopg
from pgmip.testing import Cluster, Setting

from workload.replicas import LOG, Replicas

from ..sites import send
from .plan import MEMBERS

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

# What an INSERT fails with where the disk is full, while there is a file `full` in the log's data directory.
_DISK = """
    CREATE FUNCTION disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (pg_stat_file('full', true)).size IS NOT NULL THEN
            RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER disk BEFORE INSERT ON mip_log.message EXECUTE FUNCTION disk();
"""
_UNDER_WAY = """
    SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name LIKE 'clients%' AND state <> 'idle'
"""


class Site:
    """Its methods block, and one thread at a time may call those that change anything."""

    def __init__(self) -> None:
        self._clusters = Replicas(DATABASE, MEMBERS, settings=SETTINGS, log_settings=LOG_SETTINGS)
        self.servers: dict[str, Cluster] = {**self._clusters.replicas, LOG: self._clusters.log}
        self.log = self._clusters.log

    def start(self) -> None:
        schema = (resources.files(__package__) / "schema.sql").read_text()
        self._clusters.start(schema, window=WINDOW)
        self.log.run_sql(_DISK, dbname=LOG)

    def port(self, server: str) -> int | None:
        """Where it listens; None while it is not there."""
        return self.servers[server].port if self.servers[server].running else None

    def conninfo(self, server: str, port: int | None = None) -> str:
        """Over TCP through `port`, else by its own socket, for whoever looks on."""
        name = LOG if server == LOG else DATABASE
        if port is None:
            return self.servers[server].conninfo(name, application_name="onlooker", connect_timeout=2)
        return self.servers[server].conninfo(name, tcp=True, port=port, sslmode="disable", gssencmode="disable")

    def fill_disk(self) -> None:
        """Of the log: nothing is added from now on."""
        (self.log.data_directory / "full").touch()

    def empty_disk(self) -> None:
        (self.log.data_directory / "full").unlink(missing_ok=True)

    def end(self) -> int:
        """The position of the log's last entry."""
        return int(self.log.run_sql("SELECT max(position) FROM mip_log.message", dbname=LOG)[0][0])

    def until_quiet(self) -> int:
        """Wait until nothing is under way, when all clients have gone, and everything else is at work; until then
        somebody's COMMIT may still be waiting. All replicas have applied the position that it returns.
        """
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            with suppress(psycopg.OperationalError):
                end = self.end()
                for member in MEMBERS:
                    self.servers[member].run_sql(f"SELECT mip.wait_for({end})", dbname=DATABASE)
                time.sleep(2.5)
                if end == self.end() and not any(map(self._under_way, MEMBERS)):
                    return end
        raise TimeoutError("the site does not come to rest")

    def _under_way(self, member: str) -> bool:
        return self.servers[member].run_sql(_UNDER_WAY) != [(0,)]

    def remove(self) -> None:
        for cluster in self.servers.values():
            send(cluster.pids, signal.SIGCONT)
        self._clusters.remove()
