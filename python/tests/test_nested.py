"""Operations within a handler, which would not be undone with its attempt: refused, from wherever it asks for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from shop import BUY, RIVAL, Shop

import pgmip.sync
from pgmip import App, NothingHappened, Tx
from pgmip.sweeper import Sweeper

pytestmark = pytest.mark.integration

Server = Callable[..., App]
Work = Callable[[], Awaitable[Any]]
REFUSED = "within a handler"


async def at_once(work: Work) -> None:
    await work()


async def in_a_task(work: Work) -> None:
    await asyncio.create_task(_run(work))


async def in_a_thread(work: Work) -> None:
    await asyncio.to_thread(asyncio.run, _run(work))


async def _run(work: Work) -> Any:
    return await work()


@pytest.mark.parametrize("how", [at_once, in_a_task, in_a_thread])
@pytest.mark.parametrize("which", ["the same App", "another App", "a twin"])
async def test_submit(server: Server, shop: Shop, which: str, how: Callable[[Work], Awaitable[None]]) -> None:
    """The attempts fail and come again, and the inner request would take effect each time."""
    app = server()
    other = app if which == "the same App" else server()
    attempts: list[int] = []
    with contextlib.ExitStack() as stack:
        if which == "a twin":
            twin = stack.enter_context(pgmip.sync.App(shop.conninfos()))
            twin.transaction(sites=("bank",), name="charge")(lambda tx, _: _charge_in_thread(tx))

        @other.transaction(sites=("bank",))
        async def charge(tx: Tx, request: Any) -> None:
            await tx.bank.execute("INSERT INTO payment (amount) VALUES (0)")

        async def submit() -> Any:
            return await (
                asyncio.to_thread(twin.submit, "charge", None)
                if which == "a twin"
                else other.submit("charge", None)
            )

        @app.transaction(sites=("store", "bank"))
        async def order(tx: Tx, request: Any) -> str:
            attempts.append(tx.xinst)
            with pytest.raises(RuntimeError, match=REFUSED):
                await how(submit)
            if len(attempts) < 3:
                await tx.store.execute(RIVAL)
            return "done"

        assert await app.submit("order", None) == "done"
        assert len(attempts) == 3
        assert shop.sql("bank", "SELECT count(*) FROM payment") == [(0,)]
        await other.submit("charge", None)  # outside it is as ever
    assert shop.sql("bank", "SELECT count(*) FROM payment") == [(1,)]
    shop.assert_clean()


def _charge_in_thread(tx: pgmip.sync.Tx) -> None:
    tx.bank.execute("INSERT INTO payment (amount) VALUES (0)")


async def test_told_to_the_caller(server: Server, shop: Shop) -> None:
    """A handler that does not catch it fails for good, at its first attempt."""
    app = server()
    attempts: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def order(tx: Tx, request: Any) -> Any:
        attempts.append(tx.xinst)
        await tx.store.execute("SELECT 1")
        return await app.submit("buy", BUY)

    with pytest.raises(NothingHappened, match=r"submit within a handler.*declare its sites too") as caught:
        await app.submit("order", None)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert len(attempts) == 1
    assert shop.sql("store", "SELECT * FROM orders") == []
    shop.assert_clean()


async def test_instead(server: Server, shop: Shop) -> None:
    """What the error says to do: the other handler, in the same transaction."""
    app = server()

    @app.transaction(sites=("bank",))
    async def charge(tx: Tx, request: Any) -> None:
        await tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))

    @app.transaction(sites=("store", "bank"))
    async def order(tx: Tx, request: Any) -> Any:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        await charge(tx, None)
        return {"xinst": tx.xinst}

    shop.assert_once("instead", await app.submit("order", None, xid="instead"))


@pytest.mark.parametrize("name", ["settle", "resolve", "acknowledge"])
async def test_other_operations(server: Server, shop: Shop, name: str) -> None:
    app = server()
    await app.submit("buy", BUY, xid=f"{name} this")

    @app.transaction(sites=("store",))
    async def meddle(tx: Tx, request: Any) -> None:
        await getattr(app, name)(request)

    with pytest.raises(NothingHappened, match=f"{name} within a handler"):
        await app.submit("meddle", f"{name} this")


async def test_a_handler_that_a_sweeper_runs(server: Server, shop: Shop) -> None:
    app = server()
    refusals: list[Exception] = []

    @app.transaction(sites=("store", "bank"))
    async def order(tx: Tx, request: Any) -> Any:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        try:
            await app.submit("buy", BUY)
        except RuntimeError as error:
            refusals.append(error)
        return {"xinst": tx.xinst}

    with psycopg.connect(shop.conninfos()["store"], autocommit=True) as dead:
        dead.execute("BEGIN")
        dead.execute("SELECT mip.begin('swept', 1, '{bank,store}')")
        dead.execute("""SELECT FROM mip.prepare('{"request":null,"transaction":"order"}', '"first"')""")
    await Sweeper(app, older_than=0).sweep()
    assert len(refusals) == 1
    assert REFUSED in str(refusals[0])
    assert shop.sql("store", "SELECT count(*) FROM orders WHERE xid = 'swept'") == [(1,)]


async def test_tasks_that_outlive_the_request(server: Server, shop: Shop) -> None:
    """Refused as long as their request may be attempted again, by which they would be several; then as anybody."""
    app = server()
    tasks: list[asyncio.Task[Any]] = []
    answered = asyncio.Event()

    async def early() -> Any:
        return await app.submit("buy", BUY)

    async def late() -> Any:
        await answered.wait()
        return await app.submit("buy", BUY, xid="outlives")

    @app.transaction(sites=("store", "bank"))
    async def leaves(tx: Tx, request: Any) -> str:
        tasks.append(asyncio.create_task(early()))  # begins when the handler has returned
        if len(tasks) < 3:
            await tx.store.execute(RIVAL)
        tasks.append(asyncio.create_task(late()))
        return "done"

    assert await app.submit("leaves", None) == "done"
    answered.set()
    *refused, result = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in refused] == [RuntimeError] * 3
    shop.assert_once("outlives", result)
    shop.assert_clean()


@pytest.mark.parametrize("through", ["itself", "another twin", "an App"])
def test_without_an_event_loop(shop: Shop, through: str) -> None:
    with pgmip.sync.App(shop.conninfos(), threads=2) as app, pgmip.sync.App(shop.conninfos()) as other:
        for twin in (app, other):
            twin.transaction(sites=("bank",), name="charge")(lambda tx, _: _charge_in_thread(tx))

        async def in_a_loop() -> None:
            async with App(shop.conninfos()) as another:
                await another.resolve("charge")

        def submit() -> None:
            if through == "an App":
                asyncio.run(in_a_loop())
            else:
                (app if through == "itself" else other).submit("charge", None)

        @app.transaction(sites=("store", "bank"))
        def outer(tx: pgmip.sync.Tx, request: Any) -> str:
            with pytest.raises(RuntimeError, match=REFUSED):
                submit()
            return "done"

        assert app.submit("outer", None) == "done"
        assert shop.sql("bank", "SELECT count(*) FROM payment") == [(0,)]
        app.submit("charge", None)
    shop.assert_clean()
