"""Every await of the library fails in turn, before it does anything and after it has: what the caller is told is true,
nothing is left that `settle` does not end, and no connection is lost or goes back in a bad state.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest
from awaits import NAME, Moment, Strike, injector
from shop import BUY, SCHEMA, Shop, make_app

import pgmip
from pgmip._json import canonical
from pgmip.xinst import new_xid

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),  # those that have been told to fail before
]

broken = importlib.import_module(NAME)
for module in ("sweeper", "http", "client", "sync"):
    importlib.import_module(f"{NAME}.{module}")
MOMENTS: tuple[Moment, ...] = ("before", "after")
PATIENCE = 20  # seconds, for what happens soon or never


class Bug(Exception):
    """Nobody expects it."""


class Fatal(BaseException):
    """Nor this one, which nobody has any business to catch."""


class CallerCancelled(asyncio.CancelledError):
    """Is not raised: somebody cancels the caller at that moment."""


ERRORS: list[Callable[[], BaseException]] = [
    lambda: Bug("injected"),
    lambda: psycopg.OperationalError("injected"),
    lambda: asyncio.CancelledError("injected"),
    lambda: Fatal("injected"),
    lambda: CallerCancelled("injected"),
]
EXPECTED = (Bug, Fatal, psycopg.OperationalError, asyncio.CancelledError)
# What runs in the caller's own task: what is thrown there is thrown at him, not at the library.
THE_CALLERS = (
    "_call.py:_call_off", "_call.py:_wait", "_call.py:run", "client.py:submit",
    "app.py:submit", "app.py:settle", "app.py:resolve", "app.py:acknowledge", "_running.py:run",
)  # fmt: skip


@dataclass
class World:
    """The sites, seen from beside the library; and what is under test."""

    shop: Shop
    sessions: dict[str, psycopg.AsyncConnection[Any]]
    healer: pgmip.App
    app: Any
    noise: list[str] = field(default_factory=list)
    """What asyncio had to say of tasks that nobody looked after."""

    async def rows(self, site: str, sql: str, *values: Any) -> list[Any]:
        cursor = await self.sessions[site].execute(sql.encode(), values)
        return await cursor.fetchall() if cursor.description is not None else []

    async def prepare(self, site: str, xid: str, sql: str = "SELECT", xinst: int = 1) -> None:
        """An instance of somebody who has died."""
        request = canonical({"transaction": "buy", "request": BUY})
        await self.rows(site, "BEGIN")
        await self.rows(site, "SELECT mip.begin(%s, %s, %s)", xid, xinst, ["bank", "store"])
        await self.rows(site, sql)
        await self.rows(site, "SELECT * FROM mip.prepare(%s, %s)", request, '"of 1"')

    async def effects(self, xid: str) -> tuple[list[int], list[int]]:
        orders = await self.rows("store", "SELECT xinst FROM orders WHERE xid = %s", xid)
        payments = await self.rows("bank", "SELECT xinst FROM payment WHERE xid = %s", xid)
        return [xinst for (xinst,) in orders], [xinst for (xinst,) in payments]


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> None:
    """Wait until `condition` returns nothing."""
    left = await condition()
    for pause in (0.005, 0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1, 2):
        if not left:
            return
        await asyncio.sleep(pause)
        left = await condition()
    assert not left, f"{what}: {left}"


@pytest.fixture
async def world(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        sessions = {}
        for site, conninfo in shop.conninfos().items():
            sessions[site] = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
            stack.push_async_callback(sessions[site].close)
        healer = await stack.enter_async_context(make_app(shop.conninfos()))
        world = World(shop, sessions, healer, None)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: world.noise.append(repr(context)))
        logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # says of each closed connection that it is closed
        monkeypatch.setattr(broken._family, "_FIRST_TURN", 0.3)
        logging.getLogger("pgmip").setLevel(logging.CRITICAL)
        for name in ("psycopg", "pgmip"):
            stack.callback(logging.getLogger(name).setLevel, logging.NOTSET)
        yield world


# -- what has to be true -------------------------------------------------------------------------------------------


async def check_outcome(world: World, xid: str, outcome: Any, transaction: str = "buy") -> None:
    """That the caller was told the truth, whatever comes later."""
    first = await world.effects(xid)
    await asyncio.wait_for(world.healer.settle(xid), PATIENCE)
    for site in SCHEMA:
        left = await world.rows(site, "SELECT xinst FROM mip.in_doubt WHERE xid = %s", xid)
        assert left == [], f"settle has left something in doubt at {site}"
        assert await world.rows(site, "SELECT gid FROM pg_prepared_xacts") == []
    orders, payments = await world.effects(xid)
    assert len(orders) < 2, "twice"
    if transaction == "buy":
        assert orders == payments, "by halves"
    if isinstance(outcome, broken.Decided):
        outcome = outcome.result
    if isinstance(outcome, broken.NothingHappened):
        assert (orders, payments) == ([], []), f"{outcome!r} was a lie"
    elif isinstance(outcome, dict) and "xinst" in outcome:
        assert orders == [outcome["xinst"]], f"{outcome!r} was a lie; before settle: {first}"


def check_kind(xid: str, outcome: Any, error: BaseException, name: str) -> None:
    """That the caller was told in a way that he knows of."""
    if isinstance(outcome, broken.SubmitError):
        assert outcome.xid == xid
        return
    if not isinstance(outcome, BaseException):
        return
    at_the_caller = isinstance(error, CallerCancelled) or (outcome is error and name in callers_awaits())
    assert at_the_caller or isinstance(outcome, Fatal), f"undocumented: {outcome!r}"


def callers_awaits() -> set[str]:
    return {name for name in injector.names if injector.functions[name] in THE_CALLERS}


async def check_app(world: World, before: set[asyncio.Task[Any]], told: bool) -> None:
    """That the app is as good as ever: nothing runs, nothing is open, and all connections are where they belong."""

    async def running() -> list[str]:
        tasks = asyncio.all_tasks() - before - {asyncio.current_task()}
        return [repr(task) for task in tasks if _is_ours(task)]

    async def lost() -> list[str]:
        return [
            f"{pool.name}: {stats}"
            for site in world.app._pools.values()
            for pool in (site._transactions, site._in_doubt, site._finishing)
            if not pool.closed
            and ((stats := pool.get_stats())["pool_available"] != stats["pool_size"] or stats["requests_waiting"])
        ]

    async def open_transactions() -> list[Any]:
        sql = """
            SELECT state, query FROM pg_stat_activity
            WHERE application_name = 'broken' AND (xact_start IS NOT NULL OR state LIKE 'idle in%%')
        """
        return [row for site in SCHEMA for row in await world.rows(site, sql)]

    await until(running, "still running")
    await until(lost, "connections are not back")
    await until(open_transactions, "transactions are open")
    for site in world.app._pools.values():
        for pool in (site._transactions, site._in_doubt, site._finishing):
            bad = [conn for conn in getattr(pool, "_pool", ()) if not broken._connection.is_usable(conn)]
            assert all(conn.closed for conn in bad), f"went back in a bad state: {bad}"
    assert world.noise == [] or not told


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/pgmip/" in code.co_filename


# -- what is done --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """`setup` is done beside the library, `act` by its copy: what it returns is what a caller of App.submit is told.
    `rest`: strikes only where none of the scenarios before it has come. `told`: whether that is for a caller of submit,
    settle, resolve or acknowledge; elsewhere what nobody expects is a bug to be seen.
    """

    act: Callable[[World, str], Awaitable[Any]]
    setup: Callable[[World, str], Awaitable[None]] | None = None
    transaction: str = "buy"
    fresh: bool = False
    rest: bool = True
    told: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)


def make_broken_app(world: World, **parameters: Any) -> Any:
    named = {site: conninfo + " application_name=broken" for site, conninfo in world.shop.conninfos().items()}
    return make_app(named, kind=broken.App, **{"pool_size": 2, "step_timeout": 2.0, **parameters})


def prepared(*sites: str) -> Callable[[World, str], Awaitable[None]]:
    async def setup(world: World, xid: str) -> None:
        for site in sites:
            await world.prepare(site, xid)

    return setup


async def ahead(world: World, xid: str) -> None:
    """Somebody whose clock is wrong: our first attempt is refused, after it has prepared elsewhere."""
    await world.prepare("store", xid, xinst=2**62)


async def committed(world: World, xid: str) -> None:
    await world.healer.submit("buy", BUY, xid=xid)


async def buy(world: World, xid: str) -> Any:
    return await world.app.submit("buy", BUY, xid=xid, deadline=5)


async def restock(world: World, xid: str) -> Any:
    return await world.app.submit("restock", BUY, xid=xid, deadline=5)


async def carefully(world: World, xid: str) -> Any:
    return await world.app.submit("carefully", BUY, xid=xid, deadline=5)


async def settle(world: World, xid: str) -> Any:
    return told(await world.app.settle(xid, deadline=5), xid)


async def resolve(world: World, xid: str) -> Any:
    return told(await world.app.resolve(xid), xid)


async def acknowledge(world: World, xid: str) -> None:
    await world.app.acknowledge(xid)


async def sweep(world: World, xid: str) -> None:
    await broken.sweeper.Sweeper(world.app, older_than=0, jitter=0).sweep()


async def live(world: World, xid: str) -> Any:
    """The whole life of an App."""
    async with world.app:
        return await buy(world, xid)


async def distrust(world: World, xid: str) -> Any:
    for site in world.app._pools.values():
        for pool in (site._transactions, site._in_doubt, site._finishing):
            for conn in getattr(pool, "_pool", ()):
                conn.heard = -1e9
    return await buy(world, xid)


@contextlib.asynccontextmanager
async def circle(world: World, xid: str) -> AsyncIterator[None]:
    """A sibling is prepared at the bank. Somebody has a row of the store, and waits for one that the sibling has."""
    await world.prepare("bank", xid, "UPDATE account SET balance = balance WHERE a_id = 1")
    async with AsyncExitStack() as stack:
        outsiders = {}
        for site, conninfo in world.shop.conninfos().items():
            outsiders[site] = await psycopg.AsyncConnection.connect(conninfo)
            stack.push_async_callback(outsiders[site].close)

        async def go_on() -> None:
            await outsiders["store"].execute("UPDATE item SET stock = stock WHERE i_id = 1")
            await outsiders["bank"].execute("UPDATE account SET balance = balance WHERE a_id = 1")
            for outsider in outsiders.values():
                await outsider.commit()

        waiting = asyncio.create_task(go_on())
        await until(lambda: world.rows("bank", "SELECT 1 WHERE NOT EXISTS (SELECT FROM mip.waits)"), "nobody waits")
        try:
            yield
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def give_way(world: World, xid: str) -> Any:
    async with circle(world, xid):
        return await world.app.submit("buy", BUY, xid=xid, deadline=2)


async def wait_in_doubt(world: World, xid: str) -> Any:
    """The places for transactions are taken."""
    taken = [await pool.take(PATIENCE) for pool in world.app._pools.values()]
    try:
        return await buy(world, xid)
    finally:
        for pool, conn in zip(world.app._pools.values(), taken, strict=True):
            await pool.give(conn)


async def sweep_on(world: World, xid: str) -> None:
    sweeper = broken.sweeper.Sweeper(world.app, older_than=0, interval=0.1, jitter=0)
    running = asyncio.create_task(sweeper.run())

    async def in_doubt() -> bool:
        return not running.done() and bool(await world.rows("store", "SELECT FROM mip.in_doubt WHERE xid = %s", xid))

    try:
        for _ in range(20):
            if not await in_doubt():
                break
            await asyncio.sleep(0.05)
        sweeper.stop()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def acknowledge_old(world: World, xid: str) -> None:
    await broken.sweeper.Sweeper(world.app)._acknowledge(xid, list(SCHEMA))


async def over_http(world: World, xid: str) -> Any:
    transport = httpx.ASGITransport(broken.http.asgi(world.app), raise_app_exceptions=False)
    client = broken.Client(["http://test"], deadline=3, transport=transport)
    try:
        result = await client.submit("buy", BUY, xid=xid)
        client.acknowledge(xid)
        return result
    finally:
        with contextlib.suppress(*EXPECTED):  # a bug in acknowledging, to be seen
            await client.close()


async def without_a_loop(world: World, xid: str) -> Any:
    app = broken.sync.App(world.app.sites)

    @app.transaction(sites=("store", "bank"))
    def buy(tx: Any, request: Any) -> Any:
        tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    def live() -> Any:
        with app:
            return app.submit("buy", BUY, xid=xid, deadline=5)

    return await asyncio.to_thread(live)


async def without_the_bank(world: World, xid: str) -> Any:
    world.app._pools["bank"]._conninfo += " port=9"
    for pool in ("_transactions", "_in_doubt", "_finishing"):
        getattr(world.app._pools["bank"], pool).conninfo += " port=9"
    try:
        return await buy(world, xid)
    finally:
        await world.app.close()


def told(resolution: Any, xid: str) -> Any:
    if resolution is None:
        return None
    return broken.Cancelled("settled", xid=xid) if resolution.cancelled else resolution.result


SCENARIOS = {
    "two sites": Scenario(buy, rest=False),
    "one site": Scenario(restock, transaction="restock"),
    "a retransmission": Scenario(buy, prepared("store")),
    "a second attempt": Scenario(buy, ahead, rest=False),
    "one after another": Scenario(buy, prepared("bank"), parameters={"parallel": False}),
    "carefully": Scenario(carefully, transaction="carefully"),
    "settle": Scenario(settle, prepared("store")),
    "settle, complete": Scenario(settle, prepared("store", "bank")),
    "resolve": Scenario(resolve, prepared("bank")),
    "acknowledge": Scenario(acknowledge, committed),
    "sweep": Scenario(sweep, prepared("store"), told=False),
    "the life of an App": Scenario(live, fresh=True, told=False),
    "idle connections": Scenario(distrust),
    "give way": Scenario(give_way),
    "wait in doubt": Scenario(wait_in_doubt, prepared("store"), parameters={"pool_size": 1}),
    "a sweeper": Scenario(sweep_on, prepared("store"), told=False),
    "acknowledge what is old": Scenario(acknowledge_old, committed, told=False),
    "over HTTP": Scenario(over_http),
    "without a loop": Scenario(without_a_loop),
    "a site is down": Scenario(without_the_bank, fresh=True),
}
struck: set[str] = set()
ended: set[str] = set()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_await(world: World, name: str) -> None:
    scenario = SCENARIOS[name]
    await renew_app(world, scenario)
    await run(world, scenario, new_xid())
    with injector.armed(None, None):
        await run(world, scenario, new_xid())
        ran = {await_: times for await_, times in injector.ran.items() if not (scenario.rest and await_ in struck)}
    failures: list[str] = []
    for strike in (
        Strike(await_, number, moment) for await_, times in ran.items()
        for number in range(1, times + 1) for moment in MOMENTS
        if await_ not in injector.cleaning or (moment == "after" and not await_.endswith(" enter"))
    ):  # fmt: skip
        for error in errors_for(strike):
            try:
                await fail_at(world, scenario, strike, error)
            except AssertionError as failure:
                failures.append(f"{strike}, {error!r}: {failure}")
                await renew_app(world, scenario)
    await world.app.close()
    ended.add(name)
    assert failures == []


def errors_for(strike: Strike) -> list[BaseException]:
    """One of them, another one each time; all of them where that is asked for."""
    if os.environ.get("AWAITS"):
        return [make() for make in ERRORS] if strike.name.startswith(os.environ["AWAITS"]) else []
    return [ERRORS[zlib.crc32(repr(strike).encode()) % len(ERRORS)]()]


async def renew_app(world: World, scenario: Scenario) -> None:
    if world.app is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(world.app.close(grace=0), PATIENCE)
    world.app = make_broken_app(world, **scenario.parameters)
    world.noise.clear()


async def run(world: World, scenario: Scenario, xid: str) -> None:
    if scenario.fresh:
        await renew_app(world, scenario)
    if scenario.setup is not None:
        await scenario.setup(world, xid)
    with contextlib.suppress(broken.SubmitError):
        await scenario.act(world, xid)
    await world.healer.settle(xid)


async def fail_at(world: World, scenario: Scenario, strike: Strike, error: BaseException) -> None:
    xid = new_xid()
    if scenario.fresh:
        await renew_app(world, scenario)
    if scenario.setup is not None:
        await scenario.setup(world, xid)
    before = asyncio.all_tasks()

    async def act() -> Any:
        return await scenario.act(world, xid)

    caller = asyncio.create_task(act())
    with injector.armed(strike, error, caller.cancel if isinstance(error, CallerCancelled) else None):
        await asyncio.wait({caller}, timeout=PATIENCE)
        if not caller.done():
            caller.cancel()
            raise AssertionError("hangs")
        if caller.cancelled():
            outcome = error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        else:
            outcome = caller.exception() or caller.result()
        if injector.struck:
            struck.add(strike.name)
    try:
        await check_app(world, before, scenario.told and not isinstance(error, Fatal))
        if scenario.told:
            check_kind(xid, outcome, error, strike.name)
    finally:
        await check_outcome(world, xid, outcome, scenario.transaction)


# In these functions there are awaits to which none of the scenarios comes.
ELSEWHERE = {
    "_acknowledger.py:_work", "_attempt.py:_judge", "_attempt.py:_out_of_time", "_attempt.py:_take_back",
    "_attempt.py:take_back", "_call.py:_wait", "_cancellation.py:obeyed", "_family.py:_adopt", "_family.py:_end",
    "_family.py:_run", "_family.py:finish", "_middleware.py:__call__", "_middleware.py:_answer",
    "_middleware.py:_body", "_middleware.py:_call", "_middleware.py:_outcome", "_middleware.py:_run",
    "_middleware.py:_submit", "_middleware.py:handler", "_middleware.py:receive", "_pool.py:_check",
    "_pool.py:_check_up", "_pool.py:_probe", "_running.py:close", "app.py:resolve", "http.py:lifespan",
    "observe.py:step", "sweeper.py:__aexit__", "sweeper.py:_acknowledge", "sweeper.py:_acknowledge_old",
    "sweeper.py:_finished", "sweeper.py:_watch",
}  # fmt: skip


def test_no_await_is_left_out() -> None:
    """Whoever adds one adds a scenario, too."""
    if ended != set(SCENARIOS) or os.environ.get("AWAITS"):
        pytest.skip("not all of the others have run")
    left = {name for name in injector.names if name not in injector.cleaning} - struck
    assert {injector.functions[name] for name in left} - ELSEWHERE == set()
