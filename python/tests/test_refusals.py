"""Refusals: rolled back at every site, and recorded as the request's one answer, whoever dies or comes meanwhile."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from shop import BUY, SCHEMA, Shop, kill_server_at
from test_cli import Cli
from test_sweeper import prepare_at

from pgmip import App, Cancelled, Decided, NothingHappened, Refuse, Refused, Resolution, Tx, sync
from pgmip._answer import Recorded
from pgmip.metrics import Metrics
from pgmip.sweeper import Event, EventName, Sweeper
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration
SITES = ("store", "bank")
Server = Callable[..., App]


async def refusal(work: Any) -> Any:
    """What a request is refused with."""
    with pytest.raises(Refused) as caught:
        await work
    return caught.value.result


async def write(tx: Tx) -> None:
    await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
    await tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))


def transaction(app: App, handler: Any, name: str = "t", sites: tuple[str, ...] = SITES, **options: Any) -> App:
    app.transaction(sites=sites, name=name, **options)(handler)
    return app


def instances(shop: Shop, xid: str) -> dict[str, list[Any]]:
    return {site: shop.sql(site, f"SELECT xinst, state::text, result FROM mip.instances('{xid}')") for site in SCHEMA}


# -- one request -------------------------------------------------------------------------------------------------


async def test_rolled_back_and_recorded(server: Server, shop: Shop) -> None:
    xid = new_xid()
    told = await refusal(server().submit("decline", BUY, xid=xid))
    shop.assert_never(xid)
    shop.assert_clean()
    for app in (server(), server()):
        assert await refusal(app.submit("decline", BUY, xid=xid)) == told, "with its token"
        assert await app.settle(xid) == Resolution(False, told, refused=True)
    for (xinst, state, text), *others in instances(shop, xid).values():
        assert (state, others) == ("committed", [])
        assert xinst > told["xinst"], "by an instance that has written nothing"
        assert Recorded.read(text) == Recorded(told, refused=True)


@pytest.mark.parametrize("options", [{"sites": ("store",)}, {"isolation": "repeatable read"}], ids=str)
async def test_one_site_and_one_snapshot(server: Server, shop: Shop, options: Any) -> None:
    async def handler(tx: Tx, request: Any) -> Any:
        await tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        raise Refuse

    xid = new_xid()
    for _ in range(2):
        assert await refusal(transaction(server(), handler, **options).submit("t", None, xid=xid)) is None
    shop.assert_never(xid)
    shop.assert_clean()


async def test_in_the_only_attempt(server: Server, shop: Shop) -> None:
    await refusal(server().submit("decline", BUY, attempts=1))
    shop.assert_clean()


async def test_with_what_is_not_sent_yet(server: Server, shop: Shop) -> None:
    """Statements that are to go with the prepare, one that still runs, and tasks that are left behind."""

    async def handler(tx: Tx, request: Any) -> Any:
        await write(tx)
        tx.bank.finish_with("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
        left = asyncio.create_task(tx.store.execute("SELECT pg_sleep(60)"))
        left.add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0.05)
        raise Refuse("enough")

    app = transaction(server(), handler)
    xid = new_xid()
    assert await refusal(app.submit("t", None, xid=xid)) == "enough"
    shop.assert_never(xid)
    shop.assert_clean()


async def test_because_of_an_error(server: Server, shop: Shop) -> None:
    """Of the database, and caught without a savepoint: nothing of the attempt is wanted any more."""

    async def handler(tx: Tx, request: Any) -> Any:
        await write(tx)
        try:
            await tx.store.execute("INSERT INTO item VALUES (1, 7)")
        except psycopg.errors.UniqueViolation:
            raise Refuse({"error": "exists"}) from None

    app = transaction(server(), handler)
    assert await refusal(app.submit("t", None, xid="exists")) == {"error": "exists"}
    shop.assert_never("exists")
    shop.assert_clean()


@pytest.mark.parametrize("state", ["40001", "40P01", "53300"])
async def test_an_error_that_is_retried_is_no_reason(server: Server, shop: Shop, state: str) -> None:
    runs = []

    async def handler(tx: Tx, request: Any) -> Any:
        runs.append(tx.xinst)
        await write(tx)
        if len(runs) == 1:
            try:
                await tx.bank.execute(f"DO $$BEGIN RAISE SQLSTATE '{state}'; END$$")
            except psycopg.Error:
                raise Refuse("sorry") from None
        return {"xinst": tx.xinst}

    xid = new_xid()
    shop.assert_once(xid, await transaction(server(), handler).submit("t", None, xid=xid))
    assert len(runs) == 2
    shop.assert_clean()


@pytest.mark.parametrize("statement", ["SELECT FROM item FOR UPDATE; CREATE TABLE x ()", "COMMIT"])
async def test_a_mistake_is_no_reason(server: Server, shop: Shop, statement: str) -> None:
    """What pg_mip does not allow, and what ends the transaction."""

    async def handler(tx: Tx, request: Any) -> Any:
        try:
            for sql in statement.split("; "):
                await tx.store.execute(sql)
        except psycopg.Error:
            pass
        raise Refuse("sorry")

    xid = new_xid()
    app = transaction(server(), handler)
    with pytest.raises(NothingHappened) as caught:
        await app.submit("t", None, xid=xid)
    assert not isinstance(caught.value, Refused)
    assert all(state != "committed" for rows in instances(shop, xid).values() for _, state, _ in rows)
    shop.assert_clean()


async def test_what_is_not_json(server: Server, shop: Shop) -> None:
    """The request has failed, and the XID is free."""
    results: list[Any] = [{1, 2}, "fine"]

    async def handler(tx: Tx, request: Any) -> Any:
        await write(tx)
        raise Refuse(results.pop(0))

    app = transaction(server(), handler)
    with pytest.raises(NothingHappened, match="not JSON serializable"):
        await app.submit("t", None, xid="json")
    assert await refusal(app.submit("t", None, xid="json")) == "fine"
    shop.assert_clean()


async def test_a_result_is_no_refusal(server: Server, shop: Shop) -> None:
    """Whatever it looks like."""
    told = Recorded({"a": 1}, refused=True).text

    async def handler(tx: Tx, request: Any) -> Any:
        return request

    app = transaction(server(), handler)
    for result in (told, {"refused": told}, [told], None):
        assert await app.submit("t", result) == result


def test_sync(shop: Shop) -> None:
    with sync.App(shop.conninfos()) as app:

        @app.transaction(sites=SITES)
        def decline(tx: sync.Tx, request: Any) -> Any:
            tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)", (tx.xid, tx.xinst))
            raise Refuse(request)

        for _ in range(2):
            with pytest.raises(Refused) as caught:
                app.submit("decline", {"a": 1}, xid="sync")
            assert caught.value.result == {"a": 1}
        resolution = app.resolve("sync")
        assert resolution is not None
        assert resolution.refused
    shop.assert_never("sync")
    shop.assert_clean()


# -- who dies, and who comes beside --------------------------------------------------------------------------------


@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
@pytest.mark.parametrize("by", ["client", "sweeper"])
async def test_its_server_dies(server: Server, shop: Shop, step_name: str, by: str) -> None:
    xid = new_xid()
    await kill_server_at(shop, step_name, xid, "decline")
    ((_, _, left),) = instances(shop, xid)["store"]
    app = server()
    if by == "sweeper":
        events: list[Event] = []
        await Sweeper(app, older_than=0, jitter=0, on_event=events.append).sweep()
        assert [event.name for event in events] == [EventName.REFUSED]
    told = await refusal(app.submit("decline", BUY, xid=xid))
    if step_name != "prepared-first-site":
        assert Recorded(told, refused=True) == Recorded.read(left), "it was complete"
    assert await refusal(server().submit("decline", BUY, xid=xid)) == told
    shop.assert_never(xid)
    shop.assert_clean()


async def test_a_site_that_cannot_be_told(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = new_xid()
    await kill_server_at(shop, "committed-first-site", xid, "decline")
    app = server(shop.conninfos(bank=1), step_timeout=1)
    with pytest.raises(Refused, match="bank") as caught:
        await app.submit("decline", BUY, xid=xid)
    assert caught.value.unfinished == ("bank",)
    with pytest.raises(Refused, match="bank"):
        await app.settle(xid, sites=SITES)
    assert await refusal(server().submit("decline", BUY, xid=xid)) == caught.value.result
    shop.assert_clean()


async def test_the_sibling_was_first(server: Server, shop: Shop) -> None:
    """It is complete, when another server's handler refuses: its result is the answer."""
    xid = new_xid()
    there, go = asyncio.Event(), asyncio.Event()

    async def decline(tx: Tx, request: Any) -> Any:
        await write(tx)
        there.set()
        await go.wait()
        raise Refuse("too late")

    async def accept(tx: Tx, request: Any) -> Any:
        await write(tx)
        return {"xinst": tx.xinst}

    declining = asyncio.create_task(transaction(server(), decline).submit("t", None, xid=xid))
    await there.wait()
    result = await transaction(server(), accept).submit("t", None, xid=xid)
    go.set()
    assert await declining == result
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.parametrize("site", SITES)
async def test_the_sibling_was_half_way(server: Server, shop: Shop, site: str) -> None:
    """The refusal is complete; what the sibling has written goes."""
    xid = new_xid()
    shop.sql(
        site, f"BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); "
        + ("UPDATE item SET stock = 0" if site == "store" else "UPDATE account SET balance = 0")
        + '; SELECT * FROM mip.prepare(\'{"request":{"item":1,"qty":2},"transaction":"decline"}\', \'"done"\')',
    )  # fmt: skip
    told = await refusal(server().submit("decline", BUY, xid=xid))
    assert await refusal(server().submit("decline", BUY, xid=xid)) == told
    shop.assert_never(xid)
    shop.assert_clean()


