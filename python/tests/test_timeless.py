"""Keys that carry no time: known for ever, or for mip.retention_timeless; what has been forgotten is new."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from proxy import Proxy
from shop import BUY, Shop
from test_told import Gate

from pgmip import App, Expired, KeyReused, Unknown
from pgmip._asking import Asking
from pgmip._family import Family
from pgmip._json import canonical

pytestmark = pytest.mark.integration

Server = Callable[..., App]
SITES = ("store", "bank")


def expire(shop: Shop, site: str, days: int, retention: str | None = "10d") -> None:
    """As the server does, so many days later."""
    with psycopg.connect(shop.conninfos()[site], autocommit=True) as conn:
        if retention is not None:
            conn.execute("SELECT set_config('mip.retention_timeless', %s, false)", (retention,))
        conn.execute("SELECT set_config('mip.debug_clock_offset', %s, false)", (f"{days}d",))
        while conn.execute("SELECT mip.expire()").fetchall() != [(0,)]:
            pass


def entries(shop: Shop, xid: str) -> list[int]:
    counts = [shop.sql(site, f"SELECT count(*) FROM mip.mipt WHERE xid = '{xid}'") for site in SITES]
    return [count for ((count,),) in counts]


def prepare(shop: Shop, site: str, xid: str) -> None:
    """What a server has left that has died, whose clock is far behind."""
    with psycopg.connect(shop.conninfos()[site], autocommit=True) as dead:
        dead.execute("BEGIN")
        dead.execute("SELECT mip.begin(%s, 7, %s)", (xid, ["bank", "store"]))
        dead.execute("UPDATE item SET stock = stock" if site == "store" else "UPDATE account SET balance = balance")
        request = canonical({"transaction": "buy", "request": BUY})
        dead.execute("SELECT FROM mip.prepare(%s, %s)", (request, '"of 7"'))


async def test_known_for_ever(server: Server, shop: Shop) -> None:
    """By default: as a bare row once it is acknowledged, and nothing runs again."""
    app, xid = server(), str(uuid.uuid4())
    result = await app.submit("buy", BUY, xid=xid)
    for site in SITES:
        expire(shop, site, 10_000, None)
    assert await app.submit("buy", BUY, xid=xid) == result
    await app.acknowledge(xid)
    for site in SITES:
        expire(shop, site, 10_000, None)
    assert entries(shop, xid) == [1, 1]
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    shop.assert_once(xid, result)


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_forgotten(server: Server, shop: Shop, acknowledged: bool) -> None:
    """Not before its time, and of two sites not before it is acknowledged. Sent again after that it runs again."""
    app, xid = server(), str(uuid.uuid4())
    result = await app.submit("buy", BUY, xid=xid)
    if acknowledged:
        await app.acknowledge(xid)
    for site in SITES:
        expire(shop, site, 9)
    assert entries(shop, xid) == [1, 1]
    for site in SITES:
        expire(shop, site, 11)
    if not acknowledged:
        assert await app.submit("buy", BUY, xid=xid) == result
        return
    assert entries(shop, xid) == [0, 0]
    again = await app.submit("buy", BUY, xid=xid)
    orders, payments = shop.effects(xid)
    assert orders == payments == [result["xinst"], again["xinst"]]
    shop.assert_clean()


@pytest.mark.parametrize("first", SITES)
async def test_forgotten_by_one_site(server: Server, shop: Shop, first: str) -> None:
    """The other one still answers for both, in whatever state the forgetful one is."""
    app, xid = server(), str(uuid.uuid4())
    (other,) = set(SITES) - {first}
    result = await app.submit("buy", BUY, xid=xid)
    await app.acknowledge(xid)
    expire(shop, first, 11)
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    assert await app.settle(xid) is None
    assert await app.settle(xid, sites=SITES) is None
    await app.acknowledge(xid)
    shop.assert_once(xid, result)
    # who has begun where nothing is known, and died before he was refused by the other
    for how in ("submit", "settle", "resolve"):
        prepare(shop, first, xid)
        if how == "submit":
            with pytest.raises(Expired):
                await app.submit("buy", BUY, xid=xid)
        else:
            assert await getattr(app, how)(xid) is None
        assert shop.sql(first, "SELECT * FROM mip.in_doubt") == []
        shop.sql(first, f"SELECT mip.forget('{xid}')")
    shop.assert_once(xid, result)
    expire(shop, other, 11)
    assert entries(shop, xid) == [0, 0]
    again = await app.submit("buy", BUY, xid=xid)
    assert shop.effects(xid)[0] == [result["xinst"], again["xinst"]]
    shop.assert_clean()


async def test_forgotten_by_one_site_and_reused_there(server: Server, shop: Shop) -> None:
    """What has taken effect is not told as another request's, nor is the other one acknowledged with it."""
    app, xid = server(), str(uuid.uuid4())
    await app.submit("buy", BUY, xid=xid)
    await app.acknowledge(xid)
    expire(shop, "store", 40)
    shop.sql("store", f"BEGIN; SELECT mip.begin('{xid}', 9, '{{depot,store}}'); SELECT * FROM mip.prepare('q', 'r')")
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    assert shop.sql("store", "SELECT xinst FROM mip.in_doubt") == [(9,)]
    shop.sql("store", f"SELECT mip.rollback('{xid}', 9)")
    nothing = BUY | {"qty": 0}
    other = await app.submit("restock", nothing, xid=xid)
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    with pytest.raises(KeyReused):
        await app.acknowledge(xid, sites=SITES)
    assert await app.resolve(xid, sites=SITES) is None
    assert await app.submit("restock", nothing, xid=xid) == other
    shop.assert_clean()


