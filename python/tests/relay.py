"""What stands between clients and a server at 127.0.0.1, to break their connections."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Relay", "hang_up"]


class Relay(ABC):
    """Listens on a free port of 127.0.0.1; each connection is served by a task of its own."""

    port: int

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._closed:  # it was in the queue
            to_client.transport.abort()
            return
        task = asyncio.create_task(self._relay(from_client, to_client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: to_client.transport.abort())  # also where it was cancelled before it began

    @abstractmethod
    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None: ...


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    """None stays open, also where this is cancelled."""
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
