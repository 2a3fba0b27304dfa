"""Handlers that do what they should not: none of it may make `submit` say something that is not so."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from shop import ORDER, PAYMENT, RIVAL, Shop

import pgmip.sync
from pgmip import App, NothingHappened, Refuse, Refused, Tx, Unknown
from pgmip._family import Family

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 2}


async def test_a_sibling_commits_before_the_last_look(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of attempts: what the MIPTs say by then counts."""
    other = server()
    app = App(shop.conninfos())

    @app.transaction(sites=("store", "bank"), name="buy")
    async def failing(tx: Tx, request: Any) -> None:
        await tx.store.execute(RIVAL)

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


@pytest.mark.parametrize("sites", [("store",), ("store", "bank")])
@pytest.mark.parametrize(
    ("sql", "params"),
    [("SELECT %s", (1, 2)), ("SELECT %s", (object(),)), ("SELECT %s", ("a\0b",)), ("SELECT %s", ("\ud800",))],
    ids=["too many", "of no type", "NUL", "no character"],
)
async def test_a_first_statement_that_cannot_be_sent(
    server: Server, shop: Shop, sites: tuple[str, ...], sql: str, params: tuple[Any, ...]
) -> None:
    """Nothing has been begun then; the handler may make of it what it likes."""
    app = server()

    @app.transaction(sites=sites)
    async def refusing(tx: Tx, request: Any) -> None:
        try:
            await tx.store.execute(sql, params)  # type: ignore[arg-type]
        except (psycopg.Error, UnicodeError) as error:
            if request is not None:
                raise Refuse(request) from error
            raise

    with pytest.raises(NothingHappened):
        await app.submit("refusing", None)
    xid = f"refusing {sites} {params!r}"
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await app.submit("refusing", "bad input", xid=xid)
        assert refused.value.result == "bad input"
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


