"""What carrying out a plan is for any kind of site: times, targets that are busy, links, and clusters that hang."""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from pgmip.testing import Cluster

from .clock import set_clock
from .plan import NETWORK, Fault
from .process import Process
from .proxy import Link, Mode, Strike
from .sites import backends, send

__all__ = ["Injection", "until"]

PATIENCE = 4.0  # how long to wait for a message, or a step, to strike at


class Injection(ABC):
    """What cannot happen when its time has come, since its target is still busy with the last fault, is left out and
    counted as such."""

    def __init__(
        self, folder: Path, targets: Iterable[str], processes: dict[str, Process], links: dict[str, Link]
    ) -> None:
        self._folder = folder
        self.done: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._processes = processes
        self._links = links
        self._locks = {name: asyncio.Lock() for name in (*targets, *processes, *links)}

    async def run(self, plan: list[Fault], tell: Callable[[str], None]) -> None:
        """Returns when all faults are over, and everybody is back."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(began + fault.at - time.monotonic())
                group.create_task(self._inject(fault, tell))

    async def _inject(self, fault: Fault, tell: Callable[[str], None]) -> None:
        lock = self._locks[fault.target]
        if fault.kind.endswith("backend"):  # one of many
            happened = await self._to_a_backend(fault)
        elif lock.locked():
            self._note(fault, "left out: busy", tell)
            return
        else:
            async with lock:
                happened = await self._to_target(fault)
        self._note(fault, "" if happened else "left out: no occasion", tell)

    def _note(self, fault: Fault, why_not: str, tell: Callable[[str], None]) -> None:
        (self.left_out if why_not else self.done)[fault.kind] += 1
        tell(f"{fault}  {why_not}".rstrip())

    async def _to_target(self, fault: Fault) -> bool:
        if fault.kind in NETWORK:
            return await self._strike(fault)
        if fault.kind == "link down":
            link = self._links[fault.target]
            link.down()
            await asyncio.sleep(fault.details["hold"])
            link.up()
            return True
        if fault.target in self._processes:
            return await self._to_a_process(self._processes[fault.target], fault)
        return await self._to_a_site(fault)

    @abstractmethod
    def _cluster(self, target: str) -> Cluster:
        """That serves there now."""

    @abstractmethod
    async def _to_a_site(self, fault: Fault) -> bool:
        """Whether there was an occasion."""

    async def _strike(self, fault: Fault) -> bool:
        details = fault.details
        strike = Strike(Mode(fault.kind), details["direction"], details["number"], details["hold"])
        link = self._links[fault.target]
        link.arm(strike)
        await until(lambda: strike.struck, PATIENCE)
        link.disarm(strike)
        return strike.struck

    async def _to_a_process(self, process: Process, fault: Fault) -> bool:
        details = fault.details
        if fault.kind == "clock jump":
            set_clock(self._folder, process.name, details["seconds"])
            return True
        if fault.kind.startswith("pause"):
            process.send(signal.SIGSTOP)
            await asyncio.sleep(details["hold"])
            process.send(signal.SIGCONT)
            return True
        process.doomed = True
        await process.kill()
        await asyncio.sleep(details["back"])
        await process.start()
        return True

    async def _to_a_backend(self, fault: Fault) -> bool:
        pids = backends(self._cluster(fault.target))
        if not pids:
            return False
        pid = pids[int(fault.details["which"] * len(pids))] if "which" in fault.details else pids[0]
        match fault.kind:
            case "kill backend":
                send([pid], signal.SIGKILL)
            case "end backend":
                send([pid], signal.SIGTERM)
            case _:
                await self._freeze([pid], fault.details["hold"])
        return True

    async def _down(self, cluster: Cluster, kill: Callable[[], None], back: float) -> None:
        await asyncio.to_thread(kill)
        await asyncio.sleep(back)
        await asyncio.to_thread(cluster.start, timeout=300)

    async def _freeze(self, pids: tuple[int, ...] | list[int], seconds: float) -> None:
        send(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            send(pids, signal.SIGCONT)


async def until(condition: Callable[[], bool], patience: float) -> bool:
    """Whether it has come true in time."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True
