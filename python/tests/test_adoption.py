"""A retry does not work again what is prepared at every site."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from shop import BUY, Shop, give_up_at, leave_at, pausing
from test_sweeper import prepare_at

import pgmip.sync
from pgmip import App, Cancelled, KeyReused, Refuse, Refused, Resolution, Tx, Unknown
from pgmip._asking import Asking
from pgmip._cancellation import uninterrupted
from pgmip.observe import Observer, Phase

pytestmark = pytest.mark.integration

Server = Callable[..., App]
PATIENCE = 30.0  # seconds, for what happens soon or never


@pytest.fixture
async def bare(shop: Shop) -> AsyncIterator[Server]:
    """Makes app servers whose "buy" is still to be written."""
    async with AsyncExitStack() as stack:

        def make() -> App:
            app = App(shop.conninfos())
            stack.push_async_callback(app.close)
            return app

        yield make


class Decisions(Observer):
    """What kinds of decision operations have come to, and which attempts there were."""

    def __init__(self, app: App) -> None:
        self.operations: list[Phase] = []
        self.attempts = 0
        app.observe(self)

    def phase(self, phase: Phase) -> Any:
        if phase.name in ("submit", "settle"):
            self.operations.append(phase)
        self.attempts += phase.name == "attempt"
        return super().phase(phase)

    @property
    def kinds(self) -> list[Any]:
        return [phase.decision for phase in self.operations]


def working(app: App, *, first: str = "store") -> list[str]:
    """Gives it a "buy" that never comes to its end where it is not ended; what its attempts have come to."""
    seen: list[str] = []

    @app.transaction(sites=("store", "bank"), name="buy")
    async def stuck(tx: Tx, request: Any) -> None:
        seen.append("begun")
        try:
            await tx[first].execute("SELECT 1")
            await asyncio.sleep(10 * PATIENCE)
        except asyncio.CancelledError:
            seen.append("ended")
            raise

    return seen


@pytest.mark.parametrize("first", ["store", "bank"])
async def test_what_is_prepared_everywhere_is_not_worked_again(
    server: Server, bare: Server, shop: Shop, first: str
) -> None:
    xid = f"adopted {first}"
    await leave_at(server(), "prepared-all", xid)
    app = bare()
    decisions, seen = Decisions(app), working(app, first=first)
    result = await asyncio.wait_for(app.submit("buy", BUY, xid=xid), PATIENCE)
    assert seen == ["begun", "ended"]
    assert (decisions.kinds, decisions.attempts) == (["adopted"], 1)
    shop.assert_once(xid, result)
    shop.assert_clean()
    assert await app.submit("buy", BUY, xid=xid) == result
    assert decisions.kinds == ["adopted", "earlier"]


async def test_what_is_prepared_somewhere_is_worked_again(server: Server, shop: Shop) -> None:
    xid = "not adopted"
    await leave_at(server(), "prepared-first-site", xid)
    app = server()
    decisions = Decisions(app)
    result = await app.submit("buy", BUY, xid=xid)
    assert decisions.kinds == ["own"]
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_what_comes_to_be_prepared_everywhere_meanwhile(server: Server, bare: Server, shop: Shop) -> None:
    """The first site did not know yet: the second one tells, or the own prepare finds out."""
    xid = "adopted too late"
    app, other = bare(), server()
    decisions = Decisions(app)
    begun, go_on = pausing(app, "buy")
    waiting = asyncio.create_task(app.submit("buy", BUY, xid=xid, deadline=PATIENCE))
    await begun.wait()
    await leave_at(other, "prepared-all", xid)
    go_on.set()
    result = await waiting
    assert decisions.kinds[0] in ("sibling", "adopted")
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_second_site_that_tells_of_others(
    server: Server, bare: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first one did, it was not complete yet."""
    xid, looks, real = "adopted at the second site", asyncio.Semaphore(0), Asking.read
    prepare_at(shop, xid, "store")
    app = bare()
    decisions = Decisions(app)

    async def read(self: Asking, sites: Any) -> Any:
        found = await real(self, sites)
        looks.release()
        return found

    @app.transaction(sites=("store", "bank"), name="buy")
    async def late(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT 1")
        await looks.acquire()
        await asyncio.sleep(0)  # it has come to its end
        await asyncio.to_thread(prepare_at, shop, xid, "bank")
        await tx.bank.execute("SELECT 1")
        await asyncio.sleep(10 * PATIENCE)

    monkeypatch.setattr(Asking, "read", read)
    assert await asyncio.wait_for(app.submit("buy", BUY, xid=xid), PATIENCE) is not None
    assert (decisions.kinds, decisions.attempts) == (["adopted"], 1)
    for site in shop.clusters:
        assert shop.sql(site, "SELECT FROM mip.in_doubt") == []


async def test_a_refusal_and_another_request(server: Server, bare: Server, shop: Shop) -> None:
    left = bare()

    @left.transaction(sites=("store", "bank"), name="buy")
    async def refuse(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT 1")
        raise Refuse({"why": "no"})

    give_up_at(left, "prepared-all")
    with pytest.raises(Unknown):
        await left.submit("buy", BUY, xid="adopted refusal")
    app = bare()
    working(app)
    with pytest.raises(Refused) as caught:
        await app.submit("buy", BUY, xid="adopted refusal")
    assert caught.value.result == {"why": "no"}
    await leave_at(server(), "prepared-all", "adopted by another")
    with pytest.raises(KeyReused):
        await app.submit("buy", {"another": "request"}, xid="adopted by another")
    shop.assert_clean()


async def test_a_cancelling_instance(server: Server, bare: Server, shop: Shop) -> None:
    left = server()

    give_up_at(left, "prepared-all")
    with pytest.raises(Unknown):
        await left.resolve("adopted cancellation", sites=("store", "bank"))
    app = bare()
    decisions, seen = Decisions(app), working(app)
    with pytest.raises(Cancelled):
        await app.submit("buy", BUY, xid="adopted cancellation")
    assert seen == ["begun", "ended"]
    assert decisions.kinds == ["cancelled"]
    shop.assert_clean()


async def test_a_site_that_cannot_be_asked(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is worked again, as nobody knows better."""
    xid = "adopted blindly"
    await leave_at(server(), "prepared-all", xid)
    app = server()
    asked = []

    async def read(self: Asking, sites: Any) -> Any:
        asked.append(sites)
        return dict.fromkeys(sites), None

    monkeypatch.setattr(Asking, "read", read)
    decisions = Decisions(app)
    result = await app.submit("buy", BUY, xid=xid)
    assert asked != []
    assert decisions.kinds == ["sibling"]
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_handler_that_does_not_end_at_once(server: Server, bare: Server, shop: Shop) -> None:
    xid = "adopted, deaf"
    await leave_at(server(), "prepared-all", xid)
    app = bare()
    decisions = Decisions(app)

    @app.transaction(sites=("store", "bank"), name="buy")
    async def deaf(tx: Tx, request: Any) -> str:
        await tx.store.execute("UPDATE item SET stock = 0")
        try:
            await asyncio.sleep(10 * PATIENCE)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        return "not to be committed"

    result = await app.submit("buy", BUY, xid=xid)
    assert decisions.kinds == ["adopted"]
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_threads(server: Server, shop: Shop) -> None:
    xid = "adopted in a thread"
    await leave_at(server(), "prepared-all", xid)
    ended = threading.Event()
    with pgmip.sync.App(shop.conninfos()) as app:

        @app.transaction(sites=("store", "bank"), name="buy")
        def stuck(tx: pgmip.sync.Tx, request: Any) -> None:
            tx.store.execute("SELECT 1")
            try:
                tx.bank.execute("SELECT pg_sleep(600)")
            finally:
                ended.set()

        result = await asyncio.to_thread(app.submit, "buy", BUY, xid)
        assert await asyncio.to_thread(ended.wait, PATIENCE)
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_a_statement_left_running_while_it_is_looked(
    server: Server, bare: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been left running, though it has ended when the look has."""
    xid, real = "adopted beside a statement", Asking.read
    prepare_at(shop, xid, "store")
    app = bare()
    left: list[asyncio.Task[int]] = []

    async def read(self: Asking, sites: Any) -> Any:
        await uninterrupted(asyncio.sleep(0.5))
        return await real(self, sites)

    @app.transaction(sites=("store", "bank"), name="buy")
    async def careless(tx: Tx, request: Any) -> str:
        await tx.store.execute("SELECT 1")
        left.append(asyncio.create_task(tx.store.execute("SELECT pg_sleep(0.1)")))
        await asyncio.sleep(0.01)
        return "not to be committed"

    monkeypatch.setattr(Asking, "read", read)
    with pytest.raises(Unknown, match="left a statement running"):
        await app.submit("buy", BUY, xid=xid)
    await asyncio.gather(*left, return_exceptions=True)
    monkeypatch.undo()
    assert (await server().resolve(xid)) == Resolution(True, None)
    shop.assert_clean()
