"""What is done while awaits of the library fail: see test_awaits. Together these scenarios run every one of them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import httpx
import psycopg
from awaits import EXPECTED, NAME, injector
from shop import BUY, ORDER, PAYMENT, Shop, forgetting_the_first, make_app

import pgmip
from pgmip._json import canonical
from pgmip._recorded import xid_of
from pgmip.xinst import new_xid, xid_time

__all__ = ["SCENARIOS", "Scenario", "World", "broken", "make_broken_app", "pools_of", "until"]

broken = importlib.import_module(NAME)
for module in ("sweeper", "http", "client", "sync"):
    importlib.import_module(f"{NAME}.{module}")
PATIENCE = 20  # seconds, for what happens soon or never
A_WHILE = 2  # seconds
MUCH = 12_000_000  # bytes, more than sockets have room for
OTHERWISE = r"-c default_transaction_isolation=repeatable\\ read"


@dataclass
class World:
    """The sites, seen from beside the library; and what is under test."""

    shop: Shop
    sessions: dict[str, psycopg.AsyncConnection[Any]]
    healer: pgmip.App
    app: Any
    waited_for: list[int]
    """Sockets that were closed although somebody waited for them."""
    noise: list[tuple[str, BaseException | None]] = field(default_factory=list)
    """What was said of errors that nobody has taken, and of what was never closed; and these errors."""

    async def rows(self, site: str, sql: str, *values: Any) -> list[Any]:
        cursor = await self.sessions[site].execute(sql.encode(), values)
        return await cursor.fetchall() if cursor.description is not None else []

    async def prepare(
        self, site: str, xid: str, sql: str = "SELECT", xinst: int = 1, sites: Sequence[str] = ("bank", "store"),
        transaction: str = "buy",
    ) -> None:  # fmt: skip
        """An instance of somebody who has died."""
        request = canonical({"transaction": transaction, "request": BUY})
        await self.rows(site, "BEGIN")
        await self.rows(site, "SELECT mip.begin(%s, %s, %s)", xid, xinst, list(sites))
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


def make_broken_app(world: World, *, session: str = "", **parameters: Any) -> Any:
    """`session`: settings of its sessions, as options of libpq's."""
    options = f" application_name=broken options='{session}'"
    named = {site: conninfo + options for site, conninfo in world.shop.conninfos().items()}
    app = make_app(named, kind=broken.App, **{"pool_size": 2, "step_timeout": 2.0, **parameters})

    @app.transaction(sites=("store", "bank"))
    async def refused(tx: Any, _: Any) -> None:
        """By one site, when the other one is prepared."""
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with("SELECT 1/0")

    @app.transaction(sites=("store", "bank"))
    async def ended_here(tx: Any, _: Any) -> None:
        """By what one site is to run last, when the other one is prepared."""
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with("ROLLBACK")

    @app.transaction(sites=("store", "bank"))
    async def unpaid(tx: Any, _: Any) -> None:
        """Refused by the handler, with everything written."""
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        raise broken.Refuse("unpaid")

    @app.transaction(sites=("store", "bank"))
    async def careless(tx: Any, _: Any) -> None:
        """Leaves a statement running."""
        left = asyncio.create_task(tx.store.execute("SELECT pg_sleep(0.5)"))
        left.add_done_callback(lambda _: left.cancelled() or left.exception())
        await asyncio.sleep(0.05)

    @app.transaction(sites=("store", "bank"))
    async def heavy(tx: Any, _: Any) -> None:
        """Forgets what is prepared on a connection, and has more to be sent over the other than goes at once: there the
        server is made to wait, which may read as fast as it is written to.
        """
        await tx.store.execute("DEALLOCATE ALL")
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        bank = await tx.bank.fetch_one("SELECT pg_backend_pid() AS pid")
        os.kill(bank.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(0.05, os.kill, bank.pid, signal.SIGCONT)
        tx.bank.finish_with(
            "INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, length(%s) - %s)",
            (tx.xid, tx.xinst, "x" * MUCH, MUCH),
        )

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Any, _: Any) -> None:
        """Does not end while it might be found to be needless."""
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await asyncio.sleep(0.5)
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))

    return app


