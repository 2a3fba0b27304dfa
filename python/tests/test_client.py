"""The client: whatever becomes of servers and wires, the caller is told the result, once there is one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpcore
import httpx
import pytest
from forked import in_a_child, refusal
from web import Direction, FakeApp, Fault, Mode, WireProxy, serving

import pgmip
from pgmip import (
    Cancelled,
    Client,
    Decided,
    EarlierLost,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refused,
    SubmitError,
    SyncClient,
    Unknown,
    _acknowledger,
    _call,
)
from pgmip._call import Call, Failure, Result, Sent, Server, Verdict
from pgmip.http import asgi

NOBODY = "http://127.0.0.1:9"  # the port "discard": refused


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_call, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(_acknowledger, "_LAZINESS", 0.02)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def fake() -> FakeApp:
    return FakeApp({"order": 7})


@pytest.fixture
async def url(stack: AsyncExitStack, fake: FakeApp) -> str:
    return await stack.enter_async_context(serving(asgi(fake)))


def xids(*apps: FakeApp) -> set[str | None]:
    return {xid for app in apps for _, _, xid in app.asked}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives these answers, one per connection (the last one for ever); and what it was sent."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(heard), len(answers)) - 1])
        await writer.drain()

    async with listening(answer) as url:
        yield url, heard


@asynccontextmanager
async def listening(answer: Callable[..., Awaitable[None]]) -> AsyncIterator[str]:
    """A server of which `answer(reader, writer)` is the whole of a connection; its base URL. Leaves nothing open."""
    tasks = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(lambda _: writer.transport.abort())  # also where it was cancelled before it began

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await answer(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*tasks)


def http(status: int, media_type: str, body: bytes, *headers: str, framed: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {media_type}", "Connection: close", *headers]
    if framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


GOOD = http(200, "application/json", b'{"order":7}')


# -- one server that answers -------------------------------------------------------------------------------------


async def test_a_result(fake: FakeApp, url: str) -> None:
    async with Client([url + "/"]) as client:
        assert await client.submit("buy", {"item": 1}) == {"order": 7}
    ((name, request, xid),) = fake.asked
    assert (name, request) == ("buy", {"item": 1})
    assert uuid.UUID(xid).version == 7


async def test_an_xid_of_ones_own(fake: FakeApp, url: str) -> None:
    async with Client([url]) as client:
        await client.submit("buy", None, xid='my "key"\\')
    assert xids(fake) == {'my "key"\\'}


@pytest.mark.parametrize("error", [KeyReused("other"), Cancelled("c"), Expired("e"), NothingHappened("failed")])
async def test_errors_are_those_of_the_app(fake: FakeApp, url: str, error: SubmitError) -> None:
    fake.answer = error
    async with Client([url]) as client:
        with pytest.raises(SubmitError) as caught:
            await client.submit("buy", None, xid="k")
    assert (type(caught.value), caught.value.xid) == (type(error), "k")
    assert len(fake.asked) == 1


@pytest.mark.parametrize("result", [None, {"why": ["no money"]}])
async def test_a_refusal(fake: FakeApp, url: str, result: Any) -> None:
    fake.answer = Refused("no", xid="k", result=result)
    async with Client([url]) as client:
        for xid in ("k", None):
            with pytest.raises(Refused) as caught:
                await client.submit("buy", None, xid=xid)
            assert caught.value.result == result
    (_, _, own) = fake.asked[1]
    assert fake.acknowledged == [own], "it has arrived"


async def test_decided_is_a_result(fake: FakeApp, url: str) -> None:
    fake.answer = Decided("not finished at bank", xid="k", result=7, unfinished=("bank",))
    async with Client([url]) as client:
        assert await client.submit("buy", None) == 7


async def test_what_cannot_be_asked_for(fake: FakeApp, url: str) -> None:
    async with Client([url]) as client:
        with pytest.raises(LookupError, match="'sell 50%'"):
            await client.submit("sell 50%", None)
        fake.answer = ValueError("the item is not a number")
        with pytest.raises(ValueError, match="not a number"):
            await client.submit("buy", None)
        fake.asked.clear()
        for request, xid in [(float("nan"), "k"), (1, ""), (1, "x" * 129), (1, "é")]:
            with pytest.raises(ValueError, match=r"XID|JSON"):
                await client.submit("buy", request, xid=xid)
        with pytest.raises(TypeError):
            await client.submit("buy", object())
        with pytest.raises(TypeError):
            await client.submit("buy", 1, xid=7)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="deadline"):
            await client.submit("buy", 1, deadline=0)
    assert fake.asked == []


@pytest.mark.parametrize("servers", [[], "http://a", ["a:80"], ["ftp://a"], ["http://"], ["http://a?b"], ["http://a:b"]])
def test_unusable_servers(servers: Any) -> None:
    with pytest.raises(ValueError, match="URL"):
        Client(servers)


@pytest.mark.parametrize("parameter", ["deadline", "timeout", "connect_timeout", "hedge_after"])
def test_unusable_times(parameter: str) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Client([NOBODY], **{parameter: 0})


# -- no result yet -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unknown("a site is down"), ProtocolViolation("two winners")])
async def test_unknown_only_after_the_deadline(fake: FakeApp, stack: AsyncExitStack, error: Unknown) -> None:
    fake.answer = error
    urls = [await stack.enter_async_context(serving(asgi(fake))) for _ in range(3)]
    loop = asyncio.get_running_loop()
    async with Client(urls) as client:
        began = loop.time()
        with pytest.raises(type(error), match="no answer by the deadline") as caught:
            await client.submit("buy", None, deadline=0.5)
        assert loop.time() - began >= 0.5
    assert caught.value.xid in xids(fake)
    assert len(xids(fake)) == 1
    assert len(fake.asked) == 3, "all were asked, and none again before Retry-After"


async def test_what_is_told_once_is_not_repeated(fake: FakeApp, url: str) -> None:
    """The second answer would be as if there were nothing to tell."""
    fake.answer = EarlierLost("the bank was restored")
    async with Client([url]) as client:
        with pytest.raises(EarlierLost):
            await client.submit("buy", None)
    assert len(fake.asked) == 1


async def test_unknown_becomes_known(fake: FakeApp, stack: AsyncExitStack) -> None:
    lost = FakeApp(Unknown("a site is down"))
    urls = [await stack.enter_async_context(serving(asgi(app))) for app in (lost, fake)]
    async with Client(urls) as client:
        while not lost.asked:
            assert await client.submit("buy", None) == {"order": 7}


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", max)  # else it may be about to ask again when time is up
    async with Client([NOBODY]) as client:
        with pytest.raises(NothingHappened, match="no server took the request") as caught:
            await client.submit("buy", None, deadline=0.9)
    assert isinstance(caught.value.__cause__, Unknown)
    assert isinstance(caught.value.__cause__.__cause__, httpx.ConnectError)


async def test_the_next_server_lives(fake: FakeApp, url: str) -> None:
    async with Client([NOBODY, NOBODY, NOBODY, url]) as client:
        for _ in range(20):
            assert await client.submit("buy", None) == {"order": 7}


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"garbage\r\n\r\n",
        GOOD[:-1],
        http(200, "application/json", b'{"order":'),
        http(200, "application/json", b"1", framed=False),
        http(200, "text/html", b"<p>Log in to this hotel's network"),
        http(200, "application/json", b"\xff"),
        http(204, "application/json", b""),
        http(408, "text/plain", b"Request Time-out"),
        http(409, "text/plain", b"in progress"),
        http(409, "application/problem+json", b'{"type":"urn:pgmip:problem:in-progress"}'),
        http(429, "text/plain", b"too many"),
        http(500, "text/plain", b"Internal Server Error"),
        http(502, "text/html", b"<h1>Bad gateway"),
        http(503, "application/problem+json", b'{"type":"about:blank","status":503}'),
        http(504, "application/problem+json", b"[]"),
        http(200, "application/json", b"{}", "Content-Encoding: gzip"),
    ],
)
async def test_what_is_no_answer_is_asked_for_again(first: bytes) -> None:
    async with answering(first, GOOD) as (url, heard), Client([url], acknowledge=False) as client:
        assert await client.submit("buy", None) == {"order": 7}
    assert len(heard) == 2
    keys = {line for request in heard for line in request.split(b"\r\n") if line.lower().startswith(b"idempotency-key")}
    assert len(keys) == 1, "it is the same request"


@pytest.mark.parametrize(
    "answer",
    [
        http(408, "text/plain", b"Request Time-out"),
        http(424, "text/plain", b"Failed Dependency"),
        http(499, "text/plain", b"Client Closed Request"),
        http(409, "text/plain", b"being worked on"),
        http(409, "application/problem+json", b'{"type":"urn:pgmip:problem:in-progress","detail":"being worked on"}'),
        http(503, "application/problem+json", b'{"type":"urn:pgmip:problem:unknown","detail":"who knows"}'),
    ],
)
async def test_an_earlier_transmission_may_succeed(answer: bytes) -> None:
    """Nobody is told that nothing has happened, neither by this answer nor by a failure after it."""
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    for answers in ((answer,), (answer, failed)):
        async with answering(*answers) as (url, _), Client([url]) as client:
            with pytest.raises(Unknown):
                await client.submit("buy", None, deadline=0.3)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 415])
async def test_somebody_in_between_refuses(status: int) -> None:
    async with answering(http(status, "text/plain", b"no")) as (url, heard), Client([url]) as client:
        with pytest.raises(NothingHappened, match=f"status {status}"):
            await client.submit("buy", None)
    assert len(heard) == 1


class Persistent(httpx.AsyncHTTPTransport):
    """Tries again by itself, as add-ons of httpx do."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except httpx.RemoteProtocolError:
            if not self.again:
                raise httpx.ConnectError("refused") from None
            return await super().handle_async_request(request)


