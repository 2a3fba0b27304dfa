"""TCP links that know where a message ends, and break, hold or half-close a connection there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

__all__ = ["Direction", "Link", "Mode", "Read", "Strike", "arrived", "postgres"]

Direction = Literal["request", "reply"]
Read = Callable[[asyncio.StreamReader, bool], Awaitable[bytes]]
"""Reads one message; told whether it is the first of its connection and direction. Empty at the end."""


class Mode(StrEnum):
    CUT = "cut"  # both ends see the end of the connection, the message is lost
    TEAR = "tear"  # the same, in the middle of the message
    DEAF = "deaf"  # half closed: who asked sees the end, who was asked goes on waiting for more
    MUTE = "mute"  # half closed: who was asked sees the end, who asked goes on waiting for the answer
    STALL = "stall"  # nobody sees anything for a while, and nothing comes through; then it is cut
    DELAY = "delay"  # this message comes late, and so does everything behind it


@dataclass
class Strike:
    """Happens once, to the `number`-th message (from 0) in one direction, over all connections of a link."""

    mode: Mode
    direction: Direction
    number: int
    hold: float
    """Seconds that a half-closed or stalled connection stays so, or a message is late."""
    struck: bool = False
    _count: int = field(default=0, repr=False)

    def strikes(self, direction: Direction) -> bool:
        if self.struck or direction != self.direction:
            return False
        self._count += 1
        self.struck = self._count > self.number
        return self.struck


async def postgres(reader: asyncio.StreamReader, startup: bool) -> bytes:
    """A message of PostgreSQL's protocol. Clients must not ask for SSL or GSS."""
    kind = b"" if startup else await reader.readexactly(1)
    length = await reader.readexactly(4)
    return kind + length + await reader.readexactly(int.from_bytes(length) - 4)


async def arrived(reader: asyncio.StreamReader, first: bool) -> bytes:
    """What has arrived so far: of HTTP and NATS, where it is small, a whole one, or its head or its body."""
    return await reader.read(65536)


class Link:
    """Listens on a port of its own at 127.0.0.1 and forwards to wherever `target` is now; None is nowhere."""

    def __init__(self, name: str, target: Callable[[], int | None], read: Read) -> None:
        self.name = name
        self.port = 0
        self._target = target
        self._read = read
        self._strike: Strike | None = None
        self._down = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def arm(self, strike: Strike) -> None:
        self._strike = strike

    def disarm(self, strike: Strike) -> None:
        if self._strike is strike:
            self._strike = None

    def down(self) -> None:
        """Cut all connections and refuse new ones, until `up`."""
        self._down = True
        self.cut()

    def up(self) -> None:
        self._down = False

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        """End what is stalled or half closed; everything new goes through."""
        self._strike = None
        self.up()
        self.cut()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(to_client)
        to_server: asyncio.StreamWriter | None = None
        try:
            port = self._target()
            if not self._down and port is not None:
                from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
                self._writers.add(to_server)
                await self._connect(_Wire(from_client, to_client, from_server, to_server))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for writer in (to_client, to_server):
                if writer is not None:
                    writer.close()
                    self._writers.discard(writer)

    async def _connect(self, wire: _Wire) -> None:
        """Until one end is gone, and whatever has struck is over."""
        tasks = [
            asyncio.create_task(self._forward(wire, wire.from_client, wire.to_server, "request")),
            asyncio.create_task(self._forward(wire, wire.from_server, wire.to_client, "reply")),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(
        self, wire: _Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        first = direction == "request"
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while message := await self._read(reader, first):
                first = False
                strike = self._strike
                if wire.struck is None and strike is not None and strike.strikes(direction):
                    await wire.happen(strike, message, writer)
                    if strike.mode is not Mode.DELAY:
                        return
                if wire.struck is not None:
                    break
                writer.write(message)
                await writer.drain()
        if wire.struck is not None:
            await wire.struck.wait()


@dataclass
class _Wire:
    """One connection, from end to end."""

    from_client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    from_server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    struck: asyncio.Event | None = None
    """Set as soon as a strike that ends this connection is over."""

    async def happen(self, strike: Strike, message: bytes, writer: asyncio.StreamWriter) -> None:
        if strike.mode is Mode.DELAY:
            await asyncio.sleep(strike.hold)
            return
        self.struck = asyncio.Event()
        try:
            match strike.mode:
                case Mode.TEAR:
                    writer.write(message[: len(message) // 2])
                    await writer.drain()
                case Mode.DEAF:
                    self.to_client.transport.abort()
                case Mode.MUTE:
                    self.to_server.transport.abort()
            if strike.mode not in (Mode.CUT, Mode.TEAR):
                await asyncio.sleep(strike.hold)
        finally:
            self.struck.set()