async def copying(world: World, xid: str) -> Any:
    """One statement for many parameters, with which the transaction begins; and COPY both ways, one of which is left
    early and undone.
    """

    async def load(tx: Any, _: Any) -> Any:
        await tx.store.execute_many("SELECT %s", [(1,), (2,)])
        with contextlib.suppress(broken.NothingHappened):
            async with tx.store.savepoint(), tx.store.copy("COPY orders (qty) FROM STDIN") as copy:
                await copy.write("0\n")
                raise broken.NothingHappened("changed its mind")
        async with tx.store.copy("COPY orders (xid, xinst, qty) FROM STDIN") as copy:
            await copy.write_row((tx.xid, tx.xinst, 0))
        async with tx.store.copy("COPY (SELECT 1) TO STDOUT") as copy:
            assert await copy.read_row() == ("1",)
            assert await copy.read() == b""
        return {"xinst": tx.xinst}

    if "load" not in world.app.transactions:
        world.app.transaction(sites=("store",))(load)
    return await world.app.submit("load", BUY, xid=xid, deadline=5)


def prepared(*sites: str) -> Callable[[World, str], Awaitable[None]]:
    async def setup(world: World, xid: str) -> None:
        for site in sites:
            await world.prepare(site, xid)

    return setup


async def of_who_fails(world: World, xid: str) -> None:
    """The handler ends its transaction itself."""
    await world.prepare("store", xid, transaction="ended_here")


async def ahead(world: World, xid: str) -> None:
    """Somebody whose clock is wrong: our first attempt is refused, after it has prepared elsewhere."""
    await world.prepare("store", xid, xinst=2**62)


async def crowded(world: World, xid: str) -> None:
    """Two have been left."""
    for xinst in (1, 2):
        await world.prepare("store", xid, xinst=xinst)


async def too_old(world: World, xid: str) -> None:
    """Prepared at one site, when the XID expires at the other."""
    await world.prepare("store", xid)
    await world.rows("bank", "SELECT setval('mip.horizon', %s)", xid_time(xid))


async def committed(world: World, xid: str) -> None:
    await world.healer.submit("buy", BUY, xid=xid)


async def lost_to_another(world: World, xid: str) -> None:
    """Prepared at one site; at the other one another request with this XID has won, over that site alone."""
    await world.prepare("store", xid)
    await world.prepare("bank", xid, xinst=2, sites=("bank",))
    await world.rows("bank", "SELECT mip.commit(%s, 2)", xid)


async def decided_over_more(world: World, xid: str) -> None:
    """By a server whose transaction has one site more than ours, and which has died when it had committed at one."""
    for site in ("bank", "store"):
        await world.prepare(site, xid, transaction="restock")
    await world.rows("store", "SELECT mip.commit(%s, 1)", xid)


def timeless(xid: str) -> str:
    return f"{xid} without a time"


async def forgotten(world: World, xid: str) -> None:
    """One site has forgotten the request; there it is prepared again, by somebody who has died."""
    await world.healer.submit("buy", BUY, xid=timeless(xid))
    await world.healer.acknowledge(timeless(xid))
    for name, value in (("mip.retention_timeless", "10d"), ("mip.debug_clock_offset", "11d")):
        await world.rows("bank", "SELECT set_config(%s, %s, false)", name, value)
    await world.rows("bank", "SELECT mip.expire()")
    for name in ("mip.retention_timeless", "mip.debug_clock_offset"):
        await world.rows("bank", f"RESET {name}")
    await world.prepare("bank", timeless(xid), xinst=7)


async def buy(world: World, xid: str) -> Any:
    return await world.app.submit("buy", BUY, xid=xid, deadline=5)


async def committing(world: World) -> None:
    """What has been answered early runs on."""
    if tasks := set(world.app._running._tasks):
        await asyncio.wait(tasks, timeout=PATIENCE)


async def answered_early(world: World, xid: str) -> Any:
    try:
        return await world.app.submit("buy", BUY, xid=xid, deadline=5, wait_for_commit=False)
    finally:
        await committing(world)


async def behind_what_was_answered_early(world: World, xid: str) -> Any:
    """An earlier request of the session, that could not be committed."""
    earlier = new_xid()

    async def lost(*_: Any) -> None:
        raise psycopg.OperationalError("lost")

    try:
        with mock.patch.object(broken._asking.Asking, "commit", lost):
            with contextlib.suppress(broken.SubmitError):
                parameters = {"deadline": 0.2, "session": "me", "wait_for_commit": False}
                await world.app.submit("buy", BUY, xid=earlier, **parameters)
            await committing(world)
        return await world.app.submit("buy", BUY, xid=xid, deadline=5, session="me")
    finally:
        await world.healer.settle(earlier)


