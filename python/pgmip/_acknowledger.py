"""Acknowledgements of answers: collected, sent many at a time, and never waited for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from ._cancellation import ended

__all__ = ["Acknowledger"]

_LAZINESS = 1.0  # seconds to collect for
_BATCH = 100
_TRIES = 5
_MOST = 10_000  # that wait; more are left to the retention
_FAREWELL = 2.0  # seconds for the last attempt

Send = Callable[[Sequence[str]], Awaitable[Sequence[str]]]


class Acknowledger:
    """Hands XIDs on to `send`, which returns those that have to be sent again."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tries: dict[str, int] = {}  # of those that wait, oldest first
        self._worker: asyncio.Task[None] | None = None

    def add(self, xid: str) -> None:
        """Acknowledge this one, some time."""
        if len(self._tries) < _MOST:
            self._tries.setdefault(xid, 0)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Try once more to send what waits."""
        if self._worker is not None:
            self._worker.cancel()
            await ended([self._worker])
        try:
            async with asyncio.timeout(_FAREWELL):
                for start in range(0, len(self._tries), _BATCH):
                    await self._send(list(self._tries)[start : start + _BATCH])
        except TimeoutError:
            pass

    async def _work(self) -> None:
        pause = _LAZINESS
        while self._tries:
            await asyncio.sleep(random.uniform(pause / 2, pause))
            batch = list(self._tries)[:_BATCH]
            again = await self._send(batch)
            for xid in batch:
                tries = self._tries.pop(xid) + 1
                if xid in again and tries < _TRIES:
                    self._tries[xid] = tries
            pause = _LAZINESS if not again else pause * 2
