"""How what a server says is waited for: the event loop looks at a connection from one answer to the next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn
from unittest import mock

import psycopg
import pytest
from forked import in_a_child
from psycopg.abc import PQGen
from psycopg.waiting import Wait
from shop import BUY, Shop
from test_pool import until

from pgmip import App, NothingHappened, Tx
from pgmip._connection import ObedientConnection, cut
from pgmip._direct import ask
from pgmip._reader import Reader

pytestmark = pytest.mark.integration

Server = Callable[..., App]
MUCH = 12_000_000  # bytes, more than sockets have room for
PATIENCE = 60.0


@pytest.fixture
async def conn(shop: Shop) -> AsyncIterator[ObedientConnection]:
    conn = await ObedientConnection.connect(shop.conninfos()["store"], autocommit=True)
    pid = conn.info.backend_pid
    yield conn
    await conn.close()
    shop.sql("store", f"SELECT pg_terminate_backend({pid}, 60000)")


def looked_at() -> int:
    """How many descriptors the event loop looks at."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined]


def wakes() -> int:
    """How many of them have something to say, known to the loop or not."""
    return len(asyncio.get_running_loop()._selector._selector.poll(0.1))  # type: ignore[attr-defined]


async def sleeping(shop: Shop, conn: ObedientConnection) -> None:
    """Until the server is at a statement that does nothing but sleep."""
    runs = f"SELECT FROM pg_stat_activity WHERE pid = {conn.info.backend_pid} AND wait_event = 'PgSleep'"
    await until(lambda: bool(shop.sql("store", runs)))


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Meanwhile there is a process with a copy of all descriptors."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_one_answer_after_another(shop: Shop, conn: ObedientConnection) -> None:
    before = looked_at()
    for number in range(3):
        assert await ask(conn, b"SELECT $1::text", str(number)) == [(str(number).encode(),)]
        assert looked_at() == before + 1
    theirs = asyncio.create_task(conn.execute("SELECT pg_sleep(600)"))  # for which psycopg waits
    await sleeping(shop, conn)
    assert looked_at() == before + 1
    theirs.cancel()
    with pytest.raises(asyncio.CancelledError):
        await theirs
    assert looked_at() == before
    assert await ask(conn, b"SELECT $1::text", "x" * MUCH) == [(b"x" * MUCH,)]
    await ask(conn, b"SELECT 1")
    assert looked_at() == before + 1
    await conn.close()
    assert looked_at() == before


async def test_a_farewell(shop: Shop, conn: ObedientConnection) -> None:
    """Nobody waits for it; but the loop does not look again and again."""
    before = looked_at()
    await ask(conn, b"SELECT 1")
    shop.sql("store", f"SELECT pg_terminate_backend({conn.info.backend_pid}, 60000)")
    await until(lambda: looked_at() == before)
    with pytest.raises(psycopg.OperationalError):
        await ask(conn, b"SELECT 1")
    assert looked_at() == before


async def test_an_end_while_somebody_waits(conn: ObedientConnection) -> None:
    """libpq closes the descriptor then; where another process has it, too, the kernel would tell of it for ever."""
    before = looked_at()
    await ask(conn, b"SELECT 1")
    with forked():
        with pytest.raises(psycopg.OperationalError):
            await ask(conn, b"SELECT pg_terminate_backend(pg_backend_pid())")
        assert (looked_at(), wakes()) == (before, 0)


async def test_what_is_cut(conn: ObedientConnection) -> None:
    before = looked_at()
    waiting = asyncio.create_task(ask(conn, b"SELECT pg_sleep(600)"))
    await until(lambda: looked_at() == before + 1)
    cut(conn)
    with pytest.raises(psycopg.OperationalError):
        await waiting
    assert looked_at() == before


async def test_what_is_closed(conn: ObedientConnection) -> None:
    before = looked_at()
    waiting = asyncio.create_task(ask(conn, b"SELECT pg_sleep(600)"))
    await until(lambda: looked_at() == before + 1)
    await conn.close()
    with pytest.raises(psycopg.OperationalError, match="closed meanwhile"):
        await waiting
    assert looked_at() == before


@pytest.mark.parametrize("times", [1, 2])
async def test_what_is_cancelled(shop: Shop, conn: ObedientConnection, times: int) -> None:
    """The server ends the statement, and the connection is as good as before."""
    waiting = asyncio.create_task(ask(conn, b"SELECT pg_sleep(600)"))
    await sleeping(shop, conn)
    for _ in range(times):
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    assert await ask(conn, b"SELECT 1::text") == [(b"1",)]


def failing(conn: ObedientConnection) -> PQGen[None]:
    conn.pgconn.send_query(b"SELECT 1")
    yield Wait.R
    conn.pgconn.consume_input()
    raise psycopg.DataError("a bug")


def answers(conn: ObedientConnection) -> Coroutine[Any, Any, Any]:
    return ask(conn, b"SELECT 1::text")


def ends(conn: ObedientConnection) -> Coroutine[Any, Any, Any]:
    return ask(conn, b"SELECT pg_terminate_backend(pg_backend_pid())")


def fails(conn: ObedientConnection) -> Coroutine[Any, Any, Any]:
    return conn.exchange(failing(conn))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("work", [answers, ends, fails])