@pytest.mark.parametrize(
    "second",
    [
        http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}'),
        http(429, "text/plain", b"too many"),
        http(404, "text/plain", b"no"),
        None,
    ],
)
async def test_a_transport_tries_again(second: bytes | None) -> None:
    """Its last answer does not speak for what it has sent before: that was taken, and may succeed."""
    async with (
        answering(b"", second or b"") as (url, heard),
        Client([url], transport=Persistent(second is not None)) as client,
    ):
        with pytest.raises(Unknown):
            await client.submit("buy", None, deadline=0.3)
    assert len(heard) > 1


class Tunnelling(httpx.AsyncHTTPTransport):
    """Asks a proxy for the way to the server first, and traces that as httpcore does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        ask = httpcore.Request(b"CONNECT", str(request.url))
        await request.extensions["trace"]("http11.send_request_headers.started", {"request": ask})
        return await super().handle_async_request(request)


async def test_what_an_earlier_call_has_left_open() -> None:
    """A server may still be at it: what another one says of the request does not rule that out."""
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with answering(b"", failed) as (url, _), Client([url]) as client:
        with pytest.raises(Unknown):
            await client.submit("buy", None, xid="open", deadline=0.3)
        for _ in range(2):
            with pytest.raises(Unknown, match="a bug"):
                await client.submit("buy", None, xid="open", deadline=0.3)
        with pytest.raises(NothingHappened, match="a bug"):
            await client.submit("buy", None, xid="another", deadline=0.3)


async def test_what_an_earlier_call_has_left_open_and_is_done() -> None:
    done = http(200, "application/json", b'"done"')
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with answering(b"", failed, done, failed) as (url, _), Client([url]) as client:
        assert await client.submit("buy", None, xid="open", deadline=30) == "done"
        with pytest.raises(NothingHappened, match="a bug"):  # which is this server's word, against its own
            await client.submit("buy", None, xid="open", deadline=0.3)


async def test_a_tunnel() -> None:
    """To ask for it sends nothing to the server."""
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with answering(failed) as (url, heard), Client([url], transport=Tunnelling()) as client:
        with pytest.raises(NothingHappened, match="a bug"):
            await client.submit("buy", None)
    assert len(heard) == 1


class Token(httpx.Auth):
    """Asks for a token first."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        yield httpx.Request("GET", request.url)
        yield request


