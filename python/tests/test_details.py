"""What an HTTP client gets to know of an error: that it has happened, and what that means; the rest is for the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from shop import BUY, Shop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from test_middleware import ENDPOINTS, SITES, Server, client_of, key
from web import FakeApp

from pgmip import (
    App,
    Cancelled,
    Decided,
    EarlierLost,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refused,
    SiteDown,
    SubmitError,
    Tx,
    Unknown,
)
from pgmip.http import Endpoint, IdempotencyMiddleware, asgi, tx
from pgmip.logs import JsonFormatter
from pgmip.xinst import new_xid

SECRET = "Key (card)=(4111-1111-1111-1111) at host=10.0.0.7, /run/postgresql/.s.PGSQL.5432"
ERRORS = [
    KeyReused(SECRET), Cancelled(SECRET), Expired(SECRET), NothingHappened(SECRET), Unknown(SECRET),
    ProtocolViolation(SECRET), SubmitError(SECRET), EarlierLost(SECRET),
    Refused(SECRET, xid="k", result={"status": 402, "headers": [], "body": ""}),
    SiteDown(SECRET, site=SECRET, seconds=1), psycopg.OperationalError(SECRET), RuntimeError(SECRET), TypeError(SECRET),
]  # fmt: skip
Serve = Callable[[App, bool], Any]


def resource(app: App, debug: bool) -> Any:
    return asgi(app, debug=debug)


def endpoint(app: App, debug: bool) -> Any:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not to be called")

    return IdempotencyMiddleware(never, app, [Endpoint("/buy", ("store",))], scope=None, debug=debug)


def known(error: Exception) -> Exception:
    """With what PostgreSQL has said of it."""
    error.__cause__ = psycopg.errors.UniqueViolation(SECRET)
    return error


def told(response: httpx.Response) -> str:
    return f"{response.status_code} {response.headers} {response.text}"


def every_kind() -> set[type]:
    def below(kind: type) -> set[type]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    return below(SubmitError)


def test_every_kind_is_here() -> None:
    mine = {kind for kind in every_kind() if kind.__module__ == "pgmip.exceptions"}
    assert mine - {type(error) for error in ERRORS} == {Decided}  # that is no error over HTTP


@pytest.mark.parametrize("serve", [resource, endpoint])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_details_are_not_told(serve: Serve, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    transport = httpx.ASGITransport(serve(FakeApp(known(error)), False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/buy", headers=key("k"), content="{}")
    assert response.status_code >= 400
    for secret in ("4111", "10.0.0.7", "postgresql"):
        assert secret not in told(response)
    logged = [record for record in caplog.records if record.name == "pgmip.http"]
    if not isinstance(error, SubmitError) and serve is endpoint:
        assert logged == []  # it is raised, for the server's own log
    elif response.status_code < 500 and not isinstance(error, EarlierLost):
        assert logged == [], "there is nothing to be looked into"
    else:
        (record,) = logged
        foreseen = isinstance(error, SubmitError) and not isinstance(error, ProtocolViolation | EarlierLost)
        assert record.levelname == ("WARNING" if foreseen else "ERROR")
        assert record.xid == record.args[0]  # type: ignore[attr-defined, index]
        assert SECRET in record.message
        assert "(SQLSTATE 23505)" in record.message
        assert repr(record.args[0]) in record.message  # type: ignore[index]


@pytest.mark.parametrize("serve", [resource, endpoint])
@pytest.mark.parametrize("error", [error for error in ERRORS if isinstance(error, SubmitError)], ids=repr)
async def test_but_to_who_develops(serve: Serve, error: Exception) -> None:
    if isinstance(error, Refused):
        return  # an answer
    async with client_of(serve(FakeApp(error), True)) as client:
        response = await client.post("/buy", headers=key("k"), content="{}")
    assert response.json()["detail"] == SECRET


# -- with sites ------------------------------------------------------------------------------------------------------


def both_ways(app: App, order: Callable[[Request], Awaitable[Response]]) -> Iterator[tuple[httpx.AsyncClient, str]]:
    """To ask for a transaction `t` of the App, and for an endpoint; errors are answers."""
    inner = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    served = IdempotencyMiddleware(inner, app, ENDPOINTS, scope=None)
    for asked, path in ((asgi(app), "/t"), (served, "/orders")):
        transport = httpx.ASGITransport(asked, raise_app_exceptions=False)
        yield httpx.AsyncClient(transport=transport, base_url="http://test"), path


async def fail(how: str, where: Any) -> None:
    match how:
        case "constraint":
            await where.store.execute("INSERT INTO item VALUES (1, 0)")
        case "at the end":
            where.store.finish_with("INSERT INTO item VALUES (1, 0)")
        case "conversion":
            await where.store.execute("SELECT %s::text::int", ("number 4111",))
        case "not opted in":
            await where.store.execute("INSERT INTO pg_temp.card VALUES (4111)")
        case "handler":
            raise ValueError("4111")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("constraint", "Key (i_id)=(1)"), ("at the end", "Key (i_id)=(1)"), ("conversion", "4111"),
        ("not opted in", "card"), ("handler", "4111"), ("down", "127.0.0.1"),
    ],
)  # fmt: skip
async def test_nothing_of_a_site_is_told(
    server: Server, shop: Shop, how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = server(shop.conninfos(bank=1) if how == "down" else None, attempts=2)

    @app.transaction(sites=SITES, name="t")
    async def handler(where: Tx, request: Any) -> Any:
        await fail(how, where)

    async def order(request: Request) -> Response:
        await fail(how, tx(request))
        return JSONResponse("done")

    for client, path in both_ways(app, order):
        caplog.clear()
        async with client:
            response = await client.post(path, headers=key(new_xid()), content="{}")
        assert response.status_code == (503 if how == "down" else 500)
        for secret in ("4111", "127.0.0.1", "port", "Key (", "item", "card"):
            assert secret not in told(response)
        (record,) = [record for record in caplog.records if record.name == "pgmip.http"]
        assert reason in record.message
        assert ("SQLSTATE" in record.message) == (how not in ("handler", "down"))
    shop.assert_clean()


@pytest.mark.integration
async def test_a_warning_names_its_sqlstate(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    app = server()

    @app.transaction(sites=SITES)
    async def twice(where: Tx, request: Any) -> Any:
        await where.store.execute("INSERT INTO item VALUES (1, 0)")

    with pytest.raises(NothingHappened):
        await app.submit("twice", BUY, xid="twice")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.message == "submit twice: nothing_happened (SQLSTATE 23505)"
    assert (record.sqlstate, record.xid) == ("23505", "twice")  # type: ignore[attr-defined]


@pytest.mark.integration
async def test_a_failure_is_logged_with_its_key_and_its_class(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """A KeyError says no more than the key that is missing."""
    app = server()

    @app.transaction(sites=SITES, name="t")
    async def handler(where: Tx, request: Any) -> Any:
        return request["no such"]

    async def order(request: Request) -> Response:
        raise KeyError("no such")

    for client, path in both_ways(app, order):
        caplog.clear()
        async with client:
            await client.post(path, headers={"Idempotency-Key": '"the key"'}, content="{}")
        told, http = (record for record in caplog.records if record.levelno == logging.WARNING)
        assert told.message.endswith(": nothing_happened (KeyError)")
        assert "KeyError: 'no such'" in http.message
        assert http.idempotency_key == "the key"  # type: ignore[attr-defined]
        assert json.loads(JsonFormatter().format(http))["idempotency_key"] == "the key"
    shop.assert_clean()


@pytest.mark.integration
async def test_a_result_is_not_logged(server: Server, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """What MP001 has in its detail: it may be another request's."""
    app = server()

    @app.transaction(sites=SITES)
    async def pay(where: Tx, request: Any) -> Any:
        await where.store.execute("SELECT 1")
        if request == "again":
            await where.store.execute(
                "DO $$BEGIN RAISE SQLSTATE 'MP003' USING MESSAGE = 'says why', DETAIL = '{\"result\": \"4111\"}'; END$$"
            )
        return {"card": "4111"}

    async with client_of(asgi(app)) as client:
        response = await client.post("/pay", headers=key(new_xid()), content=json.dumps("again"))
    assert response.status_code == 500
    (record,) = [record for record in caplog.records if record.name == "pgmip.http"]
    assert "says why" in record.message
    assert "4111" not in record.message
