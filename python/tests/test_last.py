"""A handler's last statement, in one round trip with what prepares: it may wait and fail like any other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from proxy import Proxy
from psycopg.types.json import Jsonb
from shop import ORDER, PAYMENT, STOCK, Shop
from test_freeing import PATIENCE, TAKE_ACCOUNT, TAKE_STOCK, waiting

from pgmip import App, Decided, NothingHappened, Step, Tx, _family
from pgmip.sync import App as SyncApp
from pgmip.sync import Tx as SyncTx
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
Session = psycopg.AsyncConnection[Any]


def sell(app: App, *, sites: tuple[str, ...] = ("store", "bank"), bank: str | None = None) -> list[int]:
    """A handler of one statement per site, each the last one; at the bank maybe another. Its attempts."""
    attempts: list[int] = []

    @app.transaction(sites=sites)
    async def sell(tx: Tx, request: Any) -> Any:
        attempts.append(tx.xinst)
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        if bank is not None:
            tx.bank.finish_with(bank)
        elif "bank" in sites:
            tx.bank.finish_with(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return attempts


@pytest.fixture
async def holder(shop: Shop) -> AsyncIterator[Session]:
    """Somebody at the bank who has the account."""
    async with await psycopg.AsyncConnection.connect(shop.conninfos()["bank"]) as conn:
        await conn.execute(TAKE_ACCOUNT)
        yield conn


async def test_round_trips(server: Server, shop: Shop) -> None:
    """One to be known at all sites, one for everything up to the prepare, and one for the commit."""
    async with Proxy(shop.clusters["store"].port) as store, Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(store=store.port, bank=bank.port), pool_size=1)
        sell(app)
        await app.submit("sell", None)  # connects
        store.trips = bank.trips = 0
        await app.submit("sell", None)
        assert (store.trips, bank.trips) == (3, 3)
        store.trips = bank.trips = 0
        xid = new_xid()
        shop.assert_once(xid, await app.submit("sell", None, xid=xid))
        assert (store.trips, bank.trips) == (3, 3)
    shop.assert_clean()


async def test_one_site(server: Server, shop: Shop) -> None:
    async with Proxy(shop.clusters["store"].port) as store:
        app = server(shop.conninfos(store=store.port), pool_size=1)
        sell(app, sites=("store",))
        await app.submit("sell", None)
        store.trips = 0
        await app.submit("sell", None)
        assert store.trips == 2
        store.trips = 0
        xid = new_xid()
        result = await app.submit("sell", None, xid=xid)
        assert (shop.effects(xid), store.trips) == (([result["xinst"]], []), 2)
    shop.assert_clean()


async def test_after_other_statements(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def both(tx: Tx, request: Any) -> Any:
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        await tx.store.execute("SELECT 1")
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    xid = new_xid()
    shop.assert_once(xid, await app.submit("both", None, xid=xid))
    shop.assert_clean()


async def test_nothing_comes_after_it(server: Server, shop: Shop) -> None:
    app, refused = server(), 0

    @app.transaction(sites=("store", "bank"))
    async def forgetful(tx: Tx, request: Any) -> Any:
        nonlocal refused
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with(PAYMENT, (tx.xid, tx.xinst))
        for attempt in (tx.store.execute("SELECT 1"), tx.store.savepoint().__aenter__()):
            with pytest.raises(RuntimeError, match="its last statement"):
                await attempt
            refused += 1
        with pytest.raises(RuntimeError, match="its last statement"):
            tx.store.finish_with("SELECT 1")
        return {"xinst": tx.xinst}

    xid = new_xid()
    shop.assert_once(xid, await app.submit("forgetful", None, xid=xid))
    assert refused == 2
    shop.assert_clean()


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("sql", ["SELECT 1/0", "no sql"])
async def test_it_fails(server: Server, shop: Shop, sql: str, parallel: bool) -> None:
    """What the other site has prepared by then is taken back."""
    app, xid = server(parallel=parallel), new_xid()
    sell(app, bank=sql)
    with pytest.raises(NothingHappened):
        await app.submit("sell", None, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_it_ends_the_transaction(server: Server, shop: Shop, sql: str) -> None:
    """Against the rules, and so not tried again. What the other site has prepared is given up."""
    app, xid = server(), new_xid()
    attempts = sell(app, bank=sql)
    with pytest.raises(NothingHappened):
        await app.submit("sell", None, xid=xid)
    assert len(attempts) == 1
    shop.assert_never(xid)
    shop.assert_clean()


async def test_it_prepares(server: Server, shop: Shop) -> None:
    """Just as much against the rules, and refused: both sites would have prepared, with different texts."""
    app, xid = server(), new_xid()
    sell(app, bank="SELECT * FROM mip.prepare(NULL, NULL)")
    with pytest.raises(NothingHappened, match="whoever has begun"):
        await app.submit("sell", None, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


async def test_it_fails_before_it_is_retried(server: Server, shop: Shop) -> None:
    shop.sql("bank", "CREATE SEQUENCE tries")
    try:
        app, xid = server(), new_xid()
        sell(
            app,
            bank="DO $$ BEGIN IF nextval('tries') < 3 THEN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END IF;"
            " END $$",
        )
        result = await app.submit("sell", None, xid=xid)
        assert shop.effects(xid) == ([result["xinst"]], [])
    finally:
        shop.sql("bank", "DROP SEQUENCE tries")
    shop.assert_clean()


async def test_it_waits_longer_than_a_step(server: Server, shop: Shop, holder: Session) -> None:
    app, xid = server(step_timeout=0.3), new_xid()
    sell(app, bank=TAKE_ACCOUNT.decode())
    submitted = asyncio.create_task(app.submit("sell", None, xid=xid))
    await waiting(shop, "bank")
    await asyncio.sleep(1.0)
    await holder.rollback()
    result = await submitted
    assert shop.effects(xid) == ([result["xinst"]], [])
    shop.assert_clean()


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("sites", [("store", "bank"), ("bank", "store")])
async def test_it_waits_until_the_deadline(
    server: Server, shop: Shop, holder: Session, sites: tuple[str, ...], parallel: bool
) -> None:
    """Then it is cancelled; what the other site has prepared is taken back, and nothing has happened."""
    app, xid = server(parallel=parallel), new_xid()
    sell(app, sites=sites, bank=TAKE_ACCOUNT.decode())
    with pytest.raises(NothingHappened):
        await app.submit("sell", None, xid=xid, deadline=1.0)
    await holder.rollback()
    shop.assert_never(xid)
    shop.assert_clean()


async def test_it_waits_in_a_circle(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, holder: Session
) -> None:
    """Somebody has the account, and waits for a row of the store that an earlier attempt of the request has."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.2)
    xid = new_xid()
    app = server()
    sell(app, bank=TAKE_ACCOUNT.decode())
    shop.sql(
        "store",
        f"BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); {TAKE_STOCK.decode()};"
        "SELECT * FROM mip.prepare(NULL, NULL)",
    )
    async with await psycopg.AsyncConnection.connect(shop.conninfos()["store"]) as other:

        async def go_on() -> None:
            await other.execute(TAKE_STOCK)
            await holder.rollback()
            await other.rollback()

        task = asyncio.create_task(go_on())
        await waiting(shop, "store")
        result = await app.submit("sell", None, xid=xid, deadline=PATIENCE)
        await task
    assert shop.effects(xid) == ([result["xinst"]], [])
    shop.assert_clean()


