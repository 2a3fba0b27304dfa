"""An App belongs to the event loop that uses it first, and says so to others."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from shop import BUY, Shop, make_app

from pgmip import App

pytestmark = pytest.mark.integration



@pytest.fixture
def app(shop: Shop) -> Iterator[App]:
    app = make_app(shop.conninfos())
    yield app
    asyncio.run(app.close())


async def enter(app: App) -> None:
    async with app:
        pass


CALLS: dict[str, Callable[[App], Awaitable[Any]]] = {
    "submit": lambda app: app.submit("buy", BUY),
    "settle": lambda app: app.settle("x"),
    "resolve": lambda app: app.resolve("x"),
    "acknowledge": lambda app: app.acknowledge("x"),
    "async with": enter,
}


def connected(shop: Shop) -> int:
    return len(shop.sql("store", "SELECT FROM pg_stat_activity WHERE application_name = 'in a loop'"))


@pytest.mark.parametrize("call", CALLS)
def test_another_one_is_refused(shop: Shop, app: App, call: str) -> None:
    async def again() -> None:
        with pytest.raises(RuntimeError, match=r"another event loop.*make one for each"):
            await CALLS[call](app)

    asyncio.run(CALLS["submit"](app))  # type: ignore[arg-type]
    asyncio.run(again())
    shop.assert_clean()


def test_closing_behind_it(shop: Shop) -> None:
    """Whatever was open there is closed, and nothing is raised, nor later on."""
    conninfos = {site: f"{conninfo} application_name='in a loop'" for site, conninfo in shop.conninfos().items()}
    app = make_app(conninfos)
    asyncio.run(app.submit("buy", BUY))
    assert connected(shop)
    asyncio.run(app.close())
    asyncio.run(app.close(grace=0))
    for _ in range(600):
        if not connected(shop):
            break
        threading.Event().wait(0.1)
    assert not connected(shop)
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(app.submit("buy", BUY))
    del app
    gc.collect()


def test_closing_it_from_beside_is_refused(app: App) -> None:
    """There are connections, and maybe requests, that only the first event loop can end."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.submit("buy", BUY))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(app.close())
    loop.run_until_complete(app.submit("buy", BUY))  # unharmed
    loop.run_until_complete(app.close())
    loop.close()
