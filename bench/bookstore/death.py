"""How long a dead coordinator's rows are of no use: until the same request is answered, and one of somebody else on
the same rows.

A process runs a number of Buy Confirms up to where both sites are prepared, and is killed. Then, at once, another one
is sent the same requests, and strangers want the same items.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pgmip import App, Step
from pgmip.xinst import new_xid

from workload.plain import Coordinator, recover

from ..rounds import METHODS, interleaved, percentile
from ..rows import Row, markdown, pick
from .handlers import STORE, TWO_SITES, buy_confirm
from .pair import Dead, Pair

__all__ = ["measure", "tell"]

MIP, WAIT, EXTERMINATE = "MIP", "2PC, recovered after 10 s", "2PC, rolled back first"
RECOVERY = 10.0  # seconds until a dead coordinator's log is back
DEADLINE = 60.0
Submit = Callable[[dict[str, Any], str], Awaitable[Any]]


def measure(pair: Pair, *, rounds: int, requests: int, recovery: float = RECOVERY) -> list[Row]:
    rows = []
    for number in range(rounds):
        for system in interleaved((MIP, WAIT, EXTERMINATE), number):
            rows += _measure(pair, system, number + 1, requests, recovery)
        print(f"a dead coordinator: round {number + 1} of {rounds}", flush=True)
    for database in METHODS:
        pair.check(database)
    return rows


def _measure(pair: Pair, system: str, number: int, requests: int, recovery: float) -> list[Row]:
    database = "mip" if system == MIP else "heap"
    before = pair.orders(database)
    work = [(new_xid(), request) for request in _requests(pair, database, 2 * requests)]
    mine, strangers = work[:requests], work[requests:]
    log = pair.clusters[STORE].directory / f"decisions.{number}.{system}"
    doomed = multiprocessing.get_context("spawn").Process(target=_die, args=(system, pair.sites(database), mine, log))
    doomed.start()
    doomed.join()
    died = time.monotonic()
    if doomed.exitcode != -signal.SIGKILL:
        raise SystemExit(f"the coordinator ended with {doomed.exitcode}")
    took = asyncio.run(_survive(system, pair.sites(database), mine, strangers, log, died, recovery))
    made = pair.orders(database) - before
    if made != 2 * requests:
        raise SystemExit(f"{2 * requests} requests have made {made} orders with {system}")
    return [{"system": system, "round": number, "whose": whose, "seconds": seconds} for whose, seconds in took]


def _requests(pair: Pair, database: str, count: int) -> list[dict[str, Any]]:
    """Carts of three items: in the second half of the requests the same ones as in the first."""
    items = f"1 + (3 * (made.number % {count // 2}) + line) % {pair.size.items}"
    carts = pair.run(
        STORE, database,
        f"WITH cart AS (INSERT INTO shopping_cart (sc_time) SELECT now() FROM generate_series(1, {count})"
        " RETURNING sc_id), made AS (SELECT sc_id, row_number() OVER () - 1 AS number FROM cart),"
        f" filled AS (INSERT INTO shopping_cart_line SELECT sc_id, {items}, 1 FROM made, generate_series(0, 2) line)"
        " SELECT sc_id FROM made ORDER BY number",
    )  # fmt: skip
    return [
        {"customer": 1 + number, "cart": cart, "elsewhere": False, "shipping": 1, "days": 1, "card": 1, "number": 1}
        for number, (cart,) in enumerate(carts)
    ]


def _die(system: str, sites: dict[str, str], work: list[tuple[str, dict[str, Any]]], log: Path) -> None:
    async def run() -> None:
        if system == MIP:
            app = _app(sites, len(work))
            app.on_step(_stop_when_prepared)
            await _all([app.submit("buy_confirm", request, xid) for xid, request in work])
        else:
            coordinator = Coordinator("doomed", sites, log, _stop_at, key_site=STORE)
            await _all([coordinator.submit(buy_confirm, request, xid) for xid, request in work])
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(run())


async def _all(work: list[Awaitable[Any]]) -> None:
    for outcome in await asyncio.gather(*map(_outcome, work)):
        if not isinstance(outcome, Dead):
            raise SystemExit(f"a request went on: {outcome!r}")


async def _outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except Dead as dead:
        return dead
    except Exception as error:
        return error


def _stop_when_prepared(step: Step) -> None:
    _stop_at(step.name)


def _stop_at(name: str) -> None:
    if name == "prepared-all":
        raise Dead


def _app(sites: dict[str, str], sessions: int) -> App:
    app = App(sites, pool_size=sessions, deadline=DEADLINE, attempts=1000)
    app.transaction(sites=TWO_SITES)(buy_confirm)
    return app


async def _survive(
    system: str, sites: dict[str, str], mine: list[tuple[str, dict[str, Any]]],
    strangers: list[tuple[str, dict[str, Any]]], log: Path, died: float, recovery: float,
) -> list[tuple[str, float]]:  # fmt: skip
    if system == MIP:
        async with _app(sites, len(mine) + len(strangers)) as app:
            return await _answers(lambda request, xid: app.submit("buy_confirm", request, xid), mine, strangers, died)
    if system == EXTERMINATE:
        await recover("doomed", sites, Path("/nonexistent"))
    other = Coordinator("other", sites, log.with_suffix(".other"), lambda _: None, key_site=STORE)

    async def recover_later() -> None:
        await asyncio.sleep(max(0.0, died + recovery - time.monotonic()))
        await recover("doomed", sites, log)

    recovering = asyncio.create_task(recover_later()) if system == WAIT else None
    took = await _answers(lambda request, xid: other.submit(buy_confirm, request, xid), mine, strangers, died)
    if recovering is not None:
        await recovering
    await other.close()
    return took


async def _answers(
    submit: Submit, mine: list[tuple[str, dict[str, Any]]], strangers: list[tuple[str, dict[str, Any]]], died: float
) -> list[tuple[str, float]]:
    async def one(whose: str, xid: str, request: dict[str, Any]) -> tuple[str, float]:
        await submit(request, xid)
        return whose, time.monotonic() - died

    return await asyncio.gather(
        *(one("the same request", xid, request) for xid, request in mine),
        *(one("a stranger's", xid, request) for xid, request in strangers),
    )


def tell(rows: list[Row]) -> str:
    lines = []
    for system in (MIP, WAIT, EXTERMINATE):
        for whose in ("the same request", "a stranger's"):
            seconds = sorted(pick(rows, "seconds", system=system, whose=whose))
            lines.append(
                [system, whose, len(seconds), *(f"{percentile(seconds, part):.2f}" for part in (50, 95)),
                 f"{seconds[-1]:.2f}"]
            )  # fmt: skip
    return markdown(["system", "whose request", "requests", "answered after, p50 s", "p95 s", "the last, s"], lines)