async def test_its_app_server_dies_between_the_prepares(server: Server, shop: Shop, holder: Session) -> None:
    """One site is prepared while the last statement of the other one waits."""

    class Dead(BaseException):
        pass

    doomed, xid = server(), new_xid()
    sell(doomed, bank=TAKE_ACCOUNT.decode())

    def die(step: Step) -> None:
        if step.name == "prepared-first-site":
            raise Dead

    doomed.on_step(die)
    with pytest.raises(Dead):
        await doomed.submit("sell", None, xid=xid)
    await holder.rollback()
    other = server()
    sell(other, bank=TAKE_ACCOUNT.decode())
    result = await other.submit("sell", None, xid=xid)
    assert shop.effects(xid) == ([result["xinst"]], [])
    shop.assert_clean()


def test_in_a_thread(shop: Shop) -> None:
    with SyncApp(shop.conninfos()) as app:

        @app.transaction(sites=("store", "bank"))
        def sell(tx: SyncTx, request: Any) -> Any:
            tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
            tx.bank.finish_with(PAYMENT, (tx.xid, tx.xinst))
            with pytest.raises(RuntimeError, match="its last statement"):
                tx.store.execute("SELECT 1")
            return {"xinst": tx.xinst}

        xid = new_xid()
        shop.assert_once(xid, app.submit("sell", None, xid=xid))
    assert shop.sql("store", "SELECT stock FROM item WHERE i_id = 1") == [(STOCK,)]
    shop.assert_clean()