async def behind_what_is_being_committed(world: World, xid: str) -> Any:
    """An earlier request of the session, whose commit takes its time."""
    earlier, commit = new_xid(), broken._asking.Asking.commit

    async def slow(asking: Any, *args: Any) -> None:
        if asking.phase.xid == earlier:
            await asyncio.sleep(0.1)
        await commit(asking, *args)

    try:
        with mock.patch.object(broken._asking.Asking, "commit", slow):
            with contextlib.suppress(broken.SubmitError):
                await world.app.submit("buy", BUY, xid=earlier, session="me", wait_for_commit=False)
            return await world.app.submit("buy", BUY, xid=xid, deadline=5, session="me")
    finally:
        await committing(world)
        await world.healer.settle(earlier)


def leave_behind(world: World, session: str, late_xid: str | None = None) -> None:
    """What is committed by now, and forgotten."""
    late = broken._sessions.Late(late_xid or new_xid(), 1, ("bank", "store"), ("bank",))
    late.leave()
    world.app._sessions.add(session, late)


async def behind_what_is_forgotten(world: World, xid: str) -> Any:
    leave_behind(world, xid)
    return await world.app.submit("buy", BUY, xid=xid, deadline=5, session=xid)


async def behind_what_no_site_knows(world: World, xid: str) -> Any:
    leave_behind(world, xid, timeless(new_xid()))
    return await world.app.submit("buy", BUY, xid=xid, deadline=5, session=xid)


async def without_room(world: World, xid: str) -> Any:
    """Until what is forgotten is not remembered here either."""
    world.app._sessions, world.app._tidy_at = broken._sessions.Sessions(1), 0.0
    leave_behind(world, "somebody else")
    try:
        return await world.app.submit("buy", BUY, xid=xid, deadline=5, session="me", wait_for_commit=False)
    finally:
        await committing(world)


async def of_a_role_that_is_gone(world: World, xid: str) -> None:
    """Prepared at one site."""
    await world.rows("store", "CREATE ROLE gone SUPERUSER")
    await world.rows("store", "SET ROLE gone")
    await world.prepare("store", xid, transaction="gone")
    await world.rows("store", "RESET ROLE")
    await world.rows("store", "DROP ROLE gone")


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


async def cannot_ask(world: World, xid: str) -> Any:
    """The bank is lost when it is to prepare, and when it is asked about that for the first time."""
    branch, family = broken._branch.Branch, broken._family.Family
    prepare, give_up, lost = branch.prepare, family._give_up, [True, True]

    async def preparing(self: Any, *args: Any) -> Any:
        if self.site == "bank" and lost[0]:
            lost[0] = False
            await self.conn.close()
            return broken._branch.Lost(psycopg.OperationalError("lost"))
        return await prepare(self, *args)

    async def giving_up(self: Any, *args: Any) -> Any:
        if lost[1]:
            lost[1] = False
            return False
        return await give_up(self, *args)

    with mock.patch.object(branch, "prepare", preparing), mock.patch.object(family, "_give_up", giving_up):
        return await buy(world, xid)


async def restock(world: World, xid: str) -> Any:
    return await world.app.submit("restock", BUY, xid=xid, deadline=5)


async def carefully(world: World, xid: str) -> Any:
    return await world.app.submit("carefully", BUY, xid=xid, deadline=5)


async def buy_at_once(world: World, xid: str) -> Any:
    """Or not at all."""
    return await world.app.submit("buy", BUY, xid=xid, deadline=5, attempts=1)


async def heavy(world: World, xid: str) -> Any:
    return await world.app.submit("heavy", BUY, xid=xid, deadline=5)


async def slow(world: World, xid: str) -> Any:
    return await world.app.submit("slow", BUY, xid=xid, deadline=5)


async def needless(world: World, xid: str) -> None:
    for site in ("store", "bank"):
        await world.prepare(site, xid, transaction="slow")


async def refused(world: World, xid: str) -> Any:
    return await world.app.submit("refused", BUY, xid=xid, deadline=5)


