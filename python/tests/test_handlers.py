"""Handlers that do what they should not: none of it may make `submit` say something that is not so."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from shop import Shop

import pgmip.sync
from pgmip import App, NothingHappened, Tx, Unknown
from pgmip._family import Family

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 2}
ORDER = "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)"


async def test_a_sibling_commits_before_the_last_look(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of attempts: what the MIPTs say by then counts."""
    other = server()
    app = App(shop.conninfos())

    @app.transaction(sites=("store", "bank"), name="buy")
    async def failing(tx: Tx, request: Any) -> None:
        raise psycopg.errors.SerializationFailure("rival")

    results: list[Any] = []
    read = Family._read

    async def read_late(self: Family) -> Any:
        mipts = await read(self)
        if not results:
            results.append(await other.submit("buy", BUY, xid="late"))
        return mipts

    monkeypatch.setattr(Family, "_read", read_late)
    async with app:
        assert await app.submit("buy", BUY, xid="late", attempts=1) == results[0]
    shop.assert_once("late", results[0])
    shop.assert_clean()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "ABORT", "COMMIT AND CHAIN"])
async def test_nothing_runs_after_a_transaction_that_was_ended(server: Server, shop: Shop, sql: str) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def rude(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT 1")
        for statement in (request, "SAVEPOINT s"):
            with contextlib.suppress(psycopg.Error):
                await tx.store.execute(statement)
        with contextlib.suppress(psycopg.Error):
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        with contextlib.suppress(psycopg.Error):
            async with tx.store.savepoint():
                await tx.store.execute(ORDER, (tx.xid, tx.xinst))

    with pytest.raises(NothingHappened):
        await app.submit("rude", sql, xid=f"after {sql}")
    shop.assert_never(f"after {sql}")
    shop.assert_clean()


_LEAVES = {
    "a statement behind": ["ROLLBACK; {order}"],
    "out and back": ["ROLLBACK; BEGIN; {order}; COMMIT; BEGIN; {begin}"],
    "chain": ["ROLLBACK AND CHAIN", "{order}", "COMMIT"],
    "chain and back": ["ROLLBACK AND CHAIN", "{order}", "COMMIT AND CHAIN", "{begin}"],
    "failed": ["SELECT 1 / 0", "COMMIT; BEGIN; {order}; COMMIT; BEGIN; {begin}"],
    "failed, chain": ["SELECT 1 / 0", "COMMIT AND CHAIN", "{order}", "COMMIT"],
}


@pytest.mark.parametrize("name", _LEAVES)
async def test_out_of_its_transaction_and_back(server: Server, shop: Shop, name: str) -> None:
    """What would take effect in between is refused, and the attempt fails, whatever the handler makes of the errors."""
    app, xid = server(), f"leaves: {name}"

    @app.transaction(sites=("store", "bank"))
    async def leaves(tx: Tx, request: Any) -> None:
        order = f"INSERT INTO orders (xid, xinst, qty) VALUES ('{tx.xid}', {tx.xinst}, 0)"
        begin = f"SELECT mip.begin('{tx.xid}', {tx.xinst}, '{{bank,store}}')"
        await tx.store.execute("SELECT 1")
        for statement in _LEAVES[request]:
            with contextlib.suppress(psycopg.Error):
                await tx.store.execute(statement.format(order=order, begin=begin).encode())

    with pytest.raises(NothingHappened):
        await app.submit("leaves", name, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


async def test_a_handler_that_prepares_by_itself(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def hasty(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.store.fetch_all("SELECT * FROM mip.prepare(NULL, NULL)")

    with pytest.raises(Unknown):
        await app.submit("hasty", None, xid="hasty")
    assert shop.sql("store", "SELECT xid FROM mip.in_doubt") == [("hasty",)]
    await app.resolve("hasty", sites=("store", "bank"))
    shop.assert_never("hasty")
    shop.assert_clean()


async def test_a_savepoint_of_an_attempt_that_is_over(server: Server, shop: Shop) -> None:
    """A task that a handler has left behind: the connection is another request's by then."""
    app = server(pool_size=1)
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    errors: list[BaseException] = []

    @app.transaction(sites=("store", "bank"))
    async def leaves(tx: Tx, request: Any) -> None:
        async def part(before: bool) -> None:
            try:
                if before:
                    async with tx.store.savepoint():
                        begun.set()
                        await go_on.wait()
                        await tx.store.execute("SELECT 1")
                else:
                    await go_on.wait()
                    async with tx.store.savepoint():
                        pass
            except Exception as error:
                errors.append(error)
            finally:
                if len(errors) == 2:
                    done.set()

        tasks.extend(asyncio.create_task(part(before)) for before in (True, False))
        await begun.wait()
        raise KeyError("a bug")

    @app.transaction(sites=("store", "bank"))
    async def victim(tx: Tx, request: Any) -> str:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        go_on.set()
        await done.wait()
        await tx.bank.execute("SELECT 1")
        return "sold"

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(NothingHappened):
        await app.submit("leaves", None)
    assert await app.submit("victim", None, xid="victim") == "sold"
    assert len(shop.effects("victim")[0]) == 1
    assert [str(error) for error in errors] == ["the transaction at site 'store' is over"] * 2
    await asyncio.gather(*tasks)
    shop.assert_clean()


async def test_savepoints_are_nested_and_many(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store",))
    async def nested(tx: Tx, request: Any) -> int:
        for _ in range(8):
            with contextlib.suppress(ZeroDivisionError):
                async with tx.store.savepoint():
                    async with tx.store.savepoint():
                        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
                    with contextlib.suppress(psycopg.errors.DivisionByZero):
                        async with tx.store.savepoint():
                            await tx.store.execute("SELECT 1/0")
                    raise ZeroDivisionError
        async with tx.store.savepoint():
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        return int((await tx.store.fetch_one("SELECT count(*) AS n FROM orders WHERE xid = %s", (tx.xid,))).n)

    for number in range(8):
        assert await app.submit("nested", None, xid=f"nested {number}") == 1
    shop.assert_clean()


async def test_cancelled_from_within(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def waits(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        task = asyncio.create_task(asyncio.sleep(600))
        task.cancel()
        await task

    with pytest.raises(NothingHappened, match="cancelled from within"):
        await app.submit("waits", None, xid="within")
    shop.assert_never("within")
    shop.assert_clean()


def test_a_handler_that_exits(shop: Shop) -> None:
    with pgmip.sync.App(shop.conninfos()) as app:

        @app.transaction(sites=("store",))
        def leaves(tx: pgmip.sync.Tx, request: Any) -> str:
            if request:
                sys.exit(3)
            return "here"

        with pytest.raises(NothingHappened, match="SystemExit"):
            app.submit("leaves", True)
        assert app.submit("leaves", False) == "here"
    shop.assert_clean()


@pytest.mark.parametrize("conninfo", ["nonsense", "host"])
def test_a_conninfo_that_is_none(conninfo: str) -> None:
    with pytest.raises(ValueError, match="site 'store' has no usable conninfo"):
        App({"store": conninfo})


@pytest.mark.parametrize("conninfo", ["host=127.0.0.1 connect_timeout=abc", "host=a..b", f"host={'a' * 80}"])
async def test_a_site_that_cannot_even_be_tried(conninfo: str) -> None:
    async with App({"store": conninfo}, deadline=2, step_timeout=1) as app, asyncio.timeout(30):

        @app.transaction(sites=("store",))
        async def idle(tx: Tx, request: Any) -> None:
            pass

        with pytest.raises((NothingHappened, Unknown)):
            await app.submit("idle", None)
