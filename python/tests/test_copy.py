"""What a handler may do beside plain statements: COPY, one statement for many parameters, cursors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shop import BUY, Shop

import pgmip.sync
from pgmip import App, NothingHappened, Tx

pytestmark = pytest.mark.integration

Server = Callable[..., App]
INTO = "COPY orders (xid, xinst, qty) FROM STDIN"
OUT = "COPY (SELECT n, 'x' || n FROM generate_series(1, 3) n) TO STDOUT"


@pytest.mark.parametrize("first", [True, False])
async def test_copy(server: Server, shop: Shop, first: bool) -> None:
    """As the first statement, and behind others; statements go on after it."""
    app, xid = server(), f"copy {first}"

    @app.transaction(sites=("store", "bank"))
    async def load(tx: Tx, request: Any) -> Any:
        if not first:
            await tx.store.execute("SELECT 1")
        async with tx.store.copy(INTO) as copy:
            for n in range(1000):
                await copy.write_row((tx.xid, tx.xinst, n))
            await copy.write(f"{tx.xid}\t{tx.xinst}\t1000\n")
        read = []
        async with tx.bank.copy(OUT) as copy:
            copy.set_types(("int4", "text"))
            while row := await copy.read_row():
                read.append(row)
        async with tx.bank.copy(OUT) as copy:
            blocks = [block async for block in _blocks(copy)]
        count = await tx.store.fetch_one("SELECT count(*) AS n FROM orders WHERE xid = %s", (tx.xid,))
        return {"count": count.n, "read": read, "blocks": b"".join(blocks).decode()}

    result = await app.submit("load", None, xid=xid)
    assert result == {"count": 1001, "read": [[1, "x1"], [2, "x2"], [3, "x3"]], "blocks": "1\tx1\n2\tx2\n3\tx3\n"}
    assert await app.submit("load", None, xid=xid) == result
    assert shop.sql("store", f"SELECT count(*), sum(qty) FROM orders WHERE xid = '{xid}'") == [(1001, 500500)]


async def _blocks(copy: Any) -> Any:
    while block := await copy.read():
        yield block


async def test_copy_beside_a_sibling(server: Server, shop: Shop) -> None:
    """A sibling of a server that has died has the same keys, and another one loses its own: one of them is there."""
    shop.sql("store", "DELETE FROM item")
    with psycopg.connect(shop.conninfos()["store"], autocommit=True) as dead:
        dead.execute("BEGIN")
        dead.execute("SELECT mip.begin('beside', 1, '{bank,store}')")
        with dead.cursor().copy("COPY item FROM STDIN") as rows:
            for n in range(10):
                rows.write_row((n, 1))
        dead.execute("SELECT FROM mip.prepare('{}', '1')")
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def load(tx: Tx, request: Any) -> Any:
        async with tx.store.copy("COPY item FROM STDIN") as copy:
            for n in range(10):
                await copy.write_row((n, 2))
        return "loaded"

    assert await app.submit("load", None, xid="beside") == "loaded"
    assert shop.sql("store", "SELECT count(*), min(stock), max(stock) FROM item") == [(10, 2, 2)]
    assert shop.sql("store", "SELECT * FROM mip.in_doubt") == []


_BROKEN = {
    "raises": [KeyError],
    "cancelled": [TimeoutError],
    "bad data": [psycopg.errors.InvalidTextRepresentation],
    "another site": [psycopg.errors.DivisionByZero],
    "not read": [psycopg.ProgrammingError],
    "a statement within": [psycopg.ProgrammingError],
    "no copy": [psycopg.ProgrammingError],
    "wrong": [psycopg.errors.SyntaxError],
}


async def _break(tx: Tx, how: str) -> None:
    if how == "no copy":
        async with tx.store.copy("SELECT 1"):
            pass
    if how == "wrong":
        async with tx.store.copy("COPY nonsense"):
            pass
    if how == "not read":
        async with tx.store.copy("COPY (SELECT generate_series(1, 100000)) TO STDOUT") as copy:
            await copy.read()
            return
    async with asyncio.timeout(0.05 if how == "cancelled" else None), tx.store.copy(INTO) as copy:
        await copy.write_row((tx.xid, tx.xinst, "no number" if how == "bad data" else 0))
        if how == "raises":
            raise KeyError("of the handler")
        if how == "cancelled":
            await asyncio.sleep(10)
        if how == "another site":
            await tx.bank.execute("SELECT 1/0")
        if how == "a statement within":
            await tx.store.execute("SELECT 1")


@pytest.mark.parametrize("how", _BROKEN)
async def test_a_copy_that_breaks_off(server: Server, shop: Shop, how: str) -> None:
    """It fails the attempt, whatever the handler makes of the error, and for good."""
    app = server(pool_size=1)
    attempts: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def breaks(tx: Tx, swallow: bool) -> None:
        attempts.append(tx.xinst)
        with pytest.raises(tuple(_BROKEN[how])) as caught:
            await _break(tx, how)
        if not swallow:
            raise caught.value

    for swallow in (False, True):
        attempts.clear()
        with pytest.raises(NothingHappened):
            await app.submit("breaks", swallow, xid=f"breaks: {how}")
        assert len(attempts) == 1
    shop.assert_never(f"breaks: {how}")
    shop.assert_once(f"after: {how}", await app.submit("buy", BUY, xid=f"after: {how}"))
    shop.assert_clean()


@pytest.mark.parametrize("how", ["raises", "bad data"])
async def test_back_to_a_savepoint(server: Server, shop: Shop, how: str) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def goes_back(tx: Tx, request: Any) -> str:
        with contextlib.suppress(KeyError, psycopg.Error):
            async with tx.store.savepoint():
                await _break(tx, how)
        async with tx.store.copy(INTO) as copy:
            await copy.write_row((tx.xid, tx.xinst, 0))
        return "done"

    assert await app.submit("goes_back", None, xid=f"back: {how}") == "done"
    assert shop.sql("store", f"SELECT count(*) FROM orders WHERE xid = 'back: {how}'") == [(1,)]


async def test_a_copy_that_is_left_running(server: Server, shop: Shop) -> None:
    """By a task, which cannot get at the connection any more when that is another request's."""
    app = server(pool_size=1)
    begun, go_on = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @app.transaction(sites=("store", "bank"))
    async def leaves(tx: Tx, request: Any) -> None:
        async def copying() -> None:
            async with tx.store.copy(INTO) as copy:
                begun.set()
                await go_on.wait()
                await copy.write_row((tx.xid, tx.xinst, 0))

        tasks.append(asyncio.create_task(copying()))
        await begun.wait()

    with pytest.raises(NothingHappened, match="left a statement running"):
        await app.submit("leaves", None, xid="left")
    shop.assert_once("after it", await app.submit("buy", BUY, xid="after it"))
    go_on.set()
    (error,) = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(error, RuntimeError)
    shop.assert_never("left")
    shop.assert_clean()


