"""Endpoints of ASGI applications as transactions: over two real sites, under Starlette, FastAPI and neither."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi import Request as FastAPIRequest
from shop import PRICE, Shop, give_up_at
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from web import FakeApp, serving

from pgmip import App, Cancelled, Decided, Expired, KeyReused, NothingHappened, SubmitError, Unknown
from pgmip._recorded import RecordedRequest, xid_of
from pgmip._recorded import Response as Recorded
from pgmip.http import NOT_RECORDED, REPLAYED, Endpoint, IdempotencyMiddleware, identity, tx
from pgmip.xinst import new_xid, xid_time

SITES = ("store", "bank")
ENDPOINTS = [
    Endpoint("/orders", SITES),
    Endpoint("/orders/{number}/lines", ("store",), methods=("POST", "patch")),
    Endpoint("/any", ("store",)),
]
Server = Callable[..., App]
Make = Callable[..., Any]


def user(scope: Any) -> str:
    return dict(scope["headers"]).get(b"x-user", b"").decode()


async def buy(tx: Any, order: Any) -> dict[str, Any]:
    """As shop.py has it, with a result that no second run could give."""
    await tx.store.execute("UPDATE item SET stock = stock - %s WHERE i_id = 1", (order["qty"],))
    await tx.store.execute(
        "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, order["qty"])
    )
    await tx.bank.execute("UPDATE account SET balance = balance - %s", (order["qty"] * PRICE,))
    await tx.bank.execute(
        "INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, order["qty"] * PRICE)
    )
    return {"xid": tx.xid, "xinst": tx.xinst, "token": secrets.token_hex(8)}


def wrapped(make: Callable[[], Starlette]) -> Make:
    return lambda mip, **options: IdempotencyMiddleware(make(), mip, ENDPOINTS, **options)


async def starlette_order(request: Request) -> Response:
    return JSONResponse(await buy(request.state.tx, await request.json()), 201)


def plain_starlette() -> Starlette:
    return Starlette(routes=[Route("/orders", starlette_order, methods=["POST"])])


def inner_starlette(mip: App, **options: Any) -> Any:
    middleware = [Middleware(IdempotencyMiddleware, mip=mip, endpoints=ENDPOINTS, **options)]
    return Starlette(routes=[Route("/orders", starlette_order, methods=["POST"])], middleware=middleware)


def fastapi(mip: App, **options: Any) -> Any:
    api = FastAPI()

    @api.middleware("http")  # inside of the next one
    async def tag(request: FastAPIRequest, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Run"] = secrets.token_hex(8)
        return response

    api.add_middleware(IdempotencyMiddleware, mip=mip, endpoints=ENDPOINTS, **options)

    @api.post("/orders", status_code=201)
    async def order(body: dict[str, int], request: FastAPIRequest) -> dict[str, Any]:
        return await buy(tx(request), body)

    return api


async def pure(scope: Any, receive: Any, send: Any) -> None:
    """An application that is nobody's framework's."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    result = await buy(tx(scope), {"qty": len(body)})
    headers = [(b"Content-Type", b"text/plain")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": f"{result['xid']} {result['xinst']}".encode(), "more_body": True})
    await send({"type": "http.response.body"})


def client_of(asgi: Any, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi, **options), base_url="http://test")


def key(value: str) -> dict[str, str]:
    return {"Idempotency-Key": f'"{value}"'}


def same(*responses: httpx.Response) -> httpx.Response:
    """All of them, byte for byte, but for what says that it is a replay."""
    for response in responses:
        replayed = response.headers.pop(REPLAYED, None)
        assert replayed in (None, "true")
    assert len({(r.status_code, tuple(r.headers.raw), r.content) for r in responses}) == 1
    return responses[0]


@pytest.fixture
async def serve(server: Server) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """Serves one endpoint at /any and /orders, by an app server of its own; a client of that."""
    async with AsyncExitStack() as stack:

        def make(endpoint: Any, *, app: App | None = None, raising: bool = True, **options: Any) -> httpx.AsyncClient:
            routes = [
                Route(path, endpoint, methods=["GET", "POST", "PATCH"])
                for path in ("/any", "/orders", "/orders/{number}/lines", "/free")
            ]
            options.setdefault("scope", user)
            asgi = IdempotencyMiddleware(Starlette(routes=routes), app or server(), ENDPOINTS, **options)
            client = client_of(asgi, raise_app_exceptions=raising)
            stack.push_async_callback(client.aclose)
            return client

        yield make


