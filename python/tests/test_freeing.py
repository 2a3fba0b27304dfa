"""What an earlier attempt has left prepared at some sites only: given up where others wait for it, and we for those."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from shop import BUY, STOCK, Shop
from test_sweeper import Log, eager, in_doubt

from pgmip import App, NothingHappened, Step, Tx, Unknown, _attempt, _family, _mipt
from pgmip._json import canonical
from pgmip.sweeper import EventName
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
Session = psycopg.AsyncConnection[Any]
PATIENCE = 60  # seconds, for what happens soon or never
TAKE_STOCK = b"UPDATE item SET stock = stock WHERE i_id = 1"
TAKE_ACCOUNT = b"UPDATE account SET balance = balance WHERE a_id = 1"


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.2)


@pytest.fixture
async def log() -> Log:
    return Log()


def left_at_bank(shop: Shop, xid: str, sql: bytes = TAKE_ACCOUNT, name: str = "buy") -> None:
    """An attempt that is prepared at the bank, and never came to the store."""
    request = canonical({"transaction": name, "request": BUY})
    shop.sql(
        "bank",
        f"BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); {sql.decode()};"
        f"SELECT * FROM mip.prepare('{request}', '\"of 1\"')",
    )


@pytest.fixture
async def sessions(shop: Shop) -> AsyncIterator[dict[str, Session]]:
    """Somebody else's, at each site."""
    opened = {site: await psycopg.AsyncConnection.connect(conninfo) for site, conninfo in shop.conninfos().items()}
    try:
        yield opened
    finally:
        for conn in opened.values():
            await conn.close()


