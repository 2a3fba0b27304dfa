"""One run: two fresh clusters, the shop is open while its servers are killed, then the books are audited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pgmip import App
from pgmip.testing import Cluster
from rich.console import Console

from workload import plain

from . import load, progress
from .audit import Auditor, take_notes
from .client import Clients
from .fleet import Fleet
from .killer import Killer
from .monitor import Monitor
from .outcome import Outcome
from .requests import Request
from .server import Config, Mode

RECOVERY_AFTER = 10.0  # seconds until a dead server's log is back (plain two-phase commit)
PATIENCE = 30.0  # seconds for the last answers after that
_SETTINGS = {"max_connections": 300, "max_prepared_transactions": 100, "fsync": True}


@dataclass(frozen=True)
class Plan:
    mode: Mode
    title: str
    requests: list[Request]
    seconds: float | None  # the shop closes then, whoever still waits
    folder: Path


def run(plan: Plan, console: Console) -> Outcome:
    plan.folder.mkdir(parents=True)
    with ExitStack() as stack:
        store, bank = (stack.enter_context(cluster) for cluster in _clusters(plan.mode))
        sites = {"store": store.conninfo("store"), "bank": bank.conninfo("bank")}
        take_notes(store.conninfo(), store=sites["store"], bank=sites["bank"])
        auditor = stack.enter_context(Auditor(store.conninfo()))
        return asyncio.run(_open(plan, sites, auditor, console))


def _clusters(mode: Mode) -> list[Cluster]:
    """The two sites, loaded."""
    preload = ("pg_mip",) if mode == "mip" else ()
    access_method = "mip" if mode == "mip" else "heap"
    loaders: dict[str, Callable[..., None]] = {"store": load.load_store, "bank": load.load_bank}

    def set_up(name: str) -> Cluster:
        cluster = Cluster(name, settings=_SETTINGS, preload=preload).start()
        loaders[name](cluster, access_method=access_method)
        return cluster

    with ThreadPoolExecutor() as pool:
        clusters = list(pool.map(set_up, loaders))
    if mode == "plain":
        clusters[0].run_sql(plain.IDEMPOTENCY, dbname="store")
    return clusters


async def _open(plan: Plan, sites: dict[str, str], auditor: Auditor, console: Console) -> Outcome:
    async def recover(config: Config) -> None:
        await asyncio.sleep(RECOVERY_AFTER)
        await plain.recover(config.name, sites, config.decisions)

    async with Fleet(plan.mode, sites, plan.folder, recover if plan.mode == "plain" else None) as fleet:
        clients, killer, monitor = Clients(fleet), Killer(fleet), Monitor(fleet)

        def state() -> tuple[int, str]:
            return clients.answered, (
                f"{clients.retransmissions} sent again, {len(killer.kills)} kills, {monitor.in_doubt} in doubt"
            )

        watching = asyncio.create_task(monitor.run())
        others = [
            asyncio.create_task(killer.run()),
            asyncio.create_task(progress.show(console, len(plan.requests), state)),
        ]
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(plan.seconds):
                await clients.run(plan.requests)
        ended = time.monotonic()
        await _stop(*others)
        asked, retransmissions = list(clients.asked), clients.retransmissions

        await _tidy_up(plan, sites, fleet, clients, console)
        await _stop(watching)
        answers = clients.answers + await _ask_again(fleet, clients, console)
        await clients.close()
    auditor.hear([one.request for one in asked], answers)
    return Outcome(
        plan.title, began, ended, len(plan.requests), asked, killer.kills, retransmissions, monitor.longest_block,
        auditor.audit(),
    )  # fmt: skip


async def _stop(*tasks: asyncio.Task[None]) -> None:
    """Call them off; raise what went wrong in one of them."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _tidy_up(plan: Plan, sites: dict[str, str], fleet: Fleet, clients: Clients, console: Console) -> None:
    """Let everything come to an end that can, and resolve the rest."""
    if plan.mode == "plain":
        console.print("  waiting until the last dead server's log is back")
        await fleet.until_recovered()
    await clients.settle(PATIENCE)
    if plan.mode == "mip":
        left = await _in_doubt(sites)
        async with App(sites) as app:
            for xid in left:
                await app.resolve(xid, sites=tuple(sites))
        console.print(f"  {len(left)} requests left in doubt after the last answer, resolved")


async def _in_doubt(sites: dict[str, str]) -> set[str]:
    xids: set[str] = set()
    for conninfo in sites.values():
        async with await psycopg.AsyncConnection.connect(conninfo) as conn:
            rows = await (await conn.execute("SELECT xid FROM mip.in_doubt")).fetchall()
            xids.update(xid for (xid,) in rows)
    return xids


async def _ask_again(fleet: Fleet, before: Clients, console: Console) -> list[tuple[str, bytes]]:
    """Every answered request once more: the auditor compares the bytes."""
    await fleet.until_ready()
    answered = [asked.request for asked in before.asked if asked.ended is not None]
    console.print(f"  asking all {len(answered):,} again, with the same keys")
    again = Clients(fleet)
    await again.run(answered, sessions=4, think=0)
    await again.settle(PATIENCE)
    await again.close()
    return again.answers
