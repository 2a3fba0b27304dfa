"""`IdempotencyMiddleware`: endpoints of any ASGI application as transactions; see pgmip.http."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, get_args
from urllib.parse import quote

from . import sync
from ._key import key_of
from ._problem import Kind, Problem, log_failure
from ._recorded import Headers, RecordedRequest, Response, Unrecorded, xid_of
from ._twin import AnyApp, inner, within
from ._tx import Tx
from .app import Isolation
from .exceptions import Cancelled, KeyReused, NothingHappened, Refuse, SubmitError, Unknown
from .tracing import continued

__all__ = ["Concurrent", "Effect", "Endpoint", "IdempotencyMiddleware", "identity", "tx"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]
Concurrent = Literal["sibling", "join", "refuse"]
Effect = Literal["commit", "refuse", "fail"]
"""What a response's status means for what its endpoint has written. `commit`. `refuse`: it is rolled back, and the
response recorded nevertheless. `fail`: it is rolled back, and the next request with the key runs."""

# What is wrong with these is how the request was sent, or when: the client may send it again, put right.
_NOT_USABLE = frozenset({401, 403, 407, 408, 422, 425, 429})

_TX = "pgmip.tx"
_IDENTITY = "pgmip.identity"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Requests that run as transactions: those to `path` with one of `methods`, over `sites`.

    `{name}` in the path stands for anything but a slash. Each method and path is a transaction of the App, named like
    `POST /orders/{id}`; as with every transaction a change of `sites` needs a new name, so here another path.
    """

    path: str
    sites: tuple[str, ...]
    methods: tuple[str, ...] = ("POST",)
    isolation: Isolation = "read committed"

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {self.path!r}")
        if re.search(r"[{}]", re.sub(r"\{\w+\}", "", self.path)):
            raise ValueError(f"a path has plain names in braces: {self.path!r}")
        for value in (self.sites, self.methods):
            if isinstance(value, str) or not value:
                raise ValueError(f"sites and methods are given as tuples, not {value!r}")

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{\w+\}", self.path)
        return re.compile("[^/]+".join(map(re.escape, parts)))


def tx(request: Any) -> Tx:
    """The transaction in which an endpoint runs: `tx(request).store.execute(...)`. Also `request.state.tx`.
    With a `pgmip.sync.App` it is a `pgmip.sync.Tx`, whatever the annotation says.

    `request` is a request of Starlette or FastAPI, or an ASGI scope. Raises LookupError where it runs in none, because
    the middleware does not know its route.
    """
    return _of(request, _TX)  # type: ignore[no-any-return]


def identity(request: Any) -> str:
    """Whose request this is, as the middleware's `scope` has said; also where a sweeper repeats it."""
    return _of(request, _IDENTITY)  # type: ignore[no-any-return]


def _of(request: Any, name: str) -> Any:
    scope = getattr(request, "scope", request)
    if name not in scope:
        raise LookupError(
            f"{scope.get('method')} {scope.get('path')} does not run in a transaction: "
            "it is none of the endpoints of a pgmip.http.IdempotencyMiddleware"
        )
    return scope[name]


@dataclass(slots=True, eq=False)
class _Failure:
    """How an endpoint failed: with this response, this exception, or both (as where a framework answers for it)."""

    response: Response | None
    error: Exception | None


class _Failed(Exception):
    """Takes the transaction back, where the endpoint itself has not raised."""


@dataclass(slots=True)
class _Live:
    """A request that is here, and not only in a record; and how its endpoint failed the last time."""

    xid: str
    scope: Scope
    failure: _Failure | None = None


_live: ContextVar[_Live | None] = ContextVar("pgmip.http.live", default=None)

Outcome = Response | Problem | _Failure


