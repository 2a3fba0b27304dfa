"""The customers: concurrent sessions that send the same request again until one server has answered it.

A retransmission goes to another server, on a lost connection or after 150 ms without answer; twice as long after each
further one, lest slow servers drown in repetitions. What was sent before is not called off: its answer, should one
still come, is kept for the auditor.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from .fleet import Fleet
from .requests import Request

SESSIONS = 16
IMPATIENCE = 0.15
THINK = 0.55  # seconds between two requests of a session, on average
PAUSE = 0.05  # where nobody can be asked right now


@dataclass(slots=True)
class Asked:
    """A request on its way, and how it went."""

    request: Request
    began: float
    ended: float | None = None
    sent: int = 0

    @property
    def latency(self) -> float | None:
        return None if self.ended is None else self.ended - self.began


@dataclass
class Clients:
    fleet: Fleet
    asked: list[Asked] = field(default_factory=list)
    answers: list[tuple[str, bytes]] = field(default_factory=list)
    lost: int = 0

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=SESSIONS)
        self._http = [
            httpx.AsyncClient(base_url=self.fleet.url(slot), timeout=None, limits=limits, trust_env=False)
            for slot in range(len(self.fleet.ports))
        ]
        self._stragglers: set[asyncio.Task[bytes | None]] = set()

    @property
    def answered(self) -> int:
        return sum(asked.ended is not None for asked in self.asked)

    @property
    def retransmissions(self) -> int:
        return sum(max(0, asked.sent - 1) for asked in self.asked)

    async def run(self, requests: list[Request], *, sessions: int = SESSIONS, think: float = THINK) -> None:
        """Send them all, through so many sessions at a time."""
        queue = iter(requests)
        async with asyncio.TaskGroup() as group:
            for number in range(sessions):
                group.create_task(self._session(number, queue, think))

    async def settle(self, patience: float) -> None:
        """Wait for what may still be answered; then call it off."""
        if self._stragglers:
            await asyncio.wait(self._stragglers, timeout=patience)
        for task in self._stragglers:
            task.cancel()

    async def close(self) -> None:
        await self.settle(0)
        for http in self._http:
            await http.aclose()

    async def _session(self, number: int, queue: Iterator[Request], think: float) -> None:
        rng = random.Random(f"session {number}")
        await asyncio.sleep(rng.random() * think)
        for request in queue:
            await self._ask(request, rng)
            if think:
                await asyncio.sleep(rng.expovariate(1 / think))

    async def _ask(self, request: Request, rng: random.Random) -> None:
        asked = Asked(request, time.monotonic())
        self.asked.append(asked)
        servers = rng.sample(range(len(self._http)), len(self._http))
        busy: dict[asyncio.Task[bytes | None], int] = {}
        impatience = IMPATIENCE
        try:
            while asked.ended is None:
                free = [slot for slot in servers if slot not in busy.values()]
                if free:
                    servers.append(servers.pop(servers.index(free[0])))
                    busy[asyncio.create_task(self._send(free[0], asked))] = free[0]
                done, _ = await asyncio.wait(
                    busy, timeout=impatience if len(free) > 1 else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    impatience *= 2
                for task in done:
                    del busy[task]
                    if task.result() is not None and asked.ended is None:
                        asked.ended = time.monotonic()
        finally:
            for task in busy:
                self._stragglers.add(task)
                task.add_done_callback(self._stragglers.discard)

    async def _send(self, slot: int, asked: Asked) -> bytes | None:
        """One transmission. The answer's body, or None where there was no answer."""
        asked.sent += 1
        request = asked.request
        try:
            answer = await self._http[slot].post(
                "/buy_confirm",
                content=json.dumps(request.body),
                headers={"Idempotency-Key": request.key, "Content-Type": "application/json"},
            )
        except httpx.ConnectError:
            asked.sent -= 1  # nobody there: nothing was transmitted
            await asyncio.sleep(PAUSE)
            return None
        except httpx.TransportError:
            self.lost += 1
            return None
        if answer.status_code != 200:
            await asyncio.sleep(PAUSE)
            return None
        self.answers.append((request.key, answer.content))
        return answer.content