@pytest.fixture
async def circle(shop: Shop, sessions: dict[str, Session]) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """A request in doubt, and somebody who holds a row of the store, and waits for one of the bank that the request
    has: no site can see that its retries wait for him in turn.
    """
    xid = new_xid()
    left_at_bank(shop, xid)
    await sessions["store"].execute(TAKE_STOCK)

    async def go_on() -> None:
        await sessions["bank"].execute(TAKE_ACCOUNT)
        await sessions["store"].commit()
        await sessions["bank"].commit()

    task = asyncio.create_task(go_on())
    await waiting(shop, "bank")
    yield xid, task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def waiting(shop: Shop, site: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not shop.sql(site, "SELECT FROM mip.waits"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_circle_over_two_sites(server: Server, shop: Shop, circle: tuple[str, asyncio.Task[None]]) -> None:
    xid, outsider = circle
    result = await server().submit("buy", BUY, xid=xid, deadline=PATIENCE)
    await outsider
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_sweeper_in_the_circle(
    server: Server, shop: Shop, circle: tuple[str, asyncio.Task[None]], log: Log
) -> None:
    xid, outsider = circle
    async with eager(server(), log):
        await log.has(EventName.COMMITTED, xid)
    await outsider
    shop.assert_clean()


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_circle_and_time_outs(
    server: Server, shop: Shop, circle: tuple[str, asyncio.Task[None]], setting: str
) -> None:
    xid, outsider = circle
    impatient = {
        site: make_conninfo(conninfo, options=f"-c {setting}=100ms") for site, conninfo in shop.conninfos().items()
    }
    result = await server(impatient).submit("buy", BUY, xid=xid, deadline=PATIENCE)
    await outsider
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_circle_after_other_trouble(
    server: Server, shop: Shop, circle: tuple[str, asyncio.Task[None]]
) -> None:
    xid, outsider = circle
    app, failures = server(), 8

    @app.transaction(sites=("store", "bank"), name="unlucky")
    async def unlucky(tx: Tx, request: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            await tx.bank.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")
        await tx.store.execute(TAKE_STOCK)
        await tx.bank.execute("SELECT 1")
        return {}

    # Each turn is longer than the last one that did not suffice: not longer for failures of other kinds.
    assert await app.submit("unlucky", BUY, xid=xid, deadline=10.0) == {}
    await outsider
    shop.assert_clean()


async def test_a_handler_that_takes_its_time(
    server: Server, shop: Shop, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for nobody: so nothing is given up, however long it takes."""
    monkeypatch.setattr(_attempt, "_PATIENCE", PATIENCE)  # a connection that is slow to open is no queue
    app, attempts = server(), 0

    @app.transaction(sites=("store", "bank"), name="long")
    async def long(tx: Tx, request: Any) -> Any:
        nonlocal attempts
        attempts += 1
        await tx.store.execute("SELECT 1")
        await tx.bank.execute("SELECT 1")
        await asyncio.sleep(1.0)
        return {}

    left_at_bank(shop, "freeing-long", b"SELECT 1", name="long")
    (event,) = await eager(app, log).sweep()
    assert (event.name, attempts) == (EventName.COMMITTED, 1)
    shop.assert_clean()


async def test_a_site_that_is_lost_before_the_roll_back(
    server: Server, shop: Shop, sessions: dict[str, Session], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any) -> Any:
        raise psycopg.OperationalError("cut")

    left_at_bank(shop, "freeing-lost")
    await sessions["store"].execute(TAKE_STOCK)
    with monkeypatch.context() as patch:
        patch.setattr(_mipt, "rollback", lost)
        (event,) = await eager(server(deadline=1.0), log).sweep()
    assert (event.name, in_doubt(shop)) == (EventName.FAILED, [0, 1])
    await sessions["store"].rollback()
    shop.assert_once("freeing-lost", await server().submit("buy", BUY, xid="freeing-lost"))
    shop.assert_clean()


async def test_who_never_goes_on(server: Server, shop: Shop, sessions: dict[str, Session], log: Log) -> None:
    """Somebody hangs with a row that the handler needs: at least nobody waits for the request any more."""
    left_at_bank(shop, "freeing-hung")
    await sessions["store"].execute(TAKE_STOCK)
    (event,) = await eager(server(deadline=4.0), log).sweep()
    assert (event.name, event.xid) == (EventName.UNDONE, "freeing-hung")
    assert in_doubt(shop) == [0, 0]
    with pytest.raises(NothingHappened):
        await server().submit("buy", BUY, xid="freeing-hung", deadline=0.5)
    await sessions["store"].rollback()
    shop.assert_once("freeing-hung", await server().submit("buy", BUY, xid="freeing-hung"))
    shop.assert_clean()


async def test_two_requests_that_wait_for_each_other(server: Server, shop: Shop) -> None:
    """The retry of each wants what an earlier attempt of the other has: PostgreSQL finds a deadlock again and again."""
    shop.sql("bank", "INSERT INTO account VALUES (2, 0), (3, 0)")
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def charge(tx: Tx, request: Any) -> int:
        await tx.bank.execute("UPDATE account SET balance = balance + 1 WHERE a_id = %s", (request,))
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        return tx.xinst

    left_at_bank(shop, "freeing-first", b"UPDATE account SET balance = balance + 10 WHERE a_id = 2")
    left_at_bank(shop, "freeing-second", b"UPDATE account SET balance = balance + 10 WHERE a_id = 3")
    await asyncio.gather(
        app.submit("charge", 3, xid="freeing-first", deadline=PATIENCE),
        app.submit("charge", 2, xid="freeing-second", deadline=PATIENCE),
    )
    assert shop.sql("bank", "SELECT balance FROM account WHERE a_id > 1 ORDER BY a_id") == [(1,), (1,)]
    shop.sql("bank", "DELETE FROM account WHERE a_id > 1")
    shop.assert_clean()


async def test_its_coordinator_is_alive(server: Server, shop: Shop, sessions: dict[str, Session]) -> None:
    """It comes back, and is told of the winner."""
    shop.sql("bank", "INSERT INTO account VALUES (2, 0)")
    await sessions["bank"].execute(b"UPDATE account SET balance = 0 WHERE a_id = 2")
    go_on = asyncio.Event()
    attempts: list[int] = []

    def make() -> App:
        app = server(parallel=False)

        @app.transaction(sites=("store", "bank"))
        async def sell(tx: Tx, request: Any) -> Any:
            attempts.append(tx.xinst)
            await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
            await tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
            if tx.xinst != attempts[0]:
                await tx.bank.execute("UPDATE account SET balance = 0 WHERE a_id = 2")
            return {"xinst": tx.xinst}

        return app

    slow = make()

    async def hang(step: Step) -> None:
        if step.name == "prepared-first-site" and step.xinst == attempts[0]:
            await go_on.wait()

    async def in_doubt_are(at: list[int]) -> None:
        async with asyncio.timeout(PATIENCE):
            while in_doubt(shop) != at:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    slow.on_step(hang)
    submitted = asyncio.create_task(slow.submit("sell", BUY, xid="freeing-slow", deadline=PATIENCE))
    await in_doubt_are([1, 0])
    with pytest.raises(Unknown):  # since that coordinator will try again
        await make().submit("sell", BUY, xid="freeing-slow", deadline=1.0)
    assert in_doubt(shop) == [0, 0]
    await sessions["bank"].rollback()
    result = await make().submit("sell", BUY, xid="freeing-slow")
    go_on.set()
    assert await submitted == result
    assert result["xinst"] != attempts[0]
    shop.assert_once("freeing-slow", result)
    shop.sql("bank", "DELETE FROM account WHERE a_id = 2")
    shop.assert_clean()


async def test_a_site_that_cannot_be_asked_to_refuse(
    server: Server, shop: Shop, sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a definite refusal nothing is rolled back."""

    async def lost(*_: Any) -> bool:
        raise psycopg.OperationalError("cut")

    monkeypatch.setattr(_mipt, "refuse", lost)
    left_at_bank(shop, "freeing-unasked")
    await sessions["store"].execute(TAKE_STOCK)
    with pytest.raises(Unknown):
        await server().submit("buy", BUY, xid="freeing-unasked", deadline=1.0)
    assert in_doubt(shop) == [0, 1]
    await sessions["store"].rollback()
    monkeypatch.undo()
    shop.assert_once("freeing-unasked", await server().submit("buy", BUY, xid="freeing-unasked"))
    shop.assert_clean()


async def test_it_is_complete_by_then(
    server: Server, shop: Shop, sessions: dict[str, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator prepares it at the last site right before that is to refuse it: so it wins."""
    refuse = _mipt.refuse
    request = canonical({"transaction": "buy", "request": BUY})

    async def late(*args: Any) -> bool:
        shop.sql(
            "store",
            "BEGIN; SELECT mip.begin('freeing-late', 1, '{bank,store}');"
            f"SELECT * FROM mip.prepare('{request}', '\"of 1\"')",
        )
        refused = await refuse(*args)
        assert not refused
        return refused

    monkeypatch.setattr(_mipt, "refuse", late)
    left_at_bank(shop, "freeing-late")
    await sessions["store"].execute(TAKE_STOCK)
    assert await server().submit("buy", BUY, xid="freeing-late", deadline=0.5) == "of 1"
    await sessions["store"].rollback()
    assert shop.sql("store", "SELECT stock FROM item WHERE i_id = 1") == [(STOCK,)]
    shop.assert_clean()