async def test_the_deadline_ends_a_copy(server: Server, shop: Shop) -> None:
    app = server(step_timeout=1.0)

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        async with tx.store.copy(INTO) as copy:
            while True:
                await copy.write_row((tx.xid, tx.xinst, 0))
                await asyncio.sleep(0.01)

    with pytest.raises(NothingHappened):
        await app.submit("slow", None, xid="slow copy", deadline=0.5)
    shop.assert_never("slow copy")
    shop.assert_clean()


@pytest.mark.parametrize("sql", ["COPY orders (qty) FROM STDIN", "COPY orders TO STDOUT", "copy (select 1) to stdout"])
@pytest.mark.parametrize("how", ["first", "later", "many"])
async def test_copy_by_the_wrong_method(server: Server, shop: Shop, sql: Any, how: str) -> None:
    """Refused at once, and told how."""
    app = server()
    attempts: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def wrong(tx: Tx, request: Any) -> None:
        attempts.append(tx.xinst)
        if how == "later":
            await tx.store.execute("SELECT 1")
        if how == "many":
            await tx.store.execute_many(sql, [()])
        else:
            await tx.store.execute(sql)

    with pytest.raises(NothingHappened, match=r"needs copy\(\)"):
        await app.submit("wrong", None)
    assert len(attempts) == 1
    shop.assert_clean()


def test_copy_without_an_event_loop(shop: Shop) -> None:
    with pgmip.sync.App(shop.conninfos()) as app:

        @app.transaction(sites=("store",))
        def load(tx: pgmip.sync.Tx, how: str) -> Any:
            with tx.store.copy(INTO) as copy:
                for n in range(10):
                    copy.write_row((tx.xid, tx.xinst, n))
                copy.write(f"{tx.xid}\t{tx.xinst}\t10\n".encode())
                if how == "raises":
                    raise KeyError("of the handler")
            with tx.store.copy(OUT) as copy:
                copy.set_types(("int4", "text"))
                rows = list(iter(copy.read_row, None))
            with tx.store.copy(OUT) as copy:
                return {"rows": rows, "blocks": b"".join(iter(copy.read, b"")).decode()}

        with pytest.raises(NothingHappened) as caught:
            app.submit("load", "raises", xid="load")
        assert isinstance(caught.value.__cause__, KeyError)
        loaded = {"rows": [[1, "x1"], [2, "x2"], [3, "x3"]], "blocks": "1\tx1\n2\tx2\n3\tx3\n"}
        assert app.submit("load", "works", xid="load") == loaded
    assert shop.sql("store", "SELECT count(*), sum(qty) FROM orders") == [(11, 55)]


# -- one statement for many parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
async def test_execute_many(server: Server, shop: Shop, first: bool) -> None:
    app, xid = server(), f"many {first}"

    @app.transaction(sites=("store",))
    async def load(tx: Tx, request: Any) -> Any:
        if not first:
            await tx.store.execute("SELECT 1")
        insert = "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, %s)"
        many = await tx.store.execute_many(insert, ((tx.xid, tx.xinst, n) for n in range(500)))
        none = await tx.store.execute_many(insert, [])
        changed = await tx.store.execute_many(
            "UPDATE orders SET qty = 0 WHERE xid = %(xid)s AND qty < %(below)s",
            [{"xid": tx.xid, "below": 10}, {"xid": tx.xid, "below": 20}],
        )
        return [many, none, changed]

    assert await app.submit("load", None, xid=xid) == [500, 0, 10 + 20]
    assert shop.sql("store", f"SELECT count(*) FROM orders WHERE xid = '{xid}'") == [(500,)]


