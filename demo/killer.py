"""Kills an app server about once a second: in turn at a random moment, and at a named point of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass

from . import faults
from .fleet import Fleet, Life
from .generate import SEED

INTERVAL = 0.85  # seconds between kills, on average
PATIENCE = 1.5  # how long to wait for a server to come by an armed point


@dataclass(frozen=True, slots=True)
class Kill:
    when: float  # time.monotonic()
    slot: int
    point: str  # of faults.POINTS, or "at random"


class Killer:
    def __init__(self, fleet: Fleet) -> None:
        self.kills: list[Kill] = []
        self._fleet = fleet
        self._rng = random.Random(SEED)
        self._points = itertools.cycle(point for named in faults.POINTS for point in ("at random", named))

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due += self._rng.uniform(0.8, 1.2) * INTERVAL
            await asyncio.sleep(due - time.monotonic())
            standing = self._fleet.standing
            if len(standing) > 1:  # somebody has to serve
                await self._kill(self._rng.choice(standing[:2]), next(self._points))

    async def _kill(self, life: Life, point: str) -> None:
        folder, slot = self._fleet.folder, life.config.slot
        if point != "at random":
            faults.arm(folder, slot, point)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(life.dead.wait(), PATIENCE)
            finally:
                faults.disarm(folder, slot, point)
            if life.died is None:
                point = "at random"  # nobody came by
        self._fleet.kill(life)
        await life.dead.wait()
        self.kills.append(Kill(life.died or 0.0, slot, point))