async def test_one_answer_among_many(server: Server, shop: Shop) -> None:
    """Siblings at several servers, some of which refuse."""
    apps = [server() for _ in range(3)]

    async def handler(tx: Tx, request: Any) -> Any:
        await write(tx)
        await asyncio.sleep(secrets.randbelow(20) / 1000)
        if secrets.randbelow(2):
            raise Refuse({"token": secrets.token_hex(8)})
        return {"xinst": tx.xinst, "token": secrets.token_hex(8)}

    async def one(app: App, xid: str) -> tuple[bool, str]:
        try:
            result = await app.submit("t", None, xid=xid)
        except Decided as error:
            result = error.result
        except Refused as error:
            return True, error.result["token"]
        shop.assert_once(xid, result)
        return False, result["token"]

    for app in apps:
        transaction(app, handler)
    outcomes = set()
    for number in range(200):
        xid = f"race-{number}"
        told = set(await asyncio.gather(*(one(app, xid) for app in apps * 2)))
        assert len(told) == 1, "one answer"
        ((was_refused, _),) = told
        outcomes.add(was_refused)
        if was_refused:
            shop.assert_never(xid)
        if number >= 20 and len(outcomes) == 2:
            break
    assert outcomes == {True, False}, "either may come first"
    shop.assert_clean()


