"""Carries the plan of a run at a replicated site out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgmip.testing import Cluster

from ..injection import Injection
from ..plan import Fault
from ..process import Process
from ..proxy import Link
from .log import NatsLog, PostgresLog
from .site import Site

__all__ = ["Injector"]


class Injector(Injection):
    def __init__(self, folder: Path, site: Site, processes: dict[str, Process], links: dict[str, Link]) -> None:
        super().__init__(folder, [*site.servers, *site.parts], processes, links)
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
        if fault.target in self._site.parts and fault.kind != "kill postmaster":
            return await self._to_the_log(fault.kind, fault.target, fault.details)
        details, cluster = fault.details, self._cluster(fault.target)
        match fault.kind:
            case "kill postmaster":
                await self._down(cluster, lambda: cluster.kill_postmaster(alone=True), details["back"])
            case "kill replica":
                await self._down(cluster, cluster.kill_postmaster, details["back"])
            case "pause replica":
                await self._freeze(cluster.pids, details["hold"])
            case _:
                raise AssertionError(fault.kind)
        return True

    async def _to_the_log(self, kind: str, part: str, details: Mapping[str, Any]) -> bool:
        log = self._site.log
        match kind:
            case "kill log":
                await asyncio.to_thread(log.kill, part)
                await asyncio.sleep(details["back"])
                await asyncio.to_thread(log.start, part)
            case "pause log":
                log.pause(part)
                try:
                    await asyncio.sleep(details["hold"])
                finally:
                    log.resume(part)
            case "disk full":
                assert isinstance(log, PostgresLog)
                log.fill_disk()
                await asyncio.sleep(details["hold"])
                log.empty_disk()
            case "change leader":
                assert isinstance(log, NatsLog)
                return await log.change_leader()
            case _:
                raise AssertionError(kind)
        return True
