"""Requests that nobody retransmits: settled by their handler, resolved without it, acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from shop import BUY, Shop, leave_at

from pgmip import (
    App,
    Cancelled,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Resolution,
    Step,
    Tx,
    Unknown,
    _mipt,
)
from pgmip._family import Family
from pgmip.xinst import new_xid, xid_time

pytestmark = pytest.mark.integration

Server = Callable[..., App]
CANCELLED = Resolution(cancelled=True, result=None)


@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_resolve(server: Server, shop: Shop, step_name: str) -> None:
    xid = f"resolve-{step_name}"
    await leave_at(server(), step_name, xid)
    app = server()
    resolution = await app.resolve(xid)
    assert resolution is not None
    shop.assert_clean()
    assert await app.resolve(xid) == resolution
    if step_name == "prepared-first-site":
        assert resolution == Resolution(cancelled=True, result=None)
        shop.assert_never(xid)
        with pytest.raises(Cancelled):
            await app.submit("buy", BUY, xid=xid)
        shop.assert_never(xid)
        with pytest.raises(KeyReused):
            await app.submit("buy", {"item": 1, "qty": 9}, xid=xid)
    else:
        assert not resolution.cancelled
        shop.assert_once(xid, resolution.result)
        assert await app.submit("buy", BUY, xid=xid) == resolution.result


async def test_resolve_of_what_nobody_knows(server: Server, shop: Shop) -> None:
    app = server()
    assert await app.resolve("never heard of") is None
    cancelled = Resolution(cancelled=True, result=None)
    assert await app.resolve("never heard of", sites=("store", "bank")) == cancelled
    with pytest.raises(Cancelled):
        await app.submit("buy", BUY, xid="never heard of")
    shop.assert_never("never heard of")
    shop.assert_clean()


async def test_resolve_of_what_is_being_worked_on(server: Server, shop: Shop) -> None:
    working = server()
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang(step: Step) -> None:
        if step.name == "begun" and not reached.is_set():
            reached.set()
            await release.wait()

    working.on_step(hang)
    task = asyncio.create_task(working.submit("buy", BUY, xid="working"))
    await reached.wait()
    app = server()
    with pytest.raises(Unknown):
        await app.resolve("working")
    assert await app.resolve("working", sites=("bank", "store")) == Resolution(cancelled=True, result=None)
    release.set()
    with pytest.raises(Cancelled):
        await task
    shop.assert_never("working")
    shop.assert_clean()


# -- settle ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_settle(server: Server, shop: Shop, step_name: str) -> None:
    xid = f"settle-{step_name}"
    await leave_at(server(), step_name, xid)
    resolution = await server().settle(xid)
    assert resolution is not None
    assert not resolution.cancelled
    shop.assert_once(xid, resolution.result)
    shop.assert_clean()
    assert await server().settle(xid) == resolution
    assert await server().submit("buy", BUY, xid=xid) == resolution.result
    shop.assert_once(xid, resolution.result)


async def test_many_settle_the_same_and_the_client_retransmits(server: Server, shop: Shop) -> None:
    await leave_at(server(), "prepared-first-site", "crowd")
    apps = [server() for _ in range(4)]
    *resolutions, result = await asyncio.gather(
        *(app.settle("crowd") for app in apps), apps[0].submit("buy", BUY, xid="crowd")
    )
    assert resolutions == [Resolution(cancelled=False, result=result)] * 4
    shop.assert_once("crowd", result)
    shop.assert_clean()


async def test_settle_without_the_handler_cancels(server: Server, shop: Shop) -> None:
    await leave_at(server(), "prepared-first-site", "no handler")
    async with App(shop.conninfos()) as app:
        assert await app.settle("no handler") == CANCELLED
    shop.assert_never("no handler")
    shop.assert_clean()


async def test_settle_with_a_handler_over_other_sites_cancels(server: Server, shop: Shop) -> None:
    await leave_at(server(), "prepared-first-site", "other sites")
    async with App(shop.conninfos()) as app:

        @app.transaction(sites=("store",))
        async def buy(tx: Tx, request: Any) -> None:
            raise AssertionError("not to be called")

        assert await app.settle("other sites") == CANCELLED
    shop.assert_never("other sites")
    shop.assert_clean()


async def test_settle_with_a_handler_that_fails(server: Server, shop: Shop) -> None:
    await leave_at(server(), "prepared-first-site", "poison")
    async with App(shop.conninfos()) as app:

        @app.transaction(sites=("store", "bank"))
        async def buy(tx: Tx, request: Any) -> None:
            raise KeyError("a bug")

        with pytest.raises(Unknown) as caught:
            await app.settle("poison")
        assert isinstance(caught.value.__cause__, KeyError)
        assert await app.resolve("poison") == CANCELLED
    shop.assert_clean()


async def test_settle_of_what_nobody_knows(server: Server) -> None:
    assert await server().settle("never heard of it") is None


async def test_resolve_may_be_told_not_to_cancel(server: Server, shop: Shop) -> None:
    app = server()
    await leave_at(server(), "prepared-first-site", "keep")
    with pytest.raises(Unknown, match="missing at bank"):
        await app.resolve("keep", cancel=False)
    assert shop.sql("store", "SELECT xid FROM mip.in_doubt") == [("keep",)]
    result = await app.submit("buy", BUY, xid="keep")
    assert await app.resolve("keep", cancel=False) == Resolution(cancelled=False, result=result)
    shop.assert_clean()


async def test_sites_that_the_app_does_not_know(server: Server, shop: Shop) -> None:
    await leave_at(server(), "prepared-first-site", "elsewhere")
    async with App({"store": shop.conninfos()["store"]}) as app:
        with pytest.raises(ValueError, match="bank"):
            await app.resolve("elsewhere")
    await server().resolve("elsewhere")
    shop.assert_clean()


async def test_acknowledge(server: Server, shop: Shop) -> None:
    """The sites drop the texts one after another; from the last one on the result is gone, but not the effect."""
    app, other = server(), server()
    xid = new_xid()
    result = await app.submit("buy", BUY, xid=xid)
    shop.sql("store", f"SELECT mip.acknowledge('{xid}')")
    assert await other.submit("buy", BUY, xid=xid) == result
    assert await other.settle(xid) == Resolution(cancelled=False, result=result)
    for _ in range(2):
        await app.acknowledge(xid)
        for again in (app, other):
            with pytest.raises(Expired):
                await again.submit("buy", BUY, xid=xid)
            assert await again.settle(xid) is None
            assert await again.resolve(xid) is None
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_acknowledge_only_what_is_durable(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With mip.synchronous_commit_prepared = off a crash can undo a commit whose reply has come."""
    xid = new_xid()
    await leave_at(server(), "committed-first-site", xid)

    async def lost(*_: Any) -> None:
        pass

    monkeypatch.setattr(Family, "_commit_at", lost)
    app = server()
    with pytest.raises(Unknown, match="lost the commit in a crash"):
        await app.acknowledge(xid)
    for site in shop.clusters:
        assert shop.sql(site, f"SELECT acknowledged FROM mip.instances('{xid}')") == [(False,)]
    monkeypatch.undo()
    await app.acknowledge(xid)
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=xid)
    shop.assert_clean()