async def test_what_is_cancelled_as_its_answer_comes(
    conn: ObedientConnection, work: Callable[[ObedientConnection], Coroutine[Any, Any, Any]], behind: bool
) -> None:
    """Right before or behind it: it is read to its end all the same, and no error of it is left for nobody."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    tasks: list[asyncio.Task[Any]] = []
    readable = Reader._readable

    def interrupted(reader: Reader) -> None:
        answer = reader._answer
        assert answer is not None
        if not behind:
            tasks[0].cancel()
        readable(reader)
        if answer.done():
            tasks[0].cancel()

    async def obeyed() -> Any:
        """As a statement of an attempt that goes on behind an error of its site."""
        with contextlib.suppress(psycopg.Error):
            await work(conn)
        return "went on"

    with mock.patch.object(Reader, "_readable", interrupted):
        tasks.append(asyncio.create_task(obeyed()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
    tasks.clear()
    gc.collect()
    assert told == []
    if work is answers:
        assert await ask(conn, b"SELECT 2::text") == [(b"2",)]


async def test_its_request_is_not_kept(conn: ObedientConnection) -> None:
    class Scope:
        """What is of one request."""

    request = ContextVar[Scope]("request")

    async def first() -> weakref.ref[Scope]:
        scope = Scope()
        request.set(scope)
        await ask(conn, b"SELECT 1")
        return weakref.ref(scope)

    scope = await asyncio.create_task(first())
    await asyncio.sleep(0)  # until the event loop has done with the task
    gc.collect()
    assert scope() is None


async def test_what_nobody_has_any_more(shop: Shop) -> None:
    """Its session ends, as with psycopg."""
    conn = await ObedientConnection.connect(shop.conninfos()["store"], autocommit=True)
    await ask(conn, b"SELECT 1")
    before, pid = looked_at(), conn.info.backend_pid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del conn
        gc.collect()
    await until(lambda: not shop.sql("store", f"SELECT FROM pg_stat_activity WHERE pid = {pid}"))
    assert looked_at() == before - 1


async def test_a_forked_process_stops(conn: ObedientConnection) -> None:
    """Its parent's event loop looks on: they have one between them, in the kernel."""
    await ask(conn, b"SELECT 1")
    assert in_a_child(lambda: str(conn.reader.stop())) == "None"
    async with asyncio.timeout(PATIENCE):
        assert await ask(conn, b"SELECT 1::text") == [(b"1",)]


@pytest.mark.parametrize("waits", [False, True])
def test_one_loop_after_another(shop: Shop, waits: bool) -> None:
    """The first one is gone, perhaps in the midst of a statement; then nothing is left but to close."""

    async def begin() -> tuple[ObedientConnection, asyncio.Task[Any] | None]:
        conn = await ObedientConnection.connect(shop.conninfos()["store"], autocommit=True)
        await ask(conn, b"SELECT 1")
        if not waits:
            return conn, None
        task = asyncio.create_task(ask(conn, b"SELECT pg_sleep(600)"))
        await until(lambda: conn.reader._answer is not None)
        return conn, task

    async def go_on(conn: ObedientConnection) -> None:
        if not waits:
            assert await ask(conn, b"SELECT 1::text") == [(b"1",)]
        await conn.close()

    loop = asyncio.new_event_loop()
    conn, task = loop.run_until_complete(begin())
    pid = conn.info.backend_pid
    loop.close()
    asyncio.run(go_on(conn))
    assert conn.closed
    shop.sql("store", f"SELECT pg_terminate_backend({pid}, 60000)")
    if task is not None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_interrupted_before_anything_is_sent(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While what is prepared is being deallocated: nobody has ended the transaction, as there has been none."""
    app, told = server(pool_size=1), list[Any]()
    wait = ObedientConnection.wait

    async def waiting(conn: ObedientConnection, work: Any, *args: Any) -> Any:
        if getattr(work, "__name__", "") == "maintain_gen" and not told:
            await asyncio.Event().wait()
        return await wait(conn, work, *args)

    @app.transaction(sites=("store", "bank"))
    async def interrupts(tx: Tx, request: Any) -> None:
        for pool in app._pools.values():
            for conn in pool._made:
                conn._prepared._to_flush.append(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await tx.store.execute("SELECT 1")
        told.append("interrupted")
        told.append(await tx.store.fetch_one("SELECT 1"))

    monkeypatch.setattr(ObedientConnection, "wait", waiting)
    with pytest.raises(NothingHappened, match="was cancelled"):
        await app.submit("interrupts", None, attempts=1)
    assert told == ["interrupted", (1,)]
    shop.assert_clean()


async def test_no_descriptor_is_to_be_had(conn: ObedientConnection) -> None:
    def none(*_: Any) -> NoReturn:
        raise OSError("too many open files")

    with mock.patch.object(socket, "fromfd", none):
        assert await ask(conn, b"SELECT 1::text") == [(b"1",)]
    assert await ask(conn, b"SELECT 2::text") == [(b"2",)]


async def test_handlers_between(server: Server, shop: Shop) -> None:
    """psycopg and pgmip wait for the same connection in turns."""
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def mixed(tx: Tx, request: Any) -> Any:
        for _ in range(3):
            await tx.store.execute("SELECT 1")
            async with tx.bank.savepoint():
                await tx.bank.execute_many("SELECT %s", [(1,), (2,)])
        tx.store.finish_with("SELECT 1")
        return True

    for _ in range(3):
        assert await app.submit("mixed", None)
        await app.submit("buy", BUY)
    shop.assert_clean()
