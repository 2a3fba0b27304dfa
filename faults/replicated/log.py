"""The log of a run: a PostgreSQL server, or three NATS servers. It is of parts that are killed, and reached, each by
itself.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import nats
from pgmip._nats_servers import NatsServer, NatsServers
from pgmip.testing import Cluster

from workload.replicas import LOG

from ..sites import send
from .plan import PARTS

__all__ = ["Log", "NatsLog", "PostgresLog"]

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


class Log(Protocol):
    """Its methods block; but for `address` and `port` one thread at a time calls them for a part."""

    def begin(self) -> None:
        """Once it has been made."""

    def address(self, ports: Mapping[str, int]) -> str:
        """For an agent, which reaches the parts through these ports."""

    def port(self, part: str) -> int | None:
        """Where it listens; None while it is not there."""

    def kill(self, part: str) -> None:
        """With SIGKILL."""

    def start(self, part: str) -> None: ...

    def pause(self, part: str) -> None: ...

    def resume(self, part: str) -> None: ...

    def end(self) -> int:
        """The position of the last entry."""

    def remove(self, folder: Path) -> None:
        """Nothing is left but what it has logged, in that folder."""


class PostgresLog:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._paused: tuple[int, ...] = ()

    def begin(self) -> None:
        self._cluster.run_sql(_DISK, dbname=LOG)

    def address(self, ports: Mapping[str, int]) -> str:
        return self._cluster.conninfo(LOG, tcp=True, port=ports[LOG], sslmode="disable", gssencmode="disable")

    def port(self, part: str) -> int | None:
        return self._cluster.port if self._cluster.running else None

    def kill(self, part: str) -> None:
        self._cluster.kill_postmaster()

    def start(self, part: str) -> None:
        self._cluster.start(timeout=300)

    def pause(self, part: str) -> None:
        self._paused = tuple(self._cluster.pids)
        send(self._paused, signal.SIGSTOP)

    def resume(self, part: str) -> None:
        send(self._paused, signal.SIGCONT)

    def fill_disk(self) -> None:
        """Nothing is added from now on."""
        (self._cluster.data_directory / "full").touch()

    def empty_disk(self) -> None:
        (self._cluster.data_directory / "full").unlink(missing_ok=True)

    def end(self) -> int:
        return int(self._cluster.run_sql("SELECT max(position) FROM mip_log.message", dbname=LOG)[0][0])

    def remove(self, folder: Path) -> None:
        """The cluster is removed with the others."""


class NatsLog:
    def __init__(self) -> None:
        self._servers = NatsServers()
        self._parts: dict[str, NatsServer] = dict(zip(PARTS["jetstream"], self._servers.servers, strict=True))

    @property
    def where(self) -> str:
        """For who makes it."""
        return self._servers.address(LOG)

    def launch(self) -> None:
        """Start all of them, before it is made."""
        self._servers.start()

    def begin(self) -> None:
        pass

    def address(self, ports: Mapping[str, int]) -> str:
        places = ",".join(f"127.0.0.1:{ports[part]}" for part in self._parts)
        return f"nats://{places}/{LOG}?{self.where.partition('?')[2]}"

    def port(self, part: str) -> int | None:
        return self._parts[part].client if self._parts[part].is_running else None

    def kill(self, part: str) -> None:
        self._parts[part].kill()

    def start(self, part: str) -> None:
        self._servers.start_one(self._parts[part])

    def pause(self, part: str) -> None:
        self._parts[part].pause()

    def resume(self, part: str) -> None:
        self._parts[part].resume()

    async def change_leader(self) -> bool:
        """Have the leader hand over; whether there is one that does."""
        places = [f"nats://127.0.0.1:{server.client}" for server in self._parts.values()]
        try:
            client = await nats.connect(places, connect_timeout=1, allow_reconnect=False)
        except (OSError, TimeoutError, nats.errors.Error):
            return False
        try:
            answer = await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{LOG}", timeout=2)
        except (OSError, TimeoutError, nats.errors.Error):
            return False
        finally:
            await client.close()
        return b'"success":true' in answer.data

    def end(self) -> int:
        return self._servers.end(LOG)

    def remove(self, folder: Path) -> None:
        for part in self._parts:
            shutil.copy(self._servers.folder / f"{part}.log", folder / f"{part}.nats")
        self._servers.remove()