async def test_reused_where_it_is_forgotten_while_another_site_is_away(server: Server, shop: Shop) -> None:
    """Which says that it has taken effect."""
    xid = str(uuid.uuid4())
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), deadline=2, step_timeout=0.5)
        await app.submit("buy", BUY, xid=xid)
        await app.acknowledge(xid)
        expire(shop, "store", 40)
        other = await app.submit("restock", BUY | {"qty": 0}, xid=xid)
        bank.down()
        with pytest.raises(Unknown):
            await app.submit("buy", BUY, xid=xid)
        for call in (app.settle, app.resolve, app.acknowledge):
            with pytest.raises(Unknown):
                await call(xid, sites=SITES)
        assert await app.submit("restock", BUY | {"qty": 0}, xid=xid) == other


async def test_forgotten_by_the_other_site_meanwhile(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who still goes by what it knew leaves alone what has become complete since."""
    lagging, app, xid = server(), server(), str(uuid.uuid4())
    first = await lagging.submit("buy", BUY, xid=xid)
    await lagging.acknowledge(xid)
    expire(shop, "store", 11)
    late, prepared, commit = Gate(), Gate(), Asking.commit

    async def held(asking: Asking, site: str, xinst: int, *args: Any) -> None:
        await (late() if xinst == first["xinst"] else prepared())
        return await commit(asking, site, xinst, *args)

    monkeypatch.setattr(Asking, "commit", held)
    retry = asyncio.create_task(lagging.submit("buy", BUY, xid=xid))
    await late.reached.wait()
    expire(shop, "bank", 11)
    again = asyncio.create_task(app.submit("buy", BUY, xid=xid))
    await prepared.reached.wait()
    late.open.set()
    with pytest.raises(Expired):
        await retry
    prepared.open.set()
    orders, payments = [first["xinst"], (await again)["xinst"]], shop.effects(xid)[1]
    assert shop.effects(xid)[0] == payments == orders
    shop.assert_clean()


async def test_reused_until_it_is_forgotten(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become complete since then is not given back, nor told as another request's."""
    lagging, app, xid = server(), server(), str(uuid.uuid4())
    await lagging.submit("restock", BUY | {"qty": 0}, xid=xid)
    late, prepared, give_back, commit = Gate(), Gate(), Family.give_back, Asking.commit

    async def held(family: Family) -> None:
        await late()
        await give_back(family)

    async def held_too(*args: Any) -> None:
        await prepared()
        await commit(*args)

    monkeypatch.setattr(Family, "give_back", held)
    monkeypatch.setattr(Asking, "commit", held_too)
    retry = asyncio.create_task(lagging.submit("buy", BUY, xid=xid))
    await late.reached.wait()
    expire(shop, "store", 11)
    again = asyncio.create_task(app.submit("buy", BUY, xid=xid))
    await prepared.reached.wait()
    late.open.set()
    with pytest.raises(Unknown, match="another request had the XID"):
        await retry
    prepared.open.set()
    result = await again
    assert shop.effects(xid)[1] == [result["xinst"]]
    shop.assert_clean()


async def test_one_site(server: Server, shop: Shop) -> None:
    """Nobody needs to acknowledge it."""
    app, xid = server(), str(uuid.uuid4())
    result = await app.submit("restock", BUY, xid=xid)
    expire(shop, "store", 9)
    assert await app.submit("restock", BUY, xid=xid) == result
    expire(shop, "store", 11)
    again = await app.submit("restock", BUY, xid=xid)
    assert shop.effects(xid)[0] == [result["xinst"], again["xinst"]]