async def careless(world: World, xid: str) -> Any:
    async def going_on() -> list[Any]:
        return await world.rows("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")

    try:
        return await world.app.submit("careless", BUY, xid=xid, deadline=5)
    finally:
        await wait_while(going_on)


async def careless_for_long(world: World, xid: str) -> Any:
    """The server cannot be told to end the statement."""

    async def cancel_safe(conn: Any, **_: Any) -> None:
        raise psycopg.OperationalError("no connection")

    with mock.patch.object(broken._connection.ObedientConnection, "cancel_safe", cancel_safe):
        return await careless(world, xid)


async def careless_and_asked_too_early(world: World, xid: str) -> Any:
    """The server is asked to end the statement before that has begun."""
    with mock.patch.object(psycopg.AsyncConnection, "cancel_safe", forgetting_the_first()):
        return await careless(world, xid)


async def unpaid(world: World, xid: str) -> Any:
    return await world.app.submit("unpaid", BUY, xid=xid, deadline=5)


async def end_here(world: World, xid: str) -> Any:
    return await world.app.submit("ended_here", BUY, xid=xid, deadline=5)


async def settle(world: World, xid: str) -> Any:
    return told(await world.app.settle(xid, deadline=5), xid)


async def resolve(world: World, xid: str) -> Any:
    return told(await world.app.resolve(xid), xid)


async def settle_what_is_forgotten(world: World, xid: str) -> Any:
    return await settle(world, timeless(xid))


async def settle_in_the_way(world: World, xid: str) -> Any:
    """Of another request with this XID, that is active where ours has not come yet."""
    async with held(world, "bank", f"BEGIN; SELECT mip.begin('{xid}', 2, '{{bank}}')"):
        return await settle(world, xid)


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
        for conn in idle_at(site):
            conn.heard = -1e9
    return await buy(world, xid)


async def forgetful(world: World, xid: str) -> Any:
    """Of what a begin has been told of a session."""
    for site in world.app._pools.values():
        for conn in idle_at(site):
            conn.starts = True
    return await buy(world, xid)


async def fallen_silent(world: World, xid: str) -> Any:
    """The servers of idle connections stand still."""
    site = world.app._pools["store"]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(site, "_timeout", 0.1))
        for conn in idle_at(site):
            conn.heard = -1e9
            os.kill(conn.info.backend_pid, signal.SIGSTOP)
            stack.callback(os.kill, conn.info.backend_pid, signal.SIGCONT)
        return await buy(world, xid)


async def wait_while(condition: Callable[[], Awaitable[Any]]) -> None:
    """For a while: where something has been broken it may be so for ever."""
    clock = asyncio.get_running_loop().time
    end = clock() + A_WHILE
    while await condition() and clock() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def pools_of(site: Any) -> tuple[Any, ...]:
    return site._transactions, site._in_doubt, site._finishing


def idle_at(site: Any) -> list[Any]:
    return [conn for pool in pools_of(site) for conn in pool._pool if broken._connection.is_usable(conn)]


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
            try:
                await world.app.close(grace=0)
            finally:
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
    sweeper = broken.sweeper.Sweeper(world.app, older_than=0, interval=0.1, jitter=1)

    async def idle() -> bool:
        return not (sweeper._busy or sweeper._running.done())

    async with sweeper:
        await wait_while(idle)


async def sweep_again(world: World, xid: str) -> None:
    """When a site has ended its connection."""
    events: list[Any] = []
    sweeper = broken.sweeper.Sweeper(world.app, older_than=0, interval=0.1, on_event=events.append)

    def listening(times: int) -> Callable[[], Awaitable[bool]]:
        async def not_yet() -> bool:
            seen = [event for event in events if (event.name, event.site) == ("listening", "bank")]
            return len(seen) < times and not sweeper._running.done()

        return not_yet

    async with sweeper:
        await wait_while(listening(1))
        await world.rows("bank", """
            SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'broken' AND query ~ 'mip.in_doubt'
        """)  # fmt: skip
        await wait_while(listening(2))


async def acknowledge_old(world: World, xid: str) -> None:
    """As if the retention had passed."""
    finished = f"SELECT '{xid}', '{{bank,store}}'::text[]"
    sweeper = broken.sweeper.Sweeper(world.app, acknowledge_every=0.02)

    async def not_yet() -> bool:
        left = await world.rows("bank", "SELECT FROM mip.instances(%s) WHERE NOT acknowledged", xid)
        return bool(left) and not sweeper._running.done()

    with mock.patch.object(broken._sql, "FINISHED", finished.encode()):
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