# -- exactly once, everywhere ------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    "make", [wrapped(plain_starlette), inner_starlette, fastapi], ids=["around-starlette", "starlette", "fastapi"]
)
@pytest.mark.parametrize("concurrent", ["sibling", "join"])
async def test_once(server: Server, shop: Shop, make: Make, concurrent: str) -> None:
    async with (
        client_of(make(server(), scope=None, concurrent=concurrent)) as one,
        client_of(make(server(), scope=None, concurrent=concurrent)) as two,
    ):
        k = key(new_xid())
        responses = await asyncio.gather(
            *(client.post("/orders", json={"qty": 2}, headers=k) for client in (one, two) * 4)
        )
        response = same(*responses, await one.post("/orders", json={"qty": 2}, headers=k))
        other = await two.post("/orders", json={"qty": 2}, headers=key(new_xid()))
    assert response.status_code == other.status_code == 201
    assert response.content != other.content
    for answer in (response, other):
        shop.assert_once(answer.json()["xid"], answer.json())
    shop.assert_clean()


@pytest.mark.integration
async def test_once_without_a_framework(server: Server, shop: Shop) -> None:
    async with client_of(IdempotencyMiddleware(pure, server(), ENDPOINTS, scope=None)) as client:
        k = key(new_xid())
        response = same(*[await client.post("/orders", content=b"abc", headers=k) for _ in range(2)])
    xid, xinst = response.text.split()
    assert response.headers["content-length"] == str(len(response.content))
    shop.assert_once(xid, {"xinst": int(xinst)})


# -- what is replayed --------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    "content",
    [b"", b"plain", "é\u2028\0".encode(), bytes(range(256)), b"\xef\xbb\xbfBOM", b'{"a": NaN}', b"x" * 100_000],
    ids=lambda content: str(content[:12]),
)
async def test_bytes_come_and_go(serve: Any, content: bytes) -> None:
    async def echo(request: Request) -> Response:
        body = await request.body()
        headers = {"Content-Type": request.headers["content-type"], "X-Run": secrets.token_hex(4)}
        return Response(hashlib.sha256(body).digest() + body, headers=headers)

    headers = {**key(secrets.token_hex(8)), "Content-Type": "application/x-whatever; a=b"}
    one, two = serve(echo), serve(echo)
    response = same(*[await client.post("/any", content=content, headers=headers) for client in (one, two, one)])
    assert response.content == hashlib.sha256(content).digest() + content
    assert response.headers["content-type"] == headers["Content-Type"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "content", [{"data": {"a": "1 é", "b": ["2", "3"]}}, {"content": b"--x\r\nContent-Disposition: form-data; "
     b'name="a"; filename="f.bin"\r\nContent-Type: application/octet-stream\r\n\r\n\xff\0\r\n--x--\r\n',
     "headers": {"Content-Type": "multipart/form-data; boundary=x"}}],
    ids=["urlencoded", "multipart"],
)  # fmt: skip
async def test_forms(serve: Any, content: dict[str, Any]) -> None:
    async def endpoint(request: Request) -> Response:
        async with request.form() as form:
            values = [
                (name, value if isinstance(value, str) else (await value.read()).hex())
                for name, value in form.multi_items()
            ]
        return JSONResponse({"form": values, "run": secrets.token_hex(4)})

    headers = {**content.pop("headers", {}), **key(secrets.token_hex(8))}
    one, two = serve(endpoint), serve(endpoint)
    response = same(*[await client.post("/any", headers=headers, **content) for client in (one, two)])
    assert response.json()["form"] in ([["a", "1 é"], ["b", "2"], ["b", "3"]], [["a", "ff00"]])


@pytest.mark.integration
async def test_streams(serve: Any) -> None:
    async def endpoint(request: Request) -> Response:
        chunks = [chunk async for chunk in request.stream() if chunk]
        assert not await request.is_disconnected()

        async def answer() -> AsyncIterator[bytes]:
            for chunk in chunks:
                await asyncio.sleep(0)
                yield chunk + secrets.token_bytes(3)

        return StreamingResponse(answer(), 202)

    async def sent() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number

    one, two, k = serve(endpoint), serve(endpoint), key(secrets.token_hex(8))
    response = same(*[await client.post("/any", content=sent(), headers=k) for client in (one, two)])
    assert response.status_code == 202
    assert response.content[:5] == b"01234"
    assert response.headers["content-length"] == "8"


