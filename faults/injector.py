"""Carries the plan of a run with three sites out."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from pgmip.testing import Cluster

from . import server
from .injection import PATIENCE, Injection, until
from .plan import Fault
from .process import Process
from .proxy import Link
from .sites import Site, send

__all__ = ["Injector"]


class Injector(Injection):
    def __init__(
        self, folder: Path, sites: dict[str, Site], processes: dict[str, Process], links: dict[str, Link]
    ) -> None:
        super().__init__(folder, sites, processes, links)
        self._sites = sites

    def _cluster(self, target: str) -> Cluster:
        return self._sites[target].primary

    async def _to_a_process(self, process: Process, fault: Fault) -> bool:
        details = fault.details
        if "step" not in details:
            return await super()._to_a_process(process, fault)
        process.doomed = True
        server.arm(self._folder, process.name, details["step"], details["after"])
        await until(lambda: not process.alive, PATIENCE)
        if server.disarm(self._folder, process.name):  # nobody came by
            process.doomed = False
            return False
        await process.ended()
        process.deaths.append(server.died_at(self._folder, process.name))
        await asyncio.sleep(details["back"])
        await process.start()
        return True

    async def _to_a_site(self, fault: Fault) -> bool:
        details, site = fault.details, self._sites[fault.target]
        if site.standby is None:
            return False
        match fault.kind:
            case "kill postmaster":
                await self._down(site.primary, lambda: site.primary.kill_postmaster(alone=True), details["back"])
            case "kill cluster":
                await self._down(site.primary, site.primary.kill_postmaster, details["back"])
            case "kill standby":
                await self._down(site.standby, site.standby.kill_postmaster, details["back"])
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
