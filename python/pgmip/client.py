"""`Client`: one call per request, whatever becomes of the servers meanwhile::

    async with pgmip.Client(["http://app1:8000", "http://app2:8000"]) as client:
        result = await client.submit("buy_confirm", {"basket": 7})

A request goes to one server of `pgmip.http.asgi`. On an error or a time-out the same request, with the same XID, goes
to the next one; any of them may have it done already, or be about to, and the result is the same. Needs httpx (extra
`client`). `SyncClient` is the same for code without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote

from ._acknowledger import Acknowledger
from ._call import Call, Failure, Final, Result, Sent, Server, Verdict
from ._cancellation import obeyed
from ._extra import needed_for
from ._json import canonical, parse
from ._key import format_key
from ._options import checked_seconds
from ._portal import Closed, Portal
from ._problem import MEDIA_TYPE, Kind, Problem
from ._process import Home
from .exceptions import (
    Cancelled,
    EarlierLost,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refused,
    SubmitError,
    Unknown,
)
from .tracing import inject
from .xinst import checked_xid, new_xid

with needed_for("pgmip.Client", "client"):
    import httpx

__all__ = ["Client", "SyncClient"]

_FINAL: dict[Kind, type[SubmitError]] = {
    Kind.CANCELLED: Cancelled,
    Kind.EXPIRED: Expired,
    Kind.KEY_REUSED: KeyReused,
}
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_BUSY = (425, 429)
_MOST_OPEN = 10_000  # requests; the last ones
_MAY_RUN = (408, 409, 424, 499)  # something in between has given up on a server, or knows of an earlier request


class Client:
    """Sends requests to app servers, and sends them again. Any number of calls may run at a time, of the process and in
    the event loop that use it first; what runs in several loops, as by `asyncio.run` each time, needs one for each.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        deadline: float = 30.0,
        timeout: float = 10.0,
        connect_timeout: float = 2.0,
        hedge_after: float | None = None,
        acknowledge: bool = True,
        **options: Any,
    ) -> None:
        """`servers`: base URLs of servers of `pgmip.http.asgi`, in any order. All times are seconds.

        `deadline`: of a call. `timeout`: how long to wait for a server's answer before the next one is asked, doubled
        each time the same one is asked again. `connect_timeout`: how long for a connection. `hedge_after`: ask another
        server beside when there is no answer by then, a further one after twice that time, and so on; siblings do not
        wait for each other, so this costs work but no time. `acknowledge`: see the method of that name. `options` go to
        httpx.AsyncClient (`headers`, `auth`, `verify`, `cert`, `http2`, `trust_env` ...).
        """
        if isinstance(servers, str) or not servers:
            raise ValueError("servers are given as a sequence of base URLs, at least one")
        self._servers = [Server(_base(url)) for url in servers]
        self._home = Home("this Client", "pgmip.SyncClient")
        self._deadline = checked_seconds("deadline", deadline)
        self._timeout = checked_seconds("timeout", timeout)
        self._hedge_after = None if hedge_after is None else checked_seconds("hedge_after", hedge_after)
        connect_timeout = checked_seconds("connect_timeout", connect_timeout)
        options.setdefault("limits", httpx.Limits(max_connections=None, max_keepalive_connections=100))
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=connect_timeout), **options)
        self._acknowledger = Acknowledger(self._send_acknowledgements) if acknowledge else None
        self._sent: dict[str, Sent] = {}  # by calls that run
        self._open: dict[str, None] = {}  # requests whose calls have ended, but maybe not all that they have sent

    async def submit(
        self, name: str, request: Any, *, xid: str | None = None, deadline: float | None = None
    ) -> Any:
        """Run a transaction exactly once per XID, and return its result; by default with a new XID.

        Raises what `App.submit` raises, with the same meaning: NothingHappened (Refused, KeyReused, Cancelled),
        Expired, LookupError for an unknown transaction, TypeError or ValueError for what cannot be a request, an XID or
        a deadline, RuntimeError in another process or event loop than the first; EarlierLost; and Unknown, but only
        when the deadline has passed. Unknown is also raised then where a server says that the transaction has failed
        while what becomes of another transmission is not known, be it one of another call of this Client: it may still
        succeed. Nor is Expired raised then, but Unknown, at once: it may have succeeded, and been acknowledged since.

        When cancelled the request may or may not take effect: submit it again, with an XID of your own.
        """
        self._home.check()
        seconds = self._deadline if deadline is None else checked_seconds("deadline", deadline)
        body = canonical(request).encode()
        known_as = new_xid() if xid is None else checked_xid(xid)
        headers = {"Idempotency-Key": format_key(known_as), "Content-Type": "application/json"}
        inject(headers)

        async def send(server: Server, patience: float) -> Verdict:
            return await self._send(server, f"/{quote(name, safe='')}", body, headers, known_as, patience)

        sent = self._sent.setdefault(known_as, Sent(open=known_as in self._open))
        sent.calls += 1
        try:
            call = Call(
                self._servers,
                send,
                xid=known_as,
                deadline=asyncio.get_running_loop().time() + seconds,
                timeout=self._timeout,
                hedge_after=self._hedge_after,
                sent=sent,
            )
            result = await call.run()
        except Refused:
            if xid is None:
                self.acknowledge(known_as)
            raise
        finally:
            self._call_is_over(known_as, sent)
        if xid is None:
            self.acknowledge(known_as)
        return result

    def acknowledge(self, xid: str) -> None:
        """Let the sites forget what this XID's result was; from now on nobody may ask for it again.

        `submit` does so by itself for an XID of its own making, once the caller has the result; whoever brings an XID
        says himself when he needs it no more. Told to a server some time later, many at a time, and if that fails
        often enough never: then the entry stays for its retention. Raises TypeError or ValueError for what cannot be an
        XID.
        """
        self._home.check()
        checked_xid(xid)
        if self._acknowledger is not None:
            self._acknowledger.add(xid)

    async def close(self) -> None:
        """Close all connections, after a last attempt to deliver acknowledgements. Calls that run raise Unknown. Where
        the event loop is closed in which it was used, so is what ran there.
        """
        if self._home.is_gone:
            with contextlib.suppress(RuntimeError):  # of that loop
                await self._http.aclose()
            return
        self._home.check()
        try:
            if self._acknowledger is not None:
                await self._acknowledger.close()
        finally:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _send(
        self, server: Server, path: str, body: bytes, headers: dict[str, str], xid: str, patience: float
    ) -> Verdict:
        """One transmission."""
        if self._http.is_closed:
            return Final(Unknown("the client has been closed", xid=xid))
        times = 0  # a transport may try again by itself, and keep to itself what has become of what it sent before

        async def count(event: str, info: Mapping[str, Any]) -> None:
            nonlocal times
            # not what asks a proxy for the way to the server
            times += event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT"

        try:
            async with asyncio.timeout(patience):
                sending = self._http.post(server.url + path, content=body, headers=headers, extensions={"trace": count})
                response = await obeyed(sending)
        except TimeoutError:
            why = f"no answer from {server.url} within {patience:g} s"
            return Failure(Unknown(why, xid=xid), open=True, again=True)
        except _NOT_SENT as error:
            return Failure(_because(error, f"{server.url} cannot be reached", xid), open=times > 0, again=True)
        except httpx.RequestError as error:
            return Failure(_because(error, f"the connection to {server.url} was lost", xid), open=True, again=True)
        verdict = _verdict(response, xid)
        # what else was asked on the way, as for a token, has not been counted
        answered = 1 + sum(past.request.extensions.get("trace") is count for past in response.history)
        return replace(verdict, open=True) if times > answered and not isinstance(verdict, Result) else verdict

    def _call_is_over(self, xid: str, sent: Sent) -> None:
        """Where something that has been sent may still have an effect, no later call says that there is none."""
        sent.calls -= 1
        if sent.calls:
            return
        del self._sent[xid]
        self._open.pop(xid, None)
        if sent.open and not sent.decided:
            self._open[xid] = None
            if len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]

    async def _send_acknowledgements(self, xids: Sequence[str]) -> Sequence[str]:
        """Tell some server. Those that have to be told again."""
        shuffled = random.sample(self._servers, len(self._servers))
        server = min(shuffled, key=lambda server: server.failed_at)
        try:
            async with asyncio.timeout(self._timeout):
                response = await obeyed(self._http.post(f"{server.url}/-/acknowledge", json={"xids": list(xids)}))
            still_open = response.json()["open"]
            return [xid for xid in xids if xid in still_open]
        except (TimeoutError, httpx.RequestError):
            server.failed_at = asyncio.get_running_loop().time()
            return xids
        except (ValueError, TypeError, KeyError):  # not an answer to this
            return xids