async def test_an_answer_to_something_else() -> None:
    """It does not stand for that to what was cut off, and sent again by the transport."""
    token = http(200, "text/plain", b"token")
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with (
        answering(token, b"", failed) as (url, heard),
        Client([url], transport=Persistent(again=True), auth=Token()) as client,
    ):
        with pytest.raises(Unknown):
            await client.submit("buy", None, deadline=0.3)
    assert len(heard) >= 3


async def test_a_transport_that_sends_credentials_later() -> None:
    """What was answered by itself keeps nothing open."""
    challenge = http(401, "text/plain", b"who?", 'WWW-Authenticate: Digest realm="r", nonce="n"')
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with answering(challenge, failed) as (url, heard), Client([url], auth=httpx.DigestAuth("a", "b")) as client:
        with pytest.raises(NothingHappened, match="a bug"):
            await client.submit("buy", None)
    assert len(heard) == 2


async def test_a_failure_is_not_told_while_something_is_open(fake: FakeApp) -> None:
    """What was cut off may still be running, and succeed: that the second server has failed proves nothing."""
    failed = http(500, "application/problem+json", b'{"type":"urn:pgmip:problem:failed","detail":"a bug"}')
    async with answering(failed) as (url, heard), Client([url]) as client:
        with pytest.raises(NothingHappened, match="a bug"):
            await client.submit("buy", None)
        assert len(heard) == 1
    async with answering(b"", failed) as (url, heard), Client([url]) as client:
        with pytest.raises(Unknown, match="a bug"):
            await client.submit("buy", None, deadline=0.3)
        assert len(heard) > 2
    async with answering(b"", failed, GOOD) as (url, _), Client([url]) as client:
        assert await client.submit("buy", None) == {"order": 7}