async def beside_another_call(world: World, xid: str) -> Any:
    """Of the same client: turned away by a proxy while the other one's transmission is under way, for which it waits.
    """
    others = asyncio.Event()

    class Proxy(httpx.ASGITransport):
        asked = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.asked += 1
            if self.asked == 2:
                others.set()
                return httpx.Response(403)
            with contextlib.suppress(TimeoutError):  # where the other one has been struck on its way
                async with asyncio.timeout(1):
                    await others.wait()
            return await super().handle_async_request(request)

    transport = Proxy(broken.http.asgi(world.app), raise_app_exceptions=False)
    client = broken.Client(["http://test"], deadline=3, acknowledge=False, transport=transport)
    try:
        both = (client.submit("buy", BUY, xid=xid) for _ in range(2))
        told = await asyncio.gather(*both, return_exceptions=True)
    finally:
        await client.close()
    for one in told:
        if isinstance(one, BaseException):
            raise one
    assert told[0] == told[1]
    return told[0]


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
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
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


async def join_another(world: World, xid: str) -> Any:
    """The second transmission comes while the first one is in its handler, and only then does that go on."""
    arrived, both = 0, asyncio.Event()

    async def held(*asgi: Any) -> None:
        with contextlib.suppress(TimeoutError):  # where the second one has been struck on its way
            async with asyncio.timeout(1):
                await both.wait()
        await endpoint(*asgi)

    endpoints = [broken.http.Endpoint("/buy", ("store", "bank"))]
    middleware = broken.http.IdempotencyMiddleware(held, world.app, endpoints, scope=None, concurrent="join")
    outcome = middleware._outcome

    async def counted(*request: Any) -> Any:
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            both.set()
        return await outcome(*request)

    async def nobody_there() -> bool:
        return not arrived

    with mock.patch.object(middleware, "_outcome", counted):
        first = asyncio.create_task(from_a_client(middleware, xid))
        await wait_while(nobody_there)
        told = await asyncio.gather(first, from_a_client(middleware, xid), return_exceptions=True)
    assert told[0] == told[1] or any(isinstance(one, BaseException) for one in told)
    results = [one for one in told if not isinstance(one, BaseException)]
    for one in told:
        # Of nothing that has happened only what this client has sent is known: the other one sends it again.
        if isinstance(one, BaseException) and not (results and isinstance(one, broken.NothingHappened)):
            raise one
    return results[0]


async def turned_away(world: World, xid: str) -> None:
    """Without a key, and with too long a body."""
    transport = httpx.ASGITransport(with_an_endpoint(world, max_body=2), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post("/buy")
        await client.post("/buy", headers={"Idempotency-Key": f'"{xid}"'}, content=b"123")


def of_an_endpoint(key: str) -> str:
    return xid_of(key, "", "POST /buy")


def make_twin(world: World) -> Any:
    app = broken.sync.App(world.app.sites, step_timeout=2.0)

    @app.transaction(sites=("store", "bank"))
    def buy(tx: Any, request: Any) -> Any:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    @app.transaction(sites=("store", "bank"))
    def refused(tx: Any, request: Any) -> None:
        """By one site, when the other one is prepared."""
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with("SELECT 1/0")

    @app.transaction(sites=("store", "bank"))
    def beside(tx: Any, request: Any) -> Any:
        """Others prepare behind its begin, who have begun before."""
        result = buy(tx, request)
        for site in ("store", "bank"):
            prepare(site, "beside", tx.xid, tx.xinst - 1)
        return result

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Any, request: Any) -> None:
        """In a statement."""
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        tx.store.execute("SELECT pg_sleep(1)")

    @app.transaction(sites=("store", "bank"))
    def slow_last(tx: Any, request: Any) -> None:
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        tx.store.finish_with("SELECT pg_sleep(1)")

    @app.transaction(sites=("store", "bank"))
    def waits(tx: Any, request: Any) -> Any:
        """For a row, longer than its turn, the first time."""
        result = buy(tx, request)
        tries.append(tx.xinst)
        if len(tries) == 1:
            prepare("store", "waits", tx.xid, tx.xinst + 1)
            tx.store.execute("SELECT FROM item WHERE i_id = 2 FOR UPDATE")
        return result

    def prepare(site: str, name: str, xid: str, xinst: int) -> None:
        """A sibling, which is somebody else's."""
        with psycopg.connect(world.shop.conninfos()[site]) as sibling:
            sibling.execute("SELECT mip.begin(%s, %s, %s)", (xid, xinst, ["bank", "store"]))
            sibling.execute("SELECT mip.prepare(%s, '{}')", (canonical({"transaction": name, "request": BUY}),))

    tries: list[int] = []
    app.transaction(sites=("store", "bank"), name="nothing")(lambda tx, request: None)
    return app


