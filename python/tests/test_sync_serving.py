"""What is made for an event loop takes the sync twin, too: sweepers, metrics, HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import prometheus_client
import pytest
from shop import Shop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from test_sweeper import prepare_at
from test_sync import BUY, PATIENCE, buy

from pgmip import App as AsyncApp
from pgmip._twin import within
from pgmip.http import Endpoint, IdempotencyMiddleware, asgi, tx
from pgmip.metrics import Metrics
from pgmip.sweeper import Event, EventName, Sweeper
from pgmip.sync import App
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[[], App]


@pytest.fixture
def server(shop: Shop) -> Iterator[Server]:
    with ExitStack() as stack:

        def make() -> App:
            app = stack.enter_context(App(shop.conninfos()))
            app.transaction(sites=("store", "bank"))(buy)
            return app

        yield make


def client_of(application: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://test")


# -- sweepers ----------------------------------------------------------------------------------------------------


def test_a_sweeper_without_an_event_loop(server: Server, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    finished = threading.Event()

    def on_event(event: Event) -> None:
        if (event.name, event.xid) == (EventName.COMMITTED, xid):
            finished.set()

    with Sweeper(server(), older_than=0, interval=0.1, jitter=0, on_event=on_event):
        assert finished.wait(PATIENCE)
    assert shop.effects(xid) != ([], [])
    shop.assert_clean()


async def test_a_sweeper_in_another_event_loop(server: Server, shop: Shop) -> None:
    first, second = new_xid(), new_xid()
    prepare_at(shop, first, "store")
    app = server()
    sweeper = Sweeper(app, older_than=0, interval=0.1, jitter=0)
    assert [(event.name, event.xid) for event in await sweeper.sweep()] == [(EventName.COMMITTED, first)]
    async with sweeper:
        prepare_at(shop, second, "store")
        async with asyncio.timeout(PATIENCE):
            while shop.effects(second) == ([], []):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    shop.assert_clean()


def test_an_async_app_needs_an_event_loop(shop: Shop) -> None:
    with pytest.raises(TypeError, match="async with"), Sweeper(AsyncApp(shop.conninfos())):
        pass


def test_a_sweeper_of_a_closed_app_says_so(shop: Shop) -> None:
    app = App(shop.conninfos())
    app.close()
    with pytest.raises(RuntimeError, match="closed"), Sweeper(app):
        pass


async def test_who_is_cancelled_gets_away_at_the_end(server: Server) -> None:
    """As with a pgmip.App: what is to be rolled back has been by then."""
    app = server()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    over = False

    async def work() -> None:
        nonlocal over
        try:
            loop.call_soon_threadsafe(began.set)
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.2)
            over = True

    task = asyncio.create_task(within(app, work()))
    await began.wait()
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over


async def test_closed_meanwhile(shop: Shop) -> None:
    app = App(shop.conninfos())
    task = asyncio.create_task(within(app, asyncio.sleep(PATIENCE)))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(app.close)
    with pytest.raises(RuntimeError, match="closed meanwhile"):
        await task


# -- metrics -----------------------------------------------------------------------------------------------------


def test_metrics(server: Server, shop: Shop) -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = Metrics(registry)
    app = server()
    app.observe(metrics)
    app.submit("buy", BUY)
    asyncio.run(metrics.look(app))
    prepare_at(shop, xid := new_xid(), "store")
    asyncio.run(metrics.look(app))
    assert registry.get_sample_value("pgmip_site_up", {"site": "bank"}) == 1
    assert registry.get_sample_value("pgmip_in_doubt", {"site": "store"}) == 1
    labels = {"operation": "submit", "transaction": "buy", "outcome": "ok"}
    assert registry.get_sample_value("pgmip_operations_total", labels) == 1
    app.resolve(xid)


# -- HTTP --------------------------------------------------------------------------------------------------------


async def test_a_resource(server: Server, shop: Shop) -> None:
    xid = new_xid()
    async with client_of(asgi(server())) as one, client_of(asgi(server())) as two:
        answers = [await client.post("/buy", headers={"Idempotency-Key": xid}, json=BUY) for client in (one, two)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content
        shop.assert_once(xid, answers[0].json())
        other = await one.post("/buy", headers={"Idempotency-Key": xid}, json={**BUY, "qty": 1})
        assert other.status_code == 422
        assert (await one.post("/-/acknowledge", json={"xids": [xid]})).json() == {"open": []}
        gone = await one.post("/buy", headers={"Idempotency-Key": xid}, json=BUY)
        assert gone.status_code == 410


async def test_many_at_a_time(server: Server, shop: Shop) -> None:
    """As many as there are threads for handlers: waiting for one takes none of the server's."""
    app = server()
    requests = 16
    together = threading.Barrier(requests, timeout=PATIENCE)

    @app.transaction(sites=("store",))
    def meet(tx: Any, request: Any) -> int:
        return together.wait()

    async with client_of(asgi(app)) as client:
        meeting = [client.post("/meet", headers={"Idempotency-Key": new_xid()}, json={}) for _ in range(requests)]
        assert {answer.status_code for answer in await asyncio.gather(*meeting)} == {200}