def expire(shop: Shop, site: str, xid: str) -> None:
    """Move a site's horizon to an XID. Those made later are newer."""
    shop.clusters[site].run_sql(f"SELECT setval('mip.horizon', {xid_time(xid)})")


@pytest.mark.parametrize("call", ["settle", "resolve"])
async def test_what_can_never_be_complete_any_more(server: Server, shop: Shop, call: str) -> None:
    """Even an empty instance is refused where the XID has expired and nothing is prepared."""
    xid = new_xid()
    await leave_at(server(), "prepared-first-site", xid)
    expire(shop, "bank", xid)
    assert await getattr(server(), call)(xid) == CANCELLED
    shop.assert_never(xid)
    shop.assert_clean()
    with pytest.raises(Expired):
        await server().submit("buy", BUY, xid=xid)


async def test_expired_and_nothing_known(server: Server, shop: Shop) -> None:
    """It may have been committed and removed, so nobody may say that it has been cancelled."""
    xid = new_xid()
    expire(shop, "bank", xid)
    with pytest.raises(Expired):
        await server().resolve(xid, sites=("store", "bank"))


async def test_a_winner_that_one_site_has_removed(server: Server, shop: Shop) -> None:
    """Sites need not remove a request at the same time."""
    xid = new_xid()
    result = await server().submit("buy", BUY, xid=xid)
    shop.clusters["bank"].run_sql(f"SELECT mip.forget('{xid}')")
    expire(shop, "bank", xid)
    assert await server().submit("buy", BUY, xid=xid) == result
    assert await server().settle(xid) == Resolution(cancelled=False, result=result)
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_site_has_committed_and_acknowledged_another_winner(server: Server, shop: Shop) -> None:
    """Against the rules, and not to be taken for a winner that the site has removed."""
    xid = new_xid()
    bank = shop.clusters["bank"]

    def meddle(step: Step) -> None:
        if step.name == "prepared-all":
            other = step.xinst + 1
            bank.run_sql(f"SELECT FROM mip.rollback('{xid}', {step.xinst})")
            begin = f"BEGIN; SELECT mip.begin('{xid}', {other}, '{{bank,store}}')"
            bank.run_sql(f"{begin}; SELECT FROM mip.prepare(NULL, NULL)")
            bank.run_sql(f"SELECT FROM mip.commit('{xid}', {other})")
            bank.run_sql(f"SELECT mip.acknowledge('{xid}')")

    app = server()
    app.on_step(meddle)
    with pytest.raises(ProtocolViolation, match="does not accept instance"):
        await app.submit("buy", BUY, xid=xid)
    shop.reset()


