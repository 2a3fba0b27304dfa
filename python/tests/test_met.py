"""Whom a call has met once it cannot rule out any more, nor what it has done itself: what it is told of both."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from proxy import Fault, Mode, Proxy
from shop import BUY, ORDER, PAYMENT, RIVAL, Shop
from test_sweeper import eager, in_doubt, prepare_at
from test_told import fail, nothing, serving, stall_at_prepare, until

from pgmip import App, Refuse, Step, Tx, Unknown, _mipt
from pgmip._asking import Asking
from pgmip._branch import Branch
from pgmip._family import Family
from pgmip.sweeper import EventName
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]


def roll_back(shop: Shop, xid: str, site: str) -> None:
    """As a coordinator does with what it takes back, before its next attempt."""
    shop.sql(site, f"SELECT FROM mip.rollback('{xid}', 1)")


# -- siblings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["SELECT 1", "SELECT 1/0"])
async def test_at_the_begin(server: Server, shop: Shop, statement: str) -> None:
    """Also where the statement fails that the begin came with."""
    xid = new_xid()
    prepare_at(shop, xid, "store", name="note")

    async def too_late(tx: Tx) -> None:
        try:
            await tx.store.execute(statement)
        finally:
            roll_back(shop, xid, "store")
        await fail(tx)

    with pytest.raises(Unknown, match="a sibling may still be on its way"):
        await serving(server(), too_late).submit("note", None, xid=xid)
    shop.assert_never(xid)


async def test_at_the_roll_back(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = new_xid()
    app = server(parallel=False)
    sibling = await psycopg.AsyncConnection.connect(shop.conninfos()["store"])

    async def come(step: Step) -> None:
        if step.name == "prepared-first-site":
            await sibling.execute(f"SELECT mip.begin('{xid}', {2**62}, '{{bank,store}}')")

    async def last(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with(RIVAL)

    real = _mipt.rollback

    async def and_gone(*args: Any) -> Any:
        mipt = await real(*args)
        await sibling.rollback()
        return mipt

    monkeypatch.setattr(_mipt, "rollback", and_gone)
    app.on_step(come)
    app.transaction(sites=("store", "bank"), name="note")(last)
    async with sibling:
        with pytest.raises(Unknown, match="a sibling may still be on its way"):
            await app.submit("note", None, xid=xid, attempts=1)
    shop.assert_never(xid)


async def test_at_the_prepare(server: Server, shop: Shop) -> None:
    """What a sibling does while deferred triggers run has the prepare refused, and nobody named."""
    shop.sql(
        "store",
        """CREATE TABLE slow (i int); SELECT mip.enable('slow');
        CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER s AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION slowly()""",
    )
    try:
        xid = new_xid()

        async def slow(tx: Tx) -> None:
            await tx.store.execute("INSERT INTO slow VALUES (1)")

        app = serving(server(parallel=False), slow)
        told = asyncio.create_task(app.submit("note", None, xid=xid, attempts=1))
        await until(lambda: shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
        prepare_at(shop, xid, "store", name="note")
        roll_back(shop, xid, "store")
        with pytest.raises(Unknown, match="a sibling may still be on its way"):
            await told
        shop.assert_never(xid)
    finally:
        shop.sql("store", "DROP TABLE slow; DROP FUNCTION slowly")


async def test_given_up_by_who_settles(server: Server, shop: Shop) -> None:
    """Its coordinator may be alive, and make another attempt."""
    xid, turns = new_xid(), 0

    async def held_up(tx: Tx) -> None:
        nonlocal turns
        turns += 1
        if turns % 2:
            await tx.store.execute("DO $$ BEGIN RAISE lock_not_available; END $$")
        await fail(tx)

    prepare_at(shop, xid, "store", name="note")
    with pytest.raises(Unknown, match="a sibling may still be on its way"):
        await serving(server(), held_up).settle(xid)
    assert in_doubt(shop) == [0, 0]
    shop.assert_never(xid)


async def test_at_work_when_it_is_settled(server: Server, shop: Shop) -> None:
    """Its coordinator has taken back what was in doubt, and makes another attempt."""
    xid, app = new_xid(), serving(server(), nothing)
    prepare_at(shop, xid, "store", name="note")
    begin = f"SELECT mip.begin('{xid}', {2**62}, '{{bank,store}}')"
    conninfos, working = shop.conninfos(), []
    for site in ("store", "bank"):
        working.append(await psycopg.AsyncConnection.connect(conninfos[site]))

    async def go_on(step: Step) -> None:
        if step.name == "begun" and working[0].info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            roll_back(shop, xid, "store")
            for one in working:
                await one.execute(begin)

    app.on_step(go_on)
    try:
        with pytest.raises(Unknown, match="a sibling may still be on its way"):
            await app.settle(xid)
    finally:
        for one in working:
            await one.close()
    shop.assert_never(xid)


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_committed_is_not_undone(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By a sweeper that does not get to know of it, or by another server, before it looks for what is left."""
    xid, real = new_xid(), Asking.commit
    prepare_at(shop, xid, *(("store", "bank") if by == "itself" else ("store",)), name="note")

    async def unheard(self: Asking, *args: Any) -> None:
        await real(self, *args)
        raise psycopg.OperationalError("lost")

    async def too_late(self: Family, *args: Any) -> Any:
        monkeypatch.undo()
        await serving(server(), nothing).submit("note", BUY, xid=xid)
        return Unknown("a sibling may still be on its way", xid=xid)

    if by == "itself":
        monkeypatch.setattr(Asking, "commit", unheard)
    else:
        monkeypatch.setattr(Family, "_undecided", too_late)
    (event,) = await eager(serving(server(), fail)).sweep()
    assert event.name is EventName.FAILED
    assert shop.sql("store", f"SELECT FROM mip.instances('{xid}') WHERE state = 'committed'")


