"""Processes that are forked while requests run. Theirs is a copy of all that the parent has, its sockets included."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from forked import in_a_child, refusal
from shop import BUY, ORDER, PAYMENT, SCHEMA, Shop, pausing

from pgmip import App, Tx, sync
from pgmip.sweeper import Sweeper
from pgmip.xinst import new_xid

Server = Callable[..., App]
PATIENCE = 60.0


def in_another(work: Callable[[], Awaitable[Any]]) -> str:
    """What is told of this in a child, in an event loop of its own."""

    async def begin() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await work()

    return in_a_child(lambda: refusal(lambda: asyncio.run(begin())))


@pytest.mark.integration
async def test_a_child_of_a_handler(server: Server, shop: Shop) -> None:
    """It has the transaction, too: what it says there would be the parent's."""
    app, xid, told = server(), new_xid(), list[str]()

    @app.transaction(sites=("store", "bank"))
    async def forks(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))

        async def copies() -> None:
            async with tx.store.copy("COPY orders (qty) FROM STDIN") as copy:
                await copy.write_row((1,))

        async def finishes() -> None:
            tx.store.finish_with("DELETE FROM orders")

        with tx.store._branch._returning:  # as a thread of a sync App's handler may do
            told.append(in_another(finishes))
        for work in (
            lambda: tx.store.execute("DELETE FROM orders"), lambda: tx.bank.fetch_one("SELECT 1"), copies, finishes,
            lambda: tx.store.execute_many("SELECT %s", [(1,), (2,)]), lambda: tx.store.savepoint().__aenter__(),
            lambda: app.settle("x"),
        ):  # fmt: skip
            told.append(in_another(work))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    result = await app.submit("forks", None, xid=xid)
    assert [("forked" in one, one) for one in told[:-1]] == [(True, one) for one in told[:-1]]
    assert "within a handler" in told[-1]
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.integration
async def test_a_child_of_a_server(server: Server, shop: Shop) -> None:
    """Beside requests that run, and others that come."""
    app = server()
    begun, go_on = pausing(app, "waits")
    xids = [new_xid() for _ in range(3)]
    async with Sweeper(app):
        running = [asyncio.create_task(app.submit("waits", None, xid=xid)) for xid in xids]
        await begun.wait()
        for work in (
            lambda: app.submit("buy", BUY), lambda: app.resolve(xids[0]), lambda: app.settle(xids[0]),
            lambda: app.acknowledge(xids[0]), app.close,
        ):  # fmt: skip
            assert "forked" in in_another(work)
        await app.submit("buy", BUY)
        go_on.set()
        for xid, result in zip(xids, await asyncio.gather(*running), strict=True):
            shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.fixture
def threads(shop: Shop) -> Iterator[sync.App]:
    app = sync.App(shop.conninfos())

    @app.transaction(sites=("store", "bank"))
    def note(tx: sync.Tx, request: Any) -> Any:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    yield app
    app.close()


@pytest.mark.integration
def test_a_child_of_threads(threads: sync.App, shop: Shop) -> None:
    threads.submit("note", None)

    for call in (lambda: threads.submit("note", None), lambda: threads.settle("x"), threads.close):
        assert "forked" in in_a_child(lambda call=call: refusal(call))  # type: ignore[misc]
    threads.submit("note", None)
    shop.assert_clean()


@pytest.mark.integration
def test_a_fork_before_it_is_none_of_our_business(threads: sync.App, shop: Shop) -> None:
    xid = new_xid()
    told = in_a_child(lambda: str(threads.submit("note", None, xid)["xinst"]))
    result = threads.submit("note", None, xid)
    assert told == str(result["xinst"])
    shop.assert_once(xid, result)
    shop.assert_clean()


@pytest.mark.integration
def test_a_child_that_ends_as_processes_do(shop: Shop) -> None:
    """With all that an interpreter finishes at its end. The parent's request is at work meanwhile, in threads."""
    xid = new_xid()
    words = [sys.executable, __file__, xid, *shop.conninfos().values()]
    told = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    shop.assert_once(xid, {"xinst": int(told.stdout)})
    shop.assert_clean()


def main(xid: str, *conninfos: str) -> None:
    """Fork while a handler is at work. The child ends; then the parent goes on."""
    app = sync.App(dict(zip(SCHEMA, conninfos, strict=True)))
    begun, go_on = threading.Event(), threading.Event()

    @app.transaction(sites=("store", "bank"))
    def waits(tx: Any, request: Any) -> Any:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        begun.set()
        assert go_on.wait(PATIENCE)
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    thread = ThreadPoolExecutor(1)
    running = thread.submit(app.submit, "waits", None, xid)
    assert begun.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        sys.exit()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    go_on.set()
    print(running.result(PATIENCE)["xinst"])
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
