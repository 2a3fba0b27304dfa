"""What ends the thread of a sync App leaves nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

import pytest
from shop import Shop

from pgmip import SubmitError, SyncClient, Unknown, _portal, sync
from pgmip._portal import Closed, Portal
from pgmip._twin import inner, within
from pgmip.observe import Observer, Phase

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

PATIENCE = 20  # seconds, for what happens soon or never


@pytest.fixture
def app(shop: Shop) -> Iterator[sync.App]:
    app = sync.App(shop.conninfos(), deadline=5)

    @app.transaction(sites=("store", "bank"))
    def note(tx: Any, seconds: float) -> None:
        tx.store.execute("SELECT pg_sleep(%s)", (seconds,))

    yield app
    app.close()


def calling(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that calls it, and what it is told."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            answers.append(error)

    return begun(call), answers


def submitting(app: sync.App, seconds: float = 0) -> tuple[threading.Thread, list[Any]]:
    return calling(lambda: app.submit("note", seconds))


def begun(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> bool:
    for thread in threads:
        thread.join(PATIENCE)
    return not any(thread.is_alive() for thread in threads)


def run(portal: Portal, way: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Either way."""
    return portal.call(coroutine) if way == "call" else asyncio.run(portal.reach(coroutine))


def end_late(app: sync.App, error: type[BaseException]) -> threading.Event:
    """A callback ends the thread, but not at once; set when it is there."""
    there = threading.Event()

    def end(_: Any) -> None:
        there.set()
        time.sleep(0.3)
        raise error

    app.on_step(end)
    return there


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_by_a_callback(app: sync.App, error: type[BaseException]) -> None:
    def end(_: Any) -> None:
        raise error

    app.on_step(end)
    with pytest.raises((Unknown, error)):
        app.submit("note", 0)
    with pytest.raises(Unknown):
        app.submit("note", 0)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_who_has_just_called(app: sync.App, error: type[BaseException]) -> None:
    there = end_late(app, error)
    first, _ = submitting(app)
    assert there.wait(PATIENCE)
    second, answers = submitting(app)
    assert ended(first, second)
    assert isinstance(answers[0], Unknown), answers


def test_who_has_just_called_from_another_loop(app: sync.App) -> None:
    """In a thread of its own, as there a wait cannot be cancelled."""
    there = end_late(app, SystemExit)

    async def both() -> None:
        first = asyncio.create_task(within(app, inner(app)._answer("note", 0)))
        assert await asyncio.to_thread(there.wait, PATIENCE)
        await asyncio.gather(first, within(app, inner(app)._answer("note", 0)), return_exceptions=True)

    assert ended(begun(lambda: asyncio.run(both())))


def test_ended_again_by_what_is_cancelled(app: sync.App) -> None:
    class Exits(Observer):
        @contextlib.contextmanager
        def phase(self, phase: Phase) -> Iterator[None]:
            yield
            if phase.name == "submit":
                raise SystemExit

    app.observe(Exits())
    assert ended(*(submitting(app, seconds)[0] for seconds in (1.0, 1.0, 1.0, 0.2)))


@pytest.mark.parametrize("number", [20, 250])
def test_ended_again_by_many(number: int) -> None:
    portal, begun_there = Portal("a test"), list[None]()

    async def call() -> None:
        begun_there.append(None)
        try:
            await asyncio.sleep(3600)
        finally:
            raise SystemExit

    def submit() -> None:
        with contextlib.suppress(BaseException):
            portal.call(call())

    def end() -> None:
        raise SystemExit

    threads = [begun(submit) for _ in range(number)]
    while len(begun_there) < number:
        time.sleep(0.01)
    with contextlib.suppress(Closed):  # it may have ended by the time that it has been told
        portal.soon(end)
    assert ended(*threads)


@contextlib.contextmanager
def interrupting(handler: Callable[[], object]) -> Iterator[None]:
    """The main thread, in a moment."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupted_by_another_one_that_is_closed() -> None:
    """What it was at is cancelled where it runs."""
    portal, closed = Portal("a test"), Portal("another")
    ended_in: queue.Queue[threading.Thread] = queue.Queue()
    closed.close()

    async def call() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended_in.put(threading.current_thread())

    with interrupting(lambda: closed.soon(print)), pytest.raises(Closed, match="another"):
        portal.call(call())
    assert ended_in.get(timeout=PATIENCE) == portal._thread
    portal.close()


def test_what_has_ended_goes_in_its_own_thread() -> None:
    """Where it does so at the caller's, what a signal handler raises just then may be lost."""
    portal, went_in = Portal("a test"), set[threading.Thread]()

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        weakref.finalize(task, lambda: went_in.add(threading.current_thread()))

    for _ in range(200):
        portal.call(call())
    thread = portal._thread
    portal.close()
    assert went_in == {thread}


