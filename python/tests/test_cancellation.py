"""Cancellations, and so deadlines, where somebody on the way swallows them, as asyncio.wait_for of Python 3.11 does
with one that arrives together with what it waits for; and clean-up that is cancelled once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from psycopg_pool.pool_async import WaitingClient
from shop import BUY, Shop, forgetting_the_first

from pgmip import App, NothingHappened, Tx, Unknown, _family
from pgmip._cancellation import Begun, begun_here, ended, obeyed, uninterrupted
from pgmip._sites import at_each_site
from pgmip.sweeper import Sweeper
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
PATIENCE = 30  # seconds, for what happens soon or never


@pytest.fixture
def swallowing(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pools that give a connection to who has been cancelled, each after so many seconds more."""
    pause = [0.0]
    real = AsyncConnectionPool.getconn

    async def getconn(pool: Any, timeout: float | None = None) -> Any:
        async def take() -> Any:
            await asyncio.sleep(pause[0])
            return await real(pool, timeout)

        work = asyncio.ensure_future(take())
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            return await work

    monkeypatch.setattr(AsyncConnectionPool, "getconn", getconn)
    return pause


# -- while one waits for a connection ------------------------------------------------------------------------------


async def test_who_looks_after_the_turn_ends_with_the_attempt(
    server: Server, shop: Shop, swallowing: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.05)
    app = server()

    @app.transaction(sites=("store",))
    async def slow(tx: Tx, request: Any) -> str:
        swallowing[0] = 0.3
        await asyncio.sleep(0.15)
        return "done"

    async with asyncio.timeout(PATIENCE):
        assert await app.submit("slow", None, deadline=5) == "done"
    shop.assert_clean()


async def test_the_deadline_in_the_queue(server: Server, shop: Shop, swallowing: list[float]) -> None:
    app = server(pool_size=1)
    runs: list[str] = []

    @app.transaction(sites=("store",))
    async def slow(tx: Tx, request: Any) -> None:
        runs.append(request)
        await asyncio.sleep(0.5)

    first = asyncio.create_task(app.submit("slow", "first"))
    while not runs:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with pytest.raises(NothingHappened) as caught:
        await app.submit("slow", "second", deadline=0.05)
    assert isinstance(caught.value.__cause__, TimeoutError)
    await first
    assert runs == ["first"]
    await app.submit("slow", "third")  # the connection has gone back
    shop.assert_clean()


