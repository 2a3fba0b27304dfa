"""A site takes transactions but does not say what becomes of them, nor of any other: what is prepared at the others
meanwhile does not pile up there. (Prepared transactions are counted, by max_prepared_transactions.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from proxy import Fault, Mode, Proxy
from psycopg.conninfo import make_conninfo
from shop import BUY, ORDER, Shop
from test_settle import expire
from test_sweeper import in_doubt, prepare_at

from pgmip import App, Decided, Expired, NothingHappened, Resolution, Step, SubmitError, Tx, Unknown
from pgmip._left import Left
from pgmip.testing import Cluster
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
PREPARES = b"mip.prepare"
QUESTIONS = (b"mip.instances", b"mip.refuse", b"mip.rollback")


@pytest.fixture
async def bank(shop: Shop) -> AsyncIterator[Proxy]:
    async with Proxy(shop.clusters["bank"].port) as proxy:
        yield proxy


@pytest.fixture
async def app(server: Server, shop: Shop, bank: Proxy) -> App:
    return server(shop.conninfos(bank=bank.port))


async def test_one_submit(app: App, shop: Shop, bank: Proxy) -> None:
    bank.forbidden = (PREPARES, *QUESTIONS)
    xid, clock = new_xid(), asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(Unknown):
        await app.submit("buy", BUY, xid=xid, deadline=1.5)
    assert clock() - began < 3.5
    assert in_doubt(shop) == [1, 0]
    bank.forbidden = ()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_it_goes_on_as_soon_as_it_can_ask(app: App, shop: Shop, bank: Proxy) -> None:
    bank.forbidden = (PREPARES, *QUESTIONS)
    xid, most = new_xid(), 0
    submitted = asyncio.create_task(app.submit("buy", BUY, xid=xid))
    for _ in range(20):
        await asyncio.sleep(0.05)
        most = max(most, *in_doubt(shop))
    bank.forbidden = ()
    shop.assert_once(xid, await submitted)
    assert most == 1
    shop.assert_clean()


@pytest.mark.parametrize("fault", [Proxy.down, Proxy.freeze])
async def test_a_site_that_is_down(server: Server, shop: Shop, bank: Proxy, fault: Callable[[Proxy], None]) -> None:
    """Of which one is told as soon as that is known, as whoever begins something then is."""
    app = server(shop.conninfos(bank=bank.port), parallel=False, step_timeout=0.5)
    await asyncio.gather(*(app.submit("buy", BUY) for _ in range(8)))  # so that there are connections to be had

    def begins(step: Step) -> None:
        if step.name == "prepared-first-site":
            fault(bank)

    app.on_step(begins)
    clock = asyncio.get_running_loop().time
    began = clock()
    xid = f"down by {fault.__name__}"
    with pytest.raises(Unknown):
        await app.submit("buy", BUY, xid=xid, deadline=3)
    assert clock() - began < 5
    assert in_doubt(shop) == [1, 0]
    bank.heal()
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


@pytest.mark.parametrize("call", ["settle", "resolve"])
async def test_many_calls(app: App, shop: Shop, bank: Proxy, call: str) -> None:
    """Of somebody who settles again and again what somebody else has left."""
    xid = f"many times {call}"
    prepare_at(shop, xid, "store")
    bank.forbidden = (PREPARES, *QUESTIONS)
    for _ in range(4):
        with pytest.raises(Unknown):
            await (app.settle(xid, deadline=0.5) if call == "settle" else attempted(app.resolve(xid)))
        store, there = in_doubt(shop)
        assert 1 <= store <= 2
        assert there == 0
    bank.forbidden = ()
    told = await getattr(app, call)(xid)
    if call == "settle":
        shop.assert_once(xid, told.result)
    else:
        assert told == Resolution(True, None)
    shop.assert_clean()


async def leave_one(app: App, shop: Shop, xid: str) -> None:
    """Submit a request of which one instance is left at the store."""
    before, after = in_doubt(shop), in_doubt(shop)
    while after == before:  # else it was too slow
        with pytest.raises((Unknown, NothingHappened)):
            await app.submit("buy", BUY, xid=xid, deadline=0.5)
        after = in_doubt(shop)
    assert after == [before[0] + 1, 0]


@pytest.mark.parametrize("ends", ["by itself", "cancelled"])
async def test_many_submits(server: Server, shop: Shop, bank: Proxy, ends: str) -> None:
    """Of a client who sends his request again and again. Its server knows what it has left."""
    app = server(shop.conninfos(bank=bank.port), parallel=False)
    bank.forbidden = (PREPARES, *QUESTIONS)
    xid, submits = new_xid(), list[asyncio.Task[Any]]()
    steps: list[Step] = []

    def note(step: Step) -> None:
        steps.append(step)
        if step.name == "prepared-first-site" and submits:
            submits[0].cancel()

    app.on_step(note)
    if ends == "cancelled":
        submits.append(asyncio.create_task(app.submit("buy", BUY, xid=xid)))
        with pytest.raises(asyncio.CancelledError):
            await submits[0]
    else:
        await leave_one(app, shop, xid)
    submits.clear()
    steps.clear()
    for _ in range(3):
        with pytest.raises(Unknown):
            await app.submit("buy", BUY, xid=xid, deadline=0.5)
        assert in_doubt(shop) == [1, 0]
    assert not steps, "the handler does not run"
    bank.forbidden = ()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_many_submits_of_what_is_decided(server: Server, shop: Shop, bank: Proxy) -> None:
    """But committed nowhere yet."""
    async with Proxy(shop.clusters["store"].port) as store:
        app, xid = server(shop.conninfos(bank=bank.port, store=store.port)), new_xid()
        store.forbidden = bank.forbidden = (b"mip.commit", *QUESTIONS)
        with pytest.raises(Decided) as decided:
            await app.submit("buy", BUY, xid=xid)
        bank.forbidden += (PREPARES,)
        for _ in range(3):
            with pytest.raises(Unknown):
                await app.submit("buy", BUY, xid=xid, deadline=0.5)
            assert in_doubt(shop) == [1, 1]
        store.forbidden = bank.forbidden = ()
        result = await app.submit("buy", BUY, xid=xid)
        assert result == decided.value.result
        shop.assert_once(xid, result)
        shop.assert_clean()


async def test_what_is_left_expires(app: App, shop: Shop, bank: Proxy) -> None:
    """Where nothing is prepared, and nothing can be any more, the site need not promise it."""
    xid = new_xid()
    bank.forbidden = (PREPARES, *QUESTIONS)
    await leave_one(app, shop, xid)
    bank.forbidden = ()
    expire(shop, "bank", xid)
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


def test_what_is_known_of_them_is_bounded() -> None:
    left = Left(most=2)
    for xid in ("a", "b", "a", "c"):
        with left.of(xid, ("store", "bank")) as known:
            known.add(len(known) + 1)
    with left.of("b", ("store", "bank")) as forgotten, left.of("a", ("bank", "store")) as kept:
        assert (forgotten, kept) == (set(), {1, 2})
    with left.of("a", ("store",)) as other:
        assert other == set()


def test_several_at_work_on_the_same() -> None:
    """What one has given up, another does not bring back; nor does it forget what that one has left."""
    left = Left()
    with left.of("x", ("store",)) as first:
        first.add(1)
    with left.of("x", ("store",)) as first, left.of("x", ("store",)) as second:
        first.clear()
        first.add(2)
        second.add(3)
    with left.of("x", ("store",)) as known:
        assert known == {2, 3}


async def test_many_servers(server: Server, shop: Shop, bank: Proxy) -> None:
    """Each has left one of its own. Whoever settles gives them up, as soon as he can ask."""
    bank.forbidden = (PREPARES, *QUESTIONS)
    xid, apps = new_xid(), [server(shop.conninfos(bank=bank.port)) for _ in range(4)]
    for app in apps:
        await leave_one(app, shop, xid)
    assert in_doubt(shop) == [4, 0]
    bank.forbidden = (PREPARES,)
    with contextlib.suppress(SubmitError):
        await apps[0].settle(xid, deadline=0.5)
    store, there = in_doubt(shop)
    assert store <= 1
    assert there == 0
    bank.forbidden = ()
    shop.assert_once(xid, await apps[0].submit("buy", BUY, xid=xid))
    shop.assert_clean()


@pytest.fixture
def reader(server: Server, shop: Shop, bank: Proxy) -> App:
    """The bank is only read, and takes no other statements unless it is asked to."""
    conninfos = shop.conninfos(bank=bank.port)
    conninfos["bank"] = make_conninfo(conninfos["bank"], options="-c default_transaction_read_only=on")
    app = server(conninfos, parallel=False)

    @app.transaction(sites=("store", "bank"))
    async def look(tx: Tx, request: Any) -> Any:
        await tx.bank.fetch_one("SELECT balance FROM account")
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return app


async def test_a_site_that_is_only_read(reader: App, shop: Shop, bank: Proxy) -> None:
    """Has lost one prepare. It takes back what has come of it elsewhere, as others do."""
    armed: list[Fault] = []

    def lose(step: Step) -> None:
        if step.name == "prepared-first-site" and not armed:
            armed.append(Fault(Mode.CUT, "request", 0))
            bank.arm(armed[0])

    reader.on_step(lose)
    xid = new_xid()
    result = await reader.submit("look", BUY, xid=xid)
    assert armed[0].struck
    assert shop.effects(xid) == ([result["xinst"]], [])
    shop.assert_clean()
    await reader.acknowledge(xid)
    with pytest.raises(Expired):
        await reader.submit("look", BUY, xid=xid)


@pytest.mark.parametrize("call", ["settle", "resolve"])
async def test_what_others_have_left_with_a_site_that_is_only_read(reader: App, shop: Shop, call: str) -> None:
    xid = f"only read, {call}"
    for xinst in (1, 2):
        prepare_at(shop, xid, "store", name="look", xinst=xinst)
    told = await getattr(reader, call)(xid)
    shop.assert_clean()
    if call == "settle":
        assert shop.effects(xid) == ([told.result["xinst"]], [])
    else:
        assert told == Resolution(True, None)


async def attempted(resolving: Any) -> Any:
    """resolve has no deadline of its own."""
    try:
        async with asyncio.timeout(0.5):
            return await resolving
    except TimeoutError:
        raise Unknown("out of time") from None


async def test_a_site_without_room_is_freed(server: Server, shop: Shop) -> None:
    """Whose prepared transactions are all halves of other requests: a retry could not prepare there, nor cancel."""
    with Cluster("full", max_prepared_transactions=2) as full:
        full.run_sql("CREATE EXTENSION pg_mip; CREATE TABLE t (xid text) USING mip")
        conninfo = full.conninfo(tcp=True, sslmode="disable", gssencmode="disable")
        xids = [new_xid(), new_xid()]
        with psycopg.connect(conninfo, autocommit=True) as conn:
            for xid in xids:
                conn.execute("BEGIN")
                conn.execute("SELECT mip.begin(%s, 1, '{full,store}')", (xid,))
                conn.execute("INSERT INTO t VALUES (%s)", (xid,))
                conn.execute("SELECT * FROM mip.prepare(%s, %s)", ('{"request":null,"transaction":"note"}', '"of 1"'))
        app = App({"full": conninfo, "store": shop.conninfos()["store"]})

        @app.transaction(sites=("full", "store"))
        async def note(tx: Tx, request: Any) -> str:
            await tx.full.execute("INSERT INTO t VALUES (%s)", (tx.xid,))
            return "of another"

        async with app:
            for xid in (*xids, new_xid()):
                assert await app.submit("note", None, xid=xid) == "of another"
            assert full.run_sql("SELECT count(DISTINCT xid), count(*) FROM t") == [(3, 3)]
            assert full.run_sql("SELECT FROM mip.in_doubt") == []
