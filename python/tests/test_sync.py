"""The sync twin: the same outcomes from many threads, and nothing left open where a handler's thread goes on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from itertools import product
from typing import Any, NoReturn

import psycopg
import pytest
from shop import ORDER, PRICE, Shop

import pgmip
from pgmip import Cancelled, Expired, KeyReused, NothingHappened, Resolution, Step, Unknown
from pgmip._branch import Branch
from pgmip._portal import Closed, Portal
from pgmip.sync import App, Tx
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 2}
PATIENCE = 60


class TimeLimit(Exception):
    """What a worker's signal handler raises, wherever the main thread is by then."""


def buy(tx: Tx, request: Any) -> Any:
    qty = request["qty"]
    left = tx.store.fetch_one("SELECT stock FROM item WHERE i_id = %s FOR UPDATE", (request["item"],))
    if left.stock < qty:
        return {"refused": "out of stock"}
    tx.store.execute("UPDATE item SET stock = stock - %s WHERE i_id = %s", (qty, request["item"]))
    tx.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, qty))
    tx["bank"].execute("UPDATE account SET balance = balance - %s WHERE a_id = 1", (qty * PRICE,))
    tx.bank.execute("INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, qty * PRICE))
    return {"xinst": tx.xinst, "accounts": len(tx.bank.fetch_all("SELECT FROM account"))}


@pytest.fixture(params=["straight", "by the loop"])
def server(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Makes Apps whose first attempts are made without the event loop, or by it."""
    with ExitStack() as stack:

        def make(**parameters: Any) -> App:
            app = stack.enter_context(App(shop.conninfos(), **parameters))
            app.transaction(sites=("store", "bank"))(buy)
            if request.param == "straight":
                warm_up(app)
            else:
                app.on_step(lambda step: None)
            return app

        yield make


def kept(shop: Shop) -> int:
    rows = shop.sql("store", "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kept'")
    return int(rows[0][0])


def wait_until_kept(shop: Shop, connections: int) -> None:
    end = time.monotonic() + PATIENCE
    while kept(shop) != connections:
        assert time.monotonic() < end, kept(shop)
        time.sleep(0.02)


def keeping(shop: Shop) -> App:
    sites = {site: f"{conninfo} application_name=kept" for site, conninfo in shop.conninfos().items()}
    return App(sites, pool_min_size=2)


def test_entering_it_begins_to_connect(shop: Shop) -> None:
    async def enter(app: App) -> None:
        async with app:
            await asyncio.to_thread(wait_until_kept, shop, 4)

    with keeping(shop):
        wait_until_kept(shop, 4)  # for transactions, and for what finishes them
    wait_until_kept(shop, 0)
    asyncio.run(enter(keeping(shop)))
    wait_until_kept(shop, 0)


def test_entering_it_in_a_callback(shop: Shop) -> None:
    """Which cannot wait for the event loop, as it is there."""
    with keeping(shop) as app:
        app.on_step(lambda step: app.__enter__() and None)
        app.transaction(sites=("store", "bank"))(buy)
        assert [app.submit("buy", BUY)["accounts"] for _ in range(2)] == [1, 1]


async def test_leaving_it_is_cancelled(shop: Shop) -> None:
    """It closes nevertheless, whatever the threads of the caller's event loop are at."""
    app = await keeping(shop).__aenter__()
    await asyncio.to_thread(wait_until_kept, shop, 4)
    free = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(free.wait, PATIENCE)
        leaving = asyncio.create_task(app.__aexit__())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        try:
            wait_until_kept(shop, 0)
        finally:
            free.set()


async def test_leaving_it_in_the_callers_context(shop: Shop) -> None:
    """As whoever logs that it is closed expects."""
    caller, seen = ContextVar("caller", default="nobody"), list[str]()

    class Noted(App):
        def close(self, *, grace: float = 5.0) -> None:
            seen.append(caller.get())
            super().close(grace=grace)

    caller.set("me")
    async with Noted(shop.conninfos()):
        pass
    assert seen == ["me"]


def test_entering_a_closed_one(shop: Shop) -> None:
    """The first request says it."""
    app = keeping(shop)
    app.close()
    with app, pytest.raises(Unknown, match="closed"):
        app.resolve(new_xid())


def warm_up(app: App, times: int = 1) -> None:
    """Have connections at hand."""
    app.transaction(sites=tuple(app.sites), name="warm up")(lambda tx, request: barrier.wait(PATIENCE) and None)
    barrier = threading.Barrier(times)
    with ThreadPoolExecutor(times) as threads:
        for done in [threads.submit(app.submit, "warm up", None) for _ in range(times)]:
            done.result()


def test_a_request(server: Server, shop: Shop) -> None:
    app, other = server(), server()
    xid = new_xid()
    result = app.submit("buy", BUY, xid=xid)
    assert [other.submit("buy", BUY, xid=xid), app.submit("buy", BUY, xid)] == [result, result]
    shop.assert_once(xid, result)
    with pytest.raises(KeyReused):
        other.submit("buy", {"item": 1, "qty": 3}, xid=xid)
    assert other.settle(xid) == other.resolve(xid) == Resolution(False, result)
    app.acknowledge(xid)
    with pytest.raises(Expired):
        app.submit("buy", BUY, xid=xid)
    assert app.submit("buy", {"item": 2, "qty": 1}) == {"refused": "out of stock"}
    assert (app.transactions[0], set(app.sites)) == ("buy", {"store", "bank"})
    shop.assert_clean()


def test_from_many_threads(server: Server, shop: Shop) -> None:
    apps = [server(threads=8), server(threads=8)]
    xids = [new_xid() for _ in range(20)]
    with ThreadPoolExecutor(40) as threads:
        answers = [[threads.submit(app.submit, "buy", BUY, xid) for app in apps] for xid in xids]
    for xid, (first, second) in zip(xids, answers, strict=True):
        assert first.result() == second.result()
        shop.assert_once(xid, first.result())
    shop.assert_clean()


def test_errors_and_savepoints(server: Server, shop: Shop) -> None:
    app = server()

    @app.transaction(sites=("store", "bank"), isolation="repeatable read")
    def careful(tx: Tx, request: Any) -> str:
        with pytest.raises(psycopg.errors.DivisionByZero), tx.store.savepoint():
            tx.store.execute("SELECT 1/0")
        with tx.bank.savepoint():
            tx.bank.execute("SELECT 1")
        if request == "fail":
            raise KeyError("a bug")
        with pytest.raises(AttributeError, match="nowhere"):
            _ = tx.nowhere
        return str(tx.store.fetch_one("SHOW transaction_isolation").transaction_isolation)

    assert app.submit("careful", None) == "repeatable read"
    with pytest.raises(NothingHappened) as caught:
        app.submit("careful", "fail")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(LookupError):
        app.submit("unknown", None)
    shop.assert_clean()


def test_the_deadline_ends_a_statement(server: Server, shop: Shop) -> None:
    app = server()
    raised: list[Exception] = []

    @app.transaction(sites=("store", "bank"))
    def slow(tx: Tx, request: Any) -> None:
        tx.bank.execute("SELECT 1")
        try:
            tx.store.execute("SELECT pg_sleep(600)")
        except Exception as error:
            raised.append(error)
            raise

    with pytest.raises(NothingHappened) as caught:
        app.submit("slow", None, deadline=0.5)
    assert isinstance(caught.value.__cause__, TimeoutError)
    shop.assert_clean()
    app.close()
    assert [type(error) for error in raised] == [RuntimeError]


def test_the_deadline_does_not_wait_for_a_handler(server: Server, shop: Shop) -> None:
    app = server()
    release, ended = threading.Event(), threading.Event()
    raised: list[Exception] = []

    @app.transaction(sites=("store", "bank"))
    def stuck(tx: Tx, request: Any) -> None:
        tx.store.execute("UPDATE item SET stock = 0 WHERE i_id = 1")
        release.wait(PATIENCE)
        try:
            tx.bank.execute("UPDATE account SET balance = 0")
        except Exception as error:
            raised.append(error)
        ended.set()

    with pytest.raises(NothingHappened):
        app.submit("stuck", None, deadline=0.2)
    shop.assert_clean()
    assert not ended.is_set()
    release.set()
    assert ended.wait(PATIENCE)
    assert [str(error) for error in raised] == ["the transaction is over"]
    shop.assert_clean()


def test_a_last_statement_that_comes_late(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread that the handler leaves behind: what has been taken is done, all else is refused."""
    app = server()
    check, told = Branch._check_open, list[str]()

    def check_slowly(branch: Branch) -> None:
        check(branch)
        time.sleep(0.005)

    monkeypatch.setattr(Branch, "_check_open", check_slowly)

    @app.transaction(sites=("store", "bank"))
    def leaves_a_thread(tx: Tx, pause: float) -> None:
        def finish() -> None:
            time.sleep(pause)
            try:
                tx.store.finish_with(ORDER, (tx.xid, tx.xinst))
                told.append("taken")
            except RuntimeError as error:
                told.append(str(error))

        threads.append(threading.Thread(target=finish))
        threads[-1].start()
        time.sleep(0.005)

    threads: list[threading.Thread] = []
    for number in range(40):
        app.submit("leaves_a_thread", number * 0.0003)
        threads[-1].join(PATIENCE)
    assert set(told) <= {"taken", "the transaction is over", "the transaction at site 'store' is over"}
    assert len(told) == 40
    assert shop.sql("store", "SELECT count(*) FROM orders") == [(told.count("taken"),)]
    shop.assert_clean()


def test_interrupted(server: Server, shop: Shop) -> None:
    app = server()

    def interrupt(step: Step) -> None:
        if step.name == "begun":
            os.kill(os.getpid(), signal.SIGINT)

    app.on_step(interrupt)

    @app.transaction(sites=("store",))
    def waits(tx: Tx, request: Any) -> None:
        tx.store.execute("UPDATE item SET stock = 0 WHERE i_id = 1")
        tx.store.execute("SELECT pg_sleep(600)")

    with pytest.raises(KeyboardInterrupt):
        app.submit("waits", None)
    shop.assert_clean()


def test_shutdown(server: Server, shop: Shop) -> None:
    app = server()
    begun, release = threading.Event(), threading.Event()

    @app.transaction(sites=("store", "bank"))
    def stuck(tx: Tx, request: Any) -> None:
        tx.store.execute("UPDATE item SET stock = 0 WHERE i_id = 1")
        begun.set()
        release.wait(PATIENCE)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(app.submit, "stuck", None, "stuck")
        assert begun.wait(PATIENCE)
        app.close(grace=0.05)
        with pytest.raises(Unknown, match="another server"):
            running.result(PATIENCE)
    release.set()
    shop.assert_clean()
    with pytest.raises(Unknown, match="closed"):
        app.submit("buy", BUY)
    app.close()


def test_cancelled(server: Server, shop: Shop) -> None:
    app = server()
    assert app.resolve("sync cancelled", sites=("store", "bank")) == Resolution(True, None)
    with pytest.raises(Cancelled):
        app.submit("buy", BUY, xid="sync cancelled")
    assert app.settle("never heard of in sync") is None
    shop.assert_clean()


def test_a_callback_must_not_wait_for_itself(server: Server, shop: Shop) -> None:
    app = server()
    app.on_step(lambda step: app.settle("deadlock"))
    with pytest.raises(NothingHappened, match="another thread"):
        app.submit("buy", BUY)
    shop.assert_clean()


@pytest.mark.parametrize("error", [StopIteration(7), concurrent.futures.CancelledError(), SystemExit(1)])
def test_what_no_future_takes(server: Server, shop: Shop, error: BaseException) -> None:
    app = server()

    @app.transaction(sites=("store",))
    def odd(tx: Tx, request: Any) -> None:
        raise error

    with pytest.raises(NothingHappened) as caught:
        app.submit("odd", None, deadline=PATIENCE)
    assert isinstance(caught.value.__cause__, RuntimeError)
    shop.assert_clean()


def test_submitting_while_it_closes(server: Server, shop: Shop) -> None:
    """At any moment of it: either there is a result, or Unknown."""
    for _ in range(10):
        app = server(threads=2)
        outcomes: list[Any] = []

        def hammer(app: App = app, outcomes: list[Any] = outcomes) -> None:
            while not any(isinstance(outcome, Exception) for outcome in outcomes):
                try:
                    outcomes.append(app.resolve(new_xid()))
                except Exception as error:
                    outcomes.append(error)

        with ThreadPoolExecutor(8) as threads:
            for _ in range(6):
                threads.submit(hammer)
            while len(outcomes) < 6:
                time.sleep(0.001)
            closers = [threads.submit(app.close, grace=0.01) for _ in range(2)]
        assert [closer.result() for closer in closers] == [None, None]
        assert {type(outcome) for outcome in outcomes} <= {type(None), Unknown}
    shop.assert_clean()


def test_closed_between_the_call_and_its_begin() -> None:
    portal = Portal("portal")
    never = threading.Event()

    async def forever() -> None:
        never.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(portal.call, forever())
        never.wait(PATIENCE)
        portal.close()
        with pytest.raises(Closed):
            call.result(PATIENCE)
    with pytest.raises(Closed):
        portal.call(forever())
    portal.close()


def test_a_handler_that_outlives_its_app(server: Server, shop: Shop) -> None:
    app = server()
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()
    raised: list[Exception] = []

    @app.transaction(sites=("store",))
    def stuck(tx: Tx, request: Any) -> None:
        begun.set()
        release.wait(PATIENCE)
        try:
            tx.store.execute("SELECT 1")
        except Exception as error:
            raised.append(error)
        ended.set()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(app.submit, "stuck", None)
        assert begun.wait(PATIENCE)
        app.close(grace=0.05)
        with pytest.raises(Unknown):
            running.result(PATIENCE)
    release.set()
    assert ended.wait(PATIENCE), "it waits for an event loop that is gone"
    assert [isinstance(error, RuntimeError) for error in raised] == [True]
    shop.assert_clean()


def test_closed_is_told_however_quick_the_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    portal, begun = Portal("it"), threading.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as thread:
        calling = thread.submit(lambda: portal.call(waits()))
        assert begun.wait(PATIENCE)
        assert portal._loop is not None
        soon = portal._loop.call_soon_threadsafe

        def and_wait(*stop: Any) -> None:
            soon(*stop)
            calling.exception(PATIENCE)

        monkeypatch.setattr(portal._loop, "call_soon_threadsafe", and_wait)
        portal.close()
        with pytest.raises(Closed):
            calling.result()


def test_who_waits_takes_no_lock(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a signal handler could leave taken, where it raises: that is possible as a condition is entered."""
    app = server()
    app.on_step(lambda step: None)  # which has the event loop make it
    app.submit("buy", BUY)
    enter = threading.Condition.__enter__

    def interrupted(condition: threading.Condition) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise TimeLimit
        return enter(condition)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", interrupted)
        xid = new_xid()
        shop.assert_once(xid, app.submit("buy", BUY, xid))


def test_interrupted_as_the_event_loop_is_begun(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends with the App."""
    app, started, start = App(shop.conninfos()), list[threading.Thread](), threading.Thread.start

    def interrupted(thread: threading.Thread) -> NoReturn:
        start(thread)
        started.append(thread)
        raise TimeLimit

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(TimeLimit):
            app.resolve(new_xid())
    assert app.resolve(new_xid()) is None
    app.close()
    del app
    gc.collect()
    started[0].join(10)
    assert not started[0].is_alive()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
def test_interrupted_while_it_is_begun(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: str
) -> None:
    """Where the event loop has been told of the request, it is that which ends it, as it may be at it by now."""
    app, begun, ended = server(), threading.Event(), threading.Event()
    app.submit("buy", BUY)

    @app.transaction(sites=("store", "bank"))
    def waits(tx: Tx, request: Any) -> None:
        begun.set()
        try:
            tx.store.execute("SELECT pg_sleep(%s)", (PATIENCE,))
        finally:
            ended.set()

    loop = app._portal._loop
    assert loop is not None
    soon = loop.call_soon_threadsafe

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(loop, "call_soon_threadsafe", soon)
        if when == "after":
            soon(*args, **options)
            assert begun.wait(PATIENCE)
        raise error

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(error):
        app.submit("waits", None)
    assert when == "before" or ended.wait(PATIENCE)
    app.submit("buy", BUY)
    shop.assert_clean()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
def test_interrupted_on_the_way_to_another_loop(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: str
) -> None:
    """Nobody has it any more, so it is ended where it runs, as far as it has come."""
    portal, begun, ended = Portal("portal"), threading.Event(), threading.Event()
    threads: list[int] = []

    async def waits() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            threads.append(threading.get_ident())
            ended.set()

    portal.call(asyncio.sleep(0))
    loop = portal._loop
    assert loop is not None
    soon = loop.call_soon_threadsafe

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(loop, "call_soon_threadsafe", soon)
        if when == "after":
            soon(*args, **options)
            assert begun.wait(PATIENCE)
        raise error

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(error):
        asyncio.run(portal.reach(waits()))
    assert when == "before" or ended.wait(PATIENCE)
    assert portal._thread is not None
    assert threads == [portal._thread.ident] * (when == "after")
    portal.close()


CLOSED_BY_A_SIGNAL = """
import asyncio, faulthandler, signal, sys, pgmip, pgmip.sync
faulthandler.dump_traceback_later(60, exit=True)
twin, when, store, bank = sys.argv[1:]
if twin == "App":
    it = pgmip.sync.App({"store": store, "bank": bank})
    it.transaction(sites=("store", "bank"), name="nothing")(lambda tx, request: None)
else:
    it = pgmip.SyncClient(["http://127.0.0.1:9"], deadline=0.2)
signal.signal(signal.SIGTERM, lambda *_: it.close())

def interrupted(owner, name):
    real = getattr(owner, name)
    def once(*args, **options):
        setattr(owner, name, real)
        if when.endswith("before"):
            signal.raise_signal(signal.SIGTERM)
        done = real(*args, **options)
        if when.endswith("after"):
            signal.raise_signal(signal.SIGTERM)
        return done
    setattr(owner, name, once)

def submit():
    try:
        return it.submit("nothing", None)
    except pgmip.SubmitError as error:
        return type(error).__name__

if when.startswith("first"):
    interrupted(asyncio, "new_event_loop")
elif when.startswith("straight"):
    submit()
    interrupted(it._workers, "put")
else:
    if twin == "App":
        it.on_step(lambda step: None)
    submit()
    interrupted(it._portal._loop, "call_soon_threadsafe")
print(submit(), submit())
"""


MOMENTS = ["first, before", "first, after", "later, before", "later, after"]


@pytest.mark.parametrize(
    ("twin", "when"),
    [*product(["App", "SyncClient"], MOMENTS), ("App", "straight, before"), ("App", "straight, after")],
)
def test_a_signal_handler_that_closes_it(shop: Shop, twin: str, when: str) -> None:
    """In the middle of a call of the same thread, which then waits for nobody."""
    words = [sys.executable, "-c", CLOSED_BY_A_SIGNAL, twin, when, *shop.conninfos().values()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE + 30, check=False)
    first, second = ended.stdout.split() or ["nothing", ended.stderr]
    assert first in ("Unknown", "None")
    assert second == "Unknown"
    assert ended.returncode == 0
    shop.assert_clean()


NOBODY_CLOSES = """
import atexit, sys, threading
calls, told = [], []

@atexit.register  # before all others, so that it is called after them
def tell():
    for call in calls:
        call.join(60)
    print(*told)

import asyncio, pgmip, pgmip.sync, socket
begun, site = threading.Event(), sys.argv[1:]

def calling(submit):
    try:
        submit()
    except BaseException as error:
        told.append(type(error).__name__)

if site:
    app = pgmip.sync.App({"store": site[0]})

    async def hang(step):
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    app.on_step(hang)
    work = lambda: app.resolve("nobody closes it", sites=("store",))
else:
    server = socket.create_server(("127.0.0.1", 0))
    client = pgmip.SyncClient([f"http://127.0.0.1:{server.getsockname()[1]}"])
    work = lambda: client.submit("buy", 1)
calls.append(threading.Thread(target=calling, args=(work,), daemon=True))
calls[0].start()
site or server.accept()
not site or begun.wait(60)
"""


@pytest.mark.parametrize("twin", ["App", "SyncClient"])
def test_a_process_that_ends_meanwhile(shop: Shop, twin: str) -> None:
    """And has closed nothing. Its daemon threads, too, are told what is documented."""
    words = [sys.executable, "-c", NOBODY_CLOSES, *([shop.conninfos()["store"]] if twin == "App" else [])]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "Unknown", "")
    shop.assert_clean()


def test_it_takes_what_its_twin_takes() -> None:
    """Their signatures are written out twice, for those who read them."""

    def parameters(function: Any) -> dict[str, tuple[Any, Any]]:
        return {name: (one.kind, one.default) for name, one in inspect.signature(function).parameters.items()}

    assert parameters(App.__init__).pop("threads")
    assert {**parameters(App.__init__), "threads": None} == {**parameters(pgmip.App.__init__), "threads": None}
    public = {name for name in vars(pgmip.App) if not name.startswith("_")} & vars(App).keys()
    assert {"submit", "settle", "resolve", "acknowledge", "transaction", "close"} <= public
    for name in public:
        if callable(getattr(App, name)):
            assert parameters(getattr(App, name)) == parameters(getattr(pgmip.App, name)), name
