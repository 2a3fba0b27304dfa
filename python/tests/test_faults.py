"""A site is cut off at every message of the protocol; whatever was told meanwhile, the request ends exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from proxy import Direction, Fault, Mode, Proxy
from psycopg.conninfo import make_conninfo
from shop import SCHEMA, Shop

from pgmip import App, Decided, NothingHappened, Step, Tx, Unknown, _circuit
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 1}
PATIENCE = 0.15  # of a step, before its site counts as lost


@pytest.fixture
async def proxies(shop: Shop) -> AsyncIterator[dict[str, Proxy]]:
    async with AsyncExitStack() as stack:
        yield {site: await stack.enter_async_context(Proxy(cluster.port)) for site, cluster in shop.clusters.items()}


@pytest.fixture
async def behind(
    request: pytest.FixtureRequest, server: Server, shop: Shop, proxies: dict[str, Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> App:  # fmt: skip
    """An app server that reaches the sites through the proxies, and has connections already: few, so that what a
    fault may strike are mostly messages of the request, not those of reconnecting. It is patient where nothing stalls:
    on a loaded machine a site that is well can take long, too, and longer than a second to be reached again.
    """
    conninfos = shop.conninfos(**{site: proxy.port for site, proxy in proxies.items()})
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    stalls = parameters.get("mode", Mode.STALL) is Mode.STALL
    if not stalls:
        monkeypatch.setattr(_circuit, "_HICCUP", 60.0)
    app = server(conninfos, step_timeout=PATIENCE if stalls else 5, pool_size=1)
    await app.submit("buy", BUY)
    return app


async def tell(shop: Shop, app: App, name: str, request: Any, xid: str, **limits: Any) -> Any:
    """What the client is told: a result, or None where it has to ask again."""
    try:
        return await app.submit(name, request, xid=xid, **limits)
    except Decided as decided:
        return decided.result
    except NothingHappened:
        shop.assert_never(xid)
        assert all(shop.sql(site, f"SELECT * FROM mip.in_doubt WHERE xid = '{xid}'") == [] for site in SCHEMA)
        return None
    except Unknown:
        return None


async def insist(shop: Shop, app: App, xid: str) -> Any:
    """What a client is told in the end: on a slow machine a healthy site can take longer than PATIENCE, too."""
    told = None
    while told is None:
        told = await tell(shop, app, "buy", BUY, xid)
    return told


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("site", list(SCHEMA))
@pytest.mark.parametrize(
    ("mode", "parallel"),
    [(Mode.CUT, True), (Mode.CUT, False), (Mode.HALF, True), (Mode.HALF, False), (Mode.STALL, True)],
    ids=lambda value: value.value if isinstance(value, Mode) else "parallel" if value else "serial",
)
async def test_cut_off_at_every_message(
    server: Server, shop: Shop, proxies: dict[str, Proxy], behind: App,
    mode: Mode, site: str, direction: Direction, parallel: bool,
) -> None:  # fmt: skip
    other = server()
    behind.parallel = parallel
    number = 0
    while True:
        fault = Fault(mode, direction, number)
        proxies[site].arm(fault)
        xid = new_xid()
        # A first attempt and nothing more: the client is told at once, and asks another server.
        told = await tell(shop, behind, "buy", BUY, xid, attempts=1, deadline=0.3 if mode is Mode.STALL else 5)
        result = await other.submit("buy", BUY, xid=xid)
        assert told in (None, result), fault
        shop.assert_once(xid, result)
        proxies[site].heal()
        assert await insist(shop, behind, xid) == result
        shop.assert_once(xid, result)
        if not fault.struck:
            break
        number += 1
    assert number > 10
    shop.assert_clean()


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("site", list(SCHEMA))
@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HALF, Mode.STALL], ids=lambda mode: mode.value)
async def test_a_server_that_goes_on_by_itself(
    shop: Shop, proxies: dict[str, Proxy], behind: App, mode: Mode, site: str, direction: Direction
) -> None:
    """One lost connection is no reason to tell the client anything but the result."""
    for number in range(0, 60, 4):
        fault = Fault(mode, direction, number)
        proxies[site].arm(fault)
        xid = new_xid()
        # A stall within the handler is noticed by nobody but the deadline.
        result = await tell(shop, behind, "buy", BUY, xid, deadline=0.4 if mode is Mode.STALL else 10)
        proxies[site].heal()
        if result is None:
            assert mode is Mode.STALL
            result = await insist(shop, behind, xid)
        shop.assert_once(xid, result)
        if not fault.struck:
            break
    shop.assert_clean()


@pytest.mark.parametrize("site", list(SCHEMA))
@pytest.mark.parametrize("step_name", ["begun", "prepared-first-site", "prepared-all", "committed-first-site"])
async def test_a_site_goes_down_at_a_step(
    server: Server, shop: Shop, proxies: dict[str, Proxy], behind: App, step_name: str, site: str
) -> None:
    behind.parallel = False
    behind.on_step(lambda step: proxies[site].down() if step.name == step_name else None)
    xid = new_xid()
    told: Any = None
    unfinished: tuple[str, ...] = ()
    try:
        told = await behind.submit("buy", BUY, xid=xid, deadline=1)
    except Decided as error:
        told, unfinished = error.result, error.unfinished
    except Unknown:
        pass
    if step_name in ("prepared-all", "committed-first-site") or (step_name, site) == ("prepared-first-site", "store"):
        assert told is not None, "decided is decided"
        assert unfinished == (() if (step_name, site) == ("committed-first-site", "store") else (site,))
    else:
        assert told is None
    result = await server().submit("buy", BUY, xid=xid)
    assert told in (None, result)
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_prepare_that_arrives_late(shop: Shop, proxies: dict[str, Proxy], behind: App) -> None:
    """No site knows of the instance when its server looks, and yet it may be prepared."""

    @behind.transaction(sites=("store", "bank"))
    async def pay(tx: Tx, _: Any) -> None:
        await tx.store.execute("UPDATE item SET stock = stock WHERE i_id = 1")
        tx.bank.finish_with("UPDATE account SET balance = balance WHERE a_id = 1")

    xid = new_xid()
    proxies["bank"].arm(Fault(Mode.LATE, "request", 0))
    with pytest.raises((NothingHappened, Unknown)) as told:
        await behind.submit("pay", None, xid=xid, attempts=1, deadline=3)
    assert shop.sql("bank", f"SELECT * FROM mip.instances('{xid}') WHERE state <> 'aborted'") == []
    proxies["bank"].let_go()
    for _ in range(20):
        await asyncio.sleep(0.05)
        if told.type is NothingHappened:
            assert shop.sql("bank", f"SELECT * FROM mip.in_doubt WHERE xid = '{xid}'") == []
    await behind.settle(xid)
    shop.assert_clean()


async def test_lost_prepares_do_not_pile_up(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    """Each attempt is prepared at one site, and may be at the other: at most the last one is left."""
    conninfos = shop.conninfos(**{site: proxy.port for site, proxy in proxies.items()})
    app = server(conninfos, prepared_statements=False)
    proxies["bank"].forbidden = (b"mip.prepare",)
    xid = new_xid()
    with pytest.raises((NothingHappened, Unknown)):
        await app.submit("buy", BUY, xid=xid, attempts=5)
    assert len(shop.sql("store", "SELECT gid FROM pg_prepared_xacts")) <= 1
    proxies["bank"].forbidden = ()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    shop.assert_clean()


@pytest.mark.parametrize("mode", [Mode.CUT], ids=lambda mode: mode.value)
async def test_a_lost_reply_to_prepare_is_not_rolled_back(
    shop: Shop, proxies: dict[str, Proxy], behind: App, mode: Mode
) -> None:
    """Another server may have seen the instance complete by now, and be about to commit it."""
    behind.parallel = False
    xinsts = set()

    def lose_the_next_reply(step: Step) -> None:
        xinsts.add(step.xinst)
        if step.name == "prepared-first-site":
            proxies["bank"].arm(Fault(mode, "reply", 0))

    behind.on_step(lose_the_next_reply)
    xid = new_xid()
    result = await insist(shop, behind, xid)
    assert xinsts == {result["xinst"]}, "the first attempt was complete, and so the only one"
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HALF], ids=lambda mode: mode.value)
async def test_one_site_alone(
    server: Server, shop: Shop, proxies: dict[str, Proxy], behind: App, mode: Mode, direction: Direction
) -> None:
    request = {"item": 2, "qty": 1}
    other = server()
    number = 0
    while True:
        fault = Fault(mode, direction, number)
        proxies["store"].arm(fault)
        xid = new_xid()
        told = await tell(shop, behind, "restock", request, xid, attempts=1)
        result = await other.submit("restock", request, xid=xid)
        assert told in (None, result)
        assert shop.effects(xid) == ([result["xinst"]], [])
        proxies["store"].heal()
        if not fault.struck:
            break
        number += 1
    assert number > 5
    shop.assert_clean()


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "serial"])
async def test_resolve_while_sites_are_cut_off(
    server: Server, shop: Shop, proxies: dict[str, Proxy], behind: App, parallel: bool
) -> None:
    """Nobody runs the request again: it is either there at both sites or cancelled at both."""
    behind.parallel = parallel
    other = server()
    outcomes = set()
    for site in SCHEMA:
        for number in range(0, 60, 2):
            proxies[site].arm(Fault(Mode.CUT, "reply", number))
            xid = new_xid()
            told = await tell(shop, behind, "buy", BUY, xid, attempts=1)
            proxies[site].heal()
            resolution = await other.resolve(xid)
            outcomes.add(resolution and resolution.cancelled)
            if resolution is None or resolution.cancelled:
                assert told is None
                shop.assert_never(xid)
            else:
                assert told in (None, resolution.result)
                shop.assert_once(xid, resolution.result)
    assert {False} < outcomes
    shop.assert_clean()


async def test_a_failing_handler_while_a_site_is_gone(shop: Shop, proxies: dict[str, Proxy], behind: App) -> None:
    """Nothing of ours can have an effect, but whether a sibling's has is not known while a site cannot be asked."""

    @behind.transaction(sites=("store", "bank"))
    async def broken(tx: Tx, request: Any) -> None:
        proxies["bank"].down()
        raise ValueError("a bug")

    with pytest.raises(Unknown) as caught:
        await behind.submit("broken", None, xid="broken", deadline=3)
    # the handler's, or that of its site, if it has been noticed by then
    assert isinstance(caught.value.__cause__, ValueError | psycopg.OperationalError)
    with pytest.raises(NothingHappened):
        await behind.submit("broken", None, deadline=1)
    proxies["bank"].heal()
    shop.assert_clean()


