"""Every await of the library fails in turn, before it does anything and after it has: what the caller is told is true,
nothing is left that `settle` does not end, and no connection is lost or goes back in a bad state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import httpx
import psycopg
import pytest
from awaits import NAME, Moment, Strike, injector
from shop import BUY, SCHEMA, Shop, make_app

import pgmip
from pgmip._json import canonical
from pgmip._recorded import xid_of
from pgmip.xinst import new_xid, xid_time

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
        monkeypatch.setattr(broken._acknowledger, "_LAZINESS", 0.02)
        logging.getLogger("pgmip").setLevel(logging.CRITICAL)
        for name in ("psycopg", "pgmip"):
            stack.callback(logging.getLogger(name).setLevel, logging.NOTSET)
        gc.freeze()  # so that it is quick, as often as it is done
        stack.callback(gc.unfreeze)
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
            for pool in pools_of(site)
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
        for pool in pools_of(site):
            bad = [conn for conn in getattr(pool, "_pool", ()) if not broken._connection.is_usable(conn)]
            assert all(conn.closed for conn in bad), f"went back in a bad state: {bad}"
    gc.collect()  # asyncio speaks of a task when it goes
    noise = [*world.noise]
    world.noise.clear()
    assert noise == [] or not told


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
    known_as: Callable[[str], str] = str
    """The XID under which the sites have what is asked for with this one."""


def make_broken_app(world: World, **parameters: Any) -> Any:
    named = {site: conninfo + " application_name=broken" for site, conninfo in world.shop.conninfos().items()}
    app = make_app(named, kind=broken.App, **{"pool_size": 2, "step_timeout": 2.0, **parameters})

    @app.transaction(sites=("store", "bank"))
    async def refused(tx: Any, _: Any) -> None:
        """By one site, when the other one is prepared."""
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        tx.bank.finish_with("SELECT 1/0")

    return app


def prepared(*sites: str) -> Callable[[World, str], Awaitable[None]]:
    async def setup(world: World, xid: str) -> None:
        for site in sites:
            await world.prepare(site, xid)

    return setup


async def ahead(world: World, xid: str) -> None:
    """Somebody whose clock is wrong: our first attempt is refused, after it has prepared elsewhere."""
    await world.prepare("store", xid, xinst=2**62)


async def too_old(world: World, xid: str) -> None:
    """Prepared at one site, when the XID expires at the other."""
    await world.prepare("store", xid)
    await world.rows("bank", "SELECT setval('mip.horizon', %s)", xid_time(xid))


async def committed(world: World, xid: str) -> None:
    await world.healer.submit("buy", BUY, xid=xid)


async def buy(world: World, xid: str) -> Any:
    return await world.app.submit("buy", BUY, xid=xid, deadline=5)


async def last_look(world: World, xid: str) -> Any:
    """The only attempt is refused, and the sibling because of which it was becomes complete right before the end."""
    read = broken._family.Family._read

    async def read_and_prepare(family: Any) -> Any:
        mipts = await read(family)
        if not await world.rows("bank", "SELECT FROM mip.instances(%s) WHERE xinst = %s", xid, 2**62):
            await world.prepare("bank", xid, xinst=2**62)
        return mipts

    with mock.patch.object(broken._family.Family, "_read", read_and_prepare):
        return await world.app.submit("buy", BUY, xid=xid, attempts=1)


async def restock(world: World, xid: str) -> Any:
    return await world.app.submit("restock", BUY, xid=xid, deadline=5)


async def carefully(world: World, xid: str) -> Any:
    return await world.app.submit("carefully", BUY, xid=xid, deadline=5)


async def refused(world: World, xid: str) -> Any:
    return await world.app.submit("refused", BUY, xid=xid, deadline=5)


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
        for pool in pools_of(site):
            for conn in getattr(pool, "_pool", ()):
                conn.heard = -1e9
    return await buy(world, xid)


async def wait_while(condition: Callable[[], Awaitable[Any]]) -> None:
    """For a while: where something has been broken it may be so for ever."""
    for _ in range(100):
        if not await condition():
            return
        await asyncio.sleep(0.02)


def pools_of(site: Any) -> tuple[Any, ...]:
    return site._transactions, site._in_doubt, site._finishing


@contextlib.asynccontextmanager
async def held(world: World, site: str, sql: str) -> AsyncIterator[None]:
    """Somebody else has locked something."""
    async with await psycopg.AsyncConnection.connect(world.shop.conninfos()[site]) as conn:
        await conn.execute(sql.encode())
        yield


async def time_out(world: World, xid: str) -> Any:
    """The last statement, sent together with what prepares, waits until the end."""
    async with held(world, "bank", "LOCK TABLE payment IN SHARE MODE"):
        return await world.app.submit("buy", BUY, xid=xid, deadline=0.3)


async def close_meanwhile(world: World, xid: str) -> None:
    async def not_waiting() -> bool:
        waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'broken' AND wait_event_type = 'Lock'"
        return not (submitted.done() or await world.rows("store", waiting))

    async with held(world, "store", "UPDATE item SET stock = stock WHERE i_id = 1"):
        submitted = asyncio.create_task(buy(world, xid))
        try:
            await wait_while(not_waiting)
            await world.app.close(grace=0.05)
        finally:
            await world.app.close(grace=0)
            await asyncio.gather(submitted, return_exceptions=True)


async def observed(world: World, xid: str) -> Any:
    async def look(_: Any) -> None:
        pass

    world.app.on_step(look)
    return await buy(world, xid)


async def swallowed(world: World, xid: str) -> Any:
    """The submit is cancelled, and gets a connection all the same: asyncio.wait_for of Python 3.11 does so at times."""
    pool = world.app._pools["store"]._transactions

    async def getconn(timeout: float) -> Any:
        conn = await type(pool).getconn(pool, timeout)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return conn

    with mock.patch.object(pool, "getconn", getconn):
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


async def settle_in_turn(world: World, xid: str) -> Any:
    async with circle(world, xid):
        return told(await world.app.settle(xid, deadline=2), xid)


async def wait_in_doubt(world: World, xid: str) -> Any:
    """The places for transactions are taken."""
    taken = [await pool.take(PATIENCE) for pool in world.app._pools.values()]
    try:
        return await buy(world, xid)
    finally:
        for pool, conn in zip(world.app._pools.values(), taken, strict=True):
            await pool.give(conn)


async def sweep_on(world: World, xid: str) -> None:
    """Until it has found what is in doubt."""
    sweeper = broken.sweeper.Sweeper(world.app, older_than=0, interval=0.1, jitter=0)

    async def in_doubt() -> bool:
        left = await world.rows("store", "SELECT FROM mip.in_doubt WHERE xid = %s", xid)
        return bool(left) and not sweeper._running.done()

    async with sweeper:
        await wait_while(in_doubt)


async def stop_sweeping(world: World, xid: str) -> None:
    """While something is attended to."""
    sweeper = broken.sweeper.Sweeper(world.app, older_than=0, interval=0.1, jitter=0.2)

    async def idle() -> bool:
        return not (sweeper._busy or sweeper._running.done())

    async with sweeper:
        await wait_while(idle)


async def acknowledge_old(world: World, xid: str) -> None:
    """As if the retention had passed."""
    finished = f"SELECT '{xid}', '{{bank,store}}'::text[]"
    sweeper = broken.sweeper.Sweeper(world.app, acknowledge_every=0.02)

    async def not_yet() -> bool:
        left = await world.rows("bank", "SELECT FROM mip.instances(%s) WHERE NOT acknowledged", xid)
        return bool(left) and not sweeper._running.done()

    with mock.patch.object(broken.sweeper, "_FINISHED", finished.encode()):
        async with sweeper:
            await wait_while(not_yet)


class Reluctant(httpx.ASGITransport):
    """Cannot be reached at first."""

    reached = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.reached:
            self.reached = True
            raise httpx.ConnectError("not yet", request=request)
        return await super().handle_async_request(request)


async def from_a_client(asgi: Any, xid: str, *, hurry: bool = False) -> Any:
    """`hurry`: it is closed at once, and not only when it has acknowledged."""
    client = broken.Client(["http://test"], deadline=3, transport=Reluctant(asgi, raise_app_exceptions=False))

    async def not_acknowledged() -> bool:
        return not client._acknowledger._worker.done()

    try:
        result = await client.submit("buy", BUY, xid=xid)
        client.acknowledge(xid)
        if not hurry:
            await wait_while(not_acknowledged)
        return result
    finally:
        with contextlib.suppress(*EXPECTED):  # a bug in acknowledging, to be seen
            await client.close()


async def over_http(world: World, xid: str) -> Any:
    return await from_a_client(broken.http.asgi(world.app), xid)


async def in_a_hurry(world: World, xid: str) -> Any:
    return await from_a_client(broken.http.asgi(world.app), xid, hurry=True)


async def serve_app(app: Any, xid: str) -> Any:
    """The life of a server."""
    server = broken.http.asgi(app)
    async with server.router.lifespan_context(server):
        return await from_a_client(server, xid)


async def serve(world: World, xid: str) -> Any:
    return await serve_app(world.app, xid)


async def endpoint(scope: Any, receive: Any, send: Any) -> None:
    """Nobody's framework's; and it would like to know if its client went away."""
    await receive()
    leaving = asyncio.create_task(receive())
    tx = broken.http.tx(scope)
    try:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        await tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": canonical({"xinst": tx.xinst}).encode()})
        await leaving
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


def with_an_endpoint(world: World, **options: Any) -> Any:
    endpoints = [broken.http.Endpoint("/buy", ("store", "bank"))]
    return broken.http.IdempotencyMiddleware(endpoint, world.app, endpoints, scope=None, **options)


async def at_an_endpoint(world: World, xid: str) -> Any:
    return await from_a_client(with_an_endpoint(world), xid)


async def join_at_an_endpoint(world: World, xid: str) -> Any:
    return await from_a_client(with_an_endpoint(world, concurrent="join"), xid)


async def turned_away(world: World, xid: str) -> None:
    """Without a key, and with too long a body."""
    transport = httpx.ASGITransport(with_an_endpoint(world, max_body=2), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post("/buy")
        await client.post("/buy", headers={"Idempotency-Key": f'"{xid}"'}, content=b"123")


def of_an_endpoint(key: str) -> str:
    return xid_of(key, "", "POST /buy")


def make_twin(world: World) -> Any:
    app = broken.sync.App(world.app.sites)

    @app.transaction(sites=("store", "bank"))
    def buy(tx: Any, request: Any) -> Any:
        tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return app


async def without_a_loop(world: World, xid: str) -> Any:
    def live() -> Any:
        with make_twin(world) as app:
            return app.submit("buy", BUY, xid=xid, deadline=5)

    thread = asyncio.create_task(asyncio.to_thread(live))
    try:
        return await asyncio.shield(thread)
    finally:
        await asyncio.wait({thread})  # it cannot be cancelled


async def serve_a_twin(world: World, xid: str) -> Any:
    return await serve_app(make_twin(world), xid)


@contextlib.contextmanager
def down(world: World, site: str) -> Iterator[Any]:
    """Whoever connects finds nobody; its pools."""
    pool = world.app._pools[site]
    nowhere = pool._conninfo + " port=9"
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(pool, "_conninfo", nowhere))
        for kept in pools_of(pool):
            stack.enter_context(mock.patch.object(kept, "conninfo", nowhere))
        yield pool


async def without_the_bank(world: World, xid: str) -> Any:
    with down(world, "bank"):
        try:
            return await buy(world, xid)
        finally:
            try:
                await world.app.close()
            finally:
                await world.app.close()  # where the first one has been struck


def told(resolution: Any, xid: str) -> Any:
    if resolution is None:
        return None
    return broken.Cancelled("settled", xid=xid) if resolution.cancelled else resolution.result


SCENARIOS = {
    "two sites": Scenario(buy, rest=False),
    "one site": Scenario(restock, transaction="restock"),
    "a retransmission": Scenario(buy, prepared("store")),
    "a second attempt": Scenario(buy, ahead, rest=False),
    "what is committed": Scenario(buy, committed),
    "a last look": Scenario(last_look, ahead),
    "one after another": Scenario(buy, prepared("bank"), parameters={"parallel": False}),
    "carefully": Scenario(carefully, transaction="carefully"),
    "settle": Scenario(settle, prepared("store")),
    "settle, complete": Scenario(settle, prepared("store", "bank")),
    "resolve": Scenario(resolve, prepared("bank")),
    "acknowledge": Scenario(acknowledge, committed),
    "sweep": Scenario(sweep, prepared("store"), told=False),
    "the life of an App": Scenario(live, fresh=True, told=False),
    "too old": Scenario(resolve, too_old),
    "refused at the end": Scenario(refused, parameters={"parallel": False}),
    "out of time": Scenario(time_out),
    "observed": Scenario(observed, fresh=True),
    "idle connections": Scenario(distrust),
    "a swallowed cancellation": Scenario(swallowed),
    "give way": Scenario(give_way),
    "give way, settling": Scenario(settle_in_turn),
    "wait in doubt": Scenario(wait_in_doubt, prepared("store"), parameters={"pool_size": 1}),
    "a site is down": Scenario(without_the_bank, fresh=True, told=False),
    "closed meanwhile": Scenario(close_meanwhile, fresh=True, told=False),
    "a sweeper": Scenario(sweep_on, prepared("store"), told=False),
    "a sweeper that stops": Scenario(stop_sweeping, prepared("store"), told=False),
    "acknowledge what is old": Scenario(acknowledge_old, committed, told=False),
    "over HTTP": Scenario(over_http),
    "over HTTP, in a hurry": Scenario(in_a_hurry, told=False),
    "a server's life": Scenario(serve, fresh=True, told=False),
    "an endpoint": Scenario(at_an_endpoint, fresh=True, known_as=of_an_endpoint),
    "an endpoint, joined": Scenario(join_at_an_endpoint, fresh=True, known_as=of_an_endpoint),
    "an endpoint, turned away": Scenario(turned_away, fresh=True, told=False),
    "without a loop": Scenario(without_a_loop),
    "a twin's server": Scenario(serve_a_twin, told=False),
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
    await world.healer.settle(scenario.known_as(xid))


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
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        if threading.current_thread() is threading.main_thread():
            caller.cancel()
        else:  # a twin's
            loop.call_soon_threadsafe(caller.cancel)

    with injector.armed(strike, error, cancel if isinstance(error, CallerCancelled) else None):
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
        await check_outcome(world, scenario.known_as(xid), outcome, scenario.transaction)


# An await in each of these is struck by no scenario: a cancel request that fails while a statement is left running, an
# idle connection that falls silent, a listening one that is cut off.
ELSEWHERE = {"_branch.py:rollback", "_pool.py:_check", "sweeper.py:_watch"}


def test_no_await_is_left_out() -> None:
    """Whoever adds one adds a scenario, too."""
    if ended != set(SCENARIOS) or os.environ.get("AWAITS"):
        pytest.skip("not all of the others have run")
    left = injector.names - injector.cleaning - struck
    assert {injector.functions[name] for name in left} - ELSEWHERE == set()