async def test_the_server_closes_it(shop: Shop) -> None:
    app = App(shop.conninfos())
    application = asgi(app)
    async with application.router.lifespan_context(application):
        pass
    with pytest.raises(RuntimeError, match="closed"):
        app._portal.call(asyncio.sleep(0))


async def test_a_sweeper_whose_app_is_closed(server: Server) -> None:
    """It ends with its App's event loop, and may be stopped as ever."""
    app = server()
    async with Sweeper(app):
        await asyncio.to_thread(app.close)
    app = server()
    sweeper = Sweeper(app)
    with sweeper:
        await asyncio.to_thread(app.close)
    sweeper.stop()


def sell(request: Request) -> Response:
    """An endpoint that is a plain function, and so runs in a thread."""
    transaction: Any = tx(request)
    result = buy(transaction, BUY)
    if request.headers.get("fail"):
        raise ValueError("as asked for")
    return JSONResponse({**result, "thread": threading.current_thread().name}, 201)


def endpoints(app: App) -> IdempotencyMiddleware:
    service = Starlette(routes=[Route("/sales", sell, methods=["POST"])])
    return IdempotencyMiddleware(service, app, [Endpoint("/sales", ("store", "bank"))], scope=None)


async def test_an_endpoint(server: Server, shop: Shop) -> None:
    key = {"Idempotency-Key": new_xid()}
    async with client_of(endpoints(server())) as one, client_of(endpoints(server())) as two:
        with pytest.raises(ValueError, match="as asked for"):
            await one.post("/sales", headers={**key, "fail": "1"})
        answers = [await client.post("/sales", headers=key) for client in (one, two)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["thread"] != threading.current_thread().name
    shop.assert_clean()


async def test_an_endpoint_that_a_sweeper_repeats(server: Server, shop: Shop) -> None:
    app, died = server(), server()

    def die(step: Any) -> None:
        if step.name == "prepared-first-site":
            raise asyncio.CancelledError

    died._app.parallel = False
    died.on_step(die)
    async with client_of(endpoints(died)) as client:
        with suppress(RuntimeError):
            await client.post("/sales", headers={"Idempotency-Key": "k"})
    ((xid,),) = shop.sql("store", "SELECT xid FROM mip.in_doubt")
    repeating = endpoints(app)
    assert {event.name for event in await Sweeper(app, older_than=0).sweep()} == {EventName.FAILED}, "no server yet"
    async with client_of(repeating) as client:
        assert (await client.get("/")).status_code == 404
        events = await Sweeper(app, older_than=0).sweep()
    assert [(event.name, event.xid) for event in events] == [(EventName.COMMITTED, xid)]
    shop.assert_clean()