# -- the wire breaks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize(
    ("mode", "step"), [(Mode.CUT, 1), (Mode.HALF, 1), (Mode.STALL, 20), (Mode.DELAY, 20)], ids=lambda value: str(value)
)
async def test_a_fault_at_every_byte(
    stack: AsyncExitStack, fake: FakeApp, mode: Mode, step: int, direction: Direction
) -> None:
    """Both servers are met by the fault, so that whichever is asked first the second one has one as well."""
    other = FakeApp(fake.answer)
    proxies = [
        await stack.enter_async_context(WireProxy(await stack.enter_async_context(serving(asgi(app)))))
        for app in (fake, other)
    ]
    client = await stack.enter_async_context(
        Client([proxy.url for proxy in proxies], timeout=0.05, deadline=20, acknowledge=False)
    )
    for after in range(0, 5000, step):
        faults = [Fault(mode, direction, after) for _ in proxies]
        for proxy, fault in zip(proxies, faults, strict=True):
            proxy.arm(fault)
        assert await client.submit("buy", {"item": 1}, xid=str(after)) == {"order": 7}
        if not any(fault.struck for fault in faults):
            break
    assert step < after < 5000
    assert xids(fake, other) == {str(number) for number in range(0, after + 1, step)}, "nobody made XIDs of his own"


async def test_closing_while_a_call_runs(stack: AsyncExitStack) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    class Hangs(FakeApp):
        async def _answer(self, name: str, request: Any, xid: str | None = None, **limits: Any) -> Any:
            asked.set()
            await never.wait()

    client = Client([await stack.enter_async_context(serving(asgi(Hangs())))])
    call = asyncio.create_task(client.submit("buy", None))
    await asked.wait()
    await client.close()
    with pytest.raises(Unknown, match="closed"):
        await call
    with pytest.raises(Unknown, match="closed"):
        await client.submit("buy", None)
    never.set()


async def test_a_server_that_hangs(stack: AsyncExitStack, fake: FakeApp) -> None:
    """It costs a time-out, or with a hedge not even that."""
    hangs = FakeApp()
    never = asyncio.Event()

    async def hang(name: str, request: Any, xid: str | None = None, **limits: Any) -> Any:
        hangs.asked.append((name, request, xid))
        await never.wait()

    hangs._answer = hang  # type: ignore[method-assign]
    urls = [await stack.enter_async_context(serving(asgi(app))) for app in (fake, hangs)]
    for options in ({"timeout": 0.05}, {"hedge_after": 0.05, "timeout": 3600, "deadline": 3600}):
        hangs.asked.clear()
        async with Client(urls, **options) as client:
            while not hangs.asked:
                assert await client.submit("buy", None) == {"order": 7}
    assert xids(hangs) <= xids(fake)
    never.set()


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async with asyncio.timeout(30):
        reached = asyncio.Event()
        gone = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            reached.set()
            await reader.read()  # until the client has closed
            gone.set()

        async with listening(answer) as url, Client([url]) as client:
            call = asyncio.create_task(client.submit("buy", None))
            await reached.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await gone.wait()


# -- when and where to ------------------------------------------------------------------------------------------


async def run(
    verdicts: dict[str, list[Verdict]], *, hedge_after: float | None = None, suspects: Sequence[str] = ()
) -> tuple[Any, list[str]]:
    """A call to servers that say these things one after another (the last for ever); whom it asked."""
    asked: list[str] = []
    waited.clear()
    now = asyncio.get_running_loop().time()
    servers = [Server(name, failed_at=now if name in suspects else -1e9) for name in verdicts]

    async def send(server: Server, patience: float) -> Verdict:
        asked.append(server.url)
        waited.append(patience)
        said = verdicts[server.url]
        return said.pop(0) if len(said) > 1 else said[0]

    call = Call(servers, send, xid="k", deadline=now + 30, timeout=1, hedge_after=hedge_after, sent=Sent())
    return await call.run(), asked


