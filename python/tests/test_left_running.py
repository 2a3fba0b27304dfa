"""A handler ends while a statement of it still runs: whatever becomes of the connection, the statement comes to its end
first, here and at the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from proxy import Proxy
from shop import BUY, Shop

from pgmip import App, NothingHappened, Tx, _attempt

pytestmark = pytest.mark.integration

Server = Callable[..., App]
PATIENCE = 30  # seconds, for what happens soon or never


@pytest.fixture
async def store(shop: Shop) -> AsyncIterator[Proxy]:
    async with Proxy(shop.clusters["store"].port) as proxy:
        yield proxy


def careless(app: App, shop: Shop, then: Callable[[], Awaitable[None]]) -> list[asyncio.Task[Any]]:
    """Register a handler of this name, which leaves a statement running, does `then` and returns. The statements."""
    left: list[asyncio.Task[Any]] = []

    async def careless(tx: Tx, request: Any) -> None:
        left.append(asyncio.create_task(tx.store.execute("SELECT pg_sleep(600)")))
        async with asyncio.timeout(PATIENCE):
            while not shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await then()

    app.transaction(sites=("store", "bank"))(careless)
    return left


async def assert_ended(left: list[asyncio.Task[Any]], waited_for: list[int]) -> None:
    (statement,) = left
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(psycopg.OperationalError):
            await statement
    assert waited_for == [], "closed under somebody who was waiting"


async def test_the_server_cannot_be_told_to_end_it(
    server: Server, shop: Shop, store: Proxy, waited_for: list[int]
) -> None:
    app = server(shop.conninfos(store=store.port))

    async def refuse() -> None:
        store.refuse()

    left = careless(app, shop, refuse)
    with pytest.raises(NothingHappened, match="left a statement running"):
        await app.submit("careless", None)
    await assert_ended(left, waited_for)
    ((pid,),) = shop.sql("store", "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    shop.sql("store", f"SELECT pg_terminate_backend({pid})")  # which has nobody to answer to
    shop.assert_clean()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_it_is_what_the_site_hears_first(
    server: Server, shop: Shop, waited_for: list[int], cancelled: bool
) -> None:
    """While the library is about to let the site know of the instance: that does not wait for it."""
    app, left, runs = server(), list[asyncio.Task[Any]](), asyncio.Event()

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        def leave() -> None:
            left.append(asyncio.create_task(tx.store.execute("SELECT pg_sleep(600)")))

        asyncio.get_running_loop().call_soon(leave)
        time.sleep(2 * _attempt._UNSEEN)  # noqa: ASYNC251
        async with asyncio.timeout(PATIENCE):
            while not shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        runs.set()
        if cancelled:
            await asyncio.Event().wait()

    submitted = asyncio.create_task(app.submit("slow", None))
    async with asyncio.timeout(PATIENCE):
        await runs.wait()
        if cancelled:
            submitted.cancel()
        error = asyncio.CancelledError if cancelled else NothingHappened
        with pytest.raises(error, match=None if cancelled else "left a statement running"):
            await submitted
    await assert_ended(left, waited_for)
    shop.assert_clean()


async def test_whoever_submitted_is_cancelled(server: Server, shop: Shop, waited_for: list[int]) -> None:
    """No transaction stays open, though the handler has not ended what it began."""
    app = server()
    runs = asyncio.Event()

    async def wait() -> None:
        runs.set()
        await asyncio.Event().wait()

    left = careless(app, shop, wait)
    submitted = asyncio.create_task(app.submit("careless", None))
    async with asyncio.timeout(PATIENCE):
        await runs.wait()
        submitted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitted
    await assert_ended(left, waited_for)
    shop.assert_clean()
    await app.submit("buy", BUY)
    shop.assert_clean()