async def without_a_loop(world: World, xid: str) -> Any:
    return await in_a_thread(lambda: submit_to_twin(world, xid, "buy"))


def straight(name: str, deadline: float = 5) -> Callable[[World, str], Awaitable[Any]]:
    """A first attempt without the event loop, whose connections are at hand."""

    async def act(world: World, xid: str) -> Any:
        return await in_a_thread(lambda: submit_to_twin(world, xid, name, deadline, warm=True))

    return act


async def straight_but_uncommitted(world: World, xid: str) -> Any:
    """By the attempt itself; the event loop does it."""
    commit, calls = broken._mipt.commit, list[int]()

    async def lost(conn: Any, timeout: float, of: str, xinst: int) -> None:
        calls.append(xinst) if of == xid else None
        if of == xid and len(calls) < 3:
            raise psycopg.OperationalError("the connection was lost")
        await commit(conn, timeout, of, xinst)

    with mock.patch.object(broken._mipt, "commit", lost):
        return await straight("buy")(world, xid)


async def straight_and_let_go(world: World, xid: str) -> None:
    """By a caller who is interrupted before the event loop knows of it."""

    class TimeLimit(Exception):
        pass

    def wait(job: Any, seconds: float) -> bool:
        time.sleep(0.05)
        raise TimeLimit

    def submit() -> None:
        with contextlib.suppress(TimeLimit):
            submit_to_twin(world, xid, "slow", warm=True, wait=wait)

    await in_a_thread(submit)


async def straight_in_the_way(world: World, xid: str) -> Any:
    with psycopg.connect(world.shop.conninfos()["store"]) as rival:
        rival.execute("SELECT FROM item WHERE i_id = 2 FOR UPDATE")
        return await straight("waits")(world, xid)


def submit_to_twin(
    world: World, xid: str, name: str, deadline: float = 5, *, warm: bool = False, wait: Any = None
) -> Any:
    app = make_twin(world)
    try:
        if warm:
            with injector.asleep():
                app.submit("nothing", None, deadline=PATIENCE)
        with mock.patch.object(broken._workers.Job, "wait", wait) if wait else contextlib.nullcontext():
            return app.submit(name, BUY, xid=xid, deadline=deadline)
    finally:
        try:
            app.close()
        except BaseException:  # struck, which says nothing of the request
            app.close()


async def in_a_thread(live: Callable[[], Any]) -> Any:
    thread = asyncio.create_task(asyncio.to_thread(live))
    try:
        return await asyncio.shield(thread)
    finally:
        await asyncio.wait({thread})  # it cannot be cancelled
        thread.exception()  # is seen