waited: list[float] = []  # how long the last call has waited at most for each answer


LOST = Failure(Unknown("lost"), open=True, again=True)


async def test_pauses_grow_and_are_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return 0.0

    monkeypatch.setattr(_call, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr("random.uniform", uniform)
    await run({"a": [LOST] * 8 + [Result(1)]})
    assert bounds == [(0, 0.05), (0, 0.1), (0, 0.2), (0, 0.4), (0, 0.8), (0, 1.0), (0, 1.0), (0, 1.0)]


async def test_patience_grows() -> None:
    """A server that needs longer than the time-out has its answer, once, heard."""
    await run({"a": [LOST, LOST, LOST, Result(1)]})
    assert waited == [1, 2, 4, 8]


async def test_every_server_has_its_turn() -> None:
    result, asked = await run({"a": [LOST, Result("a")], "b": [LOST, Result("b")], "c": [LOST, Result("c")]})
    assert sorted(asked[:3]) == ["a", "b", "c"]
    assert asked[3:] == [result] == [asked[0]]


async def test_who_has_failed_is_asked_last() -> None:
    for _ in range(20):
        assert await run({"a": [Result("a")], "b": [Result("b")]}, suspects=["a"]) == ("b", ["b"])


async def test_who_asks_for_a_rest_gets_it() -> None:
    tired = Failure(Unknown("busy"), open=True, again=True, rest=3600)
    for _ in range(20):
        _, asked = await run({"a": [tired], "b": [LOST, LOST, LOST, Result(1)]})
        assert asked.count("a") <= 1
        assert asked.count("b") == 4


# -- acknowledgements --------------------------------------------------------------------------------------------


async def test_own_xids_are_acknowledged_in_batches(fake: FakeApp, url: str) -> None:
    posts: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        if request.url.path == "/-/acknowledge":
            posts.append(request)

    async with Client([url], event_hooks={"request": [note]}) as client:
        await asyncio.gather(*(client.submit("buy", number) for number in range(20)))
        await client.submit("buy", 1, xid="mine")
        await until(lambda: len(fake.acknowledged) == 20)
        assert set(fake.acknowledged) == xids(fake) - {"mine"}
        client.acknowledge("mine")
        await until(lambda: "mine" in fake.acknowledged)
    assert len(posts) < 10


async def test_what_has_failed_is_not_acknowledged(fake: FakeApp, url: str) -> None:
    async with Client([url]) as client:
        fake.answer = NothingHappened("a bug")
        with pytest.raises(NothingHappened):
            await client.submit("buy", None)
    assert fake.acknowledged == []


async def test_acknowledged_later(fake: FakeApp, url: str) -> None:
    async with Client([NOBODY, url]) as client:
        client.acknowledge("a")
        client.acknowledge("b")
        fake.undecided = {"a"}
        await until(lambda: "b" in fake.acknowledged)
        fake.undecided = set()
        await until(lambda: "a" in fake.acknowledged)
    assert set(fake.acknowledged) == {"a", "b"}


async def test_what_cannot_be_an_xid_is_refused_at_once(fake: FakeApp, url: str) -> None:
    async with Client([url]) as client:
        for xid in ("x" * 129, "", "\0", "\ud800"):
            with pytest.raises(ValueError, match=r"XID|surrogates"):
                client.acknowledge(xid)
        with pytest.raises(TypeError):
            client.acknowledge(7)  # type: ignore[arg-type]
        client.acknowledge("usable")
        await until(lambda: fake.acknowledged == ["usable"])
    with SyncClient([url]) as sync_client, pytest.raises(ValueError, match="XID"):
        sync_client.acknowledge("x" * 129)


async def test_given_up_after_some_tries(fake: FakeApp, url: str) -> None:
    fake.undecided = {"a"}
    async with Client([url]) as client:
        client.acknowledge("a")
        worker = client._acknowledger._worker  # type: ignore[union-attr]
        assert worker is not None
        await asyncio.wait_for(worker, 30)
    assert fake.acknowledged == []


async def test_the_last_ones_at_close(fake: FakeApp, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_acknowledger, "_LAZINESS", 3600)
    async with Client([url]) as client:
        await client.submit("buy", None)
        assert fake.acknowledged == []
    assert set(fake.acknowledged) == xids(fake)


async def test_nobody_waits_for_acknowledgements(fake: FakeApp, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_acknowledger, "_FAREWELL", 0.01)
    reached = asyncio.Event()

    async def hang(xid: str, **sites: Any) -> None:
        reached.set()
        await asyncio.sleep(3600)

    fake.acknowledge = hang  # type: ignore[method-assign]
    async with asyncio.timeout(30), Client([url]) as client:
        await client.submit("buy", None)
        await reached.wait()
        for _ in range(5):
            await client.submit("buy", None)


async def test_switched_off(fake: FakeApp, url: str) -> None:
    async with Client([url], acknowledge=False) as client:
        await client.submit("buy", None)
        client.acknowledge("a")
    assert fake.acknowledged == []


# -- without an event loop ---------------------------------------------------------------------------------------


@pytest.fixture
def thread_url(fake: FakeApp) -> Iterator[str]:
    """A server in a thread."""
    ready = threading.Event()
    stop = threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with serving(asgi(fake)) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield urls[0]
    stop.set()
    thread.join()


def test_sync(fake: FakeApp, thread_url: str) -> None:
    with SyncClient([thread_url]) as client:
        assert client.submit("buy", {"item": 1}) == {"order": 7}
        client.acknowledge("mine")
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(client.submit("buy", {"item": 1}))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [{"order": 7}] * 8
        fake.answer = Cancelled("by an operator")
        with pytest.raises(Cancelled):
            client.submit("buy", None, xid="k")
    assert set(fake.acknowledged) == xids(fake) - {"k"} | {"mine"}
    with pytest.raises(Unknown, match="closed"):
        client.submit("buy", None)


def test_sync_with_unusable_parameters() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="URL"):
        SyncClient([])
    assert threading.active_count() == before


