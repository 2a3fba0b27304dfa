"""Where tests keep logs: each kind makes new ones, opens them, and has them lose messages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Protocol, Self
from uuid import UUID, uuid4

from pgmip._nats_servers import NatsServers
from pgmip.replication import logs
from pgmip.replication.embedded import EmbeddedLog
from pgmip.replication.engine import Engine, Entry, Message, Place, Unavailable
from pgmip.testing import Cluster

__all__ = [
    *("BEGINNING", "LARGE", "NOW", "EmbeddedKeeper", "JetStreamKeeper", "Keeper", "Log", "append_again_and_again"),
    *("contents", "made", "message", "places"),
]

BEGINNING = Message(UUID(int=1), b"settings")
NOW = 0.001  # seconds to wait for what is there
LARGE = 1 << 30
_numbers = count()


class Log(Engine, Protocol):
    """An engine that is closed at the end."""

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *args: Any) -> None: ...


class Keeper(Protocol):
    """One kind of logs."""

    engine: type

    def nowhere(self) -> str:
        """Where a log may be made."""

    def open(self, log: str, **parameters: Any) -> Any:
        """Of what engines have in common: `patience`, `poll`."""

    async def forget(self, log: str, behind: int) -> None:
        """Let it go back: it ends at that position from now on."""

    async def empty(self, log: str) -> None:
        """Remove all entries."""


class EmbeddedKeeper:
    engine = EmbeddedLog

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names: dict[str, str] = {}

    def nowhere(self) -> str:
        name = f"log_{next(_numbers)}"
        self._cluster.create_database(name)
        log = self._cluster.conninfo(name)
        self._names[log] = name
        return log

    def open(self, log: str, **parameters: Any) -> EmbeddedLog:
        return EmbeddedLog(log, **parameters)

    async def forget(self, log: str, behind: int) -> None:
        self._cluster.run_sql(f"DELETE FROM mip_log.message WHERE position > {behind}", dbname=self._names[log])

    async def empty(self, log: str) -> None:
        self._cluster.run_sql("TRUNCATE mip_log.message", dbname=self._names[log])


class JetStreamKeeper:
    def __init__(self, servers: NatsServers) -> None:
        from pgmip.replication.jetstream import JetStreamLog

        self.engine = JetStreamLog
        self.servers = servers

    def nowhere(self) -> str:
        return self.servers.address(f"log_{next(_numbers)}")

    def open(self, log: str, **parameters: Any) -> Any:
        return self.engine(log, **parameters)

    async def forget(self, log: str, behind: int) -> None:
        """A stream of that name, and with all its settings, gets what is at those positions: as it was stored."""
        async with self.api(log) as (client, stream):
            found = [
                (await client.api(f"STREAM.MSG.GET.{stream}", seq=position))["message"]
                for position in range(1, behind + 1)
            ]
            config = (await client.api(f"STREAM.INFO.{stream}"))["config"]
            await client.api(f"STREAM.DELETE.{stream}")
            await client.api(f"STREAM.CREATE.{stream}", **config)
            for each in found:
                lines = base64.b64decode(each["hdrs"]).decode().split("\r\n")[1:]
                headers = dict(line.split(": ", 1) for line in lines if line.startswith("Pgmip"))
                await client.ask(each["subject"], base64.b64decode(each.get("data", "")), headers)

    async def empty(self, log: str) -> None:
        async with self.api(log) as (client, stream):
            await client.api(f"STREAM.PURGE.{stream}")

    @asynccontextmanager
    async def api(self, log: str) -> AsyncIterator[Any]:
        """A connection, and the stream's name."""
        from pgmip.replication.jetstream_address import parse_address
        from pgmip.replication.jetstream_client import connect

        address = parse_address(log)
        client = await connect(address, address.servers[0], 10)
        try:
            yield client, address.stream
        finally:
            await client.close()


def message(content: bytes = b"") -> Message:
    return Message(uuid4(), content)


async def contents(log: Engine, after: int = 1) -> list[bytes]:
    """Of all entries behind that position, which have to follow each other."""
    found: list[Entry] = []
    while entries := await log.read(after, LARGE, wait=NOW):
        assert [entry.position for entry in entries] == list(range(after + 1, after + 1 + len(entries)))
        found += entries
        after = entries[-1].position
    return [entry.content for entry in found]


async def places(log: Engine) -> list[Place]:
    """Of what there is."""
    entries: list[Entry] = []
    end = await log.end()
    while (after := len(entries)) < end:
        entries += await log.read(after, LARGE, wait=NOW)  # a server that is asked may be late
    return [entry.place for entry in entries if entry.place is not None]


async def append_again_and_again(log: Engine) -> None:
    while True:
        await log.append([message()])


async def made(keeper: Keeper) -> str:
    """A new log."""
    log = keeper.nowhere()
    async with asyncio.timeout(60):
        while True:
            with suppress(Unavailable):  # a stream that is made may have to wait some seconds for its first leader
                await logs.create(log, BEGINNING)
                return log
