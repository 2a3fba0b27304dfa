"""The deadline of a call holds, whatever a site that has stopped was about to do, and however long a step may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from proxy import Proxy
from shop import BUY, ORDER, PAYMENT, Shop, leave_at

from pgmip import App, Decided, NothingHappened, Step, SubmitError, Tx, Unknown, _circuit
from pgmip._deadline import OVERTIME, Deadline
from pgmip.observe import Observer, Phase
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
FOR_EVER = 3600.0  # seconds: nobody waits for that
DEADLINE = 3.0
BOUND = DEADLINE + OVERTIME + 25  # the machine may be busy


@pytest.fixture
async def store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """The way to the store, which can be frozen. Then a request to cancel a statement is not answered, either."""
    real = psycopg.AsyncConnection.cancel_safe

    async def cancel_safe(conn: Any, **options: Any) -> None:
        if proxy._frozen:
            await asyncio.sleep(FOR_EVER)
        await real(conn, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", cancel_safe)
    async with Proxy(shop.clusters["store"].port) as proxy:
        yield proxy


@pytest.fixture
async def app(server: Server, shop: Shop, store: Proxy) -> AsyncIterator[App]:
    app = server(shop.conninfos(store=store.port), deadline=DEADLINE, step_timeout=FOR_EVER)
    yield app
    store.heal()


def serving(app: App, store: Proxy, when: str) -> None:
    """A handler during which the store freezes, or after it."""

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        if when == "before its first statement":
            store.freeze()
        await tx.store.execute("SELECT 1")
        if when == "between its statements":
            store.freeze()
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        if when == "before its last statement":
            store.freeze()
            tx.store.finish_with("SELECT 1")
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        if when == "before the prepare":
            store.freeze()
        if when == "before it is taken back":
            tx.bank.finish_with("SELECT 1 / 0")
        return {"xinst": tx.xinst}


WHENS = {
    "before it connects": (NothingHappened, Unknown),
    "before its first statement": (NothingHappened, Unknown),
    "between its statements": (NothingHappened, Unknown),
    "before its last statement": (Unknown,),
    "before the prepare": (Unknown,),
    "before it is taken back": (Unknown,),
    "before the commit": (Decided,),
}


@pytest.mark.parametrize("when", WHENS)
async def test_submit(shop: Shop, store: Proxy, app: App, server: Server, when: str) -> None:
    xid = f"late {when}"
    app.parallel = False
    if when != "before it connects":
        await app.submit("buy", BUY, deadline=BOUND)  # connects
    serving(app, store, when)
    step = {"before it is taken back": "prepared-first-site", "before the commit": "prepared-all"}.get(when)
    app.on_step(lambda at: store.freeze() if at.name == step else None)
    if when == "before it connects":
        store.freeze()
    async with asyncio.timeout(BOUND):
        with pytest.raises(WHENS[when]) as caught:
            await app.submit("note", None, xid=xid)
    store.heal()
    assert isinstance(caught.value, SubmitError)
    resolution = await server().resolve(xid, sites=("store", "bank"))
    assert resolution is not None
    assert resolution.cancelled == (when != "before the commit")
    for site in shop.clusters:
        assert shop.sql(site, "SELECT FROM mip.in_doubt") == []


@pytest.mark.parametrize("call", ["settle", "resolve", "acknowledge"])
async def test_of_what_others_have_left(
    shop: Shop, store: Proxy, app: App, server: Server, call: str
) -> None:
    xid = f"late {call}"
    await leave_at(server(), "prepared-first-site", xid)
    await app.settle("nobody knows it")  # connects
    store.freeze()
    async with asyncio.timeout(BOUND):
        with pytest.raises(Unknown):
            await (app.settle(xid, deadline=DEADLINE) if call == "settle" else getattr(app, call)(xid))
    store.heal()
    await server().resolve(xid)
    assert shop.sql("store", "SELECT FROM mip.in_doubt") == shop.sql("bank", "SELECT FROM mip.in_doubt") == []


async def test_steps_are_cut_to_what_is_left() -> None:
    assert Deadline(1000, 5).step() == 5
    assert 0 < Deadline(0, 5).step() <= OVERTIME
    assert 0 < Deadline(-1000, 5).step() <= OVERTIME
    assert Deadline(-1, 5).left == 0


async def test_a_site_that_has_only_just_gone_is_not_waited_for_without_end(
    store: Proxy, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the sites after the deadline has no time for it to come back."""
    monkeypatch.setattr(_circuit, "_HICCUP", FOR_EVER)
    store.down()
    async with asyncio.timeout(BOUND):
        with pytest.raises(Unknown):
            await app.submit("buy", BUY, xid="only just gone")


async def test_no_further_try_when_time_is_up(app: App, shop: Shop, store: Proxy) -> None:
    """A commit that a site does not answer is tried again, but not when what a call may take has passed."""
    xid = new_xid()
    began: list[float] = []

    class Commits(Observer):
        @contextlib.contextmanager
        def phase(self, phase: Phase) -> Iterator[None]:
            if phase.name == "commit" and phase.site == "store":
                began.append(clock())
            yield

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    async def is_late(step: Step) -> None:
        if step.name == "prepared-all" and step.xid == xid:
            await asyncio.sleep(over - clock())
            store.freeze()

    app.observe(Commits())
    app.on_step(is_late)
    clock = asyncio.get_running_loop().time
    over = clock() + DEADLINE + OVERTIME + 0.1
    with pytest.raises(Decided):
        await app.submit("note", None, xid=xid)
    store.heal()
    assert len(began) == 1
    await app.settle(xid)
    shop.assert_clean()


@pytest.mark.parametrize("late", [-1.0, 0.0, 1.2, 1.4, 1.5, 1.6, 10.0])
async def test_whatever_is_asked_of_sites_that_do_not_answer(monkeypatch: pytest.MonkeyPatch, late: float) -> None:
    """However many questions there are when a call ends, it is over in time; and a site may answer even then."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    deadline = Deadline(DEADLINE, FOR_EVER)
    now += DEADLINE + late
    for number in range(100):
        connecting = deadline.step()
        assert connecting > (0.02 if number < 3 else 0)
        now += connecting
        now += deadline.step()
    over = now - deadline.at
    assert over < (OVERTIME if late < OVERTIME else late + 0.5) + 0.2
