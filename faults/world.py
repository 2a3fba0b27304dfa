"""What runs in any run: processes and links, and somebody who watches that nothing ends but by a fault."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pgmip.testing import Cluster

from .process import Process
from .proxy import Link

__all__ = ["Stuck", "Tell", "World", "through"]

T = TypeVar("T")
Tell = Callable[[str], None]

PATIENCE = 900.0
"""Seconds, beyond what the plan takes, after which something hangs."""


class Stuck(Exception):
    """The run did not come to its end, or something died that nobody had killed."""


class World(ABC):
    """All that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.links: dict[str, Link] = {}
        self.processes: dict[str, Process] = {}

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def where_all_are(self) -> list[str]:
        """For who wonders why the run does not come to its end."""

    @abstractmethod
    async def remove_servers(self) -> None:
        """Whatever has happened. Their logs go to the folder."""

    async def watch(self) -> None:
        """Raises Stuck as soon as a process dies of something that is no fault of ours."""
        while True:
            await asyncio.sleep(0.5)
            for process in self.processes.values():
                if not process.alive and not process.doomed:
                    raise Stuck(f"{process.name} has died by itself:\n{self.log_of(process.name)}")

    async def until_gone(self, names: Sequence[str], stop: Callable[[], None]) -> None:
        """They have been told by `stop` to come to their end, and do."""
        for name in names:
            self.processes[name].doomed = True
        stop()
        for name in names:
            if await self.processes[name].ended() != 0:
                raise Stuck(f"{name} has failed:\n{self.log_of(name)}")

    def diagnose(self) -> str:
        """Where everybody is."""
        for process in self.processes.values():
            process.send(signal.SIGUSR1)
        return "\n".join([*self.where_all_are(), f"logs and stacks are in {self.folder}"])

    async def end(self) -> None:
        """Whatever has happened."""
        for process in self.processes.values():
            process.doomed = True
            process.send(signal.SIGKILL)
        for link in self.links.values():
            await link.close()
        await self.remove_servers()

    def keep_log(self, name: str, cluster: Cluster) -> None:
        with contextlib.suppress(OSError):
            (self.folder / f"{name}.postgresql").write_text(cluster.log_tail(5000))

    def log_of(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text()[-5000:] if path.exists() else "(no log)"


async def through(world: World, story: Callable[[], Coroutine[Any, Any, T]], seconds: float, tell: Tell) -> T:
    """What the story, which takes so long, comes to. Raises Stuck."""
    try:
        async with asyncio.timeout(seconds + PATIENCE) as limit:
            await world.start()
            tell(f"{len(world.processes)} processes are there, and {len(world.links)} links")
            watch, task = asyncio.create_task(world.watch()), asyncio.create_task(story())
            await asyncio.wait([watch, task], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                watch.result()
            watch.cancel()
            return await task
    except TimeoutError:
        if not limit.expired():
            raise
        tell(await asyncio.to_thread(world.diagnose))
        raise Stuck(f"not at its end {PATIENCE:.0f} s after the last fault") from None
    finally:
        await world.end()
