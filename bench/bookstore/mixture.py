"""The two sites in a mix of interactions, some of which fail over: their app server stops somewhere, and another one is
sent the same request at once.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from pgmip import App, Step
from pgmip.xinst import new_xid

from ..rounds import interleaved, percentile
from ..rows import Row, markdown, median, plotted, ratio, spread
from .handlers import HANDLERS, Visitor
from .pair import Dead, Pair

__all__ = ["measure", "plot", "tell"]

SHARES = (0.0, 0.01, 0.1)  # of the requests that fail over
SESSIONS = 8
STEPS = ("begun", "prepared-first-site", "prepared-all", "committed-first-site")


class _Server:
    """An app server that stops at a step of the doomed requests."""

    def __init__(self, sites: dict[str, str]) -> None:
        self.app = App(sites, pool_size=SESSIONS, pool_min_size=SESSIONS)
        for name, (handler, declared) in HANDLERS.items():
            self.app.transaction(sites=declared, name=name)(handler)
        self.doomed: dict[str, str] = {}
        self.app.on_step(self._stop)

    def _stop(self, step: Step) -> None:
        if self.doomed.get(step.xid) == step.name:
            del self.doomed[step.xid]
            raise Dead


class _Run:
    def __init__(self, pair: Pair, share: float, seed: int) -> None:
        self.pair = pair
        self.share = share
        self.random = random.Random(seed)
        self.took: list[float] = []
        self.failed_over: list[float] = []
        self.orders = 0

    async def run(self, seconds: float) -> float:
        """Interactions a second."""
        sites = self.pair.sites("mip")
        first, second = _Server(sites), _Server(sites)
        async with first.app, second.app:
            began = time.monotonic()
            await asyncio.gather(*(self._visit(first, second, began + seconds) for _ in range(SESSIONS)))
            return (len(self.took) + len(self.failed_over)) / (time.monotonic() - began)

    async def _visit(self, first: _Server, second: _Server, end: float) -> None:
        visitor = Visitor(self.pair.size, random.Random(self.random.random()))
        while time.monotonic() < end:
            name, request = visitor.next()
            xid = new_xid()
            if self.random.random() < self.share:
                first.doomed[xid] = self.random.choice(STEPS)
            began = time.monotonic()
            try:
                answer, took = await first.app.submit(name, request, xid), self.took
            except Dead:
                answer, took = await second.app.submit(name, request, xid), self.failed_over
            took.append(1000 * (time.monotonic() - began))
            first.doomed.pop(xid, None)  # a step that this one does not take
            self.orders += name == "buy_confirm"
            visitor.answered(name, answer)


def measure(pair: Pair, *, rounds: int, seconds: float) -> list[Row]:
    rows = []
    for number in range(rounds):
        for share in interleaved(SHARES, number):
            before = pair.orders("mip")
            run = _Run(pair, share, seed=number)
            rate = asyncio.run(run.run(seconds))
            if pair.orders("mip") - before != run.orders:
                raise SystemExit(f"{run.orders} confirmed orders, {pair.orders('mip') - before} made")
            rows.append(
                {"system": share, "round": number + 1, "rate": rate, "failed_over": len(run.failed_over),
                 **_times("", run.took), **_times("failed_over_", run.failed_over)}
            )  # fmt: skip
    pair.check("mip")
    print("two sites: done", flush=True)
    return rows


def _times(prefix: str, took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)
    return {f"{prefix}p{part}": percentile(ordered, part) for part in (50, 95)}


def tell(rows: list[Row]) -> str:
    lines = [
        [f"{share:.0%}", spread(rows, "rate", system=share), ratio(rows, "rate", share, 0.0),
         f"{median(rows, 'p50', system=share):.1f}, {median(rows, 'p95', system=share):.1f}",
         sum(row["failed_over"] for row in rows if row["system"] == share),
         f"{median(rows, 'failed_over_p50', system=share):.1f}, {median(rows, 'failed_over_p95', system=share):.1f}"
         if share else ""]
        for share in SHARES
    ]  # fmt: skip
    header = ["fail over", "interactions a second (spread)", "of the rate without", "the others: p50, p95 ms",
              "failed over", "those: p50, p95 ms"]  # fmt: skip
    return markdown(header, lines)


def plot(rows: list[Row], file: Path) -> None:
    x, y = "share of requests that fail over", "interactions a second"
    with plotted(file, ["two sites, 8 sessions"], x, y) as (axis,):
        axis.boxplot([[row["rate"] for row in rows if row["system"] == share] for share in SHARES])
        axis.set_xticks(range(1, len(SHARES) + 1), [f"{share:.0%}" for share in SHARES])
        axis.plot([], [], label="five rounds")
        axis.set_ylim(bottom=0)