async def test_a_sweeper_refuses_only_what_is_in_doubt(server: Server, shop: Shop) -> None:
    """While its handler ran, what it repeats was taken back, and somebody told that nothing has happened."""
    xid = new_xid()

    async def handler(tx: Tx, request: Any) -> Any:
        await write(tx)
        shop.sql("bank", f"SELECT * FROM mip.rollback('{xid}', 1)")
        raise Refuse("unasked")

    prepare_at(shop, xid, "bank", name="t")
    app = transaction(server(), handler)
    assert await app.settle(xid) is None
    assert all(state != "committed" for rows in instances(shop, xid).values() for _, state, _ in rows)
    shop.assert_never(xid)
    shop.assert_clean()


async def test_cancelled_is_not_refused(server: Server, shop: Shop) -> None:
    app = server()
    xid = new_xid()
    prepare_at(shop, xid, "bank")
    assert await app.resolve(xid) == Resolution(True, None)
    with pytest.raises(Cancelled):
        await app.submit("buy", BUY, xid=xid)


# -- who is told ---------------------------------------------------------------------------------------------------


async def test_counted_and_logged(server: Server, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pgmip")
    registry = CollectorRegistry()
    app = server()
    app.observe(Metrics(registry))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"pgmip_{name}_total", {"transaction": "decline", **labels})

    for _ in range(2):
        await refusal(app.submit("decline", BUY, xid="counted-refusal"))
    assert value("operations", operation="submit", outcome="refused") == 2
    assert value("attempts", outcome="refused") == 1
    assert value("retries", reason="refused") == 1
    assert [value("decisions", kind=kind) for kind in ("own", "earlier")] == [1, 1]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "attempt decline: refused"),
        ("INFO", "submit decline: refused (own)"),
        ("INFO", "attempt decline: family_committed (SQLSTATE MP001)"),
        ("INFO", "submit decline: refused (earlier)"),
    ]


def test_on_the_command_line(shop: Shop) -> None:
    cli = Cli(shop.conninfos())
    xid = new_xid()
    asyncio.run(kill_server_at(shop, "prepared-all", xid, "decline"))
    document = cli.json("resolve", xid)
    assert document["outcome"] == "refused"
    assert document["result"]["xinst"] > 0
    assert "refused by its handler" in cli("resolve", xid, code=0).output
    assert "refused {" in cli("show", xid, code=0).output
    shop.assert_never(xid)