@pytest.mark.integration
async def test_headers(serve: Any) -> None:
    async def endpoint(request: Request) -> Response:
        response = Response(b"x", 299)
        response.raw_headers = [
            (b"Set-Cookie", b"a=1"), (b"X-Latin", b"caf\xe9"), (b"Set-Cookie", secrets.token_bytes(3).hex().encode()),
            (b"Date", b"Sat, 21 Nov 2026 06:00:00 GMT"), (b"Connection", b"close, X-Hop"), (b"X-Hop", b"1"),
            *((name, b"1") for name in NOT_RECORDED - {b"date", b"connection"}),
            (b"X-Empty", b""),
        ]  # fmt: skip
        return response

    one, two, k = serve(endpoint), serve(endpoint), key(secrets.token_hex(8))
    response = same(*[await client.post("/any", headers=k) for client in (one, two)])
    names = [name for name, _ in response.headers.raw]
    assert response.status_code == 299
    assert names == [b"set-cookie", b"x-latin", b"set-cookie", b"x-empty", b"content-length"]
    assert response.headers.raw[1][1] == b"caf\xe9"


@pytest.mark.integration
@pytest.mark.parametrize("status", [204, 304])
async def test_no_body_no_length(serve: Any, status: int) -> None:
    async def endpoint(request: Request) -> Response:
        return Response(status_code=status)

    client, k = serve(endpoint), key(secrets.token_hex(8))
    response = same(*[await client.post("/any", headers=k) for _ in range(2)])
    assert "content-length" not in response.headers


@pytest.mark.integration
async def test_what_would_pass_the_record_by(server: Server, shop: Shop, tmp_path: Any) -> None:
    """A server that sends files by itself has to be given their bytes all the same."""
    path = tmp_path / "file"
    path.write_bytes(b"1")

    async def endpoint(request: Request) -> Response:
        return FileResponse(path)

    inner = Starlette(routes=[Route("/any", endpoint, methods=["POST"])])
    asgi = IdempotencyMiddleware(inner, server(), ENDPOINTS, scope=None)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await asgi({**scope, "extensions": {"http.response.pathsend": {}}}, receive, send)

    k = key(new_xid())
    async with client_of(served) as client:
        first = await client.post("/any", headers=k)
        path.write_bytes(b"22")
        assert same(first, await client.post("/any", headers=k)).content == b"1"


