"""For the tests of HTTP: an App without databases, real servers, and a proxy that breaks the wire."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import uvicorn
from relay import Relay, hang_up
from uvicorn.protocols.http.h11_impl import H11Protocol

from pgmip import App, Decided, Refused, Unknown
from pgmip._answer import Answer, Recorded
from pgmip.xinst import checked_xid

Direction = Literal["request", "reply"]


class FakeApp(App):
    """Answers every request with `answer`, or raises it; what is Refused or Decided is an answer."""

    def __init__(self, answer: Any = None, *, replayed: bool = False) -> None:
        super().__init__({"store": ""})
        self.answer = answer
        self.replayed = replayed
        self.asked: list[tuple[str, Any, str | None]] = []
        self.undecided: set[str] = set()
        self.refused: set[str] = set()
        self.acknowledged: list[str] = []
        self.transaction(sites=("store",), name="buy")(self._never)

    async def _never(self, tx: Any, request: Any) -> Any:
        raise AssertionError("not to be called")

    async def _answer(self, name: str, request: Any, xid: str | None = None, **limits: Any) -> Answer:
        self.asked.append((name, request, xid))
        if isinstance(self.answer, Refused | Decided):
            return Answer(Recorded(self.answer.result, isinstance(self.answer, Refused)), self.replayed, self.answer)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Answer(Recorded(self.answer), self.replayed, None)

    async def acknowledge(self, xid: str, **sites: Any) -> None:
        if checked_xid(xid) in self.undecided:
            raise Unknown("undecided", xid=xid)
        if xid in self.refused:
            raise ValueError("over other sites")
        self.acknowledged.append(xid)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are pytest's


@asynccontextmanager
async def serving(asgi: Any) -> AsyncIterator[str]:
    """An ASGI application behind a real server in this process; its base URL."""
    transports: list[asyncio.Transport] = []

    class Recorded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            transports.append(transport)
            super().connection_made(transport)

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(asgi, http=Recorded, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        for transport in transports:  # also of who came when it had begun to end
            transport.abort()
        await asyncio.sleep(0)


class Mode(Enum):
    CUT = "cut"  # both ends see the end of the connection
    HALF = "half"  # who waits for the rest sees its end, who sends sees nothing
    STALL = "stall"  # nobody sees anything, and nothing comes through any more
    DELAY = "delay"  # the rest comes late


@dataclass
class Fault:
    """Strikes once, after so many bytes in one direction, counted over all connections."""

    mode: Mode
    direction: Direction
    after: int
    struck: bool = False

    def lets_through(self, direction: Direction, data: bytes) -> int:
        """How much of this comes through before the fault strikes."""
        if self.struck or direction != self.direction:
            return len(data)
        self.struck = self.after < len(data)
        through = min(self.after, len(data))
        self.after -= through
        return through


class WireProxy(Relay):
    """Forwards bytes to a server at 127.0.0.1, until told otherwise."""

    def __init__(self, url: str, lateness: float = 0.1) -> None:
        """`lateness`: seconds by which DELAY delays."""
        super().__init__()
        self._target = int(url.rpartition(":")[2])
        self._lateness = lateness
        self._fault: Fault | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, fault: Fault) -> None:
        self._fault = fault

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers = [to_client]
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(to_server)
            await asyncio.gather(
                self._forward(from_client, to_server, "request"), self._forward(from_server, to_client, "reply")
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await hang_up(*writers)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while data := await reader.read(65536):
            through = self._fault.lets_through(direction, data) if self._fault else len(data)
            writer.write(data[:through])
            await writer.drain()
            if through < len(data):
                assert self._fault is not None
                match self._fault.mode:
                    case Mode.CUT:
                        raise ConnectionAbortedError
                    case Mode.HALF:
                        writer.write_eof()
                        return
                    case Mode.STALL:
                        await asyncio.Event().wait()
                    case Mode.DELAY:
                        await asyncio.sleep(self._lateness)
                        writer.write(data[through:])
        writer.write_eof()
