"""A TCP proxy that knows where a message of the PostgreSQL protocol ends, and breaks the connection there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from relay import Relay, hang_up

__all__ = ["Direction", "Fault", "Mode", "Proxy"]

Direction = Literal["request", "reply"]


class Mode(Enum):
    CUT = "cut"  # both ends see the end of the connection
    HALF = "half"  # the client sees it, the server goes on waiting for the client
    STALL = "stall"  # nobody sees anything, and nothing comes through any more
    LATE = "late"  # likewise, until what has been sent by then is let go; it is no answer to anybody


@dataclass
class Fault:
    """Strikes once, in place of the `number`-th message (from 0) in one direction, over all connections."""

    mode: Mode
    direction: Direction
    number: int
    struck: bool = False
    _count: int = field(default=0, repr=False)

    def strikes(self, direction: Direction) -> bool:
        if self.struck or direction != self.direction:
            return False
        self._count += 1
        self.struck = self._count > self.number
        return self.struck


class Proxy(Relay):
    """Forwards to `port`. Clients must not ask for SSL or GSS."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = port
        self._fault: Fault | None = None
        self._down = False
        self._frozen = False
        self._let_go = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.on_message: Callable[[Direction], object] = lambda direction: None
        """Called before each message that is forwarded."""
        self.forbidden: tuple[bytes, ...] = ()
        """Whatever has one of these in it does not come through, and cuts its connection."""
        self.trips = 0
        """Round trips so far: how often the server was ready for the next query."""

    def arm(self, fault: Fault) -> None:
        self._fault = fault

    def down(self) -> None:
        """Cut all connections and refuse new ones."""
        self._down = True
        self.cut()

    def freeze(self) -> None:
        """Let nothing through any more, and answer nobody, as a server that has been stopped."""
        self._frozen = True

    def thaw(self) -> None:
        """Let through what connects from now on."""
        self._frozen = False

    def refuse(self) -> None:
        """Refuse new connections only."""
        self._down = True

    def let_go(self) -> None:
        """Deliver what is late."""
        self._let_go.set()

    def heal(self) -> None:
        """End what is stalled or half closed; everything new goes through."""
        self._fault, self._down, self._frozen = None, False, False
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers = [to_client]
        self._writers.add(to_client)
        try:
            if self._down:
                return
            if self._frozen:
                await asyncio.Event().wait()
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(to_server)
            self._writers.add(to_server)
            ends = (to_client, to_server)
            await asyncio.gather(
                self._forward(from_client, to_server, "request", ends),
                self._forward(from_server, to_client, "reply", ends),
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.difference_update(writers)
            await hang_up(*writers)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        startup = direction == "request"
        while True:
            kind = b"" if startup else await reader.readexactly(1)
            length = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(length) - 4)
            if self._frozen:
                await asyncio.Event().wait()
            if any(word in body for word in self.forbidden):
                ends[0].transport.abort()
                raise ConnectionAbortedError
            if not startup and self._fault is not None and self._fault.strikes(direction):
                if self._fault.mode is Mode.LATE:
                    await self._deliver(kind + length + body, reader, writer)
                if self._fault.mode in (Mode.CUT, Mode.HALF):
                    ends[0].transport.abort()
                if self._fault.mode is not Mode.CUT:
                    await asyncio.Event().wait()
                raise ConnectionAbortedError
            if not startup:
                self.on_message(direction)
            startup = False
            self.trips += direction == "reply" and kind == b"Z"
            writer.write(kind + length + body)
            await writer.drain()

    async def _deliver(self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._let_go.wait()
        writer.write(message)
        while rest := await reader.read(65536):
            writer.write(rest)
        await writer.drain()