@pytest.mark.parametrize(
    "params", [("a\0b",), ({},), (1, 2), (Jsonb(object()),), 5, ("\ud800",)],
    ids=["NUL", "dict", "count", "no JSON", "no sequence", "surrogate"],
)  # fmt: skip
async def test_it_cannot_be_sent(server: Server, shop: Shop, params: Any) -> None:
    """What the other site has prepared is taken back."""
    app, xid, attempts = server(), new_xid(), 0

    @app.transaction(sites=("store", "bank"))
    async def impossible(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with("INSERT INTO payment (xid) VALUES (%s)", params)

    with pytest.raises(NothingHappened):
        await app.submit("impossible", None, xid=xid)
    assert attempts == 1
    shop.assert_never(xid)
    shop.assert_clean()


async def test_its_parameters_are_those_of_the_call(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def reuses(tx: Tx, request: Any) -> Any:
        params = [tx.xid, tx.xinst]
        tx.store.finish_with(ORDER, params)
        tx.bank.finish_with(PAYMENT, params)
        params[1] = 77
        return {"xinst": tx.xinst}

    xid = new_xid()
    shop.assert_once(xid, await app.submit("reuses", None, xid=xid))


async def test_a_copy(server: Server, shop: Shop) -> None:
    """Cannot be sent so. Whoever tries is told, and not again and again."""
    app, xid = server(), new_xid()
    attempts = sell(app, bank="COPY payment (xid) FROM STDIN")
    with pytest.raises(NothingHappened, match=r"needs copy\(\)"):
        await app.submit("sell", None, xid=xid)
    assert len(attempts) == 1
    shop.assert_never(xid)
    shop.assert_clean()


@pytest.mark.parametrize("parallel", [True, False])
async def test_too_many_parameters(server: Server, shop: Shop, parallel: bool) -> None:
    """Nothing is sent behind them, and another time it would be the same."""
    app, xid = server(parallel=parallel), new_xid()
    many = f"SELECT {', '.join(['%s'] * 65536)}"
    attempts: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def lists(tx: Tx, request: Any) -> None:
        attempts.append(tx.xinst)
        tx.bank.finish_with(many, range(65536))  # type: ignore[arg-type]

    with pytest.raises(NothingHappened, match="number of parameters"):
        await app.submit("lists", None, xid=xid)
    assert len(attempts) == 1
    shop.assert_clean()


async def test_both_wait_until_the_deadline(server: Server, shop: Shop, holder: Session) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def take(tx: Tx, request: Any) -> None:
        tx.store.finish_with(TAKE_STOCK)
        tx.bank.finish_with(TAKE_ACCOUNT)

    async with await psycopg.AsyncConnection.connect(shop.conninfos()["store"]) as other:
        await other.execute(TAKE_STOCK)
        for _ in range(5):
            with pytest.raises(NothingHappened):
                await app.submit("take", None, deadline=0.3)
    await holder.rollback()
    shop.assert_clean()


async def test_its_own_prepare_is_no_reason_to_give_way(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, holder: Session
) -> None:
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.2)
    app = server()
    attempts = sell(app, bank=TAKE_ACCOUNT.decode())
    submitted = asyncio.create_task(app.submit("sell", None))
    await waiting(shop, "bank")
    await asyncio.sleep(1.0)
    await holder.rollback()
    await submitted
    assert len(attempts) == 1
    shop.assert_clean()


async def test_a_connection_that_dies_while_another_site_waits(server: Server, shop: Shop, holder: Session) -> None:
    app, attempts = server(parallel=False), 0

    @app.transaction(sites=("bank", "store"))
    async def idle(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await tx.store.execute("SET LOCAL idle_in_transaction_session_timeout = 300")
        await tx.store.execute("SELECT 1")
        tx.bank.finish_with(TAKE_ACCOUNT)

    submitted = asyncio.create_task(app.submit("idle", None))
    await waiting(shop, "bank")
    await asyncio.sleep(1.0)
    await holder.rollback()
    await submitted
    assert attempts == 2
    shop.assert_clean()


async def test_complete_when_time_is_up(server: Server, shop: Shop) -> None:
    """All sites have prepared, and one cannot be read: nobody is told that nothing has happened."""
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), step_timeout=0.5)
        sell(app)
        xids: list[str] = []

        async def hook(step: Step) -> None:
            if step.name == "prepared-all":
                xids.append(step.xid)
                bank.down()
                await asyncio.sleep(3)

        app.on_step(hook)
        with pytest.raises(Decided):
            await app.submit("sell", None, deadline=1.0)
        bank.heal()
    other = server()
    sell(other)
    resolution = await other.resolve(xids[0], sites=("store", "bank"))
    assert resolution is not None
    shop.assert_once(xids[0], resolution.result)
    shop.assert_clean()


async def test_time_is_up_between_the_sites(server: Server, shop: Shop) -> None:
    app, xid = server(parallel=False), new_xid()
    sell(app)

    async def hook(step: Step) -> None:
        if step.name == "prepared-first-site":
            await asyncio.sleep(3)

    app.on_step(hook)
    with pytest.raises(NothingHappened):
        await app.submit("sell", None, xid=xid, deadline=0.5)
    shop.assert_never(xid)
    shop.assert_clean()


async def test_a_hook_fails_when_time_is_up(server: Server, shop: Shop) -> None:
    """Before anything may have been prepared: so nothing has happened."""
    app = server()
    sell(app)
    xids: list[str] = []

    async def hook(step: Step) -> None:
        xids.append(step.xid)
        if step.name == "begun" and step.site == "bank":
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                raise RuntimeError("hook") from None

    app.on_step(hook)
    with pytest.raises(NothingHappened):
        await app.submit("sell", None, deadline=0.5)
    shop.assert_never(xids[0])
    shop.assert_clean()
