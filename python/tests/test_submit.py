"""App over two real sites: the happy path, retransmissions, siblings, refusals, errors, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from shop import BALANCE, ORDER, PAYMENT, Shop, give_up_at

from pgmip import App, KeyReused, NothingHappened, Resolution, Step, Tx, Unknown
from pgmip._json import canonical, parse
from pgmip.app import Isolation
from pgmip.xinst import MAX_XINST, new_xid, new_xinst

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 2}


async def test_happy_path(server: Server, shop: Shop) -> None:
    xid = new_xid()
    result = await server().submit("buy", BUY, xid=xid)
    assert set(result) == {"order", "xinst", "token"}
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_retransmission_gets_the_identical_result_anywhere(server: Server, shop: Shop) -> None:
    first, second = server(), server()
    xid = new_xid()
    result = await first.submit("buy", BUY, xid=xid)
    assert await first.submit("buy", BUY, xid=xid) == result
    assert await second.submit("buy", dict(reversed(BUY.items())), xid=xid) == result
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.parametrize("refusals", [1, 2])
async def test_prepared_statements_after_refusals(server: Server, shop: Shop, refusals: int) -> None:
    """What psycopg was about to prepare behind a `mip.begin` that was refused has not been prepared."""
    xid = new_xid()
    result = await server().submit("buy", BUY, xid=xid)
    app = server(pool_size=1)
    for _ in range(refusals):
        assert await app.submit("buy", BUY, xid=xid) == result
    for _ in range(8):
        await app.submit("buy", BUY)
        assert await app.submit("buy", BUY, xid=xid) == result
    shop.assert_clean()


async def test_without_an_xid_every_submit_is_a_request_of_its_own(server: Server, shop: Shop) -> None:
    app = server()
    results = [await app.submit("buy", BUY) for _ in range(3)]
    assert len({result["order"] for result in results}) == 3
    shop.assert_clean()


async def test_whatever_the_encoding_of_the_client(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    xid = "schön-" + new_xid()
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_a_business_refusal_is_a_result(server: Server, shop: Shop) -> None:
    app = server()
    request = {"item": 2, "qty": 1}
    assert await app.submit("buy", request, xid="refused") == {"refused": "out of stock"}
    shop.sql("store", "UPDATE item SET stock = 5 WHERE i_id = 2")
    assert await app.submit("buy", request, xid="refused") == {"refused": "out of stock"}
    shop.assert_never("refused")
    shop.assert_clean()


async def test_one_site_commits_in_one_phase(server: Server, shop: Shop) -> None:
    app = server()
    steps: list[str] = []
    app.on_step(lambda step: steps.append(step.name))
    xid = new_xid()
    result = await app.submit("restock", {"item": 1, "qty": 5}, xid=xid)
    assert steps == ["begun", "committed-first-site", "committed-all"]
    assert await server().submit("restock", {"item": 1, "qty": 5}, xid=xid) == result
    assert shop.effects(xid) == ([result["xinst"]], [])
    shop.sql("store", "UPDATE item SET stock = stock - 5 WHERE i_id = 1")
    shop.assert_clean()


@pytest.mark.parametrize("parallel", [True, False])
async def test_steps(server: Server, shop: Shop, parallel: bool) -> None:
    app = server(parallel=parallel)
    steps: list[Step] = []
    app.on_step(steps.append)

    async def slowly(step: Step) -> None:
        await asyncio.sleep(0.01)

    app.on_step(slowly)
    result = await app.submit("buy", BUY, xid="steps-" + str(parallel))
    names = [step.name for step in steps]
    assert names[:3] == ["begun", "begun", "prepared-first-site"]
    assert names[3:] == ["prepared-all", "committed-first-site", "committed-all"]
    assert {step.site for step in steps[:2]} == {"store", "bank"}
    assert {step.xinst for step in steps} == {result["xinst"]}
    if not parallel:
        assert (steps[2].site, steps[4].site) == ("store", "store")
    shop.assert_clean()


# -- siblings ----------------------------------------------------------------------------------------------------


async def test_concurrent_siblings_at_several_servers(server: Server, shop: Shop) -> None:
    apps = [server() for _ in range(4)]
    for _ in range(10):
        xid = new_xid()
        results = await asyncio.gather(*(app.submit("buy", BUY, xid=xid) for app in apps))
        assert all(result == results[0] for result in results)
        shop.assert_once(xid, results[0])
    shop.assert_clean()


async def test_many_families_with_siblings_on_the_same_rows(server: Server, shop: Shop) -> None:
    apps = [server(pool_size=8) for _ in range(3)]
    xids = [new_xid() for _ in range(30)]

    async def client(number: int, xid: str) -> Any:
        turns = [apps[(number + i) % 3].submit("buy", BUY, xid=xid) for i in range(2)]
        first, second = await asyncio.gather(*turns)
        assert first == second
        return first

    results = await asyncio.gather(*(client(number, xid) for number, xid in enumerate(xids)))
    for xid, result in zip(xids, results, strict=True):
        shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_sibling_does_not_wait_for_a_server_that_hangs(server: Server, shop: Shop) -> None:
    hanging, other = server(), server()
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang(step: Step) -> None:
        if step.name == "prepared-first-site":
            reached.set()
            await release.wait()

    hanging.parallel = False
    hanging.on_step(hang)
    xid = new_xid()
    slow = asyncio.create_task(hanging.submit("buy", BUY, xid=xid))
    await reached.wait()
    async with asyncio.timeout(3):
        result = await other.submit("buy", BUY, xid=xid)
    shop.assert_once(xid, result)
    release.set()
    assert await slow == result
    shop.assert_clean()


def prepare_by_hand(shop: Shop, xid: str, xinst: int) -> None:
    """What a server leaves behind that has died after it had prepared `xinst` at the store."""
    with psycopg.connect(shop.clusters["store"].conninfo(), autocommit=True) as conn:
        conn.execute("BEGIN")
        conn.execute("SELECT mip.begin(%s, %s, %s)", (xid, xinst, ["bank", "store"]))
        request = canonical({"transaction": "buy", "request": BUY})
        conn.execute("SELECT mip.prepare(%s, '{}')", (request,))


async def test_a_retry_goes_above_a_clock_that_is_ahead(server: Server, shop: Shop) -> None:
    ahead = new_xinst() + 2**50
    prepare_by_hand(shop, "ahead", ahead)
    result = await server().submit("buy", BUY, xid="ahead")
    assert result["xinst"] > ahead
    shop.assert_once("ahead", result)
    shop.assert_clean()


async def test_an_xid_whose_xinsts_are_used_up(server: Server, shop: Shop) -> None:
    prepare_by_hand(shop, "used up", MAX_XINST)
    with pytest.raises(Unknown) as caught:
        await server().submit("buy", BUY, xid="used up")
    assert isinstance(caught.value.__cause__, OverflowError)
    shop.sql("store", f"SELECT mip.rollback('used up', {MAX_XINST})")
    shop.assert_clean()


async def test_a_clock_that_jumps(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at servers whose clocks are decades apart, or stand still: each gets through, above what was there."""
    year = 365 * 86_400_000_000_000
    for years in (0, 500, -500, 10, -40):
        now = time.time_ns() + years * year
        monkeypatch.setattr("pgmip.xinst.clock", lambda now=now: now)
        xid = f"clock {years}"
        prepare_by_hand(shop, xid, new_xinst())
        monkeypatch.setattr("pgmip.xinst.clock", lambda now=now: now - year)
        shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
        results = await asyncio.gather(*(server().submit("buy", BUY, xid=xid + " again") for _ in range(3)))
        assert results == [results[0]] * 3
        shop.assert_once(xid + " again", results[0])
    shop.assert_clean()


