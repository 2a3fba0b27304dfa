"""Carries the plan of a run at a replicated site out."""

from __future__ import annotations

import asyncio

from pgmip.testing import Cluster

from ..injection import Injection
from ..plan import Fault
from ..process import Process
from ..proxy import Link
from .site import Site

__all__ = ["Injector"]


class Injector(Injection):
    def __init__(self, site: Site, processes: dict[str, Process], links: dict[str, Link]) -> None:
        super().__init__(site.servers, processes, links)
        self._site = site

    def _cluster(self, target: str) -> Cluster:
        return self._site.servers[target]

    async def _to_a_process(self, process: Process, fault: Fault) -> bool:
        if fault.kind != "replace agent":
            return await super()._to_a_process(process, fault)
        other = Process(process.name, process.target, process.config)
        await other.start()
        try:
            await asyncio.sleep(fault.details["beside"])
            process.doomed = True
            await process.kill()
            await asyncio.sleep(fault.details["alone"])
            await process.start()
            await asyncio.sleep(fault.details["beside"])
        finally:
            await other.kill()
        return True

    async def _to_a_site(self, fault: Fault) -> bool:
        details, cluster = fault.details, self._cluster(fault.target)
        match fault.kind:
            case "kill postmaster":
                await self._down(cluster, lambda: cluster.kill_postmaster(alone=True), details["back"])
            case "kill replica" | "kill log":
                await self._down(cluster, cluster.kill_postmaster, details["back"])
            case "pause replica" | "pause log":
                await self._freeze(cluster.pids, details["hold"])
            case "disk full":
                self._site.fill_disk()
                await asyncio.sleep(details["hold"])
                self._site.empty_disk()
            case _:
                raise AssertionError(fault.kind)
        return True