class Empty(Exception):
    def __len__(self) -> int:
        return 0


def test_it_raises_what_counts_as_false() -> None:
    portal = Portal("a test")

    async def call() -> None:
        raise Empty

    with pytest.raises(Empty):
        portal.call(call())
    portal.close()


@pytest.mark.parametrize("way", ["call", "reach"])
def test_it_cannot_be_begun(way: str) -> None:
    portal = Portal("a test")

    async def refuse() -> None:
        def make(*_: Any, **__: Any) -> NoReturn:
            loop.set_task_factory(None)
            raise MemoryError

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        loop.set_task_factory(make)

    portal.call(refuse())
    caller, answers = calling(lambda: run(portal, way, asyncio.sleep(0)))
    assert ended(caller)
    assert [type(answer) for answer in answers] == [MemoryError]
    portal.close()
    assert not portal._state.waits


class Late(RuntimeError):
    """As a signal handler may raise."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Late])
def test_closed_once_more_where_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Before the loop has heard of it."""
    portal = Portal("a test")
    portal.call(asyncio.sleep(0))
    thread = portal._thread
    assert thread is not None

    def interrupted(*_: Any) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(portal._loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(error):
            portal.close()
    assert ended(begun(portal.close), thread)


@pytest.mark.parametrize("way", ["call", "reach"])
def test_interrupted_before_it_is_told(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Nothing of it is left."""
    portal = Portal("a test")
    portal.call(asyncio.sleep(0))
    assert portal._loop is not None
    tell = portal._loop.call_soon_threadsafe

    def interrupted(*_: Any) -> NoReturn:
        monkeypatch.setattr(portal._loop, "call_soon_threadsafe", tell)
        raise Late

    monkeypatch.setattr(portal._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(Late):
        run(portal, way, asyncio.sleep(0))
    portal.call(asyncio.sleep(0))
    assert not portal._state.waits
    portal.close()


@pytest.mark.parametrize("way", ["call", "reach"])
def test_it_comes_as_the_loop_ends(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Before who has told it has gone on: he is told what it came to."""
    portal = Portal("a test")
    portal.call(asyncio.sleep(0))
    thread, loop = portal._thread, portal._loop
    assert thread is not None
    assert loop is not None
    tell = loop.call_soon_threadsafe

    def slowly(*args: Any) -> None:
        tell(*args)
        thread.join(PATIENCE)

    def end() -> None:
        raise SystemExit

    async def call() -> int:
        loop.call_soon(end)
        return 7

    monkeypatch.setattr(loop, "call_soon_threadsafe", slowly)
    assert run(portal, way, call()) == 7


def test_closed_once_more_where_it_was_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal handler, as the thread was begun."""
    portal, start = Portal("a test"), threading.Thread.start

    def close(thread: threading.Thread) -> None:
        start(thread)
        portal.close()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", close)
        with pytest.raises(Closed):
            portal.call(asyncio.sleep(0))
    assert portal._thread is not None
    assert ended(begun(portal.close), portal._thread)


def test_no_thread_can_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops are closed that were made for them."""
    portal, made, make = Portal("a test"), list[asyncio.AbstractEventLoop](), asyncio.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    def refuse(thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "new_event_loop", noted)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="new thread"):
                portal.call(asyncio.sleep(0))
    assert [loop.is_closed() for loop in made] == [True] * 3
    portal.call(asyncio.sleep(0))
    portal.close()


@pytest.mark.parametrize("way", ["call", "reach"])
@pytest.mark.parametrize("looks", [1, 2])
def test_told_while_the_loop_is_being_closed(monkeypatch: pytest.MonkeyPatch, looks: int, way: str) -> None:
    """Behind a look at what is left: behind the first it is still begun, behind the last it never is."""
    portal, looked, told = Portal("a test"), threading.Semaphore(0), threading.Event()
    portal.call(asyncio.sleep(0))
    assert portal._loop is not None
    tell, cancel = portal._loop.call_soon_threadsafe, _portal._cancel_what_is_left
    noise: list[object] = []
    portal._loop.set_exception_handler(lambda _, context: noise.append(context))

    def look(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal looks
        cancel(loop)
        looks -= 1
        if looks == 0:
            looked.release()
            assert told.wait(PATIENCE)

    def end() -> None:
        raise SystemExit

    def late(*args: Any, **kwargs: Any) -> Any:
        tell(end)
        assert looked.acquire(timeout=PATIENCE)
        monkeypatch.undo()
        try:
            return tell(*args, **kwargs)
        finally:
            told.set()

    monkeypatch.setattr(_portal, "_cancel_what_is_left", look)
    monkeypatch.setattr(portal._loop, "call_soon_threadsafe", late)
    assert portal._thread is not None
    caller, answers = calling(lambda: run(portal, way, asyncio.sleep(3600)))
    assert ended(caller, portal._thread)
    assert isinstance(answers.pop(), Closed)
    gc.collect()  # a task or a coroutine left behind would say so
    assert not noise


def test_while_a_pool_connects(shop: Shop) -> None:
    """Its worker, which psycopg_pool has, goes on when it is cancelled then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=nothing"
        app = sync.App({**shop.conninfos(), "silent": address}, step_timeout=2, deadline=5)

        @app.transaction(sites=("silent",))
        def wait(tx: Any, _: Any) -> None:
            pass

        @app.transaction(sites=("store",))
        def note(tx: Any, _: Any) -> None:
            tx.store.execute("SELECT")

        def end(_: Any) -> None:
            raise SystemExit

        app.on_step(end)

        def submit(name: str) -> None:
            with contextlib.suppress(BaseException):
                app.submit(name, None)

        first = begun(lambda: submit("wait"))
        with silent.accept()[0]:
            second = begun(lambda: submit("note"))
            assert ended(first, second)
            assert ended(begun(app.close))


def test_no_connection_outlives_closing(shop: Shop) -> None:
    app = sync.App({site: f"{conninfo} application_name=outlives" for site, conninfo in shop.conninfos().items()})

    @app.transaction(sites=("store", "bank"))
    def note(tx: Any, _: Any) -> None:
        tx.store.execute("SELECT pg_sleep(0.1)")

    def end(_: Any) -> None:
        raise SystemExit

    assert ended(*[begun(lambda: app.submit("note", None)) for _ in range(3)])
    app.on_step(end)
    with pytest.raises(Unknown):
        app.submit("note", None)
    assert ended(begun(app.close))
    until = time.monotonic() + PATIENCE
    sql = "SELECT FROM pg_stat_activity WHERE application_name = 'outlives'"
    while any(shop.sql(site, sql) for site in shop.clusters):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert app.transactions  # it is still there itself, and so are its pools


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the task that was begun last
def test_closed_beside_what_begins_anew() -> None:
    """As what a supervisor begins whenever it has ended."""
    portal, tasks = Portal("a test"), list[asyncio.Task[None]]()

    async def supervise(_: Any = None) -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(3600)))
        tasks[-1].add_done_callback(lambda _: None if over else again())

    def again() -> None:
        tasks.append(asyncio.create_task(supervise()))

    over = False
    portal.call(supervise())
    closing = begun(portal.close)
    try:
        assert ended(closing)
    finally:
        over = True
        tasks.clear()
        del portal, closing
        gc.collect()  # here, where it is expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what asyncio wanted to run in it
def test_in_a_loop_that_cannot_run_any_more() -> None:
    """Somebody has closed its descriptor, which is another one's then."""
    portal = Portal("a test")
    portal.call(asyncio.sleep(0))
    assert portal._thread is not None
    selector = portal._loop._selector  # type: ignore[union-attr]
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), selector.fileno())
    with contextlib.suppress(Closed):
        portal.soon(lambda: None)
    assert ended(portal._thread)
    del portal, selector
    gc.collect()  # here, where it is expected


@pytest.mark.parametrize("twin", ["App", "Client"])
def test_closed_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch, twin: str) -> None:
    """Which takes its time, and cannot be called off."""
    found, looked_up = threading.Event(), socket.getaddrinfo

    def slow(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in ("nowhere.example", b"nowhere.example"):
            found.wait(PATIENCE)
            raise socket.gaierror("no such name")
        return looked_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    if twin == "App":
        app = sync.App({"store": "host=nowhere.example"}, deadline=0.3, step_timeout=0.3)
        app.transaction(sites=("store",), name="note")(lambda tx, request: None)
        submit, close = app.submit, lambda: app.close(grace=0.1)
    else:
        client = SyncClient(["http://nowhere.example:1"], deadline=0.3, connect_timeout=0.3, timeout=0.3)
        submit, close = client.submit, client.close
    with pytest.raises(SubmitError):
        submit("note", None)
    closing = begun(close)
    closing.join(PATIENCE / 2)
    assert not closing.is_alive()
    found.set()
