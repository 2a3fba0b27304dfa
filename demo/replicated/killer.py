"""Kills something every three seconds: a replica's server, in turn, an agent, the log."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass

from .site import Site

INTERVAL = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class Kill:
    when: float  # time.monotonic()
    what: str


class Killer:
    def __init__(self, site: Site) -> None:
        self.kills: list[Kill] = []
        self._site = site

    async def run(self) -> None:
        victims = itertools.cycle(("a", "b", "agent of c", "c", "log", "agent of a"))
        while True:
            await asyncio.sleep(INTERVAL)
            await self._kill(next(victims))

    async def _kill(self, what: str) -> None:
        await self._site.all_up()
        replicas = {replica.name: replica for replica in self._site.replicas}
        self.kills.append(Kill(time.monotonic(), what))
        if what == "log":
            self._site.kill_log()
        elif what in replicas:
            self._site.kill(replicas[what].cluster)
        else:
            self._site.kill_agent(replicas[what.removeprefix("agent of ")])