class IdempotencyMiddleware:
    """Runs endpoints as transactions, exactly once per `Idempotency-Key`, and replays their responses."""

    def __init__(
        self,
        app: ASGI,
        mip: AnyApp,
        endpoints: Iterable[Endpoint],
        *,
        scope: Callable[[Scope], str] | None,
        concurrent: Concurrent = "sibling",
        max_body: int = 1 << 20,
        headers: Iterable[str] = ("content-type", "content-encoding"),
        restore: Callable[[Scope, str], None] | None = None,
        statuses: Mapping[int, Effect] | None = None,
        debug: bool = False,
    ) -> None:
        """`app`: the ASGI application around which this is put. `mip`: where the transactions run.

        `scope`: says from a request's ASGI scope whose it is, for example the authenticated user; keys of one client
        mean nothing in the requests of another. It has to give the same string for every retransmission. None: all
        clients share their keys, so a key has to be as secret as what it gives access to.

        `concurrent`: what a retransmission does while this very process is working on the request. `sibling` runs it
        beside, as any other server would; `join` waits for the same answer; `refuse` answers 409, as `join` does to
        another request with the same key.

        `max_body`: bytes of a request's body; a longer one gets 413. `headers`: names of those that belong to the
        request, which are compared with it and there when it is repeated from the record. `restore(scope, identity)`
        puts back into the scope of such a repetition what outer middleware would have put there, as `scope["user"]`.

        `statuses`: what these mean for what the endpoint has written, where that is not to be as pgmip.http says:
        `{402: "commit"}` keeps what was written before a 402, `{400: "fail"}` is for a framework whose answer to a
        request that it cannot read is 400. `debug`: tell clients the texts of pgmip's exceptions, which quote rows and
        addresses: for development.
        """
        if concurrent not in get_args(Concurrent):
            raise ValueError(f"concurrent has to be one of {get_args(Concurrent)}, not {concurrent!r}")
        self._app = app
        self._mip = mip
        self._identify = scope
        self._concurrent = concurrent
        self._max_body = max_body
        self._headers = frozenset(name.lower().encode("latin-1") for name in headers)
        self._restore = restore
        self._statuses = dict(statuses or {})
        for status, effect in self._statuses.items():
            if effect not in get_args(Effect):
                raise ValueError(f"a status has to mean one of {get_args(Effect)}, not {effect!r} as {status} does")
        self._debug = debug
        self._running: dict[str, tuple[RecordedRequest, asyncio.Task[Outcome]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # the server's, in which endpoints run
        self._surroundings: Scope = {}  # of a request, as the server's start has shown them
        self._routes: list[tuple[str, re.Pattern[str], str]] = []
        for endpoint in endpoints:
            for method in endpoint.methods:
                self._register(method.upper(), endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        name = self._transaction_of(scope) if scope["type"] == "http" else None
        if scope["type"] == "lifespan":
            self._surroundings = {key: scope[key] for key in ("app", "state") if key in scope}
        if name is None:
            await self._app(scope, receive, send)
            return
        key = key_of([value.decode("latin-1") for key, value in scope["headers"] if key == b"idempotency-key"])
        if isinstance(key, Problem):
            await _answer(key, send)
            return
        body = await self._body(scope, receive)
        if body is None:
            return  # the client has gone
        if isinstance(body, Problem):
            await _answer(body, send)
            return
        request = RecordedRequest(
            self._identity_of(scope),
            _route_path(scope),
            scope.get("query_string", b""),
            # in no order: a retransmission may come by another way
            sorted((item for item in scope["headers"] if item[0] in self._headers), key=itemgetter(0)),
            body,
        )
        with continued({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}):
            outcome = await self._outcome(name, key, request, scope)
        await _answer(outcome, send)

    # -- what comes in ---------------------------------------------------------------------------------------------

    def _register(self, method: str, endpoint: Endpoint) -> None:
        name = f"{method} {endpoint.path}"

        async def handler(tx: Tx | sync.Tx, request: Any) -> Any:
            return await self._run(method, tx, RecordedRequest.from_json(request))

        def in_thread(tx: sync.Tx, request: Any) -> Any:
            if self._loop is None:
                raise RuntimeError("no server has been started around this middleware")
            return asyncio.run_coroutine_threadsafe(handler(tx, request), self._loop).result()

        known_as: dict[str, Any] = {"sites": endpoint.sites, "isolation": endpoint.isolation, "name": name}
        if isinstance(self._mip, sync.App):
            self._mip.transaction(**known_as)(in_thread)
        else:
            self._mip.transaction(**known_as)(handler)
        self._routes.append((method, endpoint.pattern, name))

    def _transaction_of(self, scope: Scope) -> str | None:
        path = _route_path(scope)
        for method, pattern, name in self._routes:
            if scope["method"] == method and pattern.fullmatch(path):
                return name
        return None

    def _identity_of(self, scope: Scope) -> str:
        identity = "" if self._identify is None else self._identify(scope)
        if not isinstance(identity, str):
            raise TypeError(f"scope has to say with a string whose the request is, not with {identity!r}")
        return identity

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Problem | None:
        """The whole body, Problem where it is too large, None where the client left before its end."""
        too_large = Problem(Kind.TOO_LARGE, f"the body has more than {self._max_body} bytes")
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_body:
            return too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body:
                return too_large
            if not message.get("more_body", False):
                return bytes(body)

    # -- what becomes of it ----------------------------------------------------------------------------------------

    async def _outcome(self, name: str, key: str, request: RecordedRequest, scope: Scope) -> Outcome:
        xid = xid_of(key, request.identity, name)
        if self._concurrent == "sibling":
            return await self._submit(name, xid, key, request, scope)
        if xid in self._running:
            first, task = self._running[xid]
            if first != request:  # which of them the key belongs to is not decided yet
                return Problem(Kind.IN_PROGRESS, "another request with this key has not been answered yet", key)
            if self._concurrent == "refuse":
                return Problem(Kind.IN_PROGRESS, "the first request has not been answered yet", key)
            outcome = await asyncio.shield(task)
            return outcome.replayed() if isinstance(outcome, Response) else outcome
        task = asyncio.create_task(self._submit(name, xid, key, request, scope))
        self._running[xid] = request, task
        task.add_done_callback(lambda _: self._running.pop(xid))
        return await asyncio.shield(task)  # others may wait for it too

    async def _submit(self, name: str, xid: str, key: str, request: RecordedRequest, scope: Scope) -> Outcome:
        live = _Live(xid, scope)
        token = _live.set(live)
        try:
            work = inner(self._mip)._answer(name, request.to_json(), xid=xid, session=request.identity or None)
            answer = await within(self._mip, work)
            response = Response.from_json(answer.result)
            return response.replayed() if answer.replayed else response
        except (KeyReused, Cancelled) as error:
            return Problem.of(error, key, debug=self._debug)
        except SubmitError as error:
            told = live.failure if isinstance(error, NothingHappened) else None
            if told is None or told.error is not None:
                log_failure(error, xid, key)
            return told or Problem.of(error, key, debug=self._debug)
        except Exception as error:  # nobody has foreseen it: an earlier transmission may have taken effect
            unknown = Unknown("something unexpected has happened", xid=xid)
            return _Failure(_response_of(Problem.of(unknown, key)), error)
        finally:
            _live.reset(token)

    async def _run(self, method: str, tx: Tx | sync.Tx, request: RecordedRequest) -> Any:
        """The handler: one attempt of the endpoint, for a request that is here or from its record."""
        live = _live.get()
        if live is not None and live.xid != tx.xid:
            live = None  # an endpoint that submits or settles something else
        scope = {**(live.scope if live else self._rebuilt(method, request))}
        scope |= {
            "state": {**(scope.get("state") or {}), "tx": tx},
            "headers": list(scope["headers"]),  # what an attempt does to them is not there for the next one
            "extensions": {},  # they would reach the client past the record
            _TX: tx,
            _IDENTITY: request.identity,
        }
        response, error = await _call(self._app, scope, request.body)
        if isinstance(error, Refuse):
            raise Refuse(_response_of(Problem.refused(error.result)).to_json()) from error
        if live is None and response is not None and response.status in (401, 403, 407):
            raise _Failed(f"a repetition has no credentials, and was answered with {response.status}")
        effect = "fail" if error is not None or response is None else self._effect(response.status)
        if response is not None and effect == "commit":
            return response.to_json()
        if response is not None and effect == "refuse":
            raise Refuse(response.to_json())
        if live is not None:
            live.failure = _Failure(response, error)
        if error is not None:
            raise error
        said = f"the endpoint has answered with {response.status if response else 'nothing'}"
        raise Unrecorded(said) if response is not None and response.status < 500 else _Failed(said)

    def _effect(self, status: int) -> Effect:
        if status in self._statuses:
            return self._statuses[status]
        if status < 400:
            return "commit"
        return "fail" if status >= 500 or status in _NOT_USABLE else "refuse"

    def _rebuilt(self, method: str, request: RecordedRequest) -> Scope:
        scope: Scope = {
            **self._surroundings,
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": request.path,
            "raw_path": quote(request.path, safe="/:@!$&'()*+,;=-._~").encode(),
            "root_path": "",
            "query_string": request.query,
            "headers": [*request.headers, (b"content-length", b"%d" % len(request.body))],
            "client": None,
            "server": None,
        }
        if self._restore is not None:
            self._restore(scope, request.identity)
        return scope


@dataclass(slots=True)
class _Capture:
    """What an application sends."""

    status: int | None = None
    headers: Headers = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                self.complete.set()


async def _call(app: ASGI, scope: Scope, body: bytes) -> tuple[Response | None, Exception | None]:
    """Call an application with a whole request; its response, if it sent a whole one, and what it raised, if it did.
    A response that cannot be sent is an error of the application's.
    """
    capture = _Capture()
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await capture.complete.wait()  # to the application its client never goes away before the answer
        return {"type": "http.disconnect"}

    error: Exception | None = None
    try:
        await app(scope, receive, capture.send)
    except Exception as raised:
        error = raised
    if capture.status is None or not capture.complete.is_set():
        return None, error
    try:
        head = scope["method"] == "HEAD"
        return Response.recorded(capture.status, capture.headers, bytes(capture.body), head=head), error
    except (TypeError, ValueError) as unusable:
        return None, error or unusable


async def _answer(outcome: Outcome, send: Send) -> None:
    """Send it. Raises what the endpoint has raised, after the response where there is one, as the endpoint would."""
    error = None
    response: Response | None
    if isinstance(outcome, Problem):
        response = _response_of(outcome)
    elif isinstance(outcome, _Failure):
        response, error = outcome.response, outcome.error
        if response is not None and response.status < 500 and error is not None:
            response = None  # of an attempt that failed after it: it is not true
    else:
        response = outcome
    if response is not None:
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})
    if error is not None:
        raise error
    if response is None:
        raise RuntimeError("the endpoint has sent no whole response")


def _response_of(problem: Problem) -> Response:
    headers = [(name.encode(), value.encode()) for name, value in problem.headers]
    return Response.recorded(problem.status, headers, problem.body)


def _route_path(scope: Scope) -> str:
    """The path below the application's own root."""
    root, path = scope.get("root_path", ""), scope["path"]
    return path[len(root) :] if root and path.startswith(root + "/") else path  # type: ignore[no-any-return]