async def test_siblings_that_supersede_one_another_come_to_an_end(shop: Shop) -> None:
    """Half of the servers prepare the sites in the other order, and all are slow between the two."""
    attempts = 0

    def rival(*order: str) -> App:
        app = App(shop.conninfos(), parallel=False)

        @app.transaction(sites=order)
        async def contested(tx: Tx, request: Any) -> int:
            nonlocal attempts
            attempts += 1
            return tx.xinst

        async def slowly(step: Step) -> None:
            if step.name == "prepared-first-site":
                await asyncio.sleep(0.1)

        app.on_step(slowly)
        return app

    async with AsyncExitStack() as stack:
        orders = [("store", "bank"), ("bank", "store")] * 4
        apps = [await stack.enter_async_context(rival(*order)) for order in orders]
        for number in range(3):
            results = await asyncio.gather(*(app.submit("contested", None, xid=f"contested {number}") for app in apps))
            assert len(set(results)) == 1
    shop.assert_clean()
    assert attempts < 190, "24 requests; without pauses they take about 300"


# -- errors ------------------------------------------------------------------------------------------------------


async def test_an_exception_of_the_handler_means_nothing_happened(server: Server, shop: Shop) -> None:
    app = server()
    fail = True

    @app.transaction(sites=("store", "bank"))
    async def fragile(tx: Tx, request: Any) -> str:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        if fail:
            raise KeyError("a bug")
        return "done"

    with pytest.raises(NothingHappened) as caught:
        await app.submit("fragile", None, xid="fragile")
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.xid == "fragile"
    shop.assert_never("fragile")
    shop.assert_clean()
    fail = False
    assert await app.submit("fragile", None, xid="fragile") == "done"
    fail = True
    assert await app.submit("fragile", None, xid="fragile") == "done"  # decided: not run again
    shop.assert_clean()