async def test_cancelled_at_each_turn_of_the_loop_after_a_hand_over(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of psycopg_pool as it is: one of these turns is the one."""
    app = server(pool_size=1)
    await app.submit("buy", BUY)
    pool = app._pools["store"]
    real = WaitingClient.set
    turns = 0
    waiting: asyncio.Task[Any]

    def cancel_after(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(cancel_after, turns - 1)
        else:
            waiting.cancel()

    async def set_(client: Any, conn: Any) -> bool:
        taken = await real(client, conn)
        cancel_after(turns)
        return taken

    monkeypatch.setattr(WaitingClient, "set", set_)
    for turns in range(10):
        first = await pool.take(PATIENCE)
        assert first is not None
        waiting = asyncio.create_task(pool.take(PATIENCE))
        await asyncio.sleep(0.01)
        await pool.give(first)
        await asyncio.wait({waiting})
        if not waiting.cancelled():  # it was too late to be cancelled
            conn = waiting.result()
            assert conn is not None
            assert not waiting.cancelling() or turns > 2
            await pool.give(conn)
    second = await pool.take(PATIENCE)
    assert second is not None, "no connection is lost"
    await pool.give(second)


# -- by the handler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_a_handler_that_swallows(server: Server, shop: Shop, times: int) -> None:
    app = server(step_timeout=0.2, pool_size=1)
    runs: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def deaf(tx: Tx, request: Any) -> str:
        runs.append(1)
        await tx.store.execute("UPDATE item SET stock = 0")
        for _ in range(times):
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                continue
        return "not to be committed"

    await app.submit("buy", BUY)  # connected
    began = time.monotonic()
    with pytest.raises(NothingHappened) as caught:
        await app.submit("deaf", None, deadline=0.5)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert time.monotonic() - began < PATIENCE / 2
    assert len(runs) == 1
    shop.assert_clean()
    await app.submit("buy", BUY)
    shop.assert_clean()


async def test_a_handler_that_swallows_the_callers_cancellation(server: Server, shop: Shop) -> None:
    app = server(step_timeout=0.2)
    running = asyncio.Event()

    @app.transaction(sites=("store",))
    async def deaf(tx: Tx, request: Any) -> str:
        await tx.store.execute("UPDATE item SET stock = 0")
        running.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "not to be committed"

    task = asyncio.create_task(app.submit("deaf", None))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shop.assert_clean()


# -- too early -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["the caller's cancellation", "the deadline", "another statement", "in a pipeline"])
async def test_a_statement_is_ended_although_the_server_was_asked_too_early(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A cancel that comes before the statement has begun is none: nothing goes on for a client that has gone."""
    app = server(pool_size=1)
    asleep = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    left: list[asyncio.Task[Any]] = []

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        if ending != "in a pipeline":
            await tx.store.execute("UPDATE item SET stock = 0")
        left.append(asyncio.create_task(tx.store.execute("SELECT pg_sleep(600)")))
        if ending == "another statement":
            await sleeping()
            await tx.bank.execute("SELECT 1 / 0")
        await left[0]

    async def sleeping() -> None:
        while not await asyncio.to_thread(shop.sql, "store", asleep):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    await app.submit("buy", BUY)  # connected
    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", forgetting_the_first())
    task = asyncio.create_task(app.submit("slow", None, deadline=0.5 if ending == "the deadline" else PATIENCE))
    await sleeping()
    if ending in ("the caller's cancellation", "in a pipeline"):
        task.cancel()
    with pytest.raises((asyncio.CancelledError, NothingHappened)):
        await task
    assert shop.sql("store", asleep) == []
    await asyncio.gather(*left, return_exceptions=True)
    shop.assert_clean()
    await app.submit("buy", BUY)
    shop.assert_clean()


# -- twice ---------------------------------------------------------------------------------------------------------


async def test_a_statement_is_ended_although_cancelled_twice(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the deadline, and by the caller before the server has been asked to end it."""
    asked = asyncio.Event()
    real = psycopg.AsyncConnection.cancel_safe

    async def cancel_safe(conn: Any, **options: Any) -> None:
        asked.set()
        await asyncio.sleep(0.1)
        await real(conn, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", cancel_safe)
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT pg_sleep(600)")

    task = asyncio.create_task(app.submit("slow", None, deadline=0.3))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shop.assert_clean()
    await app.submit("buy", BUY)
    shop.assert_clean()


async def test_connections_go_back_although_cancelled_twice(server: Server, shop: Shop) -> None:
    app = server(pool_size=1)
    pool = app._pools["store"]
    conn = await pool.take(PATIENCE)
    assert conn is not None
    async with conn.pool._lock:
        giving = asyncio.create_task(pool.give(conn))
        for _ in range(3):
            await asyncio.sleep(0.01)
            giving.cancel()
        await asyncio.sleep(0.01)
        assert not giving.done()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert await pool.take(PATIENCE) is conn
    await pool.give(conn)


async def test_cancelled_from_within(server: Server, shop: Shop) -> None:
    """Nobody has cancelled the caller: so he is told what has become of the request."""
    app = server()

    def cancel(step: Any) -> None:
        if step.name == "prepared-all":
            raise asyncio.CancelledError

    app.on_step(cancel)
    xid = new_xid()
    with pytest.raises(Unknown) as caught:
        await app.submit("buy", BUY, xid=xid)
    assert caught.value.xid == xid
    resolution = await server().resolve(xid)
    assert resolution is not None
    shop.assert_once(xid, resolution.result)
    shop.assert_clean()


async def test_a_sweeper_ends_although_a_connection_is_swallowing(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = psycopg.AsyncConnection.wait

    async def wait(conn: Any, *args: Any, **options: Any) -> Any:
        work = asyncio.ensure_future(real(conn, *args, **options))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            return await work

    monkeypatch.setattr(psycopg.AsyncConnection, "wait", wait)
    async with asyncio.timeout(PATIENCE):
        async with Sweeper(server(), interval=0.3):
            await asyncio.sleep(0.5)
    shop.assert_clean()


# -- the parts -----------------------------------------------------------------------------------------------------


async def test_obeyed() -> None:
    thrown_away: list[str] = []

    async def deaf() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE)
        return "a result"

    async def discard(result: str) -> None:
        thrown_away.append(result)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await obeyed(deaf(), discard)
    assert thrown_away == ["a result"]

    async def impatient() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # its own business
                await asyncio.sleep(PATIENCE)
        return "another"

    assert await obeyed(impatient(), discard) == "another"
    assert thrown_away == ["a result"]


async def test_uninterrupted() -> None:
    done: list[str] = []

    async def work(error: Exception | None = None) -> str:
        await asyncio.sleep(0.05)
        done.append("done")
        if error is not None:
            raise error
        return "a result"

    assert await uninterrupted(work()) == "a result"
    with pytest.raises(LookupError):
        await uninterrupted(work(LookupError()))
    task = asyncio.create_task(uninterrupted(work(LookupError())))
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"] * 3
    await ended([])


@pytest.mark.parametrize("waits", [0, 1, 2])
async def test_begun_here(waits: int) -> None:
    done: list[asyncio.Task[Any] | None] = []

    async def work(error: Exception | None = None) -> str:
        for _ in range(waits):
            await asyncio.sleep(0.01)
        done.append(asyncio.current_task())
        if error is not None:
            raise error
        return "a result"

    assert await begun_here(work()) == "a result"
    with pytest.raises(LookupError):
        await begun_here(work(LookupError()))
    assert all((one is asyncio.current_task()) == (waits == 0) for one in done)
    task = asyncio.create_task(begun_here(work()))
    await asyncio.sleep(0)
    task.cancel()
    if waits:
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task == "a result"
    assert len(done) == 3


async def test_begun_and_awaited() -> None:
    """In one task, so that it may set a time limit, or look at cancellations."""

    async def work() -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(PATIENCE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(PATIENCE)
        return "a result"

    begun = Begun(work())
    assert not begun.is_done
    assert await begun == "a result"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    begun = Begun(work())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await begun


async def test_at_each_site_the_first_failure_counts() -> None:
    ends: list[str] = []

    async def work(site: str) -> None:
        try:
            if site == "b":
                raise LookupError(site)
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.01)
            ends.append(site)

    with pytest.raises(LookupError):
        async with asyncio.timeout(PATIENCE / 2):
            await at_each_site("abc", work)
    assert sorted(ends) == ["a", "b", "c"]


async def test_at_each_site_several_fail_at_once() -> None:
    """One of them is told, and the others are not told to the event loop instead."""
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def work(site: str) -> None:
        await asyncio.sleep(0)
        if site != "a":
            raise LookupError(site)
        await asyncio.sleep(PATIENCE)

    with pytest.raises(LookupError, match="b"):
        await at_each_site("abc", work)
    gc.collect()
    assert told == []


async def test_at_each_site_one_is_cancelled_from_within() -> None:
    """Which is no failure that would interrupt the others."""
    ends: list[str] = []

    async def work(site: str) -> None:
        if site == "a":
            raise asyncio.CancelledError
        await asyncio.sleep(0.01)
        ends.append(site)

    with pytest.raises(asyncio.CancelledError):
        await at_each_site("abc", work)
    assert ends == ["b", "c"]


async def test_at_each_site_the_caller_is_cancelled() -> None:
    """More than once, but each site only once; and he gets away when all of them have ended."""
    ends: list[str] = []

    async def work(site: str) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.03)
            ends.append(site)

    task = asyncio.create_task(at_each_site("abc", work))
    for _ in range(3):
        await asyncio.sleep(0.005)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ends) == ["a", "b", "c"]


def test_where_there_is_no_event_loop_any_more() -> None:
    """Who drops what waits for something to end does not wait for ever."""

    async def waits() -> None:
        await ended([task])

    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(PATIENCE))
    waiting = loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0))
    with contextlib.suppress(RuntimeError):
        waiting.get_coro().close()  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="no running event loop"):
        ended([task]).send(None)
    for left in (waiting, task):
        left.cancel()
    loop.run_until_complete(asyncio.gather(waiting, task, return_exceptions=True))
    loop.close()
