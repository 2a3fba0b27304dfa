"""Never a lie: what a caller is told of a request is true, whoever else is at it, and stays true."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from proxy import Fault, Mode, Proxy
from psycopg.conninfo import make_conninfo
from shop import BUY, ORDER, PAYMENT, RIVAL, Shop
from test_sweeper import Log, eager, in_doubt, prepare_at

from pgmip import (
    App,
    Cancelled,
    KeyReused,
    NothingHappened,
    Resolution,
    Step,
    SubmitError,
    Tx,
    Unknown,
    _attempt,
    _family,
    sync,
)
from pgmip._branch import Branch, NotPrepared
from pgmip._connection import cut
from pgmip._family import Family
from pgmip._json import canonical
from pgmip.sweeper import EventName
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
Session = psycopg.AsyncConnection[Any]
PATIENCE = 60  # seconds, for what happens soon or never


@pytest.fixture
async def log() -> Log:
    return Log()


@pytest.fixture
async def bank(shop: Shop) -> AsyncIterator[Session]:
    """Somebody else's session."""
    conn = await psycopg.AsyncConnection.connect(shop.conninfos()["bank"])
    try:
        yield conn
    finally:
        await conn.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def serving(app: App, before: Callable[[Tx], Awaitable[Any]], sites: tuple[str, ...] = ("store", "bank")) -> App:
    """An App whose handler does the least that can be seen, after `before`."""

    @app.transaction(sites=sites)
    async def note(tx: Tx, request: Any) -> Any:
        await before(tx)
        for site in sites:
            await tx[site].execute(ORDER if site == "store" else PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return app


class Gate:
    """Holds who comes, from when he has come until he may go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        await self.open.wait()


async def nothing(_: Tx) -> None:
    pass


async def fail(_: Tx) -> None:
    raise ArithmeticError("a bug")


def stall_at_prepare(monkeypatch: pytest.MonkeyPatch, proxies: dict[str, Proxy]) -> None:
    """Each site's first answer to what prepares there does not arrive."""
    prepare = Branch.prepare

    async def unanswered(branch: Branch, *args: Any) -> Any:
        if branch.site in proxies:
            proxies.pop(branch.site).arm(Fault(Mode.STALL, "reply", 0))
        return await prepare(branch, *args)

    monkeypatch.setattr(Branch, "prepare", unanswered)


def active(shop: Shop, xid: str) -> list[int]:
    sql = f"SELECT FROM mip.instances('{xid}') WHERE state = 'active'"
    return [len(shop.sql(site, sql)) for site in shop.clusters]


# -- who else may be at it ---------------------------------------------------------------------------------------


class Prepared:
    """A request that is prepared at the store, and whose last statement at the bank waits for somebody, and fails."""

    def __init__(self, server: Server, bank: Session, xid: str | None, **parameters: Any) -> None:
        self._bank = bank
        self._xid = xid
        self._app = server(**parameters)

        @self._app.transaction(sites=("store", "bank"))
        async def note(tx: Tx, request: Any) -> Any:
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
            tx.bank.finish_with("INSERT INTO payment (p_id, amount) OVERRIDING SYSTEM VALUE VALUES (1000000, 0)")

    async def begin(self, shop: Shop) -> None:
        await self._bank.execute("INSERT INTO payment (p_id, amount) OVERRIDING SYSTEM VALUE VALUES (1000000, 0)")
        self.told = asyncio.create_task(self._app.submit("note", None, xid=self._xid))
        await until(lambda: in_doubt(shop) == [1, 0] and shop.sql("bank", "SELECT FROM mip.waits"))

    async def fail(self) -> None:
        await self._bank.commit()
        with contextlib.suppress(SubmitError):
            await self.told


async def test_a_sweeper_is_in_its_handler(
    server: Server, shop: Shop, bank: Session, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has adopted what was prepared, and sent nothing yet: it will commit."""
    monkeypatch.setattr(_attempt, "_UNSEEN", 1000)
    prepared, gate = Prepared(server, bank, "adopted"), Gate()
    await prepared.begin(shop)
    sweep = asyncio.create_task(eager(serving(server(), gate), log).sweep())
    await gate.reached.wait()
    assert active(shop, "adopted") == [1, 2], "everywhere: what it has found may be rolled back before somebody looks"
    await prepared.fail()
    assert in_doubt(shop) == [0, 0]
    with pytest.raises(Unknown, match="sibling"):
        await prepared.told
    gate.open.set()
    ((event),) = await sweep
    assert event.name is EventName.COMMITTED
    shop.assert_once("adopted", await serving(server(), nothing).submit("note", None, xid="adopted"))
    shop.sql("bank", "DELETE FROM payment WHERE p_id = 1000000")
    shop.assert_clean()


async def test_a_sweeper_comes_too_late(
    server: Server, shop: Shop, bank: Session, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found what was prepared, and not begun: what has been taken back by then it leaves alone."""
    prepared, gate, ran = Prepared(server, bank, "taken back"), Gate(), Gate()
    await prepared.begin(shop)
    attempt = Family._try

    async def held(self: Family, *args: Any, **parameters: Any) -> Any:
        await gate()
        return await attempt(self, *args, **parameters)

    monkeypatch.setattr(Family, "_try", held)
    sweep = asyncio.create_task(eager(serving(server(), ran), log).sweep())
    await gate.reached.wait()
    await prepared.fail()
    with pytest.raises(NothingHappened):
        await prepared.told
    ran.open.set()
    gate.open.set()
    assert await sweep == []
    assert not ran.reached.is_set()
    shop.assert_never("taken back")
    shop.assert_once("taken back", await serving(server(), nothing).submit("note", None, xid="taken back"))
    shop.sql("bank", "DELETE FROM payment WHERE p_id = 1000000")
    shop.assert_clean()


async def test_a_sweeper_finds_another_request_under_the_xid(
    server: Server, shop: Shop, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has come for has been taken back, and somebody may have been told so."""
    xid, gate, requests = "replaced", Gate(), list[Any]()
    attempt = Family._try

    async def held(self: Family, *args: Any, **parameters: Any) -> Any:
        await gate()
        return await attempt(self, *args, **parameters)

    app = server()

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        requests.append(request)

    def prepare(xinst: int, request: Any) -> None:
        shop.sql(
            "store",
            f"BEGIN; SELECT mip.begin('{xid}', {xinst}, '{{bank,store}}');"
            f"SELECT * FROM mip.prepare('{canonical({'transaction': 'note', 'request': request})}', '0')",
        )

    prepare(1, "first")
    with monkeypatch.context() as patch:
        patch.setattr(Family, "_try", held)
        sweep = asyncio.create_task(eager(app, log).sweep())
        await gate.reached.wait()
        shop.sql("bank", f"SELECT mip.refuse('{xid}', 1, '{{bank,store}}')")
        shop.sql("store", f"SELECT mip.rollback('{xid}', 1)")
        prepare(2, "second")
        gate.open.set()
        (event,) = await sweep
    assert (event.name, requests) == (EventName.FAILED, [])
    (event,) = await eager(app, log).sweep()
    assert (event.name, requests) == (EventName.COMMITTED, ["second"])
    shop.assert_clean()


async def test_what_is_to_be_cancelled_is_not_repeated(server: Server, shop: Shop, log: Log) -> None:
    """Somebody has begun to cancel what may have been taken back before: it is cancelled, and does not happen."""
    request = canonical({"transaction": "note", "request": None})
    shop.sql(
        "store",
        f"BEGIN; SELECT mip.begin('half cancelled', 1, '{{bank,store}}');SELECT * FROM mip.prepare('{request}', NULL)",
    )
    (event,) = await eager(serving(server(), nothing), log).sweep()
    assert event.name is EventName.CANCELLED
    shop.assert_never("half cancelled")
    shop.assert_clean()


async def test_who_gives_up_what_he_has_adopted(
    server: Server, shop: Shop, bank: Session, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweeper rolls it back where it is held up: not before a site knows that it goes on with it."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.2)
    shop.sql("bank", "INSERT INTO account VALUES (2, 0)")
    await bank.execute("UPDATE account SET balance = 0 WHERE a_id = 2")
    prepare_at(shop, "given up", "store", name="note")
    seen: list[list[int]] = []
    free = Family._free

    async def freeing(self: Family, mipts: Any, **parameters: Any) -> bool:
        if not parameters.get("later"):
            seen.append(active(shop, "given up"))
        return await free(self, mipts, **parameters)

    monkeypatch.setattr(Family, "_free", freeing)

    async def wait(tx: Tx) -> None:
        await tx.bank.execute("UPDATE account SET balance = 0 WHERE a_id = 2")

    sweep = asyncio.create_task(eager(serving(server(), wait), log).sweep())
    await until(lambda: in_doubt(shop) == [0, 0])
    await bank.rollback()
    (event,) = await sweep
    assert (event.name, any(seen[0])) == (EventName.COMMITTED, True)
    shop.sql("bank", "DELETE FROM account WHERE a_id = 2")
    shop.assert_clean()


@pytest.mark.parametrize("sites", [("store",), ("store", "bank")], ids=len)
async def test_a_second_server_is_in_its_handler(server: Server, shop: Shop, sites: tuple[str, ...]) -> None:
    xid, gate = f"second at {len(sites)}", Gate()
    first = asyncio.create_task(serving(server(), gate, sites).submit("note", None, xid=xid))
    await gate.reached.wait()
    await until(lambda: any(active(shop, xid)))
    failing = serving(server(), fail, sites)
    with pytest.raises(Unknown, match="sibling"):
        await failing.submit("note", None, xid=xid)
    gate.open.set()
    result = await first
    assert await failing.submit("note", None, xid=xid) == result
    shop.assert_clean()


async def test_a_second_server_has_given_its_last_statements(server: Server, shop: Shop) -> None:
    """And waits for something before they are sent."""
    app, gate = server(), Gate()

    @app.transaction(sites=("store",))
    async def note(tx: Tx, request: Any) -> Any:
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        await gate()
        return {"xinst": tx.xinst}

    first = asyncio.create_task(app.submit("note", None, xid="last"))
    await until(lambda: any(active(shop, "last")))
    with pytest.raises(Unknown, match="sibling"):
        await serving(server(), fail, ("store",)).submit("note", None, xid="last")
    gate.open.set()
    result = await first
    assert shop.effects("last") == ([result["xinst"]], [])
    shop.assert_clean()


async def test_a_second_server_without_an_event_loop(server: Server, shop: Shop) -> None:
    with sync.App(shop.conninfos()) as first:
        gate = Gate()
        loop = asyncio.get_running_loop()

        @first.transaction(sites=("store",))
        def note(tx: sync.Tx, request: Any) -> None:
            asyncio.run_coroutine_threadsafe(gate(), loop).result()
            tx.store.execute(ORDER, (tx.xid, tx.xinst))

        submitted = asyncio.create_task(asyncio.to_thread(first.submit, "note", None, xid="threads"))
        await gate.reached.wait()
        await until(lambda: any(active(shop, "threads")))
        with pytest.raises(Unknown, match="sibling"):
            await serving(server(), fail, ("store",)).submit("note", None, xid="threads")
        gate.open.set()
        await submitted
    shop.assert_clean()


async def test_a_second_server_between_two_attempts(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been seen, and is seen no more: it will be back."""
    first, met, again, attempt, numbers = server(), Gate(), Gate(), Family._try, {"first": 0, "second": 0}

    async def held(self: Family, *args: Any, **parameters: Any) -> Any:
        if self._pools is first._pools and numbers["first"]:
            await again()
        return await attempt(self, *args, **parameters)

    async def retried(tx: Tx) -> None:
        numbers["first"] += 1
        if numbers["first"] == 1:
            await tx.store.execute("SELECT 1")
            await met()
            await tx.store.execute(RIVAL)

    async def failing(tx: Tx) -> None:
        numbers["second"] += 1
        if numbers["second"] == 1:
            await tx.store.execute(RIVAL)
        met.open.set()
        await again.reached.wait()
        raise ArithmeticError("a bug")

    monkeypatch.setattr(Family, "_try", held)
    submitted = asyncio.create_task(serving(first, retried).submit("note", None, xid="between"))
    await met.reached.wait()
    with pytest.raises(Unknown, match="sibling"):
        await serving(server(), failing).submit("note", None, xid="between")
    assert active(shop, "between") == [0, 0]
    again.open.set()
    shop.assert_once("between", await submitted)
    shop.assert_clean()


async def test_a_second_server_whose_attempt_is_given_up(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been seen prepared at the store, and has lost the bank: it will be back, though nobody sees it active."""
    first, held, give_up, prepare = server(), Gate(), Family._give_up_own, Branch.prepare
    lost: list[Branch] = []
    attempts: list[int] = []

    async def cut_off(self: Branch, *args: Any) -> Any:
        if self.site == "bank" and not lost:
            lost.append(self)
            cut(self.conn)
        return await prepare(self, *args)

    async def later(self: Family, mipts: Any) -> Any:
        if self._pools is first._pools:
            await held()
        return await give_up(self, mipts)

    async def failing(tx: Tx) -> None:
        attempts.append(tx.xinst)
        if len(attempts) == 1:
            await tx.store.execute("DO $$BEGIN RAISE lock_not_available; END$$")
        raise ArithmeticError("a bug")

    monkeypatch.setattr(Branch, "prepare", cut_off)
    monkeypatch.setattr(Family, "_give_up_own", later)
    submitted = asyncio.create_task(serving(first, nothing).submit("note", None, xid="was given up"))
    await held.reached.wait()
    assert in_doubt(shop) == [1, 0]
    with pytest.raises(Unknown, match="sibling"):
        await serving(server(), failing).submit("note", None, xid="was given up")
    assert (in_doubt(shop), active(shop, "was given up"), len(attempts)) == ([0, 0], [0, 0], 2)
    held.open.set()
    shop.assert_once("was given up", await submitted)
    shop.assert_clean()


class Retried:
    """A request that is prepared at the store, and waits for somebody at the bank, after whom it needs another attempt;
    that one is held.
    """

    def __init__(self, server: Server, bank: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bank = bank
        self._app, attempt, attempts = server(), Family._try, [0]
        self.again = Gate()

        async def held(family: Family, *args: Any, **parameters: Any) -> Any:
            if family._pools is self._app._pools and attempts[0]:
                await self.again()
            return await attempt(family, *args, **parameters)

        @self._app.transaction(sites=("store", "bank"))
        async def note(tx: Tx, request: Any) -> Any:
            attempts[0] += 1
            await tx.store.execute(ORDER, (tx.xid, tx.xinst))
            await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
            if attempts[0] == 1:
                lock = "PERFORM FROM account WHERE a_id = 1 FOR UPDATE"
                tx.bank.finish_with(f"DO $$BEGIN {lock}; RAISE serialization_failure; END$$".encode())
            return {"xinst": tx.xinst}

        monkeypatch.setattr(Family, "_try", held)

    async def prepare(self, shop: Shop, xid: str) -> None:
        await self._bank.execute("SELECT FROM account WHERE a_id = 1 FOR UPDATE")
        self.told = asyncio.create_task(self._app.submit("note", None, xid=xid))
        await until(lambda: in_doubt(shop) == [1, 0] and shop.sql("bank", "SELECT FROM mip.waits"))

    async def take_back(self) -> None:
        await self._bank.rollback()
        await self.again.reached.wait()

    async def commit(self) -> Any:
        self.again.open.set()
        return await self.told


@pytest.mark.parametrize("masked", [True, False])
async def test_a_second_server_that_has_superseded_us(
    server: Server, shop: Shop, bank: Session, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    """A site has said so: it has been met, though it has taken its attempt back before somebody looks. `masked`:
    another site has refused us before, for something else.
    """
    refused, prepare, xid = asyncio.Event(), Branch.prepare, f"superseded, masked {masked}"

    async def in_order(self: Branch, *args: Any) -> Any:
        if self.site == "store":
            await refused.wait()
        if refused.is_set():
            return await prepare(self, *args)
        await self.rollback(1.0)
        refused.set()
        return NotPrepared(psycopg.errors.SerializationFailure("a rival"))

    retried, second, gate, read, attempts = Retried(server, bank, monkeypatch), server(), Gate(), Family._read, [0]

    async def failing(tx: Tx) -> None:
        attempts[0] += 1
        if attempts[0] > 1:
            raise ArithmeticError("a bug")
        await tx.store.execute("SELECT 1")
        await gate()

    async def later(family: Family) -> Any:
        if family._pools is second._pools and attempts[0] == 1:
            await retried.take_back()
        return await read(family)

    monkeypatch.setattr(Family, "_read", later)
    told = asyncio.create_task(serving(second, failing).submit("note", None, xid=xid))
    await gate.reached.wait()
    await asyncio.sleep(0.05)  # an XINST above
    await retried.prepare(shop, xid)
    if masked:
        monkeypatch.setattr(Branch, "prepare", in_order)
    gate.open.set()
    with pytest.raises(Unknown, match="sibling"):
        await told
    assert (attempts[0], in_doubt(shop)) == (2, [0, 0])
    shop.assert_once(xid, await retried.commit())
    shop.assert_clean()


async def test_a_second_server_that_was_seen_while_we_waited(
    server: Server, shop: Shop, bank: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in doubt lets us go on, and so it has been met."""
    retried, busy, gate = Retried(server, bank, monkeypatch), server(pool_size=1), Gate()

    async def failing(tx: Tx) -> None:
        if tx.xid == "busy":
            await gate()
        else:
            await retried.take_back()
        raise ArithmeticError("a bug")

    serving(busy, failing)
    other = asyncio.create_task(busy.submit("note", None, xid="busy"))
    await gate.reached.wait()
    await retried.prepare(shop, "seen")
    with pytest.raises(Unknown, match="sibling"):
        await busy.submit("note", None, xid="seen")
    gate.open.set()
    with pytest.raises(NothingHappened):
        await other
    shop.assert_once("seen", await retried.commit())
    shop.assert_clean()


@pytest.mark.parametrize("begun", [True, False])
async def test_a_second_server_that_has_given_us_up(
    server: Server, shop: Shop, bank: Session, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Because we were in its way: it has not been seen, and will be back. `begun`: at the bank, when that was."""
    app, second, again, attempt, prepare = server(), server(), Gate(), Family._try, Branch.prepare
    attempts: dict[App, int] = {app: 0, second: 0}
    xid = f"in the way, begun {begun}"

    async def late(self: Branch, *args: Any) -> Any:
        if self.site == "bank" and not begun:
            await again.reached.wait()
        return await prepare(self, *args)

    async def held(family: Family, *args: Any, **parameters: Any) -> Any:
        if family._pools is second._pools and attempts[second]:
            await again()
        return await attempt(family, *args, **parameters)

    async def held_up(tx: Tx) -> None:
        attempts[second] += 1
        if attempts[second] == 1:
            await tx.store.execute("DO $$BEGIN RAISE lock_not_available; END$$")

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        attempts[app] += 1
        if attempts[app] > 1:
            await again.reached.wait()
            raise ArithmeticError("a bug")
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        if begun:
            tx.bank.finish_with("UPDATE account SET balance = balance WHERE a_id = 1")

    monkeypatch.setattr(Family, "_try", held)
    monkeypatch.setattr(Branch, "prepare", late)
    await bank.execute("SELECT FROM account WHERE a_id = 1 FOR UPDATE")
    told = asyncio.create_task(app.submit("note", None, xid=xid))
    await until(lambda: in_doubt(shop) == [1, 0] and (not begun or shop.sql("bank", "SELECT FROM mip.waits")))
    submitted = asyncio.create_task(serving(second, held_up).submit("note", None, xid=xid))
    with pytest.raises(Unknown, match="sibling"):
        await told
    assert (list(attempts.values()), in_doubt(shop), active(shop, xid)) == ([2, 1], [0, 0], [0, 0])
    again.open.set()
    shop.assert_once(xid, await submitted)
    await bank.rollback()
    shop.assert_clean()


async def test_alone_but_seen(
    server: Server, shop: Shop, bank: Session, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has been given the XID. But what was prepared told it sweepers; one has been there, and is dead, and
    what it has left is at a site that does not answer.
    """
    async with Proxy(shop.clusters["store"].port) as proxy:
        prepared = Prepared(server, bank, None, conninfos=shop.conninfos(store=proxy.port))
        await prepared.begin(shop)
        ((xid,),) = shop.sql("store", "SELECT xid FROM mip.in_doubt")
        request = canonical({"transaction": "note", "request": None})
        begin = f"SELECT mip.begin('{xid}', {2**62}, '{{bank,store}}')"
        dead = f"BEGIN; {begin}; SELECT * FROM mip.prepare('{request}', '0')"
        read = Family._read

        async def read_too_late(self: Family) -> Any:
            if not in_doubt(shop)[0]:
                shop.sql("store", dead)
            proxy.down()
            return await read(self)

        with monkeypatch.context() as patch:
            patch.setattr(Family, "_read", read_too_late)
            await prepared.fail()
        with pytest.raises(Unknown, match="no answer from store"):
            await prepared.told
    assert in_doubt(shop) == [1, 0]
    (event,) = await eager(serving(server(), nothing), log).sweep()
    assert event.name is EventName.COMMITTED
    shop.assert_once(xid, await serving(server(), nothing).submit("note", None, xid=xid))
    shop.sql("bank", "DELETE FROM payment WHERE p_id = 1000000")
    shop.assert_clean()


# -- handlers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
async def test_a_handler_leaves_a_statement_running(server: Server, shop: Shop, first: bool) -> None:
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def careless(tx: Tx, request: Any) -> None:
        async def failing() -> None:
            await tx.bank.execute("SELECT 1/0")

        if not first:
            await tx.store.execute("SELECT 1")
        with contextlib.suppress(psycopg.Error):
            async with tx.bank.savepoint():
                await asyncio.gather(tx.store.execute("SELECT pg_sleep(60)"), failing())

    with pytest.raises(NothingHappened, match="left a statement running"):
        await asyncio.wait_for(app.submit("careless", None, xid=f"careless {first}"), PATIENCE / 2)
    assert await app.resolve(f"careless {first}") is None
    await app.submit("buy", BUY)
    shop.assert_clean()


async def test_a_handler_leaves_a_statement_to_be_run(server: Server, shop: Shop) -> None:
    """It has not been sent when the handler returns, and is not sent any more."""
    app, left = server(pool_size=1), list[asyncio.Task[Any]]()

    @app.transaction(sites=("store", "bank"))
    async def hasty(tx: Tx, request: Any) -> Any:
        left.append(asyncio.create_task(tx.store.execute(ORDER, (tx.xid, tx.xinst))))
        return {"xinst": tx.xinst}

    await app.submit("hasty", None, xid="left behind")
    with pytest.raises(RuntimeError, match="over"):
        await left[0]
    shop.assert_never("left behind")
    shop.assert_clean()


async def test_a_thread_is_left_with_a_statement(shop: Shop) -> None:
    with sync.App(shop.conninfos()) as app:
        left: list[threading.Thread] = []

        @app.transaction(sites=("store", "bank"))
        def careless(tx: sync.Tx, request: Any) -> None:
            def stubborn() -> None:
                with contextlib.suppress(RuntimeError):  # the transaction is over
                    tx.store.execute(STUBBORN)

            left.append(threading.Thread(target=stubborn))
            left[0].start()
            while not shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
                time.sleep(0.01)

        with pytest.raises(NothingHappened, match="was cancelled"):
            await asyncio.to_thread(app.submit, "careless", None, xid="threads too")
        left[0].join()
    shop.assert_never("stubborn")
    shop.assert_clean()


# PostgreSQL is asked to cancel it, and it does what it was to do nevertheless.
STUBBORN = """
    DO $$ BEGIN
        INSERT INTO orders (xid, qty) VALUES ('stubborn', 0);
        BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END;
    END $$
"""


async def test_a_statement_that_the_handler_interrupts(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def impatient(tx: Tx, request: Any) -> str:
        try:
            async with asyncio.timeout(0.1):
                await tx.store.execute(STUBBORN)
        except TimeoutError:
            return "it was not done"
        return "it was done"

    with pytest.raises(NothingHappened, match="was cancelled"):
        await app.submit("impatient", None, xid="stubborn")
    shop.assert_never("stubborn")
    shop.assert_clean()


@pytest.mark.parametrize("inside", [True, False])
async def test_an_interrupted_statement_and_a_savepoint(server: Server, shop: Shop, inside: bool) -> None:
    """Going back to a savepoint undoes it; going on within does not."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def careful(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        if inside:
            async with tx.store.savepoint():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await tx.store.execute(STUBBORN)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1), tx.store.savepoint():
                    await tx.store.execute(STUBBORN)
        return {"xinst": tx.xinst}

    if inside:
        with pytest.raises(NothingHappened, match="was cancelled"):
            await app.submit("careful", None, xid="inside")
        shop.assert_never("inside")
    else:
        shop.assert_once("outside", await app.submit("careful", None, xid="outside"))
    shop.assert_never("stubborn")
    shop.assert_clean()


async def test_an_interrupted_statement_before_a_savepoint(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def careless(tx: Tx, request: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await tx.store.execute(STUBBORN)
        with contextlib.suppress(ArithmeticError):
            async with tx.store.savepoint():
                raise ArithmeticError

    with pytest.raises(NothingHappened, match="was cancelled"):
        await app.submit("careless", None, xid="before a savepoint")
    shop.assert_never("stubborn")
    shop.assert_clean()


async def test_a_row_that_cannot_be_read(server: Server, shop: Shop) -> None:
    """The statement has been done, but the handler is told otherwise."""
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def unlucky(tx: Tx, request: Any) -> str:
        sql = "INSERT INTO orders (xid, qty) VALUES ('unread', 0) RETURNING timestamp '20000-01-01'"
        try:
            await tx.store.fetch_one(sql)
        except psycopg.DataError:
            return "it was not done"
        return "it was done"

    with pytest.raises(NothingHappened):
        await app.submit("unlucky", None, xid="unread")
    shop.assert_never("unread")
    shop.assert_clean()


# -- what it is not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["resolve", "settle", "acknowledge"])
@pytest.mark.parametrize("sites", [("store",), ("bank",)])
async def test_fewer_sites_than_declared(server: Server, shop: Shop, call: str, sites: tuple[str, ...]) -> None:
    xid = f"half {call} {sites[0]}"
    prepare_at(shop, xid, *sites)
    app = server()
    with pytest.raises(ValueError, match=f"is over the sites bank, store, not {sites[0]}"):
        await getattr(app, call)(xid, sites=sites)
    assert in_doubt(shop) == [int(site in sites) for site in shop.clusters]
    assert await app.resolve(xid, sites=("store", "bank")) == Resolution(True, None)
    with pytest.raises(ValueError, match="is over the sites"):
        await getattr(app, call)(xid, sites=sites)
    assert shop.sql(sites[0], f"SELECT acknowledged FROM mip.instances('{xid}') WHERE state = 'committed'") == [
        (False,)
    ]
    shop.assert_clean()


@pytest.mark.parametrize("call", ["resolve", "settle"])
async def test_cancelled_is_not_told_as_decided(server: Server, shop: Shop, call: str) -> None:
    xid = f"cancelled {call}"
    async with Proxy(shop.clusters["bank"].port) as proxy:
        behind = App(shop.conninfos(bank=proxy.port), parallel=False)
        prepare_at(shop, xid, "store")
        behind.on_step(lambda step: proxy.down() if step.name == "prepared-all" else None)
        with pytest.raises(Cancelled) as caught:
            await getattr(behind, call)(xid)
        assert caught.value.unfinished == ("bank",)
        with pytest.raises(Cancelled, match="not finished at bank"):  # who submits is told so, too
            await server(shop.conninfos(bank=proxy.port)).submit("buy", BUY, xid=xid)
        await behind.close()
    assert in_doubt(shop) == [0, 1]
    assert await server().resolve(xid) == Resolution(True, None)
    shop.assert_clean()


@pytest.mark.parametrize("error", [Cancelled("not finished"), KeyReused("other sites")])
async def test_a_sweeper_tries_again(
    server: Server, shop: Shop, log: Log, monkeypatch: pytest.MonkeyPatch, error: SubmitError
) -> None:
    """It is not "undone" where something is left to be done."""

    async def settle(*_: Any, **__: Any) -> Any:
        raise error

    app = server()
    prepare_at(shop, f"again {error}", "store")
    with monkeypatch.context() as patch:
        patch.setattr(app, "settle", settle)
        (event,) = await eager(app, log).sweep()
    assert event.name is EventName.FAILED
    assert await app.resolve(f"again {error}") == Resolution(True, None)


# -- another request with the XID ----------------------------------------------------------------------------------


async def test_another_request_is_only_active(server: Server, shop: Shop) -> None:
    """It goes away again, and then this one runs."""
    app = server()
    async with await psycopg.AsyncConnection.connect(shop.conninfos()["store"]) as other:
        await other.execute("SELECT mip.begin('reused', 1, '{depot,store}')")
        with pytest.raises(Unknown, match="another set of sites"):
            await app.submit("buy", BUY, xid="reused")
        await other.rollback()
    shop.assert_once("reused", await app.submit("buy", BUY, xid="reused"))
    shop.assert_clean()


async def test_another_request_is_prepared_and_then_committed(server: Server, shop: Shop) -> None:
    app = server()
    shop.sql("store", "BEGIN; SELECT mip.begin('reused too', 1, '{depot,store}'); SELECT * FROM mip.prepare('q', 'r')")
    for what in (app.submit("buy", BUY, xid="reused too"), app.submit("restock", BUY, xid="reused too")):
        with pytest.raises(Unknown, match="another set of sites"):
            await what
    assert in_doubt(shop) == [1, 0]
    shop.sql("store", "SELECT mip.commit('reused too', 1)")
    for what in (app.submit("buy", BUY, xid="reused too"), app.submit("restock", BUY, xid="reused too")):
        with pytest.raises(KeyReused):
            await what
    shop.assert_never("reused too")
    shop.assert_clean()


async def test_another_request_is_not_given_up(
    server: Server, shop: Shop, bank: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not come to our other site because it is none of its own."""
    monkeypatch.setattr(_family, "_FIRST_TURN", 0.1)
    shop.sql("store", "BEGIN; SELECT mip.begin('theirs', 1, '{depot,store}'); SELECT * FROM mip.prepare('q', 'r')")
    await bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")
    impatient = {
        site: make_conninfo(conninfo, options="-c lock_timeout=300ms") for site, conninfo in shop.conninfos().items()
    }

    async def wait(tx: Tx) -> None:
        await tx.bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")

    with pytest.raises(Unknown):
        await serving(server(impatient), wait).submit("note", None, xid="theirs", deadline=2)
    assert in_doubt(shop) == [1, 0]
    await bank.rollback()
    shop.sql("store", "SELECT mip.commit('theirs', 1)")
    shop.assert_clean()


# -- what nobody has foreseen --------------------------------------------------------------------------------------


async def test_a_surprise_is_unknown_and_has_its_xid(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(*_: Any) -> Any:
        raise AttributeError("a bug of ours")

    app = server()
    with monkeypatch.context() as patch:
        patch.setattr(_family, "decide", surprise)
        with pytest.raises(Unknown, match="AttributeError") as caught:
            await app.submit("buy", BUY, xid="surprise")
        assert caught.value.xid == "surprise"
        with pytest.raises(Unknown, match="AttributeError"):
            await app.settle("surprise")
        with pytest.raises(Unknown, match="AttributeError"):
            await app.acknowledge("surprise")
    shop.assert_once("surprise", await app.submit("buy", BUY, xid="surprise"))
    shop.assert_clean()


class Mute(Exception):
    def __str__(self) -> str:
        raise ArithmeticError("says nothing")


@pytest.mark.parametrize("error", [Mute(), NothingHappened("of another request")], ids=["mute", "a lie"])
async def test_a_hook_raises_what_it_likes(server: Server, shop: Shop, error: Exception) -> None:
    """Which is no word on the request; it may not even be one."""
    app = server()

    def fail(step: Step) -> None:
        if step.name == "prepared-all":
            raise error

    app.on_step(fail)
    xid = f"raised {type(error).__name__}"
    with pytest.raises(Unknown, match=type(error).__name__ if isinstance(error, Mute) else "another") as caught:
        await app.submit("buy", BUY, xid=xid)
    assert caught.value.xid == xid
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_a_hook_has_a_database_of_its_own(server: Server, shop: Shop, bank: Session) -> None:
    """Whose error is not the site's, which has prepared: nobody may take the other one's back for that."""
    app = server()

    async def fail(step: Step) -> None:
        if step.name == "prepared-first-site":
            await bank.execute("SELECT 1/0")

    app.on_step(fail)

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    with pytest.raises(Unknown, match="observer") as caught:
        await app.submit("note", None)
    assert sum(in_doubt(shop)) > 0
    xid = caught.value.xid
    assert xid is not None
    shop.assert_once(xid, await serving(server(), nothing).submit("note", None, xid=xid))
    shop.assert_clean()


async def test_a_handler_raises_what_says_nothing(server: Server, shop: Shop, log: Log) -> None:
    async def fail_silently(_: Tx) -> None:
        raise Mute

    prepare_at(shop, "mute", "store", name="note")
    app = serving(server(), fail_silently)
    with pytest.raises(NothingHappened, match="failed: Mute: Mute"):
        await app.submit("note", None)
    (event,) = await eager(app, log).sweep()
    assert event.name is EventName.FAILED
    assert await app.resolve("mute") == Resolution(True, None)
    shop.assert_clean()


@pytest.mark.parametrize("sites", [("store",), ("store", "bank")])
@pytest.mark.parametrize("begins", ["nowhere", "with its last statement", "at one site"])
async def test_all_sites_know_of_what_may_be_prepared(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, sites: tuple[str, ...], begins: str
) -> None:
    """What prepares it may be on its way for long: meanwhile nobody is to find nothing of it."""
    app = server()
    known: list[set[str]] = []
    real = _attempt.Attempt._prepare

    async def prepare(self: _attempt.Attempt, *args: Any) -> None:
        sql = f"SELECT state FROM mip.instances('{self._instance.xid}')"
        known.append({site for site in sites if await asyncio.to_thread(shop.sql, site, sql) == [("active",)]})
        await real(self, *args)

    monkeypatch.setattr(_attempt.Attempt, "_prepare", prepare)

    @app.transaction(sites=sites)
    async def brief(tx: Tx, request: Any) -> str:
        if begins == "with its last statement":
            tx.store.finish_with("SELECT 1")
        elif begins == "at one site":
            await tx.store.execute("SELECT 1")
        return "done"

    assert await app.submit("brief", None, xid=new_xid()) == "done"
    assert await app.submit("brief", None) == "done"  # whose caller may send it to others, if he is not told this
    assert known == [set(sites), set(sites)]
    shop.assert_clean()


class Left:
    """Ways to leave a savepoint's block that has to be undone, within another one."""

    @staticmethod
    async def by_closing_a_generator(tx: Tx) -> None:
        async def helper() -> AsyncIterator[int]:
            async with tx.store.savepoint():
                await tx.store.execute(ORDER, (tx.xid, tx.xinst))
                yield 1

        async with contextlib.aclosing(helper()) as numbers:  # type: ignore[type-var]
            async for _ in numbers:
                break

    @staticmethod
    async def beside_a_copy(tx: Tx) -> None:
        copying, done = asyncio.Event(), asyncio.Event()

        async def copy() -> None:
            async with tx.store.copy("COPY item FROM STDIN"):
                copying.set()
                await done.wait()

        with contextlib.suppress(ValueError):
            async with tx.store.savepoint():
                await tx.store.execute(ORDER, (tx.xid, tx.xinst))
                task = asyncio.create_task(copy())
                await copying.wait()
                raise ValueError
        done.set()
        await task

    @staticmethod
    async def by_a_timeout_on_the_way_back(tx: Tx) -> None:
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(0.2), tx.store.savepoint():
                await tx.store.execute(ORDER, (tx.xid, tx.xinst))
                task = asyncio.create_task(tx.store.execute("SELECT pg_sleep(0.6)"))
                await asyncio.sleep(0.05)
                raise ValueError
        await task

    @staticmethod
    async def by_a_timeout_at_its_end(tx: Tx) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2), tx.store.savepoint():
                await tx.store.execute(ORDER, (tx.xid, tx.xinst))
                task = asyncio.create_task(tx.store.execute("SELECT pg_sleep(0.6)"))
                await asyncio.sleep(0.05)
        await task


@pytest.mark.parametrize("how", [name for name in vars(Left) if not name.startswith("_")])
async def test_a_savepoint_that_could_not_be_undone(server: Server, shop: Shop, how: str) -> None:
    """The handler takes it for undone: so the attempt fails."""
    app, xid = server(), new_xid()

    @app.transaction(sites=("store", "bank"))
    async def handler(tx: Tx, request: Any) -> None:
        async with tx.store.savepoint():
            await getattr(Left, how)(tx)

    with pytest.raises(NothingHappened):
        await app.submit("handler", None, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


def test_a_savepoint_that_a_closed_generator_has_left(shop: Shop) -> None:
    xid = new_xid()
    with sync.App(shop.conninfos()) as app:

        @app.transaction(sites=("store", "bank"))
        def handler(tx: sync.Tx, request: Any) -> None:
            def helper() -> Iterator[int]:
                with tx.store.savepoint():
                    tx.store.execute(ORDER, (tx.xid, tx.xinst))
                    yield 1

            with tx.store.savepoint():
                numbers = helper()
                next(numbers)
                numbers.close()  # type: ignore[attr-defined]

        with pytest.raises(NothingHappened):
            app.submit("handler", None, xid)
    shop.assert_never(xid)
    shop.assert_clean()


@pytest.mark.parametrize("own", [True, False])
async def test_a_session_that_a_site_has_ended(server: Server, shop: Shop, own: bool) -> None:
    """By whomever: perhaps by a sibling that has given us up. But where the XID is our own, there is none."""
    app, attempts = server(), 0

    @app.transaction(sites=("store", "bank"))
    async def cut_off(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            raise ArithmeticError("a bug")
        (pid,) = await tx.store.fetch_one("SELECT pg_backend_pid()")
        await asyncio.to_thread(shop.sql, "store", f"SELECT pg_terminate_backend({pid}, 10000)")

    with pytest.raises(NothingHappened if own else Unknown, match="a bug" if own else "sibling"):
        await app.submit("cut_off", None, xid=None if own else new_xid())
    assert attempts == 2
    shop.assert_clean()
