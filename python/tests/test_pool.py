"""Connections: limits, health, idle lifetime; and sites that are down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from forked import in_a_child, refusal
from proxy import Fault, Mode, Proxy
from shop import SCHEMA, Shop, give_up_at, leave_at, make_app
from test_sweeper import prepare_at

from pgmip import App, Decided, NothingHappened, Resolution, SiteDown, Step, SubmitError, Tx, Unknown, _mipt, _pool
from pgmip._branch import Branch
from pgmip._circuit import Circuit
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 1}
PATIENCE = 30.0  # seconds, for what happens soon or never
FOREVER = {"deadline": 3600.0, "attempts": 1_000_000}


@pytest.fixture
async def proxies(shop: Shop) -> AsyncIterator[dict[str, Proxy]]:
    async with AsyncExitStack() as stack:
        yield {site: await stack.enter_async_context(Proxy(cluster.port)) for site, cluster in shop.clusters.items()}


def behind(server: Server, shop: Shop, proxies: dict[str, Proxy], **parameters: Any) -> App:
    """An app server that the sites know by its name, and that reaches them through the proxies."""
    conninfos = shop.conninfos(**{site: proxy.port for site, proxy in proxies.items()})
    named = {site: conninfo + " application_name=behind" for site, conninfo in conninfos.items()}
    return server(named, **parameters)


def connections(shop: Shop, site: str = "store") -> int:
    rows = shop.sql(site, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'behind'")
    return int(rows[0][0])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- requests in doubt ------------------------------------------------------------------------------------------


async def wait_for_rows(shop: Shop, number: int) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    await until(lambda: int(shop.sql("store", waiting)[0][0]) == number)


async def test_a_request_in_doubt_does_not_wait_behind_those_that_wait_for_it(server: Server, shop: Shop) -> None:
    xid = new_xid()
    await leave_at(server(), "prepared-first-site", xid)
    app = server(pool_size=2)
    others = [asyncio.create_task(app.submit("buy", BUY, deadline=600)) for _ in range(3)]
    await wait_for_rows(shop, 2)
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid, deadline=60))
    await asyncio.gather(*others)
    shop.assert_clean()


async def test_requests_in_doubt_take_turns(server: Server, shop: Shop) -> None:
    xid, *others = (new_xid() for _ in range(_pool._IN_DOUBT + 1))
    await leave_at(server(), "prepared-first-site", xid)
    for other in others:
        prepare_at(shop, other, "store")  # without the row; the retransmission needs it
    app = server(pool_size=1)
    waiting = [asyncio.create_task(app.submit("buy", BUY, deadline=600))]
    await wait_for_rows(shop, 1)
    waiting += [asyncio.create_task(app.submit("buy", BUY, xid=other, deadline=600)) for other in others]
    await wait_for_rows(shop, 1 + len(others))
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid, deadline=120))
    await asyncio.gather(*waiting)
    shop.assert_clean()


# -- pools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False])
async def test_prepared_statements(server: Server, shop: Shop, wanted: bool) -> None:
    app = server(pool_size=1, prepared_statements=wanted)

    @app.transaction(sites=("store", "bank"))
    async def count(tx: Tx, request: Any) -> list[int]:
        rows = [await tx[site].fetch_one("SELECT count(*) FROM pg_prepared_statements") for site in ("store", "bank")]
        return [row.count for row in rows]

    for _ in range(8):  # often enough for psycopg to prepare what is not said to be prepared
        counts = await app.submit("count", None)
    assert [bool(count) for count in counts] == [wanted, wanted]
    xid = new_xid()
    apps = (app, server(prepared_statements=wanted))
    await asyncio.gather(*(app.submit("buy", BUY, xid=xid) for app in apps))
    shop.assert_clean()


@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"])
async def test_prepared_statements_that_somebody_has_dropped(server: Server, shop: Shop, sql: Any) -> None:
    """A connection without them goes, also one that commits: no request would ever be finished over it."""
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def drops(tx: Tx, request: Any) -> None:
        tx.store.finish_with(sql)
        await tx.bank.execute("SELECT")

    await app.submit("drops", None)
    for number in range(3):
        xid = f"dropped by {sql} {number}".replace("'", "")
        shop.assert_once(xid, await app.submit("buy", {"item": 1, "qty": 1}, xid=xid))
    with contextlib.suppress(psycopg.errors.InvalidSqlStatementName):
        async with app._pools["store"].finishing() as conn:
            await _mipt.instances(conn, 5, "nobody")
            conn.pgconn.exec_(b"DEALLOCATE ALL")  # so that psycopg does not know
            await _mipt.instances(conn, 5, "nobody")
    assert conn.closed
    shop.assert_clean()


async def test_no_more_transactions_than_the_limit(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    app = behind(server, shop, proxies, pool_size=3)
    running = most = 0

    @app.transaction(sites=("store", "bank"))
    async def count(tx: Tx, request: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await tx.store.execute("SELECT 1")
        await asyncio.sleep(0.02)
        running -= 1

    await asyncio.gather(*(app.submit("count", None) for _ in range(12)))
    assert most == 3
    await until(lambda: connections(shop) <= 3 + _pool._FINISHING)  # the server sees late that one was closed
    shop.assert_clean()


async def test_what_finishes_needs_no_turn(server: Server, shop: Shop) -> None:
    """The only transaction that may run waits for rows of an instance in doubt, which this server resolves."""
    app = server(pool_size=1)
    left = server()
    give_up_at(left, "prepared-all")
    with pytest.raises(Unknown):
        await left.submit("buy", BUY, xid="in doubt")
    waiting = asyncio.create_task(app.submit("buy", BUY))
    await until(lambda: bool(shop.sql("store", "SELECT 1 FROM pg_locks WHERE NOT granted")))
    resolution = await app.resolve("in doubt")
    assert resolution is not None
    assert not resolution.cancelled
    await waiting
    shop.assert_clean()


@pytest.mark.parametrize(("size", "finishing"), [(2, 2), (6, 4)])
async def test_connections_are_kept_and_given_up(
    server: Server, shop: Shop, proxies: dict[str, Proxy], size: int, finishing: int
) -> None:
    app = behind(server, shop, proxies, pool_size=6, pool_min_size=size, pool_max_idle=0.1)
    async with app:
        await until(lambda: connections(shop) == size + finishing)
        await asyncio.gather(*(app.submit("buy", BUY) for _ in range(12)))
        await until(lambda: connections(shop) == size + finishing)
        await app.submit("buy", BUY)
    await until(lambda: connections(shop) == 0)
    shop.assert_clean()


async def test_they_are_kept_without_being_asked_for(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    app = behind(server, shop, proxies, pool_size=6, pool_min_size=6)
    await app.submit("buy", BUY)
    await until(lambda: connections(shop) == 6 + 4)


async def test_a_site_that_is_silent_in_the_beginning(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    """What connects to it meanwhile does not keep anybody from asking it when it answers again."""
    proxies["bank"].freeze()
    async with behind(server, shop, proxies, pool_size=6, pool_min_size=6, step_timeout=600.0) as app:
        await until(lambda: len(proxies["bank"]._writers) >= 3)
        await asyncio.sleep(0.2)  # for whoever else begins to connect
        proxies["bank"].thaw()
        try:
            async with asyncio.timeout(30):
                assert await app.resolve(new_xid()) is None
        finally:
            proxies["bank"].cut()


async def test_a_retry_is_no_warning_of_the_pool(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """That a connection has gone is told once, by us."""
    app = server()
    attempts = []

    @app.transaction(sites=("store", "bank"))
    async def killed(tx: Tx, request: Any) -> int:
        attempts.append(tx.xinst)
        row = await tx.store.fetch_one("SELECT pg_backend_pid() AS pid")
        if len(attempts) < 3:
            shop.sql("store", f"SELECT pg_terminate_backend({row.pid}, 60000)")
        await tx.store.execute("SELECT 1")
        return len(attempts)

    with caplog.at_level(logging.INFO):
        assert await app.submit("killed", None) == 3
    assert [record.getMessage() for record in caplog.records if "closed connection" in record.getMessage()] == []


async def test_connections_that_the_server_has_ended(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    app = await behind(server, shop, proxies, pool_size=8, pool_min_size=8).__aenter__()
    for site in SCHEMA:
        await until(lambda site=site: connections(shop, site) == 8 + 4)  # those that finish, too
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'behind'"
        assert shop.sql(site, sql)
        await until(lambda site=site: connections(shop, site) == 0)
    await app.submit("buy", BUY, attempts=3)
    shop.assert_clean()


async def test_a_server_that_fell_silent(
    server: Server, shop: Shop, proxies: dict[str, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection is tried before a transaction is entrusted to it."""
    app = behind(server, shop, proxies, step_timeout=0.5)
    await asyncio.gather(*(app.submit("buy", BUY) for _ in range(4)))
    monkeypatch.setattr(_pool, "_TRUSTED", 0)
    fault = Fault(Mode.STALL, "request", 0)
    proxies["bank"].arm(fault)
    await app.submit("buy", BUY, attempts=1)
    assert fault.struck
    shop.assert_clean()