_ENDS = [
    f"SELECT * FROM mip.{call}({texts})"
    for call in ("prepare", "commit_one_phase")
    for texts in ("NULL, NULL", "'another', '1'", "NULL, NULL, ''")
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sites", [("store", "bank"), ("store",)])
@pytest.mark.parametrize("sql", _ENDS)
async def test_a_handler_that_prepares_by_itself(
    server: Server, shop: Shop, sql: str, sites: tuple[str, ...], last: bool
) -> None:
    """Everybody would take its texts for the request's, and what it has written for cancelled."""
    app, xid = server(), f"hasty {_ENDS.index(sql)} {len(sites)} {last}"

    @app.transaction(sites=sites)
    async def hasty(tx: Tx, request: Any) -> None:
        for site in sites:
            await tx[site].execute(ORDER if site == "store" else PAYMENT, (tx.xid, tx.xinst))
        for site in sites:
            if last:
                tx[site].finish_with(sql.encode())
            else:
                with contextlib.suppress(psycopg.Error):
                    await tx[site].fetch_all(sql.encode())

    with pytest.raises(NothingHappened, match="is for whoever has begun this instance"):
        await app.submit("hasty", None, xid=xid)
    shop.assert_never(xid)
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


# -- whose error it is ---------------------------------------------------------------------------------------------


class _TooOld(psycopg.Error):
    sqlstate = "MP007"


class _Superseded(psycopg.Error):
    sqlstate = "MP002"


@pytest.mark.parametrize(
    "foreign", [_TooOld, _Superseded, psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable,
                psycopg.OperationalError],
)  # fmt: skip
@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_of_another_database(
    server: Server, shop: Shop, foreign: type[psycopg.Error], begun: bool
) -> None:
    """It says nothing of the request: neither that it is too old, nor that a retry would do better."""
    app, xid, attempts = server(), f"foreign {foreign.__name__} {begun}", 0

    @app.transaction(sites=("store", "bank"))
    async def reports(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        if begun:
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        raise foreign("of another database")

    with pytest.raises(NothingHappened) as caught:
        await app.submit("reports", None, xid=xid)
    assert (attempts, type(caught.value.__cause__)) == (1, foreign)
    shop.assert_never(xid)
    shop.assert_clean()


class _Wrapped(Exception):
    pass


async def _as_it_is(error: psycopg.Error) -> None:
    raise error


async def _wrapped_twice(error: psycopg.Error) -> None:
    try:
        raise _Wrapped from error
    except _Wrapped as wrapped:
        raise RuntimeError("in a repository") from wrapped


async def _of_a_group(error: psycopg.Error) -> None:
    raise ExceptionGroup("of tasks", [KeyError("another"), error])


@pytest.mark.parametrize("passed_on", [_as_it_is, _wrapped_twice, _of_a_group])
@pytest.mark.parametrize("undone", [False, True])
async def test_an_error_of_ours_that_is_passed_on(
    server: Server, shop: Shop, passed_on: Callable[[psycopg.Error], Awaitable[None]], undone: bool
) -> None:
    """A serialization failure is retried, also where a savepoint has undone it, and in whatever it comes."""
    app, xid, attempts = server(), f"passed on {passed_on.__name__} {undone}", 0

    @app.transaction(sites=("store", "bank"))
    async def unlucky(tx: Tx, request: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            try:
                async with tx.store.savepoint() if undone else contextlib.nullcontext():
                    await tx.store.execute(RIVAL)
            except psycopg.Error as error:
                await passed_on(error)
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    shop.assert_once(xid, await app.submit("unlucky", None, xid=xid))
    assert attempts == 2
    shop.assert_clean()


@pytest.mark.parametrize("undone", [False, True])
async def test_an_error_that_is_handled(server: Server, shop: Shop, undone: bool) -> None:
    """What is raised beside an error, and not from it, is the handler's own where a savepoint has undone that."""
    app, attempts = server(), 0

    @app.transaction(sites=("store", "bank"))
    async def handles(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        try:
            async with tx.store.savepoint() if undone else contextlib.nullcontext():
                await tx.store.execute(RIVAL)
        except psycopg.Error:
            raise KeyError("a bug") from None

    with pytest.raises(NothingHappened):
        await app.submit("handles", None, attempts=3)
    assert attempts == (1 if undone else 3)
    shop.assert_clean()


# -- a TaskGroup that fails leaves its task cancelled, in Python 3.11 ------------------------------------------------


async def fail_in_group(work: Awaitable[Any], error: Exception) -> None:
    """A task of the group fails while the group waits for its end."""

    async def fail() -> None:
        await work
        raise error

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def test_a_task_group_that_fails(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def failing(tx: Tx, request: Any) -> None:
        await fail_in_group(tx.store.execute(ORDER, (tx.xid, tx.xinst)), KeyError("mine"))

    with pytest.raises(NothingHappened) as told:
        await app.submit("failing", None, xid="failing")
    assert isinstance(told.value.__cause__, ExceptionGroup)
    shop.assert_never("failing")
    shop.assert_clean()


async def test_a_task_group_in_which_a_site_asks_for_a_retry(server: Server, shop: Shop) -> None:
    app, attempts = server(), []

    @app.transaction(sites=("store", "bank"))
    async def retried(tx: Tx, request: Any) -> int:
        attempts.append(tx.xinst)
        async with asyncio.TaskGroup() as group:
            group.create_task(tx.store.execute(RIVAL if len(attempts) == 1 else "SELECT 1"))
        return tx.xinst

    assert await app.submit("retried", None) == attempts[1]
    shop.assert_clean()


@pytest.mark.parametrize("then", [None, pgmip.Refuse("no")])
async def test_a_task_group_that_the_handler_deals_with(server: Server, shop: Shop, then: Exception | None) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def handled(tx: Tx, request: Any) -> str:
        with contextlib.suppress(ExceptionGroup):
            await fail_in_group(asyncio.sleep(0), KeyError("mine"))
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        if then is not None:
            raise then
        return "done"

    xid = f"handled, then {then!r}"
    for _ in range(2):
        if then is None:
            assert await app.submit("handled", None, xid=xid) == "done"
        else:
            with pytest.raises(pgmip.Refused) as refused:
                await app.submit("handled", None, xid=xid)
            assert refused.value.result == "no"
    shop.assert_clean()


# -- exceptions that are odd themselves ------------------------------------------------------------------------------


@dataclass
class OutOfStock(Exception):  # which cannot be hashed
    item: int


@dataclass
class Unpaid(pgmip.Refuse):  # likewise, and without a result
    card: str


class Mute(Exception):
    def __str__(self) -> str:
        raise TypeError("no words")


@pytest.mark.parametrize(
    ("error", "told"), [(OutOfStock(1), NothingHappened), (Mute(), NothingHappened), (Unpaid("4711"), pgmip.Refused)]
)
async def test_an_odd_exception(server: Server, shop: Shop, error: Exception, told: type[Exception]) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def odd(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        raise error

    with pytest.raises(told):
        await app.submit("odd", None, xid="odd")
    shop.assert_never("odd")
    shop.assert_clean()


# -- a last statement that can be none -------------------------------------------------------------------------------


async def test_what_another_site_has_prepared_is_not_left(server: Server, shop: Shop) -> None:
    """Beside a last statement that ends the transaction of its site."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def rude(tx: Tx, request: Any) -> None:
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        tx.store.finish_with("ROLLBACK")

    for _ in range(3):
        with pytest.raises((NothingHappened, Unknown)):
            await app.submit("rude", None, xid="rude")
        assert len(shop.sql("bank", "SELECT gid FROM pg_prepared_xacts")) == 0
    shop.assert_never("rude")
    shop.assert_clean()
