"""What was said not to have happened does not, whoever else is at it and has not begun its SQL yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pgmip import App
from pgmip.client import Client
from pgmip.http import Endpoint, IdempotencyMiddleware, asgi, tx
from pgmip.xinst import new_xid
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from faults import auditor
from faults.client import Log, Recorder, call
from faults.handlers import FAIL_AFTER, SITES, TRANSACTIONS, Handler

from .conftest import Day

pytestmark = pytest.mark.asyncio
PAUSE = 1.5
IN_DOUBT = "SELECT FROM mip.in_doubt"


@pytest.fixture(autouse=True)
def _nothing_holds_anything_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditor, "LATE", 0.5)
    # Every attempt is well, but for what the test has its handlers do.
    monkeypatch.setattr("faults.handlers.random.choice", lambda among: among[0])


well: Handler = TRANSACTIONS["waver"].handler


class Wait:
    """A handler that waits before its first SQL, until it may go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, tx: Any, request: Any) -> Any:
        self.entered.set()
        await self.may_go_on.wait()
        return await well(tx, request)


@asynccontextmanager
async def server(day: Day, handler: Handler) -> AsyncIterator[App]:
    async with App({site: day.cluster.conninfo(site) for site in SITES}) as app:
        app.transaction(sites=SITES, name="waver")(handler)
        yield app


@asynccontextmanager
async def customer(
    day: Day, name: str, application: Any, *, patience: float = 2 * PAUSE
) -> AsyncIterator[Callable[[str], Any]]:
    """Somebody who asks one server; what he is told is in the log."""
    log = Log(day.folder / f"{name}.requests")
    transport = Recorder(log, name, httpx.ASGITransport(application))
    async with Client([f"http://{name}"], deadline=patience, transport=transport, trust_env=False) as client:
        yield lambda key: asyncio.create_task(call(client, log, "waver", {}, key))


async def in_effect(day: Day, key: str) -> bool:
    query = f"SELECT count(*) FROM effect WHERE e_key = '{key}'"
    return await asyncio.to_thread(lambda: day.cluster.run_sql(query, dbname="ash")) == [(1,)]


async def test_a_sweeper_that_has_not_begun(day: Day) -> None:
    """The one client's attempt is prepared at some sites, and fails at the last; meanwhile it has been adopted."""
    key, wait = new_xid(), Wait()

    async def fail_late(tx: Any, request: Any) -> Any:
        result = await well(tx, request)
        tx["cedar"].finish_with(FAIL_AFTER, (PAUSE,))
        return result

    async with server(day, fail_late) as app, server(day, wait) as other, customer(day, "one", asgi(app)) as ask:
        told = ask(key)
        while not await asyncio.to_thread(day.cluster.run_sql, IN_DOUBT, dbname="ash"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        sweeper = asyncio.create_task(other.settle(key))
        await wait.entered.wait()
        await told
        wait.may_go_on.set()
        await asyncio.gather(sweeper, return_exceptions=True)
        await other.resolve(key)
        assert day.audit() == set()


async def test_a_second_server_that_has_not_begun(day: Day) -> None:
    key, wait = new_xid(), Wait()

    async def fail(tx: Any, request: Any) -> Any:
        raise ValueError

    async with (
        server(day, wait) as first, customer(day, "one", asgi(first), patience=60) as ask_first,
        server(day, fail) as second, customer(day, "two", asgi(second)) as ask_second,
    ):  # fmt: skip
        told = ask_first(key)
        await wait.entered.wait()
        await asyncio.sleep(PAUSE)
        await ask_second(key)
        wait.may_go_on.set()
        assert await told is None
        assert await in_effect(day, key)
        assert day.audit() == set()


async def test_refused_while_the_first_request_runs(day: Day) -> None:
    key = new_xid()
    entered, may_go_on = asyncio.Event(), asyncio.Event()

    async def endpoint(request: Request) -> Response:
        result = await well(_Named(tx(request), key), {})
        entered.set()
        await may_go_on.wait()
        return JSONResponse(result)

    async with App({site: day.cluster.conninfo(site) for site in SITES}) as app:
        routes = [Route("/waver", endpoint, methods=["POST"])]
        application = IdempotencyMiddleware(
            Starlette(routes=routes), app, [Endpoint("/waver", SITES)], scope=None, concurrent="refuse"
        )
        async with (
            customer(day, "one", application, patience=60) as ask_first,
            customer(day, "two", application) as ask_second,
        ):
            told = ask_first(key)
            await entered.wait()
            await ask_second(key)
            may_go_on.set()
            assert await told is None
        assert await in_effect(day, key)
        assert day.audit() == set()


class _Named:
    """The transaction of an endpoint, whose XID is not what its client calls it."""

    def __init__(self, tx: Any, xid: str) -> None:
        self.xid = xid
        self._tx = tx

    def __getitem__(self, site: str) -> Any:
        return self._tx[site]