async def test_round_trips(shop: Shop, proxies: dict[str, Proxy], behind: App) -> None:
    """Begin shares its trip with the first statement, and with nothing that prepares."""

    @behind.transaction(sites=("store", "bank"))
    async def touch(tx: Tx, request: Any) -> None:
        await tx.store.execute("UPDATE item SET stock = stock WHERE i_id = 1")

    before = {site: proxy.trips for site, proxy in proxies.items()}
    await behind.submit("touch", None)
    trips = {site: proxy.trips - before[site] for site, proxy in proxies.items()}
    assert trips == {"store": 3, "bank": 3}
    await asyncio.sleep(0)


async def test_a_site_loses_a_commit(server: Server, shop: Shop) -> None:
    """With mip.synchronous_commit_prepared = off it finds the instance prepared again, and so will a retry."""
    unflushed = {
        site: make_conninfo(conninfo, options="-c mip.synchronous_commit_prepared=off")
        for site, conninfo in shop.conninfos().items()
    }
    bank = shop.clusters["bank"]
    lost = 0
    for _ in range(5):  # somebody else may flush in that moment
        xid = new_xid()
        app = server(unflushed)
        await app.submit("buy", BUY)
        ((walwriter,),) = shop.sql("bank", "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        os.kill(walwriter, signal.SIGSTOP)
        result = await app.submit("buy", BUY, xid=xid)
        bank.kill_postmaster()
        bank.start()
        lost += len(shop.sql("bank", f"SELECT FROM mip.in_doubt WHERE xid = '{xid}'"))
        assert await server().submit("buy", BUY, xid=xid) == result
        shop.assert_once(xid, result)
        shop.assert_clean()
    assert lost


async def test_sites_restart(server: Server, shop: Shop) -> None:
    """Connections of the pool do not outlive a crash of the site, and what was prepared does."""
    app = server()
    await asyncio.gather(*(app.submit("buy", BUY) for _ in range(5)))
    for cluster in shop.clusters.values():
        cluster.kill_postmaster()
        cluster.start()
    xid = new_xid()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    shop.assert_clean()