# -- what has expired --------------------------------------------------------------------------------------------


def a_month_later(server: Server, shop: Shop) -> App:
    """An app server whose sessions' clocks are ahead by more than the retention."""
    later = "-c mip.debug_clock_offset=31d"
    return server({site: make_conninfo(info, options=later) for site, info in shop.conninfos().items()})


@pytest.mark.parametrize("call", ["submit", "submit, too late", "settle", "resolve"])
async def test_what_has_been_forgotten_may_have_happened(server: Server, shop: Shop, call: str) -> None:
    """Also to who comes to no site with it: that nothing is known of it says nothing."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def fails(tx: Tx, request: Any) -> None:
        raise OSError("a service that the handler asks first is down")

    async def tell(xid: str) -> None:
        match call:
            case "submit":
                await app.submit("fails", BUY, xid=xid)
            case "submit, too late":
                await app.submit("buy", BUY, xid=xid, deadline=0)
            case "settle":
                await app.settle(xid, sites=("store", "bank"), deadline=0)
            case "resolve":
                await app.resolve(xid, sites=("store", "bank"))

    xid = new_xid()
    result = await app.submit("buy", BUY, xid=xid)
    await app.acknowledge(xid)
    for site in shop.clusters:
        expire(shop, site, xid)
        shop.sql(site, f"SELECT mip.forget('{xid}')")
    with pytest.raises(Expired):
        await tell(xid)
    shop.assert_once(xid, result)
    if call.startswith("submit"):
        with pytest.raises(NothingHappened):
            await tell(new_xid())
    shop.assert_clean()


async def test_nobody_says_whether_it_has_expired(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, xid = server(), new_xid()

    async def mute(*_: Any) -> bool:
        raise psycopg.OperationalError("no answer")

    monkeypatch.setattr(_mipt, "has_expired", mute)
    with pytest.raises(Unknown, match="no site says"):
        await app.submit("buy", BUY, xid=xid, deadline=0)
    monkeypatch.undo()
    with pytest.raises(NothingHappened):
        await app.submit("buy", BUY, xid=xid, deadline=0)
    shop.assert_clean()


async def test_what_is_older_than_the_retention_does_not_run(server: Server, shop: Shop) -> None:
    xid = new_xid()
    with pytest.raises(Expired):
        await a_month_later(server, shop).submit("buy", BUY, xid=xid)
    shop.assert_never(xid)
    with pytest.raises(Expired):  # for ever: also where the clock goes back
        await server().submit("buy", BUY, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


async def test_what_was_decided_keeps_its_result_until_it_is_removed(server: Server, shop: Shop) -> None:
    xid = new_xid()
    result = await server().submit("buy", BUY, xid=xid)
    assert await a_month_later(server, shop).submit("buy", BUY, xid=xid) == result
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.parametrize("how", ["settle", "resolve"])
@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_doubt_that_has_expired_ends(server: Server, shop: Shop, step_name: str, how: str) -> None:
    xid = new_xid()
    await leave_at(server(), step_name, xid)
    app = a_month_later(server, shop)
    if step_name == "prepared-first-site":
        with pytest.raises(Unknown):  # neither run nor cancelled by a retransmission
            await app.submit("buy", BUY, xid=xid)
    resolution = await getattr(app, how)(xid)
    if step_name == "prepared-first-site":
        assert resolution == CANCELLED
        shop.assert_never(xid)
        with pytest.raises((Expired, Cancelled)):
            await server().submit("buy", BUY, xid=xid)
    else:
        assert resolution is not None
        shop.assert_once(xid, resolution.result)
    shop.assert_clean()


def prepare_as(shop: Shop, role: str, xid: str, *sites: str) -> None:
    """Leave an instance of a role that holds a row at each of these sites, and is then dropped."""
    for site in shop.clusters:
        shop.sql(site, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA mip TO {role}")
        shop.sql(site, f"GRANT ALL ON {'item' if site == 'store' else 'account'} TO {role}")
    for site in sites:
        with psycopg.connect(shop.clusters[site].conninfo(user=role), autocommit=True) as conn:
            conn.execute("BEGIN")
            conn.execute("SELECT mip.begin(%s, 1, ARRAY['bank', 'store'])", (xid,))
            conn.execute("UPDATE item SET stock = stock" if site == "store" else "UPDATE account SET balance = balance")
            conn.execute("SELECT FROM mip.prepare('its request', '1')")
    for site in shop.clusters:
        shop.sql(site, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("sites", [("store",), ("bank",), ("store", "bank")])
async def test_of_a_role_that_has_been_dropped(server: Server, shop: Shop, sites: tuple[str, ...]) -> None:
    """Nobody can run an instance beside it any more; a superuser rolls it back, or commits it."""
    app, xid = server(), new_xid()
    prepare_as(shop, "gone", xid, *sites)
    if sites == ("store",):  # somebody has begun to
        shop.sql("bank", f"SELECT mip.refuse('{xid}', 1, '{{bank,store}}')")
    if len(sites) == 1:
        with pytest.raises(Unknown):
            await app.resolve(xid, cancel=False)
        assert [len(shop.sql(site, "SELECT FROM mip.in_doubt")) for site in sites] == [1]
        assert await app.resolve(xid) is None
        assert await app.resolve(xid) is None
    else:
        assert await app.resolve(xid) == Resolution(False, 1)
    shop.assert_clean()


async def test_of_a_role_that_is_another_one(server: Server, shop: Shop) -> None:
    """It is there, and alone may cancel its request; what is refused by another one it could not submit again."""
    app, xid = server(), new_xid()
    for site in shop.clusters:
        shop.sql(site, "CREATE ROLE other; GRANT USAGE ON SCHEMA mip TO other")
    shop.sql(
        "store",
        f"SET ROLE other; BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); SELECT * FROM mip.prepare('q', '1')",
    )
    with pytest.raises(Unknown, match="another role"):
        await app.resolve(xid)
    assert shop.sql("bank", f"SELECT * FROM mip.instances('{xid}')") == []
    as_other = {site: make_conninfo(info, options="-crole=other") for site, info in shop.conninfos().items()}
    assert await server(as_other).resolve(xid) == Resolution(True, None)
    for site in shop.clusters:
        shop.sql(site, "DROP OWNED BY other; DROP ROLE other")
    shop.assert_clean()
