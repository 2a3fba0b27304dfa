"""HTTP: what each outcome becomes, and the whole way with two real sites."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from shop import Shop
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
    Unknown,
)
from pgmip.http import asgi
from pgmip.xinst import new_xid


def client_of(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(asgi(app)), base_url="http://test")


@pytest.fixture
def fake() -> FakeApp:
    return FakeApp()


@pytest.fixture
async def client(fake: FakeApp) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(fake) as client:
        yield client


async def test_a_result(fake: FakeApp, client: httpx.AsyncClient) -> None:
    fake.answer = {"b": 1, "a": [None, "é"]}
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, json={"item": 1})
    assert (response.status_code, response.content) == (200, b'{"a":[null,"\\u00e9"],"b":1}')
    assert response.headers["content-type"] == "application/json"
    assert fake.asked == [("buy", {"item": 1}, "k")]


@pytest.mark.parametrize(
    ("header", "key"), [('"a b"', "a b"), (" bare ", "bare"), (r'"q\"b\\s"', 'q"b\\s'), ('"k";x=1', "k")]
)
async def test_keys(fake: FakeApp, client: httpx.AsyncClient, header: str, key: str) -> None:
    await client.post("/buy", headers={"Idempotency-Key": header}, json=None, content="1")
    assert fake.asked[0][2] == key


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (KeyReused("other payload"), 422, "key-reused"),
        (Cancelled("by an operator"), 410, "cancelled"),
        (Expired("acknowledged"), 410, "expired"),
        (EarlierLost("the bank was restored"), 424, "lost"),
        (NothingHappened("a bug"), 500, "failed"),
        (Unknown("lost"), 503, "unknown"),
        (ProtocolViolation("two winners"), 503, "protocol-violation"),
        (ValueError("an XID has 1 to 128 bytes"), 400, "bad-request"),
    ],
)
async def test_problems(
    fake: FakeApp, client: httpx.AsyncClient, raised: Exception, status: int, kind: str
) -> None:
    fake.answer = raised
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, content="{}")
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in response.headers) == (status == 503)
    problem = response.json()
    assert (problem["status"], problem["idempotency_key"]) == (status, "k")
    assert problem["type"] == f"urn:pgmip:problem:{kind}"


async def test_what_nobody_has_foreseen_is_open(fake: FakeApp, client: httpx.AsyncClient) -> None:
    """A 500 would say that the request has no effect."""
    fake.answer = RuntimeError("a secret of the server's")
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, content="{}")
    assert (response.status_code, response.json()["type"]) == (503, "urn:pgmip:problem:unknown")
    assert "secret" not in response.text


async def test_decided_is_a_result(fake: FakeApp, client: httpx.AsyncClient) -> None:
    fake.answer = Decided("not finished at bank", xid="k", result={"order": 7}, unfinished=("bank",))
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, content="{}")
    assert (response.status_code, response.json()) == (200, {"order": 7})


@pytest.mark.parametrize(
    ("path", "headers", "body", "status", "kind"),
    [
        ("/buy", [], "{}", 400, "key-missing"),
        ("/buy", [("Idempotency-Key", "")], "{}", 400, "key-missing"),
        ("/buy", [("Idempotency-Key", '""')], "{}", 400, "key-invalid"),
        ("/buy", [("Idempotency-Key", '"k')], "{}", 400, "key-invalid"),
        ("/buy", [("Idempotency-Key", '"\\k"')], "{}", 400, "key-invalid"),
        ("/buy", [("Idempotency-Key", "k, l")], "{}", 400, "key-invalid"),
        ("/buy", [("Idempotency-Key", "k"), ("Idempotency-Key", "k")], "{}", 400, "key-invalid"),
        ("/buy", [("Idempotency-Key", "k")], "{", 400, "bad-request"),
        ("/buy", [("Idempotency-Key", "k")], b"\xff", 400, "bad-request"),
        ("/sell", [("Idempotency-Key", "k")], "{}", 404, "no-such-transaction"),
    ],
)
async def test_unusable(
    client: httpx.AsyncClient, path: str, headers: Any, body: Any, status: int, kind: str
) -> None:
    response = await client.post(path, headers=headers, content=body)
    assert response.status_code == status
    assert response.json()["status"] == status
    assert response.json()["type"] == f"urn:pgmip:problem:{kind}"


async def test_acknowledgement(fake: FakeApp, client: httpx.AsyncClient) -> None:
    fake.undecided = {"b"}
    response = await client.post("/-/acknowledge", json={"xids": ["a", "b", "c"]})
    assert (response.status_code, response.json()) == (200, {"open": ["b"]})
    assert fake.acknowledged == ["a", "c"]


async def test_what_cannot_be_acknowledged_is_in_nobodys_way(fake: FakeApp, client: httpx.AsyncClient) -> None:
    """Be it no XID, or that of a request over sites that this server does not know."""
    long = "x" * 129
    fake.refused = {long, "elsewhere"}
    response = await client.post("/-/acknowledge", json={"xids": ["a", long, "elsewhere", "b"]})
    assert (response.status_code, response.json()) == (200, {"open": [long, "elsewhere"]})
    assert fake.acknowledged == ["a", "b"]


@pytest.mark.parametrize("body", [[], {}, {"xids": "a"}, {"xids": ["a", 1]}, {"xids": ["a"] * 1001}])
async def test_unusable_acknowledgement(fake: FakeApp, client: httpx.AsyncClient, body: Any) -> None:
    response = await client.post("/-/acknowledge", json=body)
    assert (response.status_code, response.json()["type"]) == (400, "urn:pgmip:problem:bad-request")
    assert fake.acknowledged == []


async def test_a_client_that_leaves_in_the_middle(fake: FakeApp) -> None:
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/buy", "headers": [(b"idempotency-key", b"k")]}
    await asgi(fake)(scope, receive, send)
    assert fake.asked == []


async def test_only_post(client: httpx.AsyncClient) -> None:
    assert (await client.get("/buy")).status_code == 405


@pytest.mark.integration
async def test_the_whole_way(server: Callable[..., App], shop: Shop) -> None:
    key = new_xid()
    body = json.dumps({"item": 1, "qty": 3})
    async with client_of(server()) as one, client_of(server()) as two:
        answers = [
            await client.post("/buy", headers={"Idempotency-Key": f'"{key}"'}, content=body)
            for client in (one, two, one)
        ]
        other = await two.post("/buy", headers={"Idempotency-Key": f'"{key}"'}, json={"item": 1, "qty": 4})
        long = await two.post("/buy", headers={"Idempotency-Key": "x" * 129}, content=body)
        deep = await two.post("/buy", headers={"Idempotency-Key": "deep"}, content="[" * 500 + "]" * 500)
        too_long = await two.post("/-/acknowledge", json={"xids": ["x" * 129, key]})
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert (other.status_code, long.status_code, deep.status_code) == (422, 400, 400)
    assert too_long.json() == {"open": ["x" * 129]}
    assert all(entry[0] for entry in shop.sql("store", f"SELECT acknowledged FROM mip.instances('{key}')"))
    shop.assert_once(key, answers[0].json())
    shop.assert_clean()
