"""A sync App's first attempt, which is made without the event loop; and how the event loop goes on from it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NoReturn
from unittest import mock

import psycopg
import pytest
from proxy import Direction, Fault, Mode, Proxy
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait
from shop import ORDER, PAYMENT, PRICE, RIVAL, SCHEMA, Shop, give_up_at, make_app
from test_sync import warm_up

import pgmip
from pgmip import (
    Decided,
    Expired,
    NothingHappened,
    Refuse,
    Refused,
    Unknown,
    _circuit,
    _family,
    _mipt,
    _pool,
    _spares,
    sync,
)
from pgmip._blocking import Exchange, drive, driven
from pgmip._branch import Branch
from pgmip._connection import PooledConnection
from pgmip._deadline import OVERTIME
from pgmip._spares import Spares
from pgmip._straight import Straight
from pgmip._workers import Job, Workers
from pgmip.observe import Observer
from pgmip.sync import App, Tx
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 1}
RESTOCK = {"item": 1, "qty": 0}
PATIENCE = 60


def buy(tx: Tx, request: Any) -> Any:
    qty = request["qty"]
    left = tx.store.fetch_one("SELECT stock FROM item WHERE i_id = %s FOR UPDATE", (request["item"],))
    if left.stock < qty:
        raise Refuse("out of stock")
    tx.store.execute("UPDATE item SET stock = stock - %s WHERE i_id = %s", (qty, request["item"]))
    order = tx.store.fetch_one(
        "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, %s) RETURNING o_id", (tx.xid, tx.xinst, qty)
    )
    tx.bank.execute("UPDATE account SET balance = balance - %s WHERE a_id = 1", (qty * PRICE,))
    tx.bank.finish_with("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, qty * PRICE))
    return {"order": order.o_id, "xinst": tx.xinst, "token": secrets.token_hex(8)}


def restock(tx: Tx, request: Any) -> Any:
    """At one site."""
    row = tx.store.fetch_one(
        "UPDATE item SET stock = stock + %s WHERE i_id = %s RETURNING stock", (request["qty"], request["item"])
    )
    tx.store.execute(ORDER, (tx.xid, tx.xinst))
    return {"stock": row.stock, "xinst": tx.xinst, "token": secrets.token_hex(8)}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has become of each first attempt that was made straight, in their order."""
    seen: list[str] = []
    run = Straight._run

    def noting(straight: Straight, handler: Any) -> None:
        run(straight, handler)
        seen.append(type(straight._outcome).__name__)

    monkeypatch.setattr(Straight, "_run", noting)
    return seen


@pytest.fixture
def server(shop: Shop, ways: list[str]) -> Iterator[Server]:
    with ExitStack() as stack:

        def make(conninfos: dict[str, str] | None = None, *, warm: int = 1, **parameters: Any) -> App:
            app = stack.enter_context(App(conninfos or shop.conninfos(), **parameters))
            app.transaction(sites=("store", "bank"))(buy)
            app.transaction(sites=("store",))(restock)
            warm_up(app, warm)
            ways.clear()
            return app

        yield make


def elsewhere(shop: Shop, name: str, request: Any, xid: str, step: str | None = None) -> Any:
    """What another server answers; it gives the request up at a step, where one is named."""

    async def submit() -> Any:
        async with make_app(shop.conninfos(), deadline=PATIENCE) as app:
            app.parallel = False
            if step is not None:
                give_up_at(app, step, xid)
            return await app.submit(name, request, xid=xid, attempts=1)

    with ThreadPoolExecutor(1) as thread, contextlib.suppress(Unknown, Decided):
        return thread.submit(lambda: asyncio.run(submit())).result()


@contextlib.asynccontextmanager
async def behind_proxies(shop: Shop, **parameters: Any) -> AsyncIterator[tuple[App, dict[str, Proxy]]]:
    """An App that reaches the sites through proxies. It is closed at once."""
    async with AsyncExitStack() as stack:
        proxies = {name: await stack.enter_async_context(Proxy(shop.clusters[name].port)) for name in SCHEMA}
        app = App(shop.conninfos(**{name: proxy.port for name, proxy in proxies.items()}), **parameters)
        stack.push_async_callback(asyncio.to_thread, app.close, grace=0)
        app.transaction(sites=("store", "bank"))(buy)
        yield app, proxies


# -- what goes straight --------------------------------------------------------------------------------------------


