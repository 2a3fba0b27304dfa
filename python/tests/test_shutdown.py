"""The end of a request before its end: cancelled at every message, or its server shut down. Nothing stays open."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import pytest
from proxy import Direction, Proxy
from shop import ORDER, PAYMENT, Shop

from pgmip import App, Decided, Refuse, Refused, Step, Tx, Unknown, sync
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
BUY = {"item": 1, "qty": 1}


@pytest.fixture
async def proxies(shop: Shop) -> AsyncIterator[dict[str, Proxy]]:
    async with AsyncExitStack() as stack:
        yield {site: await stack.enter_async_context(Proxy(cluster.port)) for site, cluster in shop.clusters.items()}


def behind(server: Server, shop: Shop, proxies: dict[str, Proxy], **parameters: Any) -> App:
    return server(shop.conninfos(**{site: proxy.port for site, proxy in proxies.items()}), **parameters)


def assert_nothing_open(shop: Shop) -> None:
    for site in shop.clusters:
        shop.assert_no_open_transaction(site)


async def hang_at(app: App, step_name: str) -> asyncio.Event:
    """Have the app's first request hang at a step; set when it does."""
    reached = asyncio.Event()

    async def hang(step: Step) -> None:
        if step.name == step_name and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    app.on_step(hang)
    return reached


# -- cancellation ------------------------------------------------------------------------------------------------


async def test_cancelled_at_every_message(server: Server, shop: Shop, proxies: dict[str, Proxy]) -> None:
    """Over the only connection that a site's pool has, so that one that is lost would be missed."""
    app, other = behind(server, shop, proxies, pool_size=1), server()
    count = 0
    for last in range(1000):
        count, xid = 0, new_xid()
        task = asyncio.create_task(app.submit("buy", BUY, xid=xid))

        def cancel(_: Direction, task: asyncio.Task[Any] = task, last: int = last) -> None:
            nonlocal count
            if count == last:
                task.cancel()
            count += 1

        for proxy in proxies.values():
            proxy.on_message = cancel
        await asyncio.wait({task})
        for proxy in proxies.values():
            proxy.on_message = lambda _: None
        assert_nothing_open(shop)
        result = await other.submit("buy", BUY, xid=xid)
        shop.assert_once(xid, result)
        if not task.cancelled():
            assert task.result() == result
            break
    assert last > 20
    assert await app.submit("buy", BUY, xid=xid) == result
    shop.assert_clean()