# -- whose key it is ---------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize(
    "change",
    [
        {"content": b"2"},
        {"content": b""},
        {"params": {"a": "2"}},
        {"headers": {"Content-Type": "text/html"}},
        {"headers": {"Content-Encoding": "gzip"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("concurrent", ["sibling", "join", "refuse"])
async def test_another_payload(serve: Any, change: dict[str, Any], concurrent: str) -> None:
    runs = []

    async def endpoint(request: Request) -> Response:
        runs.append(request)
        return Response(b"done")

    client = serve(endpoint, concurrent=concurrent)
    k = secrets.token_hex(8)
    first = {"content": b"1", "params": {"a": "1"}, "headers": {"Content-Type": "text/plain", **key(k)}}
    again = {**first, **change, "headers": {**first["headers"], **change.get("headers", {})}}  # type: ignore[dict-item]
    assert (await client.post("/any", **first)).status_code == 200
    response = await client.post("/any", **again)
    assert (response.status_code, response.json()["type"]) == (422, "urn:pgmip:problem:key-reused")
    assert response.json()["idempotency_key"] == k
    assert (await client.post("/any", **first)).status_code == 200
    # What is no part of the request may differ.
    first["headers"] |= {"User-Agent": "another", "Traceparent": "00-1-2-3"}  # type: ignore[operator]
    assert (await client.post("/any", **first)).status_code == 200


@pytest.mark.integration
async def test_another_path(serve: Any) -> None:
    async def endpoint(request: Request) -> Response:
        return Response(secrets.token_hex(8))

    client, k = serve(endpoint), key(secrets.token_hex(8))
    line = await client.post("/orders/1/lines", headers=k)
    assert (await client.post("/orders/2/lines", headers=k)).status_code == 422
    patched = await client.patch("/orders/1/lines", headers=k)
    other = await client.post("/any", headers=k)
    assert len({line.text, patched.text, other.text}) == 3, "another route is another transaction"
    assert (await client.post("/orders/1/lines", headers=k)).text == line.text


@pytest.mark.integration
async def test_a_guessed_key_is_worth_nothing(serve: Any) -> None:
    async def endpoint(request: Request) -> Response:
        return JSONResponse({"for": identity(request), "secret": secrets.token_hex(8)})

    client, k = serve(endpoint), key(secrets.token_hex(8))
    answers = {
        name: same(*[await client.post("/any", headers={**k, "X-User": name}) for _ in range(2)]).json()
        for name in ("alice", "bob", "")
    }
    assert len({answer["secret"] for answer in answers.values()}) == 3
    assert all(answer["for"] == name for name, answer in answers.items())


async def test_identities_are_strings() -> None:
    scope: Any = lambda _: 7  # noqa: E731
    middleware = IdempotencyMiddleware(pure, FakeApp(), [Endpoint("/any", ("store",))], scope=scope)
    async with client_of(middleware) as client:
        with pytest.raises(TypeError, match="7"):
            await client.post("/any", headers=key("k"))


def test_xids() -> None:
    seven = new_xid()
    xid = xid_of(seven, "alice", "POST /any")
    assert xid_time(xid) == xid_time(seven) is not None
    assert xid != seven
    assert uuid.UUID(xid).version == 7
    assert str(uuid.UUID(xid)) == xid
    names = ["a", "b", "é" * 5000, seven, seven.upper(), new_xid()]
    xids = {xid_of(k, who, name) for k in names for who in ("", "a", "b", 'a","b') for name in ("POST /a", "POST /b")}
    assert len(xids) == len(names) * 8
    assert max(map(len, xids)) <= 128
    assert xid_of("a", "b", "c") == xid_of("a", "b", "c") != xid_of("b", "a", "c")


def test_records_are_complete() -> None:
    request = RecordedRequest("é", "/a b", b"%ff\xff", [(b"a", b"\xff"), (b"a", b"")], b"\xff\0")
    assert RecordedRequest.from_json(request.to_json()) == request


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([], "key-missing"),
        ([("Idempotency-Key", "")], "key-missing"),
        ([("Idempotency-Key", '""')], "key-invalid"),
        ([("Idempotency-Key", "a,b")], "key-invalid"),
        ([("Idempotency-Key", "a"), ("Idempotency-Key", "a")], "key-invalid"),
    ],
)
async def test_no_usable_key(headers: Any, kind: str) -> None:
    app = FakeApp()
    middleware = IdempotencyMiddleware(pure, app, [Endpoint("/any", ("store",))], scope=None)
    async with client_of(middleware) as client:
        response = await client.post("/any", headers=headers)
    assert (response.status_code, response.json()["type"]) == (400, f"urn:pgmip:problem:{kind}")
    assert response.headers["content-type"] == "application/problem+json"
    assert app.asked == []


async def test_what_is_no_endpoint_passes() -> None:
    seen = []

    async def endpoint(request: Request) -> Response:
        seen.append(request.method + request.url.path)
        with pytest.raises(LookupError, match="does not run in a transaction"):
            tx(request)
        return Response("passed")

    inner = Starlette(routes=[Route(path, endpoint, methods=["GET", "POST"]) for path in ("/any", "/any/more", "/x")])
    app = FakeApp()
    async with client_of(IdempotencyMiddleware(inner, app, [Endpoint("/any", ("store",))], scope=None)) as client:
        for method, path in [("GET", "/any"), ("POST", "/any/more"), ("POST", "/x")]:
            assert (await client.request(method, path)).text == "passed"
        assert (await client.post("/nowhere")).status_code == 404
    assert len(seen) == 3
    assert app.asked == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_too_large(streamed: bool) -> None:
    app = FakeApp({"status": 200, "headers": [], "body": ""})
    middleware = IdempotencyMiddleware(pure, app, [Endpoint("/any", ("store",))], scope=None, max_body=10)

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    async with client_of(middleware) as client:
        for size, status in [(10, 200), (11, 413)]:
            content = chunks(size) if streamed else b"x" * size
            response = await client.post("/any", headers=key("k"), content=content)
            assert response.status_code == status
    assert response.json()["type"] == "urn:pgmip:problem:too-large"
    assert len(app.asked) == 1


async def test_a_client_that_leaves_in_the_middle() -> None:
    app = FakeApp()
    middleware = IdempotencyMiddleware(pure, app, [Endpoint("/any", ("store",))], scope=None)
    messages: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/any", "headers": [(b"idempotency-key", b"k")]}
    await middleware(scope, receive, send)
    assert app.asked == []


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (KeyReused("x"), 422, "key-reused"),
        (Cancelled("x"), 410, "cancelled"),
        (Expired("x"), 410, "expired"),
        (NothingHappened("x"), 500, "failed"),
        (Unknown("x"), 503, "unknown"),
    ],
)
async def test_problems(error: SubmitError, status: int, kind: str) -> None:
    middleware = IdempotencyMiddleware(pure, FakeApp(error), [Endpoint("/any", ("store",))], scope=None)
    async with client_of(middleware) as client:
        response = await client.post("/any", headers=key("k"))
    assert (response.status_code, response.json()["type"]) == (status, f"urn:pgmip:problem:{kind}")
    assert ("retry-after" in response.headers) == (status == 503)


