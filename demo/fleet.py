"""Three app-server processes, and who replaces the dead.

Servers are forked from a process that has everything imported, so a new one is there within a tenth of a second.
With plain two-phase commit a nameless replacement would not do: the dead server's log is needed. To be fair to it, a
replacement serves at once all the same, and only the log takes its time to come back: `recovery_after` seconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import server

RESTART_AFTER = 0.3
START_TIMEOUT = 60
SERVERS = 3

Recover = Callable[[server.Config], Coroutine[Any, Any, None]]


@dataclass
class Life:
    """A server from its start to its death."""

    config: server.Config
    process: ForkServerProcess
    ready: float | None = None  # listening since
    died: float | None = None
    dead: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Fleet:
    mode: server.Mode
    sites: dict[str, str]
    folder: Path
    on_death: Recover | None = None
    ports: list[int] = field(default_factory=lambda: [_free_port() for _ in range(SERVERS)])
    lives: dict[str, Life] = field(default_factory=dict)
    current: list[Life] = field(default_factory=list)
    _keepers: list[asyncio.Task[None]] = field(default_factory=list)
    _recoveries: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([server.__name__])
        self.current = [await self._start(slot, 1) for slot in range(SERVERS)]
        self._keepers = [asyncio.create_task(self._keep(slot)) for slot in range(SERVERS)]
        await self.until_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._keepers, *self._recoveries):
            task.cancel()
        await asyncio.gather(*self._keepers, *self._recoveries, return_exceptions=True)
        for life in self.current:
            life.process.kill()
            life.process.join()

    async def _start(self, slot: int, generation: int) -> Life:
        config = server.Config(self.mode, slot, generation, self.ports[slot], self.sites, self.folder)
        process = self._context.Process(target=server.serve, args=(config,), daemon=True)
        await asyncio.to_thread(process.start)
        life = self.lives[config.name] = Life(config, process)
        return life

    async def _keep(self, slot: int) -> None:
        """Restart the server of this slot whenever it is gone."""
        while True:
            life = self.current[slot]
            listening = asyncio.create_task(self._mark_ready(life))
            await _ended(life.process)
            listening.cancel()
            life.died = time.monotonic()
            life.dead.set()
            if self.on_death:
                self._recoveries.append(asyncio.create_task(self.on_death(life.config)))
            await asyncio.sleep(RESTART_AFTER)
            self.current[slot] = await self._start(slot, life.config.generation + 1)

    async def until_recovered(self) -> None:
        """Wait until every dead server's log was read."""
        await asyncio.gather(*self._recoveries)

    async def _mark_ready(self, life: Life) -> None:
        while life.ready is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", life.config.port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                life.ready = time.monotonic()

    @property
    def standing(self) -> list[Life]:
        """Who serves right now; first who has been for longest."""
        alive = [life for life in self.current if life.ready is not None and life.died is None]
        return sorted(alive, key=lambda life: life.ready or 0)

    async def until_ready(self) -> None:
        """Wait until all servers serve."""
        async with asyncio.timeout(START_TIMEOUT):
            while len(self.standing) < SERVERS:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def url(self, slot: int) -> str:
        return f"http://127.0.0.1:{self.ports[slot]}"

    @staticmethod
    def kill(life: Life) -> None:
        if life.died is None:
            life.process.kill()


async def _ended(process: ForkServerProcess) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