async def test_only_who_waits_looks_at_the_circuit(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = server(pool_size=1)
    await app.submit("restock", BUY)
    pool = app._pools["store"]
    guard, waits = pool._circuit.guard, asyncio.Event()

    def waiting() -> Any:
        waits.set()
        return guard()

    monkeypatch.setattr(pool._circuit, "guard", waiting)
    conn = await pool.take(PATIENCE)
    assert conn is not None
    assert not waits.is_set()
    other = asyncio.create_task(pool.take(PATIENCE))
    await waits.wait()
    assert await pool.take(0.01) is None, "lost patience"
    await pool.give(conn)
    assert await other is conn
    third = asyncio.create_task(pool.take(PATIENCE))
    await asyncio.sleep(0.01)
    pool._circuit.connected(psycopg.OperationalError("down"))
    await asyncio.sleep(0.01)
    pool._circuit.connected(None)  # else it would wait for that
    await pool.give(conn)
    assert await third is conn
    await pool.give(conn)
    assert pool._transactions.get_stats()["pool_available"] == 1


async def test_who_gives_up_waiting_leaves_no_gap(server: Server, shop: Shop) -> None:
    app = server(pool_size=1)
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang(step: Step) -> None:
        reached.set()
        await release.wait()

    app.on_step(hang)
    first = asyncio.create_task(app.submit("buy", BUY))
    await reached.wait()
    others = [asyncio.create_task(app.submit("buy", BUY)) for _ in range(5)]
    with pytest.raises(NothingHappened):
        await app.submit("buy", BUY, deadline=0.05)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    release.set()
    await first
    await app.submit("buy", BUY)
    shop.assert_clean()


# -- sites that are down -----------------------------------------------------------------------------------------


async def test_a_site_that_is_down_is_told_at_once(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    app = behind(server, shop, proxies)
    await app.submit("buy", BUY)
    begun: list[str | None] = []
    app.on_step(lambda step: begun.append(step.site))
    proxies["bank"].down()
    for _ in range(3):
        outcomes = await asyncio.gather(
            *(app.submit("buy", BUY, xid=new_xid(), **FOREVER) for _ in range(10)), return_exceptions=True
        )
        assert all(isinstance(outcome, Unknown) for outcome in outcomes)
        causes = [outcome.__cause__ for outcome in outcomes if isinstance(outcome, Unknown)]
        assert all(isinstance(cause, SiteDown) and cause.site == "bank" for cause in causes)
    assert begun == [], "nothing begins at the others"
    with pytest.raises(NothingHappened):  # nobody else can know the XID
        await app.submit("buy", BUY, **FOREVER)
    await app.submit("restock", BUY)  # does not concern the bank
    proxies["bank"].heal()
    xid = new_xid()

    async def recovered() -> None:
        while True:
            try:
                return shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
            except SubmitError:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(60):
        await recovered()
    shop.sql("store", "UPDATE item SET stock = stock - 1 WHERE i_id = 1")
    shop.assert_clean()


async def test_a_short_outage_is_no_error(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    app = behind(server, shop, proxies)
    fault = Fault(Mode.CUT, "reply", 0)
    proxies["bank"].arm(fault)
    await app.submit("buy", BUY)
    assert fault.struck, "the first connection failed"
    shop.assert_clean()


@pytest.mark.parametrize("at", ["handler", "prepare"])
async def test_nothing_stays_locked_elsewhere(server: Server, shop: Shop, proxies: dict[str, Proxy], at: str) -> None:
    """The site has gone before anything was prepared: so nothing is, at the others."""
    app = behind(server, shop, proxies)

    @app.transaction(sites=("store", "bank"))
    async def late(tx: Tx, request: Any) -> None:
        await tx.store.execute("UPDATE item SET stock = stock WHERE i_id = 1")
        await tx.bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")
        proxies["bank"].down()
        await until(lambda: shop.sql("bank", "SELECT 1 FROM pg_locks WHERE relation = 'account'::regclass") == [])
        if at == "handler":
            await tx.bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")

    with pytest.raises(Unknown):
        await app.submit("late", None, xid=at, **FOREVER)
    assert shop.sql("store", "SELECT i_id FROM item WHERE i_id = 1 FOR UPDATE NOWAIT") == [(1,)]
    proxies["bank"].heal()
    shop.assert_clean()


async def test_decided_is_told_at_once_where_a_site_is_down(
    server: Server, shop: Shop, proxies: dict[str, Proxy]
) -> None:
    app = behind(server, shop, proxies, parallel=False)
    app.on_step(lambda step: proxies["bank"].down() if step.name == "prepared-all" else None)
    xid = new_xid()
    with pytest.raises(Decided) as caught:
        await app.submit("buy", BUY, xid=xid, **FOREVER)
    assert caught.value.unfinished == ("bank",)
    assert isinstance(caught.value.__cause__, SiteDown)
    proxies["bank"].heal()
    other = server()
    assert await other.resolve(xid) == Resolution(False, caught.value.result)
    shop.assert_once(xid, caught.value.result)
    shop.assert_clean()


async def test_a_site_that_swallows_everything(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    """No connection is refused, none is made."""
    app = behind(server, shop, proxies, step_timeout=0.2)
    proxies["bank"].arm(Fault(Mode.STALL, "reply", 0))
    await app.submit("buy", BUY)  # one connection only
    shop.assert_clean()


async def test_nothing_outlives_the_app(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks after a site any more: also where it broke twice, or breaks while the App closes."""
    before = asyncio.all_tasks()
    nowhere = {site: conninfo + " port=9" for site, conninfo in shop.conninfos().items()}
    app = make_app(nowhere, step_timeout=1)
    with pytest.raises(NothingHappened):
        await app.submit("buy", BUY, deadline=1)
    circuit = app._pools["store"]._circuit
    assert circuit.broken
    for _ in range(3):
        circuit.connected(None)
        circuit.connected(psycopg.OperationalError("again"))
    await app.close()
    circuit.connected(None)
    circuit.connected(psycopg.OperationalError("a worker that was connecting"))
    with pytest.raises(psycopg.OperationalError):
        await app._pools["bank"].take(1)
    assert asyncio.all_tasks() == before


async def test_one_prober_at_a_time() -> None:
    probes: list[float] = []

    async def probe() -> None:
        probes.append(asyncio.get_running_loop().time())
        raise TypeError("which nobody expects")

    circuit = Circuit("site", probe)
    for _ in range(5):
        circuit.connected(None)
        circuit.connected(psycopg.OperationalError("down"))
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert 2 <= len(probes) <= 5 + 5
    assert len(circuit._probers) == 1
    await circuit.close()


async def test_who_waits_is_told_of_each_failure_once() -> None:
    """A second failure comes while the first one is being told."""

    async def probe() -> None:
        pass

    circuit = Circuit("site", probe)
    waiting = asyncio.Event()

    async def wait() -> None:
        async with circuit.guard():
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)

    task = asyncio.create_task(wait())
    await waiting.wait()
    for _ in range(3):
        circuit.connected(psycopg.OperationalError("down"))
        await asyncio.sleep(0.01)
    with pytest.raises(SiteDown):
        await task
    await circuit.close()


def test_a_fork_after_the_first_use_is_refused(shop: Shop) -> None:
    app = make_app(shop.conninfos())

    async def use() -> None:
        async with app:
            await app.submit("buy", BUY)
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(app.submit("buy", BUY))))
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(app.close())))
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(app._pools["store"].take(1))))
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(app.__aenter__())))
            await app.submit("buy", BUY)

    asyncio.run(use())
    shop.assert_clean()


# -- what goes back to a pool --------------------------------------------------------------------------------------


def backends(shop: Shop) -> list[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return sorted(pid for site in shop.clusters for (pid,) in shop.sql(site, sql))


def failing(app: App) -> None:
    @app.transaction(sites=("store", "bank"))
    async def fail(tx: Tx, request: Any) -> None:
        await asyncio.gather(tx.store.execute("SELECT 1"), tx.bank.execute("SELECT 1"))
        raise ArithmeticError("a bug")


async def test_a_failed_attempt_gives_its_connections_back(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Rolled back, and kept."""
    app = server(pool_size=1)
    failing(app)
    await app.submit("buy", BUY)
    kept = backends(shop)
    with pytest.raises(NothingHappened):
        await app.submit("fail", None)
    assert set(kept) <= set(backends(shop))
    shop.assert_clean()
    assert [record for record in caplog.records if record.name == "psycopg.pool"] == []


async def test_a_connection_in_a_transaction_does_not_go_back(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    pool = server()._pools["store"]
    conn = await pool.take(10)
    assert conn is not None
    await conn.execute("BEGIN")
    await pool.give(conn)
    assert conn.closed
    shop.assert_clean()
    assert [record for record in caplog.records if record.name == "psycopg.pool"] == []


async def test_a_cancellation_does_not_interrupt_the_clean_up(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is cancelled waits for it."""
    app, reached, go_on, rollback = server(pool_size=1), asyncio.Event(), asyncio.Event(), Branch.rollback
    failing(app)
    await app.submit("buy", BUY)
    kept = backends(shop)

    async def slow(branch: Branch, timeout: float) -> None:
        reached.set()
        await go_on.wait()
        await rollback(branch, timeout)

    monkeypatch.setattr(Branch, "rollback", slow)
    submitted = asyncio.create_task(app.submit("fail", None))
    await reached.wait()
    for _ in range(3):
        submitted.cancel()
        await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await submitted
    assert set(kept) <= set(backends(shop))
    shop.assert_clean()
