"""Endpoints that refuse: what their status means for what they have written, and what a replay says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi import Request as FastAPIRequest
from pydantic import BaseModel
from shop import Shop, give_up_at
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from test_middleware import ENDPOINTS, SITES, Server, buy, client_of, key, same, serve, started
from web import FakeApp, serving

from pgmip import Refuse, sync
from pgmip._problem import MEDIA_TYPE
from pgmip.http import REPLAYED, Endpoint, IdempotencyMiddleware, asgi, tx
from pgmip.xinst import new_xid

__all__ = ["serve"]


class Sold(Exception):
    """The application's own."""


class Order(BaseModel):
    qty: int


def fastapi(mip: Any, **options: Any) -> FastAPI:
    """With another middleware in between, which runs the endpoint in a task of its own."""
    api = FastAPI()

    @api.middleware("http")
    async def tag(request: FastAPIRequest, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["X-Run"] = secrets.token_hex(8)
        return response

    @api.exception_handler(Sold)
    async def sold(request: FastAPIRequest, error: Exception) -> Response:
        return JSONResponse({"detail": "sold out"}, 409)

    async def customer(request: FastAPIRequest) -> str:
        """Looks at a site, before the body is validated."""
        return str((await tx(request).bank.fetch_one("SELECT a_id FROM account")).a_id)

    @api.post("/orders", status_code=201)
    async def order(body: Order, request: FastAPIRequest, who: str = Depends(customer)) -> dict[str, Any]:
        bought = await buy(tx(request), {"qty": body.qty})
        match request.query_params.get("why"):
            case "raised":
                raise HTTPException(402, "no money", {"X-Why": secrets.token_hex(4)})
            case "returned":
                return JSONResponse(bought, 402)  # type: ignore[return-value]
            case "handled":
                raise Sold
            case "refused":
                raise Refuse({"why": bought["token"]})
        return bought

    api.add_middleware(IdempotencyMiddleware, mip=mip, endpoints=ENDPOINTS, scope=None, **options)
    return api


@pytest.mark.integration
@pytest.mark.parametrize(("why", "status"), [("raised", 402), ("returned", 402), ("handled", 409), ("refused", 422)])
async def test_rolled_back_and_replayed(server: Server, shop: Shop, why: str, status: int) -> None:
    k, url = key(new_xid()), f"/orders?why={why}"
    async with client_of(fastapi(server())) as one, client_of(fastapi(server())) as two:
        first = await one.post(url, json={"qty": 2}, headers=k)
        shop.assert_clean()
        again = [await client.post(url, json={"qty": 2}, headers=k) for client in (two, one)]
        other = await two.post(url, json={"qty": 3}, headers=k)
    assert REPLAYED not in first.headers
    assert [response.headers[REPLAYED] for response in again] == ["true", "true"]
    assert same(first, *again).status_code == status
    assert (other.json()["type"], REPLAYED in other.headers) == ("urn:pgmip:problem:key-reused", False)
    assert shop.sql("store", "SELECT FROM orders") == shop.sql("bank", "SELECT FROM payment") == []
    if why == "refused":
        assert first.headers["content-type"] == MEDIA_TYPE
        assert (first.json()["type"], list(first.json()["result"])) == ("urn:pgmip:problem:refused", ["why"])


@pytest.mark.integration
@pytest.mark.parametrize("body", [{"qty": "two"}, {}, "{"], ids=str)
async def test_what_is_not_valid_may_be_corrected(server: Server, shop: Shop, body: Any) -> None:
    """Also where a dependency has looked at a site before."""
    k = key(new_xid())
    async with client_of(fastapi(server())) as one, client_of(fastapi(server())) as two:
        content: dict[str, Any] = {"content": body} if isinstance(body, str) else {"json": body}
        assert (await one.post("/orders", headers=k, **content)).status_code == 422
        answer = same(*[await client.post("/orders", json={"qty": 2}, headers=k) for client in (two, one)])
    assert answer.status_code == 201
    shop.assert_once(answer.json()["xid"], answer.json())
    shop.assert_clean()


@pytest.mark.integration
async def test_what_is_not_valid_is_no_warning(server: Server, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(fastapi(server())) as client:
        await client.post("/orders", json={}, headers=key(new_xid()))
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "statuses", "committed", "replayed"),
    [
        (200, {}, True, True), (303, {}, True, True), (400, {}, False, True), (404, {}, False, True),
        (409, {}, False, True), (401, {}, False, False), (403, {}, False, False), (422, {}, False, False),
        (429, {}, False, False), (500, {}, False, False), (503, {}, False, False),
        (402, {402: "commit"}, True, True), (422, {422: "refuse"}, False, True), (400, {400: "fail"}, False, False),
        (500, {500: "refuse"}, False, True), (303, {303: "refuse"}, False, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("raising", [False, True])
async def test_by_its_status(
    serve: Any, shop: Shop, status: int, statuses: Any, committed: bool, replayed: bool, raising: bool
) -> None:
    async def endpoint(request: Request) -> Response:
        token = (await buy(tx(request), {"qty": 1}))["token"]
        if raising:
            raise HTTPException(status, token)
        return Response(token, status)

    client, k = serve(endpoint, statuses=statuses), key(new_xid())
    one, two = [await client.post("/orders", headers=k) for _ in range(2)]
    assert one.status_code == two.status_code == status
    assert (REPLAYED in two.headers, one.text == two.text) == (replayed, replayed)
    assert len(shop.sql("store", "SELECT FROM orders")) == committed
    shop.assert_clean()


def test_unusable_statuses() -> None:
    with pytest.raises(ValueError, match="402"):
        IdempotencyMiddleware(
            fastapi, FakeApp(), [], scope=None, statuses={402: "record"}  # type: ignore[arg-type, dict-item]
        )


@pytest.mark.integration
async def test_an_endpoint_in_threads(shop: Shop) -> None:
    def endpoint(request: Request) -> Response:
        where: Any = tx(request)
        where.store.execute("INSERT INTO orders (xid, xinst, qty) VALUES ('', 0, 0)")
        if request.query_params.get("refuse"):
            raise Refuse("no")
        raise HTTPException(402, secrets.token_hex(4))

    with sync.App(shop.conninfos()) as mip:
        inner = Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])
        async with client_of(IdempotencyMiddleware(inner, mip, ENDPOINTS, scope=None)) as client:
            for url in ("/orders", "/orders?refuse=1"):
                k = key(new_xid())
                answer = same(*[await client.post(url, headers=k) for _ in range(2)])
                assert answer.status_code in (402, 422)
    assert shop.sql("store", "SELECT FROM orders") == []
    shop.assert_clean()


@pytest.mark.integration
@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_its_server_dies(server: Server, shop: Shop, step_name: str) -> None:
    dying, living = server(), server()
    give_up_at(dying, step_name)
    k, url = key(new_xid()), "/orders?why=raised"
    async with client_of(fastapi(dying)) as one, started(fastapi(living)) as served, client_of(served) as two:
        assert (await one.post(url, json={"qty": 2}, headers=k)).status_code == 503
        ((xid,),) = shop.sql("bank" if step_name == "committed-first-site" else "store", "SELECT xid FROM mip.in_doubt")
        resolution = await living.settle(xid)
        assert resolution is not None
        assert resolution.refused
        answer = await two.post(url, json={"qty": 2}, headers=k)
    assert (answer.status_code, answer.headers[REPLAYED]) == (402, "true")
    assert shop.sql("store", "SELECT FROM orders") == []
    shop.assert_clean()


# What an endpoint ends with, what that means for what it has written, and how a second transmission is answered.
ENDS = {
    "201": ("stays", "replayed"),
    "402": ("goes", "replayed"),
    "409": ("goes", "replayed"),
    "404": ("stays", "replayed"),  # by `statuses`
    "429": ("goes", "replayed"),
    "403": ("goes", "runs again"),
    "500": ("goes", "runs again"),
}
STATUSES = {404: "commit", 429: "refuse"}


@pytest.mark.integration
async def test_in_use(server: Server, shop: Shop) -> None:
    """Real servers, both asked for all of it at once by several, and one of them goes."""
    runs: dict[str, int] = {}

    def served() -> Any:
        api = FastAPI()

        @api.post("/orders")
        async def order(request: FastAPIRequest, ends: str, number: str) -> Response:
            bought = await buy(tx(request), {"qty": 1})
            runs[number] = runs.get(number, 0) + 1
            if ends == "409":
                raise HTTPException(409, bought["token"])
            return JSONResponse(bought, int(ends))

        api.add_middleware(IdempotencyMiddleware, mip=server(), endpoints=ENDPOINTS, scope=None, statuses=STATUSES)
        return serving(api)

    asked = {f"{ends}-{number}": (ends, key(new_xid())) for ends in ENDS for number in range(3)}
    answers: dict[str, list[httpx.Response]] = {number: [] for number in asked}

    async def ask(client: httpx.AsyncClient, number: str) -> None:
        ends, k = asked[number]
        with contextlib.suppress(httpx.TransportError):  # its server goes
            answer = await client.post("/orders", params={"ends": ends, "number": number}, headers=k)
            if answer.status_code != 503:  # what has become of it is not known there
                answers[number].append(answer)

    async with served() as living, httpx.AsyncClient(base_url=living, timeout=60) as to_living:
        async with served() as going, httpx.AsyncClient(base_url=going, timeout=60) as to_going:
            waiting = [asyncio.create_task(ask(to_living, number)) for number in asked]
            waiting += [asyncio.create_task(ask(to_going, number)) for number in asked for _ in range(2)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)
        before = dict(runs)
        await asyncio.gather(*(ask(to_living, number) for number in asked))
    for number, (ends, _) in asked.items():
        what, again = ENDS[ends]
        last = answers[number][-1]
        assert {answer.status_code for answer in answers[number]} == {int(ends)}
        assert runs[number] == before[number] + (again == "runs again")
        assert last.headers.get(REPLAYED) == ("true" if again == "replayed" else None)
        if again == "replayed":
            assert len({answer.content for answer in answers[number]}) == 1
        if what == "stays":
            shop.assert_once(last.json()["xid"], last.json())
        elif ends != "409":
            shop.assert_never(last.json()["xid"])
    assert len(shop.sql("store", "SELECT FROM orders")) == 3 * sum(what == "stays" for what, _ in ENDS.values())
    shop.assert_clean()


# -- what a replay says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_replay_says_so(replayed: bool) -> None:
    result = {"status": 201, "headers": [["x-a", "b"]], "body": "done"}
    app = FakeApp(result, replayed=replayed)
    for served in (IdempotencyMiddleware(fastapi, app, [Endpoint("/buy", ("store",))], scope=None), asgi(FakeApp(
        result, replayed=replayed))):  # type: ignore[arg-type]
        async with client_of(served) as client:
            response = await client.post("/buy", headers=key("k"), content="{}")
        assert response.headers.get(REPLAYED) == ("true" if replayed else None)


@pytest.mark.integration
async def test_an_endpoint_cannot_say_so(serve: Any) -> None:
    """It hands on what another service has answered."""
    async def endpoint(request: Request) -> Response:
        return Response(headers={REPLAYED: "true"})

    client, k = serve(endpoint), key(new_xid())
    first, second = [await client.post("/any", headers=k) for _ in range(2)]
    assert (first.headers.get(REPLAYED), second.headers.get(REPLAYED)) == (None, "true")


@pytest.mark.integration
async def test_a_resource_refuses(server: Server, shop: Shop) -> None:
    one, two = server(), server()
    for app in (one, two):

        @app.transaction(sites=SITES)
        async def no(where: Any, request: Any) -> Any:
            raise Refuse((await buy(where, {"qty": 1}))["token"])

    k = key(new_xid())
    async with client_of(asgi(one)) as to_one, client_of(asgi(two)) as to_two:
        first = await to_one.post("/no", headers=k, content="{}")
        again = await to_two.post("/no", headers=k, content="{}")
    assert (first.headers.get(REPLAYED), again.headers[REPLAYED]) == (None, "true")
    problem = same(first, again).json()
    assert (first.status_code, problem["type"], len(problem["result"])) == (422, "urn:pgmip:problem:refused", 16)
    shop.assert_clean()
    assert shop.sql("store", "SELECT FROM orders") == []
