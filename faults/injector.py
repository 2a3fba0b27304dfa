"""Carries the plan out. What cannot happen when its time has come, since its target is still busy with the last
fault, is left out and counted as such."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from . import server
from .plan import NETWORK, Fault
from .process import Process
from .proxy import Link, Mode, Strike
from .sites import Site, send

__all__ = ["Injector"]

PATIENCE = 4.0  # how long to wait for a message, or a step, to strike at


class Injector:
    def __init__(
        self, folder: Path, sites: dict[str, Site], processes: dict[str, Process], links: dict[str, Link]
    ) -> None:
        self.done: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._folder = folder
        self._sites = sites
        self._processes = processes
        self._links = links
        self._locks = {name: asyncio.Lock() for name in (*sites, *processes, *links)}

    async def run(self, plan: list[Fault], tell: Callable[[str], None]) -> None:
        """Returns when all faults are over, and everybody is back."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(began + fault.at - time.monotonic())
                group.create_task(self._inject(fault, tell))

    async def _inject(self, fault: Fault, tell: Callable[[str], None]) -> None:
        lock = self._locks[fault.target]
        if lock.locked() and not fault.kind.endswith("backend"):
            self._note(fault, "left out: busy", tell)
            return
        if fault.kind.endswith("backend"):
            happened = await self._to_a_backend(fault)
        else:
            async with lock:
                happened = await self._carry_out(fault)
        self._note(fault, "" if happened else "left out: no occasion", tell)

    def _note(self, fault: Fault, why_not: str, tell: Callable[[str], None]) -> None:
        (self.left_out if why_not else self.done)[fault.kind] += 1
        tell(f"{fault}  {why_not}".rstrip())

    async def _carry_out(self, fault: Fault) -> bool:
        kind, details = fault.kind, fault.details
        if kind in NETWORK:
            return await self._strike(fault)
        if kind == "link down":
            link = self._links[fault.target]
            link.down()
            await asyncio.sleep(details["hold"])
            link.up()
            return True
        if kind == "clock jump":
            server.set_clock(self._folder, fault.target, details["seconds"])
            return True
        if fault.target in self._processes:
            return await self._to_a_process(self._processes[fault.target], fault)
        return await self._to_a_site(self._sites[fault.target], fault)

    # -- links ---------------------------------------------------------------------------------------------------

    async def _strike(self, fault: Fault) -> bool:
        details = fault.details
        strike = Strike(Mode(fault.kind), details["direction"], details["number"], details["hold"])
        link = self._links[fault.target]
        link.arm(strike)
        await _until(lambda: strike.struck, PATIENCE)
        link.disarm(strike)
        return strike.struck

    # -- processes -----------------------------------------------------------------------------------------------

    async def _to_a_process(self, process: Process, fault: Fault) -> bool:
        details = fault.details
        if fault.kind.startswith("pause"):
            process.send(signal.SIGSTOP)
            await asyncio.sleep(details["hold"])
            process.send(signal.SIGCONT)
            return True
        process.doomed = True
        if "step" in details:
            server.arm(self._folder, process.name, details["step"], details["after"])
            await _until(lambda: not process.alive, PATIENCE)
            if server.disarm(self._folder, process.name):  # nobody came by
                process.doomed = False
                return False
            await process.ended()
            process.deaths.append(server.died_at(self._folder, process.name))
        else:
            await process.kill()
        await asyncio.sleep(details["back"])
        await process.start()
        return True

    # -- sites ---------------------------------------------------------------------------------------------------

    async def _to_a_backend(self, fault: Fault) -> bool:
        backends = self._sites[fault.target].backends()
        if not backends:
            return False
        pid = backends[int(fault.details["which"] * len(backends))] if "which" in fault.details else backends[0]
        if fault.kind == "kill backend":
            send([pid], signal.SIGKILL)
            return True
        await self._freeze([pid], fault.details["hold"])
        return True

    async def _to_a_site(self, site: Site, fault: Fault) -> bool:
        details = fault.details
        if site.standby is None:
            return False
        match fault.kind:
            case "kill postmaster":
                await self._down(site, lambda: site.primary.kill_postmaster(alone=True), details["back"])
            case "kill cluster":
                await self._down(site, site.primary.kill_postmaster, details["back"])
            case "kill standby":
                standby = site.standby
                await asyncio.to_thread(standby.kill_postmaster)
                await asyncio.sleep(details["back"])
                await asyncio.to_thread(standby.start, timeout=300)
            case "pause site":
                await self._freeze(site.primary.pids, details["hold"])
            case "pause standby":
                await self._freeze(site.standby.pids, details["hold"])
            case "fail over":
                await self._fail_over(site)
            case "fail over behind":
                await self._fail_over_behind(site, details["behind"], details["alone"])
            case _:
                raise AssertionError(fault.kind)
        return True

    async def _down(self, site: Site, kill: Callable[[], None], back: float) -> None:
        await asyncio.to_thread(kill)
        await asyncio.sleep(back)
        await asyncio.to_thread(site.primary.start, timeout=300)

    async def _fail_over(self, site: Site) -> None:
        await asyncio.to_thread(site.fail_over)
        await asyncio.to_thread(site.add_standby)

    async def _fail_over_behind(self, site: Site, behind: float, alone: float) -> None:
        """The primary works on while its standby hangs, crashes, comes back, and is lost before the standby has
        anything of that: nobody may have been told of it as done."""
        standby = site.standby
        assert standby is not None
        send(standby.pids, signal.SIGSTOP)
        await asyncio.sleep(behind)
        await asyncio.to_thread(site.primary.kill_postmaster)
        await asyncio.to_thread(site.primary.start, timeout=300)
        await asyncio.sleep(alone)
        await asyncio.to_thread(site.primary.kill_postmaster)
        await asyncio.to_thread(standby.kill_postmaster)  # and what its sockets still held
        await asyncio.to_thread(standby.start, timeout=300)
        await self._fail_over(site)

    async def _freeze(self, pids: tuple[int, ...] | list[int], seconds: float) -> None:
        send(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            send(pids, signal.SIGCONT)


async def _until(condition: Callable[[], bool], patience: float) -> bool:
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True
