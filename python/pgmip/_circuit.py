"""Whether a site was there a moment ago, so that nobody has to wait to find out that it is not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg

from ._cancellation import ended
from .exceptions import SiteDown

__all__ = ["Circuit"]

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
_HICCUP = 1.0


class Circuit:
    """Broken by the first failure to connect, for everybody at once; closed by the next success.

    While it is broken, and only then, the site is probed: first soon, then about once in a second. Within the first
    second that is waited for; later everybody is told at once.
    """

    def __init__(self, site: str, probe: Callable[[], Awaitable[None]]) -> None:
        """`probe` tries to connect; what came of it is told to `connected`, as it is of every other connection."""
        self._site = site
        self._probe = probe
        self._why: psycopg.OperationalError | None = None
        self._since = 0.0
        self._waiting: set[asyncio.Timeout] = set()
        self._probers: set[asyncio.Task[None]] = set()
        self._ended = False
        self._closed = asyncio.Event()

    @property
    def broken(self) -> bool:
        return self._why is not None

    def trusted(self, most: float) -> float:
        """The age, in seconds, up to which what a site has said last shows that it is there: `most`, or since it went.
        """
        return min(most, time.monotonic() - self._since) if self.broken else most

    def error(self) -> SiteDown:
        """What to tell those who would have to wait."""
        seconds = time.monotonic() - self._since
        return SiteDown(f"site {self._site!r} is down: {self._why}", site=self._site, seconds=seconds)

    def connected(self, error: psycopg.OperationalError | None) -> None:
        """Somebody has connected, or has failed to."""
        if error is None:
            self._why = None
            self._closed.set()
            return
        if self._why is None:
            self._closed.clear()
            self._since = time.monotonic()
            if not self._ended:
                self._begin_to_probe()
        self._why = error
        for timeout in self._waiting:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    async def wait_closed(self, patience: float) -> None:
        """Wait for a site that has only just gone. Raises SiteDown where it is not back within a second, or as many as
        somebody has `patience`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(patience, self._since + _HICCUP - time.monotonic())):
                await self._closed.wait()
        if self.broken:
            raise self.error()

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """End the wait in the block with SiteDown as soon as the circuit breaks."""
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error() from self._why

    async def close(self) -> None:
        """Probe no more."""
        self._ended = True
        for prober in self._probers:
            prober.cancel()
        await ended(self._probers)

    def _begin_to_probe(self) -> None:
        prober = asyncio.create_task(self._probe_until_closed(self._since), name=f"pgmip probes {self._site}")
        self._probers.add(prober)
        prober.add_done_callback(self._probers.discard)

    async def _probe_until_closed(self, since: float) -> None:
        pause = _FIRST_PAUSE
        while self.broken and self._since == since:  # else another one has begun
            with contextlib.suppress(Exception):  # whatever it is: nobody else would look again
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, _LONGEST_PAUSE)
                await self._probe()