def test_without_httpx() -> None:
    """Everything else works without it."""
    code = "import sys; sys.modules['httpx'] = None; import pgmip, pgmip.http; pgmip.Client"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pgmip.Client needs httpx: in the clone of pg_mip, pip install './python[client]'" in process.stderr
    with pytest.raises(AttributeError, match="Server"):
        _ = pgmip.Server  # type: ignore[attr-defined]


def test_sync_closed(thread_url: str) -> None:
    client = SyncClient([thread_url])
    client.close()
    client.close()
    with pytest.raises(Unknown, match="closed"):
        client.submit("buy", None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the sockets of a loop that is gone
def test_another_event_loop_is_refused(fake: FakeApp, thread_url: str) -> None:
    """Its connections belong to the first one: what they are at in another one nobody can say."""
    use_in_several_loops(Client([thread_url]))
    assert len(xids(fake)) == 1
    gc.collect()


def use_in_several_loops(client: Client) -> None:
    assert asyncio.run(client.submit("buy", {"item": 1})) == {"order": 7}

    async def again() -> None:
        with pytest.raises(RuntimeError, match=r"this Client .*another event loop.*pgmip.SyncClient"):
            await client.submit("buy", {"item": 1})
        with pytest.raises(RuntimeError, match="another event loop"):
            client.acknowledge("x")

    asyncio.run(again())
    asyncio.run(client.close())
    asyncio.run(client.close())


def test_closing_a_client_from_another_loop_is_refused(thread_url: str) -> None:
    client, loop = Client([thread_url]), asyncio.new_event_loop()
    loop.run_until_complete(client.submit("buy", {"item": 1}))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.close())
    loop.run_until_complete(client.submit("buy", {"item": 1}))
    loop.run_until_complete(client.close())
    loop.close()


def test_a_fork_after_the_first_use_is_refused(thread_url: str) -> None:
    """Its answers would come over its parent's connections."""
    with SyncClient([thread_url]) as client:
        client.submit("buy", {"item": 1})
        for call in (lambda: client.submit("buy", None), lambda: client.acknowledge("x"), client.close):
            assert "forked" in in_a_child(lambda call=call: refusal(call))  # type: ignore[misc]
        client.submit("buy", {"item": 1})

    async def use() -> None:
        async with Client([thread_url]) as client:
            await client.submit("buy", {"item": 1})
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(client.submit("buy", None))))
            assert "forked" in in_a_child(lambda: refusal(lambda: client.acknowledge("x")))
            assert "forked" in in_a_child(lambda: refusal(lambda: asyncio.run(client.close())))

    asyncio.run(use())