def test_a_request_without_the_loop(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = server()

    @app.transaction(sites=("bank", "store"))
    def everything(tx: Tx, request: Any) -> Any:
        with tx.store.copy("COPY orders (xid, xinst, qty) FROM STDIN") as copy:
            for _ in range(3):
                copy.write_row((tx.xid, tx.xinst, 0))
        told = [tx.store.execute_many(ORDER, [(tx.xid, tx.xinst)] * 4)]
        with contextlib.suppress(ZeroDivisionError), tx.store.savepoint():
            tx.store.execute("DELETE FROM orders")
            raise ZeroDivisionError
        with pytest.raises(psycopg.errors.CheckViolation), tx.store.savepoint():
            tx.store.execute("UPDATE item SET stock = -1")
        with tx.bank.copy("COPY (SELECT generate_series(1, 3)) TO STDOUT") as copy:
            told += iter(copy.read_row, None)
        told += [row.n for row in tx.bank.fetch_all("SELECT n FROM generate_series(1, 3) n")]
        tx.bank.finish_with(PAYMENT, (tx.xid, tx.xinst))
        return told

    monkeypatch.setattr(app._portal, "call", None)
    monkeypatch.setattr(app._portal, "soon", None)
    xid = new_xid()
    assert app.submit("everything", None, xid) == [4, ["1"], ["2"], ["3"], 1, 2, 3]
    stored, paid = shop.effects(xid)
    assert (len(stored), len(set(stored)), paid) == (7, 1, stored[:1])
    result = app.submit("restock", RESTOCK, xid := new_xid())
    assert shop.effects(xid) == ([result["xinst"]], [])
    assert ways == ["Committed", "Committed"]
    monkeypatch.undo()
    assert app.submit("restock", RESTOCK, xid) == result
    shop.assert_clean()


@pytest.mark.parametrize("why", ["observed", "serializable", "session", "early", "serial", "debugged"])
def test_what_the_loop_does(
    shop: Shop, ways: list[str], why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with App(shop.conninfos()) as app:
        isolation: pgmip.app.Isolation = "serializable" if why == "serializable" else "read committed"
        app.transaction(sites=("store", "bank"), isolation=isolation)(buy)
        warm_up(app)
        ways.clear()
        if why == "observed":
            app.observe(Observer())
        if why == "serial":
            app._app.parallel = False
        if why == "debugged":
            caplog.set_level("DEBUG", "pgmip")
        session = "somebody" if why == "session" else None
        xid = new_xid()
        result = app.submit("buy", BUY, xid, session=session, wait_for_commit=why != "early")
        assert ways == []
    shop.assert_once(xid, result)
    shop.assert_clean()


def test_a_request_within_a_handler(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    raised: list[str] = []

    @app.transaction(sites=("store",))
    def nested(tx: Tx, request: Any) -> None:
        with pytest.raises(RuntimeError, match="submit within a handler") as caught:
            app.submit("restock", RESTOCK)
        raised.append(str(caught.value))

    app.submit("nested", None)
    assert (len(raised), ways) == (1, ["Committed"])
    app.submit("restock", RESTOCK)
    shop.assert_clean()


# -- what the event loop goes on from ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "times"),
    [(RIVAL, 2), ("UPDATE item SET stock = -1", 1), ("COMMIT", 1), ("ROLLBACK", 1), ("nonsense", 1)],
)
@pytest.mark.parametrize("how", ["raised", "caught", "last"])
def test_a_statement_that_fails(
    server: Server, shop: Shop, ways: list[str], sql: Any, times: int, how: str
) -> None:
    """As an attempt by the loop: what a retry may help against is retried, and the handler runs not once more."""
    app = server()
    runs: list[int] = []

    @app.transaction(sites=("store", "bank"))
    def fails(tx: Tx, request: Any) -> None:
        runs.append(tx.xinst)
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        if len(runs) == 2:
            return
        if how == "last":
            tx.store.finish_with(sql)
            return
        try:
            tx.store.execute(sql)
        except psycopg.Error:
            if how == "raised":
                raise

    xid = new_xid()
    if times == 1:
        with pytest.raises(NothingHappened if sql not in ("COMMIT", "ROLLBACK") else (NothingHappened, Unknown)):
            app.submit("fails", None, xid)
        shop.assert_never(xid)
    else:
        app.submit("fails", None, xid)
        assert shop.effects(xid) == ([], [runs[-1]])
    assert (len(set(runs)), ways) == (times, ["Tried"])
    shop.assert_clean()


def test_what_a_handler_raises(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    runs: list[int] = []

    @app.transaction(sites=("store", "bank"))
    def raises(tx: Tx, request: Any) -> None:
        runs.append(tx.xinst)
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        raise Refuse({"because": request}) if request else KeyError("a bug")

    xid = new_xid()
    with pytest.raises(NothingHappened) as caught:
        app.submit("raises", None, xid)
    assert isinstance(caught.value.__cause__, KeyError)
    shop.assert_never(xid)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            app.submit("raises", "of this", "refused")
        assert refused.value.result == {"because": "of this"}
    assert (len(runs), ways) == (3, ["Tried"] * 3)  # the last one up to its first statement
    shop.assert_clean()


def test_a_result_that_is_no_json(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    app.transaction(sites=("store",), name="odd")(lambda tx, request: {1, 2})
    with pytest.raises(NothingHappened) as caught:
        app.submit("odd", None)
    assert isinstance(caught.value.__cause__, TypeError)
    assert ways == ["Tried"]
    shop.assert_clean()


def test_what_is_decided_already(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    result = elsewhere(shop, "buy", BUY, "decided")
    assert app.submit("buy", BUY, "decided") == result
    app.acknowledge("decided")
    with pytest.raises(Expired):
        app.submit("buy", BUY, "decided")
    elsewhere(shop, "restock", RESTOCK, "another")
    with pytest.raises(pgmip.KeyReused):
        app.submit("buy", BUY, "another")
    assert ways == ["Tried"] * 3
    shop.assert_clean()


@pytest.mark.parametrize("step", ["prepared-first-site", "prepared-all", "committed-first-site"])
def test_a_sibling_is_prepared(server: Server, shop: Shop, ways: list[str], step: str) -> None:
    """What is prepared everywhere is adopted, and else worked again; the straight attempt leaves nothing."""
    app = server()
    xid = new_xid()
    elsewhere(shop, "buy", BUY, xid, step)
    left = shop.sql("store", f"SELECT xinst FROM mip.instances('{xid}') WHERE state <> 'aborted'")
    result = app.submit("buy", BUY, xid)
    assert ([(result["xinst"],)] == left) == (step != "prepared-first-site")
    shop.assert_once(xid, result)
    assert ways == ["Tried"]
    shop.assert_clean()


@pytest.mark.parametrize("step", ["prepared-first-site", "prepared-all", "committed-first-site", None])
@pytest.mark.parametrize("when", ["before the first statement", "behind the last"])
def test_a_sibling_comes_meanwhile(shop: Shop, ways: list[str], step: str | None, when: str) -> None:
    with App(shop.conninfos(), deadline=PATIENCE) as app:
        runs: list[int] = []

        @app.transaction(sites=("store", "bank"), name="buy")
        def slow(tx: Tx, request: Any) -> Any:
            runs.append(tx.xinst)
            if len(runs) == 1 and when.startswith("before"):
                elsewhere(shop, "buy", BUY, xid, step)
            result = buy(tx, request)
            if len(runs) == 1 and when.startswith("behind"):
                elsewhere(shop, "buy", BUY, xid, step)
            return result

        warm_up(app)
        ways.clear()
        xid = new_xid()
        result = app.submit("buy", BUY, xid)
        shop.assert_once(xid, result)
        assert ways == ["Tried"]
    shop.assert_clean()


@pytest.mark.parametrize("met", ["at once", "when the loop knows of it"])
def test_a_handler_that_goes_on_beside_a_sibling(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch, met: str
) -> None:
    """Nobody waits for it, and it keeps no locks."""
    monkeypatch.setattr(_family, "_FIRST_TURN", float(PATIENCE))
    app, runs, released = server(), list[int](), threading.Event()

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> Any:
        runs.append(tx.xinst)
        if len(runs) == 1 and met != "at once":
            (straight,) = app._straight
            straight.is_known.wait(PATIENCE)
            time.sleep(0.1)
        tx.store.execute("SELECT FROM item WHERE i_id = 1 FOR UPDATE")
        if len(runs) == 1:
            released.wait(PATIENCE)
        return buy(tx, request)

    app._app._transactions["buy"], xid = app._app._transactions["slow"], new_xid()
    elsewhere(shop, "buy", BUY, xid, "prepared-first-site")
    result = app.submit("slow", BUY, xid, deadline=PATIENCE / 2)
    assert not ways  # it is still at it
    assert len(runs) == 2
    released.set()
    _until(lambda: ways == ["Tried"])
    shop.assert_once(xid, result)
    shop.assert_clean()


def test_a_sibling_that_is_met_while_it_is_looked_for(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended for that, which is no attempt that has failed."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.01)
    app, looking, met, released, runs = server(), threading.Event(), threading.Event(), threading.Event(), list[int]()

    async def in_the_way(family: _family.Family, xinst: int) -> bool:
        looking.set()
        return await asyncio.to_thread(met.wait, PATIENCE)

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> Any:
        runs.append(tx.xinst)
        if len(runs) == 1:
            looking.wait(PATIENCE)
            tx.store.execute("SELECT")
            met.set()
            released.wait(PATIENCE)
        return buy(tx, request)

    monkeypatch.setattr(_family.Family, "is_in_the_way", in_the_way)
    app._app._transactions["buy"], xid = app._app._transactions["slow"], new_xid()
    elsewhere(shop, "buy", BUY, xid, "prepared-first-site")
    result = app.submit("slow", BUY, xid, attempts=1)
    shop.assert_once(xid, result)
    released.set()
    _until(lambda: ways == ["Tried"])
    shop.assert_clean()


# -- connections and sites -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("site", list(SCHEMA))
@pytest.mark.parametrize("mode", [Mode.CUT, Mode.STALL], ids=lambda mode: mode.value)
async def test_cut_off_at_every_message(
    shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch, mode: Mode, site: str, direction: Direction
) -> None:
    """Whatever was told meanwhile, the request ends exactly once."""
    stalls = mode is Mode.STALL
    if not stalls:
        monkeypatch.setattr(_circuit, "_HICCUP", float(PATIENCE))

    def tell(app: App, xid: str, **limits: Any) -> Any:
        try:
            return app.submit("buy", BUY, xid, **limits)
        except Decided as decided:
            return decided.result
        except NothingHappened:
            shop.assert_never(xid)
            return None
        except Unknown:
            return None

    def insist(app: App, xid: str) -> Any:
        told = None
        while told is None:
            told = tell(app, xid)
        return told

    patience = 0.15 if stalls else 5
    async with (
        behind_proxies(shop, step_timeout=patience, pool_size=1) as (behind, proxies), App(shop.conninfos()) as other,
    ):  # fmt: skip
        other.transaction(sites=("store", "bank"))(buy)
        number, struck = 0, True
        while struck:
            await asyncio.to_thread(insist, behind, new_xid())  # which leaves connections at hand
            ways.clear()
            fault = Fault(mode, direction, number)
            proxies[site].arm(fault)
            xid = new_xid()
            told = await asyncio.to_thread(tell, behind, xid, attempts=1, deadline=0.3 if stalls else 5)
            assert len(ways) == 1
            struck = fault.struck
            result = await asyncio.to_thread(other.submit, "buy", BUY, xid)
            assert told in (None, result), fault
            shop.assert_once(xid, result)
            proxies[site].heal()
            assert await asyncio.to_thread(insist, behind, xid) == result
            shop.assert_once(xid, result)
            number += 1
        assert ways[0] == "Committed"
        assert number > 5
    shop.assert_clean()


def test_whoever_waits_comes_first(server: Server, shop: Shop, ways: list[str]) -> None:
    """Straight attempts that follow upon each other leave a connection to who waits for one in the event loop."""
    app = server(pool_size=2, warm=2)
    over = threading.Event()
    used: list[int] = []

    def again_and_again() -> int:
        times = 0
        while not over.is_set():
            app.submit("restock", RESTOCK)
            times += 1
        return times

    with ThreadPoolExecutor(6) as threads:
        busy = [threads.submit(again_and_again) for _ in range(4)]
        try:
            for _ in range(20):
                app.submit("buy", BUY, deadline=PATIENCE, session="by the loop")
                used += shop.sql("store", BACKENDS)[0]
        finally:
            over.set()
        assert all(one.result() > 5 for one in busy)
    assert "Committed" in ways
    assert max(used) <= 2 + 4 + 1  # with those that finish instances, and this one
    shop.assert_clean()


def test_who_waits_is_counted_before_he_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spares, "is_usable", lambda conn: True)
    spares, conn = Spares(), mock.Mock(heard=time.monotonic(), taken=time.monotonic())
    assert not spares.add(conn)  # nobody wants any
    spares.keep()
    assert spares.add(conn)
    assert spares.take(PATIENCE) is conn
    with spares.wanted() as idle:
        assert idle is None
        assert not spares.put(conn, used=True)
    assert not spares.any_left
    assert spares.add(conn)
    with spares.wanted() as idle:
        assert idle is conn
    conn.taken -= 100  # seconds, and its pool has not seen it since
    assert not spares.add(conn)


BACKENDS = "SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'"


def test_what_is_not_used_goes_back(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_TRUSTED", 0.2)
    app = server(warm=3)
    pool = app._app._pools["store"]
    taken = [pool.spares.take(PATIENCE) for _ in range(3)]
    assert None not in taken
    for conn in taken:
        assert conn is not None
        assert pool.spares.put(conn, used=True)
    _until(lambda: pool._transactions.get_stats()["pool_available"] == 3)
    assert not pool.spares.any_left
    assert pool.spare() is None


def test_a_site_that_takes_no_more_connections(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that there are serve, by both ways."""
    app = server()

    refused = psycopg.OperationalError("too many clients")
    for pool in app._app._pools.values():
        monkeypatch.setattr(pool._circuit, "_probe", mock.AsyncMock(side_effect=refused))
        app._portal.soon(pool._circuit.connected, refused)
    _until(lambda: all(pool._circuit.broken for pool in app._app._pools.values()))
    app.submit("buy", BUY)
    assert ways == ["NoneType"]  # by the loop, which asks over one whether the site is there
    app.submit("buy", BUY)
    assert ways == ["NoneType", "Committed"]
    app.on_step(lambda step: None)
    app.submit("buy", BUY)
    assert ways == ["NoneType", "Committed"]


async def test_a_site_that_falls_silent(shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes no connections any more: it is asked over one of those that there are, and not over all, one by one."""
    async with behind_proxies(shop, step_timeout=1) as (app, proxies):
        await asyncio.to_thread(warm_up, app, 3)
        pool = app._app._pools["store"]
        assert len(pool.spares._idle) > 1
        asked = mock.AsyncMock(side_effect=pool._transactions.check_connection)
        monkeypatch.setattr(pool._transactions, "check_connection", asked)
        proxies["store"].freeze()
        proxies["store"].refuse()
        app._portal.soon(pool._circuit.connected, psycopg.OperationalError("refused"))
        await asyncio.to_thread(_until, lambda: pool._circuit.broken)
        with pytest.raises(NothingHappened, match="is down"):
            await asyncio.to_thread(app.submit, "buy", BUY, deadline=PATIENCE)
        assert not pool.spares._all
        assert asked.await_count == 1


def test_a_connection_that_has_ended(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    shop.sql("store", "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name <> '' "
             "AND pid <> pg_backend_pid() AND backend_type = 'client backend'")  # fmt: skip
    result = app.submit("buy", BUY, xid := new_xid())
    shop.assert_once(xid, result)
    app.submit("buy", BUY)
    shop.assert_clean()


def _until(condition: Callable[[], bool]) -> None:
    over = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < over
        time.sleep(0.01)


# -- an attempt that takes long ------------------------------------------------------------------------------------


def test_a_site_knows_of_a_slow_handler(server: Server, shop: Shop, ways: list[str]) -> None:
    app = server()
    known: list[Any] = []

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> None:
        _until(lambda: bool(shop.sql("bank", f"SELECT FROM mip.instances('{tx.xid}') WHERE state = 'active'")))
        known.append(tx.xinst)

    app.submit("slow", None)
    assert (len(known), ways) == (1, ["Committed"])
    shop.assert_clean()


def test_what_a_handler_leaves_running(server: Server, shop: Shop, ways: list[str]) -> None:
    """It is ended, and the attempt has failed."""
    app = server()
    told: list[BaseException | int] = []

    @app.transaction(sites=("store", "bank"))
    def leaves(tx: Tx, request: Any) -> None:
        def sleep() -> None:
            try:
                told.append(tx.store.execute("SELECT pg_sleep(600)"))
            except BaseException as error:
                told.append(error)

        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        threads.append(threading.Thread(target=sleep))
        threads[0].start()
        _until(lambda: bool(shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")))

    threads: list[threading.Thread] = []
    with pytest.raises(NothingHappened, match="left a statement running"):
        app.submit("leaves", None, xid := new_xid())
    threads[0].join(PATIENCE)
    assert isinstance(told[0], psycopg.Error | RuntimeError)
    shop.assert_never(xid)
    assert ways == ["Tried"]
    app.submit("buy", BUY)
    shop.assert_clean()


@pytest.mark.parametrize("where", ["handler", "last"])
def test_it_gives_way(
    server: Server, shop: Shop, ways: list[str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a lock, with a sibling in doubt that others may wait for: as an attempt by the loop."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.1)
    with App(shop.conninfos(), deadline=PATIENCE) as app, psycopg.connect(shop.conninfos()["store"]) as rival:
        runs: list[int] = []

        @app.transaction(sites=("store", "bank"), name="buy")
        def waits(tx: Tx, request: Any) -> Any:
            runs.append(tx.xinst)
            tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
            tx.store.execute(ORDER, (tx.xid, tx.xinst))
            if len(runs) == 1:
                elsewhere(shop, "buy", BUY, xid, "prepared-first-site")
            else:
                rival.rollback()
            statement = "UPDATE item SET stock = 0 WHERE i_id = 2"
            if where == "last":
                tx.store.finish_with(statement)
            else:
                tx.store.execute(statement)
            return {"xinst": tx.xinst}

        warm_up(app)
        ways.clear()
        rival.execute("SELECT FROM item WHERE i_id = 2 FOR UPDATE")
        xid = new_xid()
        result = app.submit("buy", BUY, xid)
        assert (len(runs), result) == (2, {"xinst": runs[-1]})
        assert shop.effects(xid) == ([runs[-1]], [runs[-1]])
    _until(lambda: ways == ["Tried"])
    shop.assert_clean()


INTERRUPTED = """
import faulthandler, os, signal, sys, time, psycopg, pgmip, pgmip.sync
faulthandler.dump_traceback_later(60, exit=True)
when, store, bank = sys.argv[1:]
app = pgmip.sync.App({"store": store, "bank": bank})
def handler(tx, request):
    if request is None:
        return
    tx.store.execute("UPDATE item SET stock = 0 WHERE i_id = 1")
    if when == "watched":
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(3)
    tx.bank.execute("SELECT 1")
app.transaction(sites=("store", "bank"), name="it")(handler)
app.submit("it", None)
try:
    app.submit("it", 1)
except KeyboardInterrupt:
    with psycopg.connect(store) as conn:
        for _ in range(500):
            (left,) = conn.execute("SELECT count(*) FROM pg_locks WHERE relation = 'item'::regclass").fetchone()
            if not left:
                break
            time.sleep(0.01)
            conn.rollback()
    print("interrupted", left)
app.close()
"""


@pytest.mark.parametrize("when", ["quick", "watched"])
def test_interrupted(shop: Shop, when: str) -> None:
    words = [sys.executable, "-c", INTERRUPTED, when, *shop.conninfos().values()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert (ended.stdout.split(), ended.stderr) == (["interrupted", "0"], "")
    shop.assert_clean()


@pytest.mark.parametrize("grace", [0.0, 5.0])
def test_closed_meanwhile(server: Server, shop: Shop, ways: list[str], grace: float) -> None:
    """What runs has its grace, also where the event loop does not know of it yet; no connection is left."""
    app = server()
    begun = threading.Event()

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> str:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        begun.set()
        time.sleep(0.5)
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return "done"

    with ThreadPoolExecutor(1) as thread:
        told = thread.submit(app.submit, "slow", None, xid := new_xid())
        assert begun.wait(PATIENCE)
        app.close(grace=grace)
        if grace:
            assert told.result() == "done"
            assert len(shop.effects(xid)[0]) == 1
        else:
            with pytest.raises(Unknown):
                told.result()
            shop.assert_never(xid)
    _until(lambda: shop.sql("store", BACKENDS) == [(1,)])
    with pytest.raises(Unknown):
        app.submit("buy", BUY)
    shop.assert_clean()


def test_it_does_not_meet_itself(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a lock, and looks who else is there."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.1)
    app = server()

    @app.transaction(sites=("store", "bank"))
    def ends(tx: Tx, request: Any) -> None:
        tx.store.execute("SELECT FROM item WHERE i_id = 1 FOR UPDATE")
        tx.store.execute("COMMIT")

    with psycopg.connect(shop.conninfos()["store"]) as rival:
        rival.execute("SELECT FROM item WHERE i_id = 1 FOR UPDATE")
        threading.Timer(1, rival.rollback).start()
        with pytest.raises(NothingHappened):
            app.submit("ends", None, new_xid())
    assert ways == ["Tried"]
    shop.assert_clean()


# -- what adversaries have found -----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["of the caller's", "new"])
async def test_the_network_goes_before_the_commit(
    shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It is decided, although no site can be read any more."""
    commit, told = _mipt.commit, list[str]()

    async with behind_proxies(shop, step_timeout=1) as (app, proxies):
        await asyncio.to_thread(warm_up, app)
        ways.clear()
        loop = asyncio.get_running_loop()

        async def down() -> None:
            for proxy in proxies.values():
                proxy.down()

        async def committing(conn: Any, timeout: float, xid: str, xinst: int) -> None:
            if not told:
                told.append(xid)
                asyncio.run_coroutine_threadsafe(down(), loop).result()
            await commit(conn, timeout, xid, xinst)

        monkeypatch.setattr(_mipt, "commit", committing)
        with pytest.raises(Decided) as caught:
            await asyncio.to_thread(app.submit, "buy", BUY, new_xid() if known else None, deadline=3)
        assert ways == ["Tried"]
        for proxy in proxies.values():
            proxy.heal()
        assert caught.value.xid == told[0]
        async with make_app(shop.conninfos()) as other:
            assert await other.submit("buy", BUY, xid=told[0]) == caught.value.result
    shop.assert_once(told[0], caught.value.result)
    shop.assert_clean()


async def test_what_has_been_prepared_is_not_forgotten(
    shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something interrupts the thread when it has come to its end, as a handler's time-out that strikes late."""
    prepare = Straight._prepare

    async with behind_proxies(shop, step_timeout=1) as (app, proxies):
        await asyncio.to_thread(warm_up, app)
        loop, xids = asyncio.get_running_loop(), list[str]()

        async def down() -> None:
            for proxy in proxies.values():
                proxy.down()

        def preparing(straight: Straight, result: str) -> Any:
            prepare(straight, result)
            asyncio.run_coroutine_threadsafe(down(), loop).result()
            xids.append(straight.xid)
            monkeypatch.setattr(straight, "_tried", mock.Mock(side_effect=[KeyboardInterrupt, mock.DEFAULT]))
            raise SystemExit

        monkeypatch.setattr(Straight, "_prepare", preparing)
        with pytest.raises(Unknown):
            await asyncio.to_thread(app.submit, "buy", BUY, deadline=3)
        for proxy in proxies.values():
            proxy.heal()
        async with make_app(shop.conninfos()) as other:
            assert (await other.resolve(xids[0])) is not None
    assert len(shop.effects(xids[0])[0]) == 1
    shop.assert_clean()


@pytest.mark.parametrize(
    ("owner", "struck"), [(Branch, "end"), (Branch, "rollback"), (Straight, "_give")]
)
def test_interrupted_in_giving_back(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch, owner: type, struck: str
) -> None:
    """Its transactions are ended, and its connections are others'."""
    app, real, times = server(pool_size=1), getattr(owner, struck), list[str]()

    def strike(self: Any, *args: Any) -> Any:
        times.append(struck)
        if len(times) == 1:
            raise KeyboardInterrupt
        return real(self, *args)

    @app.transaction(sites=("store", "bank"))
    def fails(tx: Tx, request: Any) -> None:
        tx.store.execute("SELECT FROM item WHERE i_id = 1 FOR UPDATE")
        tx.bank.execute("SELECT 1")
        monkeypatch.setattr(owner, struck, strike)
        raise ValueError

    with pytest.raises(NothingHappened):
        app.submit("fails", None)
    assert len(times) > 1
    app.submit("buy", BUY, deadline=PATIENCE / 2)
    shop.assert_clean()


def test_a_handler_returns_as_it_is_ended(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the event loop hears of a connection, that it closes then, counts for what the thread says."""
    app, reading, ended = server(), threading.Event(), threading.Event()
    over, end, words, lines = threading.Event(), Straight._end, Straight._words, list[Any]()

    @app.transaction(sites=("store", "bank"))
    def waits(tx: Tx, request: Any) -> None:
        tx.bank.execute("SELECT 1")
        pid = tx.store.fetch_one("SELECT pg_backend_pid() AS pid").pid
        shop.sql("store", f"SELECT pg_terminate_backend({pid}, {PATIENCE}000)")  # as whoever gives it up has it done
        over.wait(PATIENCE)

    async def ending(straight: Straight, line: Any) -> None:
        over.set()
        await asyncio.to_thread(reading.wait, PATIENCE)
        await end(straight, line)
        lines.append(line)
        if len(lines) == 2:
            ended.set()
            straight.job.wait(PATIENCE)  # so that what the thread says is what is told

    def slowly(straight: Straight) -> Any:
        if threading.current_thread().name.startswith("pgmip handler"):
            reading.set()
            ended.wait(PATIENCE)
        return words(straight)

    monkeypatch.setattr(Straight, "_end", ending)
    monkeypatch.setattr(Straight, "_words", slowly)
    with pytest.raises(Unknown, match="still be on its way"):
        app.submit("waits", None, new_xid(), deadline=1)
    assert ways == ["Tried"]


def test_it_ends_while_the_portal_is_held(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a call that a signal handler has interrupted, say, which closes the App and waits for this one."""
    app = server()
    monkeypatch.setattr(sync, "_MOMENT", float(PATIENCE))  # in which the loop need not know of it
    with contextlib.ExitStack() as stack:
        for pool in app._app._pools.values():
            stack.callback(setattr, pool.spares, "_wanted", 0)
            pool.spares._wanted = 1  # so that no connection is kept
        with ThreadPoolExecutor(1) as thread, app._portal._lock:
            thread.submit(app.submit, "buy", BUY).result(PATIENCE)
    assert ways == ["Committed"]
    _until(lambda: not any(pool.spares._all for pool in app._app._pools.values()))
    shop.assert_clean()


def test_what_nobody_waits_for_is_not_kept(shop: Shop, ways: list[str]) -> None:
    """A request that has not been begun by its deadline."""
    with App(shop.conninfos(), threads=1) as app:
        released, runs = threading.Event(), list[str]()

        @app.transaction(sites=("store", "bank"))
        def waits(tx: Tx, request: Any) -> None:
            runs.append(tx.xid)
            released.wait(PATIENCE)

        warm_up(app)
        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(app.submit, "waits", None, deadline=PATIENCE)
            _until(lambda: len(runs) == 1)
            for _ in range(5):
                with pytest.raises(NothingHappened):
                    app.submit("waits", None, deadline=0.05)
            assert len(app._straight) == 1
            released.set()
            first.result()
        assert len(runs) == 1
    shop.assert_clean()


def test_an_event_loop_of_the_handlers_own(server: Server, shop: Shop, ways: list[str]) -> None:
    """What is entered in it is not ended with it."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    def enters(tx: Tx, request: Any) -> None:
        with ExitStack() as stack:

            async def enter() -> None:
                stack.enter_context(tx.store.savepoint())

            asyncio.run(enter())
            tx.store.execute(ORDER, (tx.xid, tx.xinst))

    app.submit("enters", None, xid := new_xid())
    assert len(shop.effects(xid)[0]) == 1
    assert ways == ["Committed"]
    shop.assert_clean()


@pytest.mark.parametrize("late_in", ["_ask", "cancel_from_loop"])
def test_nobody_else_is_cancelled(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch, late_in: str
) -> None:
    """Where a last statement is ended at the deadline, and the other site's connection serves others by then."""
    app = server(warm=3)

    @app.transaction(sites=("store", "bank"))
    def late(tx: Tx, request: Any) -> None:
        tx.bank.execute("SELECT 1")
        tx.store.finish_with("SELECT pg_sleep(600)")

    owner: Any = Straight if late_in == "_ask" else PooledConnection
    ask = getattr(owner, late_in)

    async def slowly(self: Any, *line: Any, **options: Any) -> None:
        conn = line[0].conn if line else self
        if conn.info.port == shop.clusters["bank"].port:
            await asyncio.sleep(0.05)
        await ask(self, *line, **options)

    give = Straight._give

    def give_slowly(straight: Straight, line: Any) -> None:
        if straight._late is not None and line.conn.info.port == shop.clusters["store"].port:
            time.sleep(0.2)  # while the other one is given already
        give(straight, line)

    monkeypatch.setattr(owner, late_in, slowly)
    monkeypatch.setattr(Straight, "_give", give_slowly)
    over, runs = threading.Event(), list[int]()

    @app.transaction(sites=("store", "bank"))
    def beside(tx: Tx, request: Any) -> Any:
        runs.append(tx.xinst)
        return buy(tx, request)

    def again_and_again() -> int:
        times = 0
        while not over.is_set():
            app.submit("beside", BUY, deadline=PATIENCE)
            times += 1
        return times

    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(again_and_again) for _ in range(2)]
        try:
            for _ in range(8):
                app.submit("buy", BUY, deadline=PATIENCE)  # which leaves connections at hand
                with pytest.raises((NothingHappened, Unknown)):
                    app.submit("late", None, deadline=0.1)
        finally:
            over.set()
        assert sum(one.result() for one in others) == len(runs)  # none has been tried again
    shop.assert_clean()


def test_what_an_interrupted_one_leaves(server: Server, shop: Shop, ways: list[str]) -> None:
    """The App knows of it, as of what its other submits have left."""
    app = server()
    real = Straight.watch

    async def cancelled(straight: Straight, *words: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await real(straight, *words)

    async def uncommitted(*_: Any) -> None:
        time.sleep(0.5)  # noqa: ASYNC251  it is driven in a thread
        raise psycopg.OperationalError("the connection was lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Straight, "watch", cancelled)
        patch.setattr(_mipt, "commit", uncommitted)
        with pytest.raises(Unknown):
            app.submit("buy", BUY, xid := new_xid())
    assert app._app._left.knows(xid, ("store", "bank"))
    ways.clear()
    result = app.submit("buy", BUY, xid)
    assert ways == []
    shop.assert_once(xid, result)
    shop.assert_clean()


def test_the_only_attempt_beside_a_sibling(server: Server, shop: Shop, ways: list[str]) -> None:
    """Is not the one that has met it at its begin."""
    app = server()
    elsewhere(shop, "buy", BUY, xid := new_xid(), "prepared-first-site")
    result = app.submit("buy", BUY, xid, attempts=1)
    assert ways == ["Tried"]
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_handler_that_forks(server: Server, shop: Shop, ways: list[str], how: str) -> None:
    """The child ends with its handler, and has no part in its parent's transaction."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    def forks(tx: Tx, request: Any) -> str:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return "the parent's"
        if how == "raises":
            tx.bank.execute("SELECT 1")
        return "the child's"

    assert app.submit("forks", None, xid := new_xid()) == "the parent's"
    assert len(shop.effects(xid)[0]) == len(shop.effects(xid)[1]) == 1
    assert ways == ["Committed"]
    shop.assert_clean()


def test_nothing_is_kept(server: Server, shop: Shop, ways: list[str]) -> None:
    """Of connections that have been ended, nor of attempts."""
    app = server()
    app.transaction(sites=("store", "bank"), name="slow")(lambda tx, request: tx.store.execute("SELECT pg_sleep(600)"))
    for _ in range(3):
        app.submit("buy", BUY)
        with pytest.raises(NothingHappened):
            app.submit("slow", None, deadline=0.1)
    _until(lambda: ways.count("Tried") == 3)
    for pool in app._app._pools.values():
        assert not any(conn.closed for conn in pool.spares._all)
        assert pool._transactions.get_stats()["pool_size"] <= 2
    assert not app._straight
    shop.assert_clean()


def test_silent_sites_are_given_up_together(shop: Shop, ways: list[str]) -> None:
    """What is beyond the deadline does not grow with the number of sites."""

    async def submit(deadline: float) -> float:
        async with behind_proxies(shop) as (app, proxies):
            loop = asyncio.get_running_loop()

            async def freeze() -> None:
                for proxy in proxies.values():
                    proxy.freeze()

            @app.transaction(sites=("store", "bank"))
            def freezes(tx: Tx, request: Any) -> None:
                asyncio.run_coroutine_threadsafe(freeze(), loop).result()
                for site in SCHEMA:
                    tx[site].finish_with("SELECT 1")

            await asyncio.to_thread(warm_up, app)
            began = time.monotonic()
            with pytest.raises((NothingHappened, Unknown)):
                await asyncio.to_thread(app.submit, "freezes", None, deadline=deadline)
            took = time.monotonic() - began
            for proxy in proxies.values():
                proxy.thaw()
            return took

    assert asyncio.run(submit(1.0)) < 1.0 + OVERTIME + 1.0
    _until(lambda: shop.sql("store", "SELECT FROM mip.in_doubt") == [])


def test_a_sibling_that_our_rollback_meets(
    server: Server, shop: Shop, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody sees afterwards: it is between two attempts."""
    app = server()
    rollback, own = _mipt.rollback, list[int]()

    async def late(conn: Any, timeout: float, xid: str, xinst: int) -> Any:
        if own == [xinst]:
            own.append(xinst + 1)
            with psycopg.connect(shop.conninfos()["store"]) as sibling:
                sibling.execute("SELECT mip.begin(%s, %s, %s)", (xid, xinst + 1, ["bank", "store"]))
                sibling.execute("SELECT mip.prepare(%s, '1')", ('{"request":null,"transaction":"fails"}',))
        told = await rollback(conn, timeout, xid, xinst)
        if own[1:]:
            shop.sql("store", f"SELECT mip.rollback('{xid}', {xinst + 1})")
        return told

    @app.transaction(sites=("store", "bank"))
    def fails(tx: Tx, request: Any) -> None:
        own.append(tx.xinst)
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with("SELECT 1 / 0")

    monkeypatch.setattr(_mipt, "rollback", late)
    with pytest.raises(Unknown, match="a sibling may still be on its way"):
        app.submit("fails", None, xid := new_xid())
    assert (len(own), ways) == (2, ["Tried"])
    shop.assert_never(xid)
    shop.assert_clean()


def test_no_handler_has_been_run_yet(shop: Shop, ways: list[str]) -> None:
    """Connections are at hand, and no thread."""
    with App(shop.conninfos()) as app:
        app.transaction(sites=("store", "bank"))(buy)
        app.settle(new_xid(), sites=("store", "bank"))
        for _ in range(3):
            app.submit("buy", BUY, deadline=PATIENCE)
        assert ways == ["Committed"] * 2
    shop.assert_clean()


@pytest.mark.parametrize("when", ["_job", "put"])
def test_interrupted_before_it_is_begun(server: Server, shop: Shop, ways: list[str], when: str) -> None:
    app = server()

    def interrupted(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(App if when == "_job" else Workers, when, interrupted)
        with pytest.raises(KeyboardInterrupt):
            app.submit("buy", BUY)
    assert (ways, list(app._straight)) == ([], [])
    app.submit("buy", BUY)
    shop.assert_clean()


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_in_ending_it(server: Server, shop: Shop, ways: list[str], times: int) -> None:
    """Who is stopped while he stops an attempt whose statement is late leaves no connection and no thread behind."""
    app = server()
    again = threading.Event()

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> None:
        with contextlib.suppress(RuntimeError):
            tx.store.execute("SELECT pg_sleep(600)")
        again.wait(PATIENCE)

    ask = PooledConnection.cancel_from_loop

    async def interrupted(conn: PooledConnection, **options: Any) -> None:
        for task in asyncio.all_tasks():
            if "_submit" in repr(task.get_coro()):
                for number in range(times):
                    asyncio.get_running_loop().call_later(0.003 * number, task.cancel)
        await ask(conn, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PooledConnection, "cancel_from_loop", interrupted)
        with pytest.raises((Unknown, NothingHappened)):
            app.submit("slow", None, deadline=0.3)
    for pool in app._app._pools.values():
        stats = pool._transactions.get_stats
        _until(lambda stats=stats: stats()["pool_available"] == stats()["pool_size"])
    again.set()
    _until(lambda: not app._straight)
    app.submit("buy", BUY)
    app.close()
    shop.assert_clean()


def test_parameters_that_are_made_of_statements(server: Server, shop: Shop, ways: list[str]) -> None:
    """Would wait for themselves. Those that do not end are not waited for."""
    app = server()
    again = threading.Event()

    @app.transaction(sites=("store", "bank"))
    def nested(tx: Tx, request: Any) -> None:
        if request == "slow":
            tx.store.execute_many("SELECT %s::int", ((again.wait(PATIENCE),) for _ in range(2)))
        site = tx.store if request == "same" else tx.bank
        tx.store.execute_many("SELECT %s::int", ((site.fetch_one("SELECT 1 AS a").a,) for _ in range(2)))

    for which in ("same", "other"):
        with pytest.raises(NothingHappened) as caught:
            app.submit("nested", which)
        assert isinstance(caught.value.__cause__, RuntimeError)
        app.submit("buy", BUY)
    began = time.monotonic()
    with pytest.raises(NothingHappened):
        app.submit("nested", "slow", deadline=0.3)
    assert time.monotonic() - began < PATIENCE / 2
    again.set()
    for pool in app._app._pools.values():
        stats = pool._transactions.get_stats
        _until(lambda stats=stats: stats()["pool_available"] == stats()["pool_size"])
    app.submit("buy", BUY)
    shop.assert_clean()


def test_a_copy_that_is_left_early(server: Server, shop: Shop, ways: list[str]) -> None:
    """The server ends it: it would take minutes."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    def leaves(tx: Tx, request: Any) -> None:
        with tx.store.copy("COPY (SELECT generate_series(1, 1000000000)) TO STDOUT") as copy:
            copy.read_row()
            raise Refuse("enough")

    with pytest.raises(Refused):
        app.submit("leaves", None, deadline=PATIENCE / 2)
    assert ways == ["Tried"]
    app.submit("buy", BUY)
    shop.assert_clean()


# -- threads -------------------------------------------------------------------------------------------------------


def test_threads_are_begun_as_needed() -> None:
    workers = Workers(3, "some")
    workers.begin()
    together = threading.Barrier(3)
    for _ in range(20):
        jobs = [Job(lambda: together.wait(PATIENCE)) for _ in range(3)]
        for job in jobs:
            workers.put(job)
        assert all(job.wait(PATIENCE) for job in jobs)
        assert sorted(job.result or 0 for job in jobs) == [0, 1, 2]
    assert [thread.name for thread in threading.enumerate()].count("some_0") == 1
    del workers
    _until(lambda: not any(thread.name.startswith("some_") for thread in threading.enumerate()))


def test_threads_are_interrupted() -> None:
    """By a handler's time-out that strikes late, say: the others go on, and what one was at is over."""

    class Struck(Job[None]):
        ends = 0

        def end(self) -> None:
            self.ends += 1
            if self.ends == 1:
                raise KeyboardInterrupt
            super().end()

    def both() -> bool:
        together = threading.Barrier(3)
        for _ in range(2):
            workers.put(Job(lambda: together.wait(1)))
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(1)
        return not together.broken

    workers = Workers(2, "struck")
    workers.begin()
    for _ in range(2):
        struck = Struck(lambda: None)
        workers.put(struck)
        assert struck.wait(PATIENCE)
    _until(both)
    _until(lambda: len(workers._state.idle) == 2)
    for thread in threading.enumerate():
        if thread.name.startswith("struck_"):
            word = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(word, ctypes.py_object(KeyboardInterrupt))
    assert both()
    assert both()
    workers.close()


def test_what_is_not_to_begin_any_more() -> None:
    """Nobody waits for it, or the threads are to end."""

    async def cancelled() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await workers.run(lambda: ran.append("cancelled"))

    workers, release, ran = Workers(1, "one"), threading.Event(), list[str]()
    workers.begin()
    workers.put(Job(lambda: release.wait(PATIENCE)))
    asyncio.run(cancelled())
    last = Job(lambda: ran.append("last"))
    workers.put(last)
    release.set()
    assert last.wait(PATIENCE)
    assert ran == ["last"]
    workers.close()
    late = Job(lambda: ran.append("late"))
    workers.put(late)
    assert late.wait(PATIENCE)
    assert (ran, late.result) == (["last"], None)


# -- waiting in a thread -------------------------------------------------------------------------------------------


class Wire:
    """An end of a pair of sockets, as a connection."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()
        self.pgconn: Any = self
        self.until = math.inf

    @property
    def socket(self) -> int:
        if self.here.fileno() < 0:
            raise psycopg.OperationalError("closed")
        return self.here.fileno()

    def cut(self) -> None:
        self.here.shutdown(socket.SHUT_RDWR)


def reading(wire: Wire) -> PQGen[bytes]:
    """Until there are three bytes, or no more."""
    told = b""
    while len(told) < 3:
        assert (yield Wait.R) & Ready.R
        more = wire.here.recv(1)
        if not more:
            break
        told += more
    return told


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made = [Wire() for _ in range(3)]
    yield made
    for wire in made:
        wire.here.close()
        wire.there.close()


async def twice(wire: Wire) -> list[bytes]:
    return [await Exchange(wire, reading(wire)), await Exchange(wire, reading(wire))]


def test_several_at_once(wires: list[Wire]) -> None:
    wires[1].there.sendall(b"abcdef")
    threading.Timer(0.05, lambda: wires[0].there.sendall(b"123456")).start()
    threading.Timer(0.02, lambda: wires[2].there.sendall(b"xyz")).start()
    threading.Timer(0.10, lambda: wires[2].there.close()).start()
    told = driven([twice(wire) for wire in wires])
    assert [one.result() for one in told] == [[b"123", b"456"], [b"abc", b"def"], [b"xyz", b""]]


def test_in_time(wires: list[Wire]) -> None:
    """What does not answer is cut, by itself."""
    wires[0].until = time.monotonic() + 0.1
    threading.Timer(0.3, lambda: wires[1].there.sendall(b"abcdef")).start()
    told = driven([twice(wire) for wire in wires[:2]])
    assert [one.result() for one in told] == [[b"", b""], [b"abc", b"def"]]


def test_what_is_raised(wires: list[Wire]) -> None:
    async def fails(wire: Wire) -> None:
        with pytest.raises(psycopg.OperationalError, match="closed"):
            await Exchange(wire, reading(wire))
        raise KeyError("then")

    wire, other, _ = wires
    wire.here.close()
    other.there.sendall(b"abcdef")
    failed, done = driven([fails(wire), twice(other)])
    assert done.result() == [b"abc", b"def"]
    with pytest.raises(KeyError):
        failed.result()
    with pytest.raises(KeyError):
        drive(fails(wire))