class SyncClient:
    """`Client` for code without an event loop; its calls may come from any number of threads.

    The work is done by a thread of its own.
    """

    def __init__(self, servers: Sequence[str], **options: Any) -> None:
        """As for `Client`."""
        self._portal = Portal("pgmip.SyncClient")
        self._client = Client(servers, **options)

    def submit(self, name: str, request: Any, *, xid: str | None = None, deadline: float | None = None) -> Any:
        """As `Client.submit`."""
        try:
            return self._portal.call(self._client.submit(name, request, xid=xid, deadline=deadline))
        except Closed as error:
            raise Unknown("the client has been closed", xid=xid) from error

    def acknowledge(self, xid: str) -> None:
        """As `Client.acknowledge`."""
        self._portal.soon(self._client.acknowledge, checked_xid(xid))

    def close(self) -> None:
        """As `Client.close`."""
        try:
            with contextlib.suppress(Closed):  # already, or by another thread meanwhile
                self._portal.call(self._client.close())
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def _base(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not the base URL of a server: {url!r} ({error})") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ValueError(f"not the base URL of a server: {url!r}")
    return url.rstrip("/")


def _because(error: Exception, why: str, xid: str) -> SubmitError:
    unknown = Unknown(f"{why}: {error or type(error).__name__}", xid=xid)
    unknown.__cause__ = error
    return unknown


def _verdict(response: httpx.Response, xid: str) -> Verdict:
    """What an answer means. One that is not from an app server says nothing, unless that it cannot have got there."""
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    problem = Problem.read(response.content) if media_type == MEDIA_TYPE else None
    if problem is not None:
        return _of_problem(problem, _rest(response), xid)
    if response.status_code == 200 and media_type == "application/json" and _is_whole(response):
        try:
            return Result(parse(response.content.decode()))
        except ValueError:
            pass
    why = f"{response.request.url.copy_with(path='/')} answered with status {response.status_code}, which is no result"
    if response.status_code in _BUSY:
        return Failure(NothingHappened(why, xid=xid), open=False, again=True, rest=_rest(response))
    if 300 <= response.status_code < 500 and response.status_code not in _MAY_RUN:
        return Failure(NothingHappened(why, xid=xid), open=False, again=False)
    return Failure(Unknown(why, xid=xid), open=True, again=True, rest=_rest(response))


def _of_problem(problem: Problem, rest: float, xid: str) -> Verdict:
    match problem.kind:
        case Kind.REFUSED:
            return Final(Refused(problem.detail, xid=xid, result=problem.result))
        case Kind.CANCELLED | Kind.EXPIRED | Kind.KEY_REUSED:
            return Final(_FINAL[problem.kind](problem.detail, xid=xid))
        case Kind.LOST:  # which is told once: to repeat it unread would be to miss it
            return Final(EarlierLost(problem.detail, xid=xid))
        case Kind.FAILED:
            return Failure(NothingHappened(problem.detail, xid=xid), open=False, again=False)
        case Kind.UNKNOWN | Kind.IN_PROGRESS:  # another transmission, as far as we know
            return Failure(Unknown(problem.detail, xid=xid), open=True, again=True, rest=rest)
        case Kind.PROTOCOL_VIOLATION:
            return Failure(ProtocolViolation(problem.detail, xid=xid), open=True, again=True, rest=rest)
        case Kind.NO_SUCH_TRANSACTION:
            return Failure(LookupError(problem.detail), open=False, again=False)
    return Failure(ValueError(problem.detail), open=False, again=False)


def _is_whole(response: httpx.Response) -> bool:
    """Whether the end of the body is marked; else the end of the connection, which may come early, looks like it."""
    framed = "content-length" in response.headers or "transfer-encoding" in response.headers
    return framed or not response.http_version.startswith("HTTP/1")


def _rest(response: httpx.Response) -> float:
    """The seconds of `Retry-After`. Its other form, a date, is not used by anybody who means seconds."""
    value = response.headers.get("retry-after", "").strip()
    return float(value) if value.isdecimal() and len(value) < 6 else 0.0
