"""Whoever has given up an attempt of ours goes on: it is not taken for what we have done ourselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from proxy import Proxy
from shop import BUY, ORDER, RIVAL, Shop
from test_met_again import TwoTurns, held_up, told
from test_sweeper import in_doubt
from test_told import Gate, active, stall_at_prepare, until

from pgmip import App, Tx, Unknown
from pgmip._asking import Asking
from pgmip._branch import Branch
from pgmip._pool import Pool
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]


def failing(app: App, when_done: Callable[[], None] = lambda: None, last: str = RIVAL) -> App:
    """Its first attempt is prepared at the store and refused by the bank, with its `last` statement there; in further
    ones the handler fails.
    """
    attempts = 0

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            raise ArithmeticError("a bug")
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with(last)
        when_done()

    return app


class Other(TwoTurns):
    """A server that gives up what it finds, and goes on later."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch, shop: Shop, xid: str) -> None:
        super().__init__(app, monkeypatch, held_up)
        self.shop = shop
        self.xid = xid

    async def gives_up(self) -> asyncio.Task[Any]:
        assert in_doubt(self.shop) == [1, 0]
        answer = asyncio.create_task(self.app.submit("note", BUY, xid=self.xid))
        await self.pauses.reached.wait()
        assert in_doubt(self.shop) == active(self.shop, self.xid) == [0, 0]
        return answer

    async def goes_on(self, answer: asyncio.Task[Any]) -> None:
        self.pauses.open.set()
        await answer
        assert self.shop.effects(self.xid)[0]


async def test_what_we_have_asked_for_in_vain(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our roll-back did not get to the store."""
    xid, pause, check_up = new_xid(), Gate(), Pool.check_up_to_ask
    async with Proxy(shop.clusters["store"].port) as store:

        def cut_off() -> None:
            store.forbidden = (b"mip.rollback",)

        app = failing(server(shop.conninfos(store=store.port)), cut_off)

        async def late(pool: Pool) -> None:
            if pool in app._pools.values():
                await pause()
            await check_up(pool)

        monkeypatch.setattr(Pool, "check_up_to_ask", late)
        other = Other(server(), monkeypatch, shop, xid)
        ours = asyncio.create_task(told(app.submit("note", BUY, xid=xid)))
        await pause.reached.wait()
        theirs = await other.gives_up()
        store.forbidden = ()
        pause.open.set()
        answer = await ours
        await other.goes_on(theirs)
        assert type(answer) is Unknown, answer


async def test_what_could_not_be_seen(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment the sites did not answer; what they are asked next finds it done."""
    xid, moment, app = new_xid(), Gate(), failing(server())
    roll_back, read = Asking.roll_back, Asking.read

    async def not_sent(asking: Asking, site: str, xinst: int, conn: Any = None) -> Any:
        if asking.pools is app._pools and conn is not None and not moment.reached.is_set():
            return psycopg.OperationalError("never sent")
        return await roll_back(asking, site, xinst, conn)

    async def unread(asking: Asking, sites: Any) -> Any:
        if asking.pools is app._pools and not moment.open.is_set():
            await moment()
            return dict.fromkeys(sites), psycopg.OperationalError("no answer")
        return await read(asking, sites)

    monkeypatch.setattr(Asking, "roll_back", not_sent)
    monkeypatch.setattr(Asking, "read", unread)
    other = Other(server(), monkeypatch, shop, xid)
    ours = asyncio.create_task(told(app.submit("note", BUY, xid=xid)))
    await moment.reached.wait()
    moment.reached.clear()
    theirs = await other.gives_up()
    moment.open.set()
    answer = await ours
    await other.goes_on(theirs)
    assert type(answer) is Unknown, answer


async def test_what_an_earlier_call_has_left(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = new_xid()
    async with Proxy(shop.clusters["store"].port) as store:

        def cut_off() -> None:
            store.forbidden = (b"mip.rollback",)

        app = failing(server(shop.conninfos(store=store.port), attempts=1), cut_off)
        assert type(await told(app.submit("note", BUY, xid=xid, deadline=2))) is Unknown
        store.forbidden = ()
        other = Other(server(), monkeypatch, shop, xid)
        theirs = await other.gives_up()
        answer = await told(app.submit("note", BUY, xid=xid))
        await other.goes_on(theirs)
        assert type(answer) is Unknown, answer


async def test_what_was_not_looked_at_before(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What prepares is lost on its way to the bank, and its answer from the store. Then the sites cannot be read, but
    hear what they are asked for.
    """
    xid, note = new_xid(), Asking._note
    async with Proxy(shop.clusters["store"].port) as store, Proxy(shop.clusters["bank"].port) as bank:
        app = failing(server(shop.conninfos(store=store.port, bank=bank.port), step_timeout=2), last="SELECT")
        stall_at_prepare(monkeypatch, {"store": store})
        bank.forbidden = (b"mip.prepare", b"mip.instances")
        noted = 0

        async def noting(asking: Asking, *what: Any) -> None:
            nonlocal noted
            await note(asking, *what)
            noted += asking.pools is app._pools
            if noted == 2:
                store.forbidden = bank.forbidden = ()

        monkeypatch.setattr(Asking, "_note", noting)
        other = Other(server(), monkeypatch, shop, xid)
        ours = asyncio.create_task(told(app.submit("note", BUY, xid=xid, deadline=20)))
        await until(lambda: in_doubt(shop) == [1, 0])
        store.forbidden = (b"mip.instances",)
        theirs = await other.gives_up()
        answer = await ours
        await other.goes_on(theirs)
        assert type(answer) is Unknown, answer


async def test_before_it_looks_whom_it_is_beside(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    xid, gate, look = new_xid(), Gate(), Branch._look
    app = failing(server(parallel=False), last="SELECT")
    shop.sql("store", f"SELECT mip.refuse('{xid}', 1, '{{bank,store}}')")  # so that there is another instance

    async def late(branch: Branch, *expected: Any) -> Any:
        if not gate.reached.is_set():
            await gate()
        return await look(branch, *expected)

    monkeypatch.setattr(Branch, "_look", late)
    other = Other(server(), monkeypatch, shop, xid)
    ours = asyncio.create_task(told(app.submit("note", BUY, xid=xid, deadline=20)))
    await gate.reached.wait()
    theirs = await other.gives_up()
    gate.open.set()
    answer = await ours
    await other.goes_on(theirs)
    assert type(answer) is Unknown, answer