@pytest.mark.parametrize("caught", [False, True])
async def test_execute_many_that_fails(server: Server, shop: Shop, caught: bool) -> None:
    """As any statement: it fails the attempt at once, unless the handler goes back to a savepoint; again and again."""
    app = server(pool_size=1)
    insert = "INSERT INTO item VALUES (%s, %s)"
    attempts: list[int] = []

    @app.transaction(sites=("store",))
    async def load(tx: Tx, request: Any) -> Any:
        attempts.append(tx.xinst)
        with contextlib.suppress(psycopg.errors.UniqueViolation) if caught else contextlib.nullcontext():
            async with tx.store.savepoint():
                await tx.store.execute_many(insert, [(n, 0) for n in (10, 11, 1, 12)])
        return await tx.store.execute_many(insert, [(10, request), (11, request)])

    for number in range(3):
        shop.reset()
        attempts.clear()
        if caught:
            assert await app.submit("load", number) == 2
            assert shop.sql("store", f"SELECT count(*) FROM item WHERE i_id > 2 AND stock = {number}") == [(2,)]
        else:
            with pytest.raises(NothingHappened) as failure:
                await app.submit("load", number)
            assert isinstance(failure.value.__cause__, psycopg.errors.UniqueViolation)
        assert len(attempts) == 1
    shop.reset()


def test_execute_many_without_an_event_loop(shop: Shop) -> None:
    with pgmip.sync.App(shop.conninfos()) as app:

        @app.transaction(sites=("store",))
        def load(tx: pgmip.sync.Tx, request: Any) -> int:
            return tx.store.execute_many("INSERT INTO orders (qty) VALUES (%s)", [(1,), (2,)])

        assert app.submit("load", None) == 2


# -- cursors -------------------------------------------------------------------------------------------------------


async def test_a_cursor(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def reads(tx: Tx, request: Any) -> list[int]:
        await tx.store.execute("DECLARE part CURSOR FOR SELECT n FROM generate_series(1, 5) n")
        found: list[int] = []
        while rows := await tx.store.fetch_all("FETCH 2 FROM part"):
            found += [row.n for row in rows]
        return found

    for _ in range(2):  # also over the same connection
        assert await app.submit("reads", None) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sites", [("store",), ("store", "bank")])
async def test_a_cursor_that_would_stay(server: Server, shop: Shop, sites: Any) -> None:
    app = server()
    attempts: list[int] = []

    @app.transaction(sites=sites)
    async def keeps(tx: Tx, request: Any) -> None:
        attempts.append(tx.xinst)
        await tx.store.execute("DECLARE part CURSOR WITH HOLD FOR SELECT 1")

    with pytest.raises(NothingHappened, match="WITH HOLD"):
        await app.submit("keeps", None)
    assert len(attempts) == 1


@pytest.mark.parametrize("name", ["executemany", "cursor", "stream", "commit"])
async def test_what_is_not_there(server: Server, shop: Shop, name: str) -> None:
    app = server()
    attempts: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def asks(tx: Tx, request: Any) -> None:
        attempts.append(tx.xinst)
        getattr(tx.store, request)

    with pytest.raises(NothingHappened, match=name):
        await app.submit("asks", name)
    assert len(attempts) == 1


ABANDONED = """
import logging, sys
from pgmip import NothingHappened
from pgmip.sync import App

logging.getLogger("pgmip").addHandler(logging.NullHandler())
app, left = App({"store": sys.argv[1]}), []

@app.transaction(sites=("store",))
def leave(tx, request):
    block = tx.store.copy("COPY orders (xid) FROM STDIN") if request == "COPY" else tx.store.savepoint()
    left.append((block, block.__enter__()))
    if request == "COPY":
        left[-1][1].write("a")

for what in ("COPY", "savepoint"):
    try:
        print(app.submit("leave", what))
    except NothingHappened as error:
        print(error)
if sys.argv[2] == "closed":
    app.close()
if sys.argv[3] == "dropped":
    left.clear()
"""


@pytest.mark.parametrize("at", ["dropped", "the end"])
@pytest.mark.parametrize("app", ["closed", "forgotten"])
def test_a_block_that_is_never_left(shop: Shop, app: str, at: str) -> None:
    """Of a handler in a thread: neither its end nor that of the process has anything to say about it."""
    words = [sys.executable, "-c", ABANDONED, shop.conninfos()["store"], app, at]
    here = {**os.environ, "PYTHONPATH": str(Path(pgmip.__file__).parent.parent)}
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=here)
    assert "left a statement running" in ended.stdout
    assert ended.stderr == ""
    shop.assert_clean()