# -- its own -----------------------------------------------------------------------------------------------------


async def test_expired_meanwhile(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been committed is removed before the call, whose reply was lost, looks for it."""
    real = Branch.commit_one_phase
    shop.sql("store", "ALTER DATABASE postgres SET mip.retention = '2s'")
    try:
        async with Proxy(shop.clusters["store"].port) as proxy:
            app = serving(server(shop.conninfos(store=proxy.port), step_timeout=5), nothing, ("store",))
            await app.submit("note", None)

            async def unanswered(self: Branch, *args: Any) -> Any:
                proxy.arm(Fault(Mode.STALL, "reply", 0))
                return await real(self, *args)

            monkeypatch.setattr(Branch, "commit_one_phase", unanswered)
            xid, since = new_xid(), time.monotonic()
            told = asyncio.create_task(app.submit("note", None, xid=xid, attempts=1, deadline=20))
            await until(lambda: shop.effects(xid)[0])
            await until(lambda: time.monotonic() > since + 2.5)

            def is_gone() -> bool:
                """Not at once, where a look of the call's, which has waited for long by then, keeps it for a moment."""
                shop.sql("store", "SELECT mip.expire()")
                return shop.sql("store", f"SELECT FROM mip.instances('{xid}')") == []

            await until(is_gone)
            with pytest.raises(Unknown, match="expired, and an attempt may have been committed before"):
                await told
    finally:
        shop.sql("store", "ALTER DATABASE postgres RESET mip.retention")


async def test_acknowledged_meanwhile(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody else, who has committed what this call has prepared."""
    xid = new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank, Proxy(shop.clusters["store"].port) as store:
        app = serving(server(shop.conninfos(bank=bank.port, store=store.port), step_timeout=4), nothing)
        await app.submit("note", None)
        stall_at_prepare(monkeypatch, {"bank": bank, "store": store})
        told = asyncio.create_task(app.submit("note", None, xid=xid, deadline=20))
        await until(lambda: in_doubt(shop) == [1, 1])
        monkeypatch.undo()
        other = serving(server(), nothing)
        result = await other.submit("note", None, xid=xid)
        await other.acknowledge(xid)
        with pytest.raises(Unknown, match="committed and acknowledged"):
            await told
        shop.assert_once(xid, result)


# -- what has failed ---------------------------------------------------------------------------------------------


async def test_refused_because_of_what_is_retried(server: Server, shop: Shop) -> None:
    """A group interrupts its other statements; that it has does not hide why."""
    app, turns, xid = server(), 0, new_xid()

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        nonlocal turns
        turns += 1
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(tx.bank.execute("SELECT pg_sleep(0.5)"))
                await asyncio.sleep(0.1)
                if turns == 1:
                    group.create_task(tx.store.execute(RIVAL))
        except ExceptionGroup as error:
            raise Refuse("some error of the database") from error
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    shop.assert_once(xid, await app.submit("note", None, xid=xid))
    assert turns == 2


@pytest.mark.parametrize("how", ["settle", "sweep"])
async def test_what_is_in_doubt_cannot_be_read(server: Server, shop: Shop, how: str) -> None:
    """It is not told that nothing is."""
    xid = new_xid()
    prepare_at(shop, xid, "store", name="note")
    async with Proxy(shop.clusters["store"].port) as proxy:
        app = serving(server(shop.conninfos(store=proxy.port), prepared_statements=False), nothing)

        def lose(step: Step) -> None:
            if step.name == "begun" and step.xid == xid:
                proxy.forbidden = (b"mip.instances",)

        app.on_step(lose)
        if how == "settle":
            with pytest.raises(Unknown):
                await app.settle(xid)
        else:
            assert [event.name for event in await eager(app).sweep()] == [EventName.FAILED]
    assert in_doubt(shop) == [1, 0]
    shop.assert_once(xid, await serving(server(), nothing).submit("note", BUY, xid=xid))


async def test_a_statement_that_begins_too_late(server: Server, shop: Shop) -> None:
    """It tells of others when nobody looks for a winner any more."""
    xid, app = new_xid(), server()
    prepare_at(shop, xid, "bank", name="note")
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    running: list[asyncio.Task[Any]] = []

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        stubborn = "DO $$ BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN END $$"
        running.append(asyncio.create_task(tx.bank.execute(stubborn)))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(prepare_at, shop, xid, "store", name="note")

    await app.submit("note", BUY, xid=xid)
    await asyncio.wait(running)
    await asyncio.sleep(0.1)
    gc.collect()
    assert failures == []