async def test_cancelled_while_a_statement_waits(server: Server, shop: Shop) -> None:
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        await tx.bank.execute("SELECT 1")
        await tx.store.execute("SELECT pg_sleep(600)")

    for _ in range(3):
        task = asyncio.create_task(app.submit("slow", None))
        async with asyncio.timeout(60):
            while not shop.sql("store", "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        task.cancel()  # whoever is in a hurry does not get away earlier
        with pytest.raises(asyncio.CancelledError):
            await task
        assert shop.sql("store", "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == []
        assert_nothing_open(shop)
    await app.submit("buy", BUY)
    shop.assert_clean()


# -- shutdown ----------------------------------------------------------------------------------------------------


async def test_shutdown_lets_requests_finish(server: Server, shop: Shop) -> None:
    app = server()
    reached, release = asyncio.Event(), asyncio.Event()

    async def hold(step: Step) -> None:
        reached.set()
        await release.wait()

    app.on_step(hold)
    running = asyncio.create_task(app.submit("buy", BUY, xid="finishes"))
    await reached.wait()
    closing = asyncio.create_task(app.close(grace=3600))
    await asyncio.sleep(0)
    with pytest.raises(Unknown, match="another server"):
        await app.submit("buy", BUY, xid="too late")
    assert not closing.done()
    release.set()
    shop.assert_once("finishes", await running)
    await closing
    shop.assert_never("too late")
    shop.assert_clean()


@pytest.mark.parametrize(
    "step_name", ["begun", "prepared-first-site", "prepared-all", "committed-first-site", "committed-all"]
)
async def test_shutdown_ends_what_does_not_finish(server: Server, shop: Shop, step_name: str) -> None:
    app = server(parallel=False)
    reached = await hang_at(app, step_name)
    running = asyncio.create_task(app.submit("buy", BUY, xid=step_name))
    await reached.wait()
    await app.close(grace=0.05)
    assert running.done(), "closed means that nothing runs any more"
    with pytest.raises(Unknown, match="another server"):
        await running
    assert_nothing_open(shop)
    shop.assert_once(step_name, await server().submit("buy", BUY, xid=step_name))
    shop.assert_clean()


async def test_shutdown_in_a_hurry(server: Server, shop: Shop) -> None:
    """A second call waits no longer, and neither call returns before the end."""
    app = server()
    reached = await hang_at(app, "begun")
    running = asyncio.create_task(app.submit("buy", BUY, xid="hurry"))
    await reached.wait()
    patient = asyncio.create_task(app.close(grace=3600))
    await asyncio.sleep(0)
    await app.close(grace=0)
    await patient
    with pytest.raises(Unknown):
        await running
    shop.assert_never("hurry")
    shop.assert_clean()


REQUESTS = 24


def told(answer: Any) -> Any:
    """Of a request: its result, or what it was refused with. None where that is open. Nothing else may be told."""
    match answer:
        case Refused() | Decided():
            return answer.result
        case Unknown():
            return None
        case BaseException():
            raise answer
    return answer


@pytest.mark.parametrize("seed", range(6))
async def test_shutdown_in_the_middle_of_everything(server: Server, shop: Shop, seed: int) -> None:
    """Some requests are refused, some wait for others' rows or for a connection, and some come too late."""
    chance, xids = random.Random(seed), [new_xid() for _ in range(REQUESTS)]
    first, second = server(pool_size=3), server()
    names = ["decline" if number % 3 == 0 else "buy" for number in range(REQUESTS)]
    enough, steps = asyncio.Event(), chance.randrange(60)

    def count(_: Step) -> None:
        nonlocal steps
        steps -= 1
        if steps <= 0:
            enough.set()

    first.on_step(count)
    running = [asyncio.create_task(first.submit(name, BUY, xid=xid)) for name, xid in zip(names, xids, strict=True)]
    await enough.wait()
    async with asyncio.timeout(60):
        await asyncio.gather(*(first.close(grace=chance.choice((0, 0, 0.02, 5))) for _ in range(2)))
    assert all(task.done() for task in running)
    assert_nothing_open(shop)
    before = [told(answer) for answer in await asyncio.gather(*running, return_exceptions=True)]
    after = [
        told(answer)
        for answer in await asyncio.gather(
            *(second.submit(name, BUY, xid=xid) for name, xid in zip(names, xids, strict=True)), return_exceptions=True
        )
    ]
    for name, xid, early, late in zip(names, xids, before, after, strict=True):
        assert early in (None, late)
        if name == "buy":
            shop.assert_once(xid, late)
        else:
            shop.assert_never(xid)
    shop.assert_clean()


@pytest.mark.parametrize("seed", range(4))
def test_shutdown_beside_threads(shop: Shop, seed: int) -> None:
    """That submit, and go on to do so."""
    chance = random.Random(seed)
    first, second = (_in_threads(shop) for _ in range(2))
    xids = [new_xid() for _ in range(REQUESTS)]
    some = threading.Event()
    first.on_step(lambda step: some.set() if step.name == chance.choice(("begun", "prepared-all")) else None)

    def submit(app: sync.App, xid: str) -> Any:
        try:
            return app.submit("note", xid in xids[::3], xid)
        except (Unknown, Decided, Refused) as error:
            return error

    with ThreadPoolExecutor(8) as callers:
        running: list[Future[Any]] = [callers.submit(submit, first, xid) for xid in xids]
        assert some.wait(60)
        for closing in [callers.submit(first.close, grace=chance.choice((0, 0.02, 5))) for _ in range(2)]:
            closing.result(60)
        before = [told(one.result(60)) for one in running]
        assert_nothing_open(shop)
        after = [told(answer) for answer in callers.map(lambda xid: submit(second, xid), xids)]
        second.close()
    for xid, early, late in zip(xids, before, after, strict=True):
        assert early in (None, late)
        if xid in xids[::3]:
            shop.assert_never(xid)
        else:
            shop.assert_once(xid, late)
    shop.assert_clean()


def _in_threads(shop: Shop) -> sync.App:
    app = sync.App(shop.conninfos(), threads=4)

    @app.transaction(sites=("store", "bank"))
    def note(tx: Any, refuses: bool) -> Any:
        tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        if refuses:
            raise Refuse(tx.xinst)
        return {"xinst": tx.xinst}

    return app