@pytest.mark.parametrize(
    "answer",
    [RuntimeError("a secret of the server's"), Decided("1", xid="k", result="no response", unfinished=("store",))],
)
async def test_what_nobody_has_foreseen_is_open(answer: Exception) -> None:
    """A 500 would say that the request has no effect. The exception is for the server's log."""
    middleware = IdempotencyMiddleware(pure, FakeApp(answer), [Endpoint("/any", ("store",))], scope=None)
    transport = httpx.ASGITransport(middleware, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/any", headers=key("k"))
    assert (response.status_code, response.json()["type"]) == (503, "urn:pgmip:problem:unknown")
    assert "secret" not in response.text
    async with client_of(middleware) as client:
        with pytest.raises((RuntimeError, TypeError, KeyError)):
            await client.post("/any", headers=key("k"))


@pytest.mark.parametrize(
    "parameters",
    [
        {"path": "any", "sites": ("a",)},
        {"path": "/{a:path}", "sites": ("a",)},
        {"path": "/", "sites": "a"},
        {"path": "/", "sites": ()},
        {"path": "/", "sites": ("a",), "methods": "POST"},
    ],
)
def test_unusable_endpoints(parameters: Any) -> None:
    with pytest.raises(ValueError, match=r"path|tuples"):
        Endpoint(**parameters)


def test_unusable_options() -> None:
    with pytest.raises(ValueError, match="concurrent"):
        IdempotencyMiddleware(pure, FakeApp(), [], scope=None, concurrent="queue")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not sites"):
        IdempotencyMiddleware(pure, FakeApp(), [Endpoint("/any", ("mars",))], scope=None)


# -- what fails --------------------------------------------------------------------------------------------------


def failing(how: list[Any]) -> Any:
    """An endpoint that buys, and then does these one after another, at last succeeding."""

    async def endpoint(request: Request) -> Response:
        result = await buy(tx(request), {"qty": 1})
        if how:
            what = how.pop(0)
            if isinstance(what, Exception):
                raise what
            return what  # type: ignore[no-any-return]
        return JSONResponse(result)

    return endpoint


@pytest.mark.integration
@pytest.mark.parametrize("status", [500, 503, 599])
async def test_a_failure_is_taken_back(serve: Any, shop: Shop, status: int) -> None:
    client = serve(failing([Response(b"\xff", status, {"X-Why": "a bug"})]))
    k = key(secrets.token_hex(8))
    response = await client.post("/orders", headers=k)
    assert (response.status_code, response.content, response.headers["x-why"]) == (status, b"\xff", "a bug")
    shop.assert_clean()
    assert shop.sql("store", "SELECT * FROM orders") == []
    answer = same(*[await client.post("/orders", headers=k) for _ in range(2)])
    shop.assert_once(answer.json()["xid"], answer.json())


@pytest.mark.integration
@pytest.mark.parametrize("raising", [False, True])
async def test_an_exception_is_taken_back(serve: Any, shop: Shop, raising: bool) -> None:
    """And is raised all the same, so that who logs exceptions sees it; with the framework's response before it."""
    client = serve(failing([ZeroDivisionError("a bug")]), raising=raising)
    k = key(secrets.token_hex(8))
    if raising:
        with pytest.raises(ZeroDivisionError):
            await client.post("/orders", headers=k)
    else:
        response = await client.post("/orders", headers=k)
        assert (response.status_code, response.text) == (500, "Internal Server Error")
    shop.assert_clean()
    assert shop.sql("store", "SELECT * FROM orders") == []
    answer = same(*[await client.post("/orders", headers=k) for _ in range(2)])
    shop.assert_once(answer.json()["xid"], answer.json())


@pytest.mark.integration
async def test_an_exception_behind_the_response(serve: Any, shop: Shop) -> None:
    """The response is not true, so nobody gets it."""

    def fail() -> None:
        raise ZeroDivisionError("a bug")

    client = serve(failing([Response("ordered", background=BackgroundTask(fail))]), raising=False)
    assert (await client.post("/orders", headers=key(new_xid()))).status_code == 500
    assert shop.sql("store", "SELECT * FROM orders") == []
    shop.assert_clean()


@pytest.mark.integration
async def test_no_whole_response(server: Server, shop: Shop) -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await buy(tx(scope), {"qty": 1})
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async with client_of(IdempotencyMiddleware(silent, server(), ENDPOINTS, scope=None)) as client:
        with pytest.raises(RuntimeError, match="no whole response"):
            await client.post("/orders", headers=key(new_xid()))
    shop.assert_clean()
    assert shop.sql("store", "SELECT * FROM orders") == []


UNSENDABLE: dict[str, tuple[Any, list[tuple[bytes, bytes]], bytes]] = {
    "not final": (100, [], b"x"),
    "no such status": (600, [], b"x"),
    "no int": (200.0, [], b"x"),
    "two headers in one": (200, [(b"x-note", b"a\r\nset-cookie: b=1")], b"x"),
    "a null": (200, [(b"x-note", b"a\x00")], b"x"),
    "a name with a space": (200, [(b"x note", b"a")], b"x"),
    "no name": (200, [(b"", b"a")], b"x"),
    "too long": (200, [(b"content-length", b"1")], b"xx"),
    "too short": (200, [(b"content-length", b"3")], b"xx"),
    "one of two lengths": (200, [(b"content-length", b"2"), (b"content-length", b"3")], b"xx"),
    "no length": (200, [(b"content-length", b"two")], b"xx"),
}


@pytest.mark.integration
@pytest.mark.parametrize("what", UNSENDABLE)
async def test_a_response_that_cannot_be_sent(server: Server, shop: Shop, what: str) -> None:
    """It is a failure of its endpoint: recorded, it could not be sent ever after."""
    responses = [UNSENDABLE[what], (201, [(b"x-note", b" a\tb "), (b"content-length", b"1")], b"x")]

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await buy(tx(scope), {"qty": 1})
        status, headers, body = responses.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    k = key(new_xid())
    async with client_of(IdempotencyMiddleware(endpoint, server(), ENDPOINTS, scope=None)) as client:
        with pytest.raises((TypeError, ValueError), match=r"status|header|length"):
            await client.post("/orders", headers=k)
        shop.assert_clean()
        assert shop.sql("store", "SELECT * FROM orders") == []
        response = same(*[await client.post("/orders", headers=k) for _ in range(2)])
    assert (response.status_code, response.headers["x-note"], response.content) == (201, "a\tb", b"x")
    assert len(shop.sql("store", "SELECT * FROM orders")) == 1


@pytest.mark.parametrize(
    ("status", "body", "head", "length"), [(200, b"", True, b"7"), (304, b"", False, b"7"), (204, b"", False, b"0")]
)
def test_lengths_that_are_not_of_a_body(status: int, body: bytes, head: bool, length: bytes) -> None:
    headers = [(b"content-length", length)]
    assert Recorded.recorded(status, headers, body, head=head).headers == headers


@pytest.mark.parametrize(("status", "kept"), [(204, []), (304, [(b"content-length", b"4")])])
def test_a_body_that_has_no_place(status: int, kept: list[tuple[bytes, bytes]]) -> None:
    """As servers do, which leave it out."""
    response = Recorded.recorded(status, [(b"content-length", b"4")], b"null")
    assert (response.headers, response.body) == (kept, b"")


@pytest.mark.integration
async def test_each_attempt_has_the_headers_that_came(server: Server, shop: Shop) -> None:
    """Whatever an endpoint, or a middleware before it, does to them."""
    seen: list[list[bytes]] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        seen.append([name for name, _ in scope["headers"]])
        scope["headers"].append((b"x-seen", b"1"))
        await tx(scope).store.execute("SELECT 1")
        if len(seen) == 1:
            await tx(scope).store.execute("DO $$ BEGIN RAISE serialization_failure; END $$")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async with client_of(IdempotencyMiddleware(endpoint, server(), ENDPOINTS, scope=None)) as client:
        assert (await client.post("/orders", headers=key(new_xid()))).status_code == 200
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.integration
async def test_a_serialization_failure_is_retried(serve: Any, shop: Shop) -> None:
    """However the framework presents it: an attempt that cannot be prepared is not a result, nor its response."""
    runs = []

    async def endpoint(request: Request) -> Response:
        runs.append(request)
        result = await buy(tx(request), {"qty": 1})
        if len(runs) == 1:
            try:
                await tx(request).store.execute("DO $$BEGIN RAISE SQLSTATE '40001'; END$$")
            except Exception:
                return Response("swallowed", 200)
        if len(runs) == 2:
            await tx(request).bank.execute("DO $$BEGIN RAISE SQLSTATE '40P01'; END$$")
        return JSONResponse(result)

    answer = await serve(endpoint).post("/orders", headers=key(new_xid()))
    assert len(runs) == 3
    shop.assert_once(answer.json()["xid"], answer.json())
    shop.assert_clean()


# -- two at a time -----------------------------------------------------------------------------------------------


class Gate:
    """An endpoint that waits until it is let through."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.runs = 0
        self.open = asyncio.Event()

    def arrived(self, scope: Any) -> str:
        """To be the middleware's `scope`, which is called right before the request runs or joins another."""
        self.arrivals += 1
        return ""

    async def __call__(self, request: Request) -> Response:
        result = await buy(tx(request), {"qty": 1})
        self.runs += 1  # a retransmission of what is decided does not get here
        await self.open.wait()
        return JSONResponse(result)

    async def reached(self, runs: int, arrivals: int = 0) -> None:
        async with asyncio.timeout(30):
            while self.runs < runs or self.arrivals < arrivals:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.mark.integration
@pytest.mark.parametrize(("concurrent", "runs"), [("sibling", 2), ("join", 1)])
async def test_two_at_a_time(serve: Any, shop: Shop, concurrent: str, runs: int) -> None:
    gate = Gate()
    client, k = serve(gate.__call__, concurrent=concurrent, scope=gate.arrived), key(secrets.token_hex(8))
    first = asyncio.create_task(client.post("/orders", headers=k))
    await gate.reached(1)
    second = asyncio.create_task(client.post("/orders", headers=k))
    await gate.reached(runs, arrivals=2)
    gate.open.set()
    answer = same(await first, await second, await client.post("/orders", headers=k)).json()
    assert gate.runs == runs
    shop.assert_once(answer["xid"], answer)
    shop.assert_clean()


@pytest.mark.integration
async def test_refused_while_it_runs(serve: Any, shop: Shop) -> None:
    gate = Gate()
    client, k = serve(gate.__call__, concurrent="refuse"), key(secrets.token_hex(8))
    first = asyncio.create_task(client.post("/orders", headers=k))
    await gate.reached(1)
    refused = await client.post("/orders", headers=k)
    other = await client.post("/orders", headers=k, content=b"other")
    gate.open.set()
    answer = same(await first, await client.post("/orders", headers=k)).json()
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:pgmip:problem:in-progress")
    assert "retry-after" in refused.headers
    assert (other.status_code, other.json()["type"]) == (409, "urn:pgmip:problem:in-progress"), "it may yet run"
    assert gate.runs == 1
    shop.assert_once(answer["xid"], answer)


@pytest.mark.integration
async def test_a_client_that_does_not_wait(server: Server, shop: Shop) -> None:
    """Its connection to a real server ends, the request does not."""
    gate = Gate()
    inner = Starlette(routes=[Route("/orders", gate.__call__, methods=["POST"])])
    k = key(new_xid())
    async with serving(IdempotencyMiddleware(inner, server(), ENDPOINTS, scope=None)) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            request = asyncio.create_task(client.post("/orders", headers=k))
            await gate.reached(1)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        gate.open.set()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            answers = [await client.post("/orders", headers=k) for _ in range(2)]
    assert answers[0].content == answers[1].content
    shop.assert_once(answers[0].json()["xid"], answers[0].json())
    shop.assert_clean()


@pytest.mark.integration
async def test_joined_by_somebody_who_stays(serve: Any, shop: Shop) -> None:
    """The first client's request is cancelled; the second one gets the answer of that run."""
    gate = Gate()
    client, k = serve(gate.__call__, concurrent="join", scope=gate.arrived), key(secrets.token_hex(8))
    first = asyncio.create_task(client.post("/orders", headers=k))
    await gate.reached(1)
    second = asyncio.create_task(client.post("/orders", headers=k))
    await gate.reached(1, arrivals=2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.open.set()
    answer = (await second).json()
    assert gate.runs == 1
    shop.assert_once(answer["xid"], answer)


# -- nobody retransmits ------------------------------------------------------------------------------------------


@asynccontextmanager
async def started(asgi: Any) -> AsyncIterator[Any]:
    """As a server starts an application, serves it, and ends it."""
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    state: dict[str, Any] = {}

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await asgi({**scope, "state": {**state}}, receive, send)

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    task = asyncio.create_task(asgi(scope, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    yield served
    await to_app.put({"type": "lifespan.shutdown"})
    await task


@pytest.mark.integration
@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
@pytest.mark.parametrize("outside", [False, True])
async def test_repeated_from_its_record(server: Server, shop: Shop, step_name: str, outside: bool) -> None:
    """A server dies; another one, which has never seen the request, finishes it; the client may still ask."""
    seen: list[Any] = []

    async def endpoint(request: Request) -> Response:
        result = await buy(tx(request), {"qty": len(await request.body())})
        seen.append(
            (request.url.path, request.url.query, request.path_params, request.headers.get("content-type"),
             await request.body(), identity(request), request.scope.get("user"), request.state.pool, request.app)
        )  # fmt: skip
        return JSONResponse(result, 201, {"X-Bytes": secrets.token_hex(4)})

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"pool": "of the application"}

    def restore(scope: Any, who: str) -> None:
        scope["user"] = f"restored {who}"

    def make(app: App) -> Any:
        options: dict[str, Any] = {
            "mip": app, "endpoints": [Endpoint("/orders/{number}", SITES)], "scope": user, "restore": restore,
        }  # fmt: skip
        routes = [Mount("/orders", routes=[Route("/{number:int}", endpoint, methods=["POST"])])]
        if outside:
            return IdempotencyMiddleware(Starlette(routes=routes, lifespan=lifespan), **options)
        middleware = [Middleware(IdempotencyMiddleware, **options)]
        return Starlette(routes=routes, lifespan=lifespan, middleware=middleware)

    dying, living = server(), server()
    give_up_at(dying, step_name)
    one, two = make(dying), make(living)
    headers = {**key(new_xid()), "X-User": "alice", "Content-Type": "text/plain"}
    request: Any = {"url": "/orders/7?a=%20b", "content": b"\xff\0\r", "headers": headers}
    async with started(one) as one, started(two) as two, client_of(one) as to_one, client_of(two) as to_two:
        assert (await to_one.post(**request)).status_code == 503
        ((xid,),) = shop.sql("bank" if step_name == "committed-first-site" else "store", "SELECT xid FROM mip.in_doubt")
        seen.clear()
        resolution = await living.settle(xid)
        assert resolution is not None
        assert not resolution.cancelled
        shop.assert_clean()
        if step_name == "prepared-first-site":
            ((*what, app),) = seen
            assert what == [
                "/orders/7", "a=%20b", {"number": 7}, "text/plain", b"\xff\0\r", "alice", "restored alice",
                "of the application",
            ]  # fmt: skip
            assert isinstance(app, Starlette)
        else:
            assert seen == [], "it was complete: there is nothing to repeat"
        answer = same(*[await to_two.post(**request) for _ in range(2)])
        assert answer.status_code == 201
        shop.assert_once(xid, answer.json())
        assert len(seen) == (step_name == "prepared-first-site")


@pytest.mark.integration
@pytest.mark.parametrize("statuses", [{}, {401: "refuse"}])
async def test_a_repetition_without_credentials_is_no_result(server: Server, shop: Shop, statuses: Any) -> None:
    """Whatever 401 means otherwise."""
    async def endpoint(request: Request) -> Response:
        if "authorization" not in request.headers:
            return Response("who are you?", 401)
        return JSONResponse(await buy(tx(request), {"qty": 1}))

    dying, living = server(), server()
    give_up_at(dying, "prepared-first-site")
    inner = Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])
    one, two = (
        IdempotencyMiddleware(inner, app, ENDPOINTS, scope=None, statuses=statuses) for app in (dying, living)
    )
    headers = {**key(new_xid()), "Authorization": "Bearer x"}
    async with client_of(one) as to_one, client_of(two) as to_two:
        assert (await to_one.post("/orders", headers=headers)).status_code == 503
        ((xid,),) = shop.sql("store", "SELECT xid FROM mip.in_doubt")
        with pytest.raises(Unknown, match="credentials"):
            await living.settle(xid)
        shop.assert_never(xid)
        answer = await to_two.post("/orders", headers=headers)
    shop.assert_once(xid, answer.json())
    shop.assert_clean()


# -- served below a path -----------------------------------------------------------------------------------------


@pytest.mark.integration
async def test_a_root_path(server: Server, shop: Shop) -> None:
    asgi = IdempotencyMiddleware(plain_starlette(), server(), ENDPOINTS, scope=None)
    k = key(new_xid())
    async with client_of(asgi, root_path="/api") as below, client_of(asgi) as plain:
        answer = same(
            await below.post("/api/orders", json={"qty": 1}, headers=k),
            await plain.post("/orders", json={"qty": 1}, headers=k),
        )
    shop.assert_once(answer.json()["xid"], answer.json())


@pytest.mark.integration
@pytest.mark.parametrize("call", ["execute", "execute_many", "fetch_one", "fetch_all"])
async def test_a_plain_endpoint_cannot_await(server: Server, shop: Shop, call: str) -> None:
    """Its framework runs it in a thread. It is told, and what it has not done is not recorded as done."""
    app, kind = server(), "plain"

    def plain(request: Request) -> Response:
        getattr(tx(request).store, call)("INSERT INTO orders (qty) VALUES (1)", [])
        return JSONResponse("ordered", 201)

    async def order(request: Request) -> Response:
        if kind == "plain":
            return await run_in_threadpool(plain, request)
        return await starlette_order(request)

    routes = [Route("/orders", order, methods=["POST"])]
    served = IdempotencyMiddleware(Starlette(routes=routes), app, ENDPOINTS, scope=None)
    xid = new_xid()
    async with client_of(served) as client:
        with pytest.raises(RuntimeError, match=r"pgmip\.sync\.App"):
            await client.post("/orders", headers=key(xid), json={"qty": 1})
        kind = "async"
        assert (await client.post("/orders", headers=key(xid), json={"qty": 1})).status_code == 201
    assert shop.sql("store", "SELECT qty FROM orders") == [(1,)]
    shop.assert_clean()