async def test_a_failing_handler_says_nothing_while_a_sibling_may_still_win(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"), name="broken")
    async def broken(tx: Tx, request: Any) -> None:
        raise ValueError("a bug")

    prepare_by_hand(shop, "sibling", new_xinst())
    with pytest.raises(Unknown):
        await app.submit("broken", None, xid="sibling")
    assert await app.resolve("sibling") == Resolution(cancelled=True, result=None)
    shop.assert_clean()


async def test_an_sql_error_cannot_be_swallowed(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def swallow(tx: Tx, request: Any) -> str:
        await tx.bank.execute("SELECT 1")
        try:
            await tx.store.execute("SELECT 1/0")
        except psycopg.Error:
            return "fine"
        return "impossible"

    with pytest.raises(NothingHappened) as caught:
        await app.submit("swallow", None, xid="swallow")
    assert isinstance(caught.value.__cause__, psycopg.errors.DivisionByZero)
    shop.assert_clean()


async def test_an_sql_error_can_be_undone_with_a_savepoint(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def careful(tx: Tx, request: Any) -> str:
        try:
            async with tx.store.savepoint():
                await tx.store.execute("SELECT 1/0")
        except psycopg.errors.DivisionByZero:
            pass
        await tx["store"].execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        return "fine"

    assert await app.submit("careful", None, xid="careful") == "fine"
    assert len(shop.effects("careful")[0]) == 1
    shop.assert_clean()


async def test_a_constraint_that_fails_at_prepare_is_a_definite_refusal(server: Server, shop: Shop) -> None:
    shop.sql("bank", "CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); SELECT mip.enable('once')")
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def twice(tx: Tx, request: Any) -> str:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        await tx.bank.execute("INSERT INTO once VALUES (1), (1)")
        return "impossible"

    with pytest.raises(NothingHappened) as caught:
        await app.submit("twice", None, xid="twice")
    assert isinstance(caught.value.__cause__, psycopg.errors.UniqueViolation)
    shop.assert_never("twice")
    shop.sql("bank", "DROP TABLE once")
    shop.assert_clean()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_a_handler_cannot_end_its_transaction(server: Server, shop: Shop, sql: str) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def rude(tx: Tx, request: Any) -> str:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        try:
            await tx.store.execute(request)
        except psycopg.Error:
            return "impossible"
        return "impossible"

    with pytest.raises(NothingHappened):
        await app.submit("rude", sql, xid=sql)
    shop.assert_never(sql)
    shop.assert_clean()


async def test_a_result_that_is_not_json(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def strange(tx: Tx, request: Any) -> object:
        return object()

    with pytest.raises(NothingHappened, match="JSON"):
        await app.submit("strange", None)
    shop.assert_clean()


async def test_a_key_belongs_to_the_request_that_was_decided(server: Server, shop: Shop) -> None:
    app = server()
    result = await app.submit("buy", BUY, xid="key")
    for name, request in [("buy", {"item": 1, "qty": 3}), ("restock", BUY)]:
        with pytest.raises(KeyReused):
            await app.submit(name, request, xid="key")
    assert await app.submit("buy", BUY, xid="key") == result
    shop.assert_once("key", result)
    shop.assert_clean()


async def test_serialization_failures_are_retried(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"), isolation="repeatable read")
    async def count(tx: Tx, request: Any) -> Any:
        row = await tx.store.fetch_one("SELECT stock FROM item WHERE i_id = 2")
        await asyncio.sleep(0.01)
        await tx.store.execute("UPDATE item SET stock = %s WHERE i_id = 2", (row.stock + 1,))
        return row.stock

    results = await asyncio.gather(*(app.submit("count", n) for n in range(5)))
    assert sorted(results) == [0, 1, 2, 3, 4]
    shop.assert_clean()


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_write_skew(server: Server, shop: Shop, isolation: Isolation) -> None:
    """No more than three orders: all that begin count the same ones, and write rows of their own."""
    app = server()

    @app.transaction(sites=("store",), isolation=isolation)
    async def limited(tx: Tx, request: Any) -> bool:
        row = await tx.store.fetch_one("SELECT count(*) AS n FROM orders")
        await asyncio.sleep(0.2)
        if row.n < 3:
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        return bool(row.n < 3)

    ordered = await asyncio.gather(*(app.submit("limited", n) for n in range(6)))
    assert sum(ordered) == (3 if isolation == "serializable" else 6)
    assert shop.sql("store", "SELECT count(*) FROM orders") == [(sum(ordered),)]
    shop.assert_clean()


def _set_everywhere(shop: Shop, *sites: str) -> None:
    for site in ("store", "bank"):
        what = "SET mip.serializable = everywhere" if site in sites else "RESET mip.serializable"
        shop.sql(site, f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I {what}', current_database()); END $$")


@pytest.mark.parametrize("everywhere", [True, False])
async def test_serializable_across_sites(server: Server, shop: Shop, everywhere: bool) -> None:
    """Each reads at one site what the other one replaces: one of them has seen it, where that is asked for."""
    _set_everywhere(shop, *(("store", "bank") if everywhere else ()))
    app = server()
    both = asyncio.Barrier(2)

    async def meet(tx: Tx) -> None:
        with contextlib.suppress(asyncio.BrokenBarrierError):  # a retry, which meets nobody
            try:
                await asyncio.wait_for(both.wait(), 1)
            except TimeoutError:
                await both.abort()

    @app.transaction(sites=("store", "bank"), isolation="serializable")
    async def pay(tx: Tx, request: Any) -> int:
        row = await tx.store.fetch_one("SELECT stock FROM item WHERE i_id = 2")
        await meet(tx)
        await tx.bank.execute("UPDATE account SET balance = balance + 1")
        return int(row.stock)

    @app.transaction(sites=("store", "bank"), isolation="serializable")
    async def stock(tx: Tx, request: Any) -> int:
        row = await tx.bank.fetch_one("SELECT balance FROM account")
        await meet(tx)
        await tx.store.execute("UPDATE item SET stock = 1 WHERE i_id = 2")
        return int(row.balance)

    try:
        seen = await asyncio.gather(app.submit("pay", None), app.submit("stock", None))
        assert (seen == [0, BALANCE]) != everywhere
    finally:
        _set_everywhere(shop)
        shop.sql("bank", f"UPDATE account SET balance = {BALANCE}")
    shop.assert_clean()


async def test_sites_that_differ_about_serializable(server: Server, shop: Shop) -> None:
    _set_everywhere(shop, "store")
    app = server()

    @app.transaction(sites=("store", "bank"), isolation="serializable")
    async def sell(tx: Tx, request: Any) -> None:
        await tx.store.execute("UPDATE item SET stock = 1 WHERE i_id = 2")

    try:
        with pytest.raises(NothingHappened, match="cannot be serializable everywhere at this site"):
            await app.submit("sell", None)
    finally:
        _set_everywhere(shop)
    shop.assert_clean()


async def test_serializable_beside_a_dead_server(server: Server, shop: Shop) -> None:
    """What it has read and written, and left prepared, is no reason to fail."""
    app = server()

    @app.transaction(sites=("store", "bank"), isolation="serializable")
    async def sell(tx: Tx, request: Any) -> Any:
        rows = await tx.store.fetch_all("SELECT i_id, stock FROM item ORDER BY i_id")
        await tx.store.execute("UPDATE item SET stock = stock + %s WHERE i_id = 2", (rows[1].stock + 1,))
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    with psycopg.connect(shop.conninfos()["store"], autocommit=True) as dead:
        dead.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        dead.execute("SELECT mip.begin('left serializable', 1, '{bank,store}')")
        dead.execute("SELECT sum(stock) FROM item")
        dead.execute("UPDATE item SET stock = 7 WHERE i_id = 2")
        dead.execute("""SELECT FROM mip.prepare('{"request":null,"transaction":"sell"}', '"first"')""")
    result = await app.submit("sell", None, xid="left serializable", attempts=1)
    shop.assert_once("left serializable", result)
    assert shop.sql("store", "SELECT stock FROM item WHERE i_id = 2") == [(1,)]
    shop.assert_clean()


@pytest.fixture
def by_key(shop: Shop) -> Iterator[None]:
    """No sequential scans, which read all rows, in sessions that are begun now."""
    alter = "DO $$BEGIN EXECUTE format('ALTER DATABASE %I {} enable_seqscan {}', current_database()); END$$"
    shop.sql("store", "ANALYZE item")
    shop.sql("store", alter.format("SET", "= off"))
    yield
    shop.sql("store", alter.format("RESET", ""))


@pytest.mark.usefixtures("by_key")
async def test_beside_a_pivot_in_doubt(server: Server, shop: Shop) -> None:
    """A request that fails until another one is decided does not try again at once."""
    app = server()
    attempts: list[float] = []
    again = asyncio.Event()

    @app.transaction(sites=("store",), isolation="serializable")
    async def stock(tx: Tx, request: Any) -> Any:
        attempts.append(asyncio.get_running_loop().time())
        if len(attempts) == 3:
            again.set()
        return (await tx.store.fetch_one("SELECT stock FROM item WHERE i_id = 1")).stock

    before = shop.sql("store", "SELECT stock FROM item WHERE i_id = 1")[0][0]
    with psycopg.connect(shop.conninfos()["store"], autocommit=True) as dead:
        dead.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        dead.execute("SELECT mip.begin('a pivot', 1)")
        dead.execute("SELECT stock FROM item WHERE i_id = 2")
        dead.execute("UPDATE item SET stock = 7 WHERE i_id = 1")
        dead.execute("SELECT FROM mip.prepare('', '')")
    shop.sql("store", "BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE item SET stock = stock WHERE i_id = 2; COMMIT")
    task = asyncio.create_task(app.submit("stock", None))
    await again.wait()
    shop.sql("store", "SELECT FROM mip.rollback('a pivot', 1)")
    assert await task == before
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(attempts))
    shop.assert_clean()


@pytest.mark.usefixtures("by_key")
async def test_each_a_pivot_to_the_other(server: Server, shop: Shop) -> None:
    """What two dead servers have left at one site each lets the other request fail: both give up their own."""
    dead, app = server(), server()
    left = set()

    async def sell(tx: Tx, request: Any) -> Any:
        own, watched, others = request
        await tx.store.execute("SELECT FROM item WHERE i_id = %s", (watched,))
        if tx.xid in left:
            await tx.store.execute("SELECT FROM item WHERE i_id = %s", (others,))
        left.add(tx.xid)
        await tx.store.execute("UPDATE item SET stock = stock + 1 WHERE i_id = %s", (own,))
        return own

    for each in (dead, app):
        each.transaction(sites=("store", "bank"), isolation="serializable")(sell)
    give_up_at(dead, "prepared-first-site")
    shop.sql("store", "INSERT INTO item VALUES (3, 0), (4, 0), (5, 0)")
    requests = {"a pivot": [2, 3, 4], "another": [4, 5, 2]}
    for xid, request in requests.items():
        with pytest.raises(Unknown):
            await dead.submit("sell", request, xid=xid)
        seen = f"UPDATE item SET stock = stock WHERE i_id = {request[1]}"
        shop.sql("store", f"BEGIN ISOLATION LEVEL SERIALIZABLE; {seen}; COMMIT")
    assert len(shop.sql("store", "SELECT FROM mip.in_doubt")) == 2
    before = shop.sql("store", "SELECT stock + 1 FROM item WHERE i_id IN (2, 4) ORDER BY i_id")
    answers = await asyncio.gather(*(app.submit("sell", request, xid=xid) for xid, request in requests.items()))
    assert answers == [2, 4]
    after = shop.sql("store", "SELECT stock FROM item WHERE i_id IN (2, 4) ORDER BY i_id")
    assert after == before
    shop.assert_clean()


@pytest.mark.usefixtures("by_key")
@pytest.mark.parametrize("again", ["SELECT FROM item WHERE i_id = %s", "UPDATE item SET stock = stock WHERE i_id = %s"])
async def test_each_in_the_way_of_the_other(server: Server, shop: Shop, again: str) -> None:
    """Across sites it takes no more than what dead servers have read and written: both requests give up their own."""
    _set_everywhere(shop, "store", "bank")
    dead, app = server(), server()
    left = set()

    async def sell(tx: Tx, request: Any) -> Any:
        own, watched, others = request
        await tx.store.execute("SELECT FROM item WHERE i_id = %s", (watched,))
        if tx.xid in left:  # what the other one has written, or read
            await tx.store.execute(again, (others if again.startswith("SELECT") else others + 1,))
        left.add(tx.xid)
        await tx.store.execute("UPDATE item SET stock = stock + 1 WHERE i_id = %s", (own,))
        return own

    for each in (dead, app):
        each.transaction(sites=("store", "bank"), isolation="serializable")(sell)
    give_up_at(dead, "prepared-first-site")
    shop.sql("store", "INSERT INTO item SELECT i, 0 FROM generate_series(3, 3000) i")
    requests = {f"one, {again}": [1000, 1001, 2000], f"the other, {again}": [2000, 2001, 1000]}
    try:
        for xid, request in requests.items():
            with pytest.raises(Unknown):
                await dead.submit("sell", request, xid=xid)
        assert len(shop.sql("store", "SELECT FROM mip.in_doubt")) == 2
        answers = await asyncio.gather(*(app.submit("sell", request, xid=xid) for xid, request in requests.items()))
    finally:
        _set_everywhere(shop)
    assert answers == [1000, 2000]
    sold = shop.sql("store", "SELECT i_id, stock FROM item WHERE i_id > 2 AND stock > 0 ORDER BY 1")
    assert sold == [(1000, 1), (2000, 1)]
    shop.assert_clean()


async def test_deadlocks_are_retried(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store",))
    async def both(tx: Tx, request: Any) -> int:
        for item in request:
            await tx.store.execute("UPDATE item SET stock = stock + 1 WHERE i_id = %s", (item,))
            await asyncio.sleep(0.05)
        return 1

    assert await asyncio.gather(app.submit("both", [1, 2]), app.submit("both", [2, 1])) == [1, 1]
    assert shop.sql("store", "SELECT stock FROM item WHERE i_id = 2") == [(2,)]


async def test_deadline(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT pg_sleep(20)")

    with pytest.raises(NothingHappened) as caught:
        await app.submit("slow", None, xid="slow", deadline=0.3)
    assert isinstance(caught.value.__cause__, TimeoutError)
    shop.assert_clean()


async def test_cancellation_leaves_no_transaction_open(server: Server, shop: Shop) -> None:
    app = server()
    for step_name in ("begun", "prepared-first-site", "prepared-all", "committed-first-site", "committed-all"):
        reached = asyncio.Event()

        async def wait(step: Step, name: str = step_name, reached: asyncio.Event = reached) -> None:
            if step.name == name:
                reached.set()
                await asyncio.Event().wait()

        victim = server(parallel=False)
        victim.on_step(wait)
        xid = new_xid()
        task = asyncio.create_task(victim.submit("buy", BUY, xid=xid))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for site in shop.clusters:
            shop.assert_no_open_transaction(site)
        shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_misuse_is_told_before_anything_begins(server: Server) -> None:
    app = server()
    with pytest.raises(LookupError):
        await app.submit("nothing", None)
    with pytest.raises(TypeError):
        await app.submit("buy", object())
    for xid in ("", "x" * 129, "a\0b"):
        with pytest.raises(ValueError, match="XID"):
            await app.submit("buy", BUY, xid=xid)


async def test_a_closed_app(server: Server, shop: Shop) -> None:
    app = server()
    await app.close()
    with pytest.raises(Unknown, match="closed"):
        await app.submit("buy", BUY)
    with pytest.raises(Unknown, match="closed"):
        await app.resolve("x")


@pytest.mark.parametrize("used", [False, True])
async def test_entering_a_closed_app(server: Server, used: bool) -> None:
    """It stays closed."""
    app = server(pool_min_size=1)
    if used:
        await app.submit("buy", BUY)
    await app.close()
    before = asyncio.all_tasks()
    async with app:
        assert asyncio.all_tasks() == before
        with pytest.raises(Unknown, match="closed"):
            await app.submit("buy", BUY)


async def test_a_site_that_is_down_from_the_start(server: Server, shop: Shop) -> None:
    conninfos = shop.conninfos(bank=1)
    with pytest.raises(Unknown):  # somebody else may have begun
        await server(conninfos).submit("buy", BUY, xid="down", deadline=0.5)
    with pytest.raises(NothingHappened):  # nobody else can know the XID
        await server(conninfos).submit("buy", BUY, deadline=0.5)
    shop.assert_clean()


async def test_a_request_whose_keys_are_numbers(server: Server, shop: Shop) -> None:
    """It is the same as what comes over HTTP, where they are strings."""
    xid, request = new_xid(), {"item": 1, "qty": 2, "notes": {9: "a", 10: "b"}}
    result = await server().submit("buy", request, xid=xid)
    assert await server().submit("buy", json.loads(json.dumps(request)), xid=xid) == result
    shop.assert_once(xid, result)


# -- values nested deep ------------------------------------------------------------------------------------------


def nested(depth: int, *, by: str = "lists") -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if by == "objects" or (by == "both" and level % 2) else [0, value]
    return value


@pytest.mark.parametrize("depth", [1, 199, 200, 201, 975, 100_000])
async def test_deep_results(server: Server, shop: Shop, depth: int) -> None:
    """What somebody could not read is refused before anything is prepared."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def deep(tx: Tx, request: Any) -> Any:
        await tx.store.execute("UPDATE item SET stock = stock - 0")
        return nested(depth, by="both")

    xid = new_xid()
    if depth <= 200:
        assert await app.submit("deep", None, xid=xid) == nested(depth, by="both")
    else:
        with pytest.raises(NothingHappened) as caught:
            await app.submit("deep", None, xid=xid)
        assert isinstance(caught.value.__cause__, ValueError)
        assert shop.sql("store", f"SELECT state FROM mip.instances('{xid}') WHERE state <> 'aborted'") == []
    shop.assert_clean()


@pytest.mark.parametrize("by", ["lists", "objects", "both"])
def test_depth(by: str) -> None:
    parse(canonical(nested(200, by=by)))
    canonical([nested(199, by=by)] * 300)
    for depth in (201, 500, 975, 100_000):
        with pytest.raises(ValueError, match="deep"):
            canonical(nested(depth, by=by))
    with pytest.raises(ValueError, match="deep"):
        parse("[" * 100_000 + "]" * 100_000)
    canonical(["[{" * 1000, {"[" * 1000: "{" * 1000}])