async def serve_a_twin(world: World, xid: str) -> Any:
    twin = make_twin(world)
    try:
        return await serve_app(twin, xid)
    finally:
        await asyncio.to_thread(twin.close)  # where the server has been kept from it


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
    "answered early": Scenario(answered_early, rest=False),
    "behind what was answered early": Scenario(behind_what_was_answered_early),
    "behind what is being committed": Scenario(behind_what_is_being_committed),
    "behind what is forgotten": Scenario(behind_what_is_forgotten),
    "behind what no site knows": Scenario(behind_what_no_site_knows),
    "decided, behind what is forgotten": Scenario(behind_what_is_forgotten, committed),
    "no room to remember": Scenario(without_room),
    "resolve what is of a role that is gone": Scenario(resolve, of_a_role_that_is_gone),
    "one site": Scenario(restock, transaction="restock"),
    "a retransmission": Scenario(buy, prepared("store")),
    "a second attempt": Scenario(buy, ahead, rest=False),
    "what is committed": Scenario(buy, committed),
    "a site that cannot be asked": Scenario(cannot_ask),
    "settle, crowded": Scenario(settle, crowded),
    "a last look": Scenario(last_look, ahead),
    "one after another": Scenario(buy, prepared("bank"), parameters={"parallel": False}),
    "carefully": Scenario(carefully, transaction="carefully"),
    "much to be sent": Scenario(heavy, transaction="heavy"),
    "sessions of another isolation level": Scenario(forgetful, parameters={"session": OTHERWISE}),
    "work that others have done": Scenario(slow, needless, transaction="slow"),
    "the only attempt": Scenario(buy_at_once, ahead),
    "a statement left running": Scenario(careless),
    "a statement that cannot be ended": Scenario(careless_for_long),
    "a statement that is to end before it has begun": Scenario(careless_and_asked_too_early),
    "settle": Scenario(settle, prepared("store")),
    "settle, complete": Scenario(settle, prepared("store", "bank")),
    "resolve": Scenario(resolve, prepared("bank")),
    "lost to another request": Scenario(buy, lost_to_another),
    "decided over more sites": Scenario(restock, decided_over_more, transaction="restock"),
    "settle several requests": Scenario(settle, lost_to_another),
    "settle, in another one's way": Scenario(settle_in_the_way, prepared("store")),
    "settle what is forgotten": Scenario(settle_what_is_forgotten, forgotten, known_as=timeless),
    "acknowledge": Scenario(acknowledge, committed),
    "sweep": Scenario(sweep, prepared("store"), told=False),
    "sweep in vain": Scenario(sweep, of_who_fails, told=False),
    "the life of an App": Scenario(live, fresh=True, told=False),
    "too old": Scenario(resolve, too_old),
    "refused by the handler": Scenario(unpaid),
    "ended by its last statement": Scenario(end_here),
    "refused at the end": Scenario(refused, parameters={"parallel": False}),
    "out of time": Scenario(time_out),
    "COPY": Scenario(copying, transaction="load"),
    "observed": Scenario(observed, fresh=True),
    "idle connections": Scenario(distrust),
    "connections fallen silent": Scenario(fallen_silent),
    "a swallowed cancellation": Scenario(swallowed),
    "give way": Scenario(give_way),
    "give way, settling": Scenario(settle_in_turn),
    "wait in doubt": Scenario(wait_in_doubt, prepared("store"), parameters={"pool_size": 1}),
    "a site is down": Scenario(without_the_bank, fresh=True, told=False),
    "closed meanwhile": Scenario(close_meanwhile, fresh=True, told=False),
    "a sweeper": Scenario(sweep_on, prepared("store"), told=False),
    "a sweeper that stops": Scenario(stop_sweeping, prepared("store"), told=False),
    "a sweeper that is cut off": Scenario(sweep_again, told=False),
    "acknowledge what is old": Scenario(acknowledge_old, committed, told=False),
    "over HTTP": Scenario(over_http),
    "over HTTP, in a hurry": Scenario(in_a_hurry, told=False),
    "over HTTP, beside another call": Scenario(beside_another_call),
    "a server's life": Scenario(serve, fresh=True, told=False),
    "an endpoint": Scenario(at_an_endpoint, fresh=True, known_as=of_an_endpoint),
    "an endpoint, joined": Scenario(join_at_an_endpoint, fresh=True, known_as=of_an_endpoint),
    "an endpoint, joined by another": Scenario(
        join_another, fresh=True, parameters={"deadline": 5.0}, known_as=of_an_endpoint
    ),
    "an endpoint, turned away": Scenario(turned_away, fresh=True, told=False),
    "without a loop": Scenario(without_a_loop),
    "straight": Scenario(straight("buy"), rest=False),
    "straight, refused at the end": Scenario(straight("refused"), transaction="refused"),
    "straight, behind another": Scenario(straight("buy"), prepared("store")),
    "straight, but uncommitted": Scenario(straight_but_uncommitted),
    "straight, and let go": Scenario(straight_and_let_go, transaction="slow", told=False),
    "straight, beside another": Scenario(straight("beside"), transaction="beside"),
    "straight, out of time": Scenario(straight("slow", 0.4), transaction="slow"),
    "straight, out of time at the end": Scenario(straight("slow_last", 0.4), transaction="slow"),
    "straight, in the way": Scenario(straight_in_the_way, transaction="waits"),
    "a twin's server": Scenario(serve_a_twin, told=False),
}
