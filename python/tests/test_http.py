"""HTTP: what each outcome becomes, and the whole way with two real sites."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from shop import Shop

from pgmip import App, Cancelled, Decided, KeyReused, NothingHappened, ProtocolViolation, Unknown
from pgmip.http import asgi
from pgmip.xinst import new_xid


class FakeApp(App):
    """Answers every request with `answer`, or raises it."""

    answer: Any = None
    asked: tuple[str, Any, str | None]

    def __init__(self) -> None:
        super().__init__({"store": ""})
        self.transaction(sites=("store",), name="buy")(self._never)

    async def _never(self, tx: Any, request: Any) -> Any:
        raise AssertionError("not to be called")

    async def submit(self, name: str, request: Any, xid: str | None = None, **limits: Any) -> Any:
        self.asked = (name, request, xid)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


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
    assert fake.asked == ("buy", {"item": 1}, "k")


@pytest.mark.parametrize(("header", "key"), [('"a b"', "a b"), (" bare ", "bare"), (r'"q\"b\\s"', 'q"b\\s')])
async def test_keys(fake: FakeApp, client: httpx.AsyncClient, header: str, key: str) -> None:
    await client.post("/buy", headers={"Idempotency-Key": header}, json=None, content="1")
    assert fake.asked[2] == key


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (KeyReused("other payload"), 422),
        (Cancelled("by an operator"), 410),
        (NothingHappened("a bug"), 500),
        (Unknown("lost"), 503),
        (ProtocolViolation("two winners"), 503),
        (ValueError("an XID has 1 to 128 bytes"), 400),
    ],
)
async def test_problems(fake: FakeApp, client: httpx.AsyncClient, raised: Exception, status: int) -> None:
    fake.answer = raised
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, content="{}")
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in response.headers) == (status == 503)
    problem = response.json()
    assert (problem["status"], problem["detail"]) == (status, str(raised))


async def test_decided_is_a_result(fake: FakeApp, client: httpx.AsyncClient) -> None:
    fake.answer = Decided("not finished at bank", xid="k", result={"order": 7}, unfinished=("bank",))
    response = await client.post("/buy", headers={"Idempotency-Key": "k"}, content="{}")
    assert (response.status_code, response.json()) == (200, {"order": 7})


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/buy", {}, "{}", 400),
        ("/buy", {"Idempotency-Key": ""}, "{}", 400),
        ("/buy", {"Idempotency-Key": '""'}, "{}", 400),
        ("/buy", {"Idempotency-Key": "k"}, "{", 400),
        ("/buy", {"Idempotency-Key": "k"}, b"\xff", 400),
        ("/sell", {"Idempotency-Key": "k"}, "{}", 404),
    ],
)
async def test_unusable(client: httpx.AsyncClient, path: str, headers: Any, body: Any, status: int) -> None:
    response = await client.post(path, headers=headers, content=body)
    assert response.status_code == status
    assert response.json()["status"] == status


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
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert (other.status_code, long.status_code) == (422, 400)
    shop.assert_once(key, answers[0].json())
    shop.assert_clean()
