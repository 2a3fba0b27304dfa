"""One call of the client: whom to send the request to, when to send it again, and what may be said in the end."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .exceptions import Expired, NothingHappened, ProtocolViolation, SubmitError, Unknown

__all__ = ["Call", "Failure", "Final", "Result", "Sent", "Server"]

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_LOOK_AGAIN = 0.05  # seconds, for what becomes of other calls' transmissions
_SUSPECT_FOR = 5.0  # seconds for which a server that has failed is asked after the others


@dataclass(slots=True, eq=False)
class Server:
    """An app server as its clients see it. Times are the event loop's."""

    url: str
    failed_at: float = -math.inf
    rests_until: float = -math.inf  # has asked not to be asked before


@dataclass(frozen=True, slots=True)
class Result:
    """The result."""

    result: Any


@dataclass(frozen=True, slots=True)
class Final:
    """No result, and whatever else is on its way cannot change that. `open`: it may have had an effect before."""

    error: SubmitError
    open: bool = False


@dataclass(slots=True)
class Sent:
    """What has been transmitted of one request, by whichever calls of a client."""

    open: bool = False
    """Something may have an effect, now or later; or has had it, of which not all calls have been told."""
    pending: int = 0
    """Transmissions without an answer yet."""
    calls: int = 0
    """Those that run."""
    decided: bool = False
    """One has come to an end that nothing changes any more."""

    @property
    def is_open(self) -> bool:
        return self.open or self.pending > 0


@dataclass(frozen=True, slots=True)
class Failure:
    """What became of a transmission that brought neither.

    `open`: it may have an effect, now or later. `again`: the request may fare better when it is sent again. `rest`:
    seconds for which the server does not want to be asked.
    """

    error: Exception
    open: bool
    again: bool
    rest: float = 0.0


Verdict = Result | Final | Failure
Send = Callable[[Server, float], Awaitable[Verdict]]
"""Transmits to a server, and waits for so many seconds."""


class Call:
    """Transmits one request until there is something to tell the caller. At most one transmission per server at a
    time; times are the event loop's.
    """

    def __init__(
        self, servers: Sequence[Server], send: Send,
        *, xid: str, deadline: float, timeout: float, hedge_after: float | None, sent: Sent,
    ) -> None:  # fmt: skip
        """`sent`: by all calls with this XID, also by those that have ended."""
        clock = asyncio.get_running_loop().time
        self._clock = clock
        self._send = send
        self._xid = xid
        self._deadline = deadline
        self._timeout = timeout
        self._hedge_after = math.inf if hedge_after is None else hedge_after
        shuffled = random.sample(servers, len(servers))
        suspect = clock() - _SUSPECT_FOR
        self._asked = dict.fromkeys(sorted(shuffled, key=lambda server: server.failed_at > suspect), 0)
        self._pending: dict[asyncio.Task[Verdict], Server] = {}
        self._due = -math.inf  # when to transmit next
        self._hedges = 0
        self._failures = 0
        self._sent = sent
        self._last: Exception | None = None
        self._refusal: Exception | None = None
        self._violation: SubmitError | None = None

    async def run(self) -> Any:
        """The result. Raises Unknown only when the deadline has passed."""
        try:
            while (now := self._clock()) < self._deadline:
                if self._refusal is not None and not (self._pending or self._sent.open):
                    if not self._sent.pending:
                        raise self._refusal
                    # Of another call, which this one would only give something to wait for.
                    await asyncio.sleep(min(_LOOK_AGAIN, self._deadline - now))
                    continue
                if now >= self._due:
                    self._transmit(now)
                await self._wait(max(0.0, min(self._due, self._deadline) - now))
                for task in [task for task in self._pending if task.done()]:
                    verdict = self._verdict(task)
                    server = self._pending.pop(task)
                    self._sent.pending -= 1
                    match verdict:
                        case Result(result):
                            self._decide()
                            return result
                        case Final(error, has_been_open):
                            self._sent.open |= has_been_open
                            raise self._final(error)
                        case Failure():
                            self._note(server, verdict)
            raise self._given_up()
        finally:
            await self._call_off()

    def _transmit(self, now: float) -> None:
        """To the server that this call has asked least, of those who are neither busy with it nor resting."""
        self._due = math.inf
        idle = [server for server in self._asked if server not in self._pending.values()]
        if not idle:
            return
        server = min(idle, key=lambda server: (max(now, server.rests_until), self._asked[server]))
        if server.rests_until > now:
            self._due = server.rests_until
            return
        # Who is slow shall not drown in repetitions, nor be given up each time right before the answer.
        patience = self._timeout * 2 ** self._asked[server]
        self._asked[server] += 1
        self._pending[asyncio.ensure_future(self._send(server, patience))] = server
        self._sent.pending += 1
        if self._hedge_after < math.inf:
            self._due = now + self._hedge_after * 2**self._hedges
            self._hedges += 1

    async def _wait(self, seconds: float) -> None:
        if self._pending:
            await asyncio.wait(self._pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    def _verdict(self, task: asyncio.Task[Verdict]) -> Verdict:
        """What a transmission has told. What nobody has foreseen says nothing of the request."""
        why = asyncio.CancelledError("from within") if task.cancelled() else task.exception()
        if why is None:
            return task.result()
        if not isinstance(why, Exception | asyncio.CancelledError):
            raise why
        return Failure(Unknown(f"something unexpected has happened: {why!r}", xid=self._xid), open=True, again=True)

    def _decide(self) -> None:
        """Other calls that run are told of it by a server, not of what failed for them before."""
        self._sent.decided = self._sent.open = True

    def _final(self, error: SubmitError) -> SubmitError:
        """What to raise then. Of what has expired, its result is gone: perhaps it was that of another transmission."""
        if isinstance(error, Expired) and self._sent.is_open:
            unknown = Unknown(f"{error}; another transmission may have been carried out before", xid=self._xid)
            unknown.__cause__ = error
            return unknown
        if not isinstance(error, Unknown):
            self._decide()
        return error

    def _note(self, server: Server, failure: Failure) -> None:
        now = self._clock()
        self._last = failure.error
        self._sent.open |= failure.open
        if isinstance(failure.error, ProtocolViolation):
            self._violation = failure.error
        if failure.again:
            server.failed_at = now
            server.rests_until = now + failure.rest
        else:
            self._refusal = failure.error
        # Full jitter: those whom one death has cut off shall not come back all at once.
        self._due = min(self._due, now + random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)))
        self._failures += 1

    def _given_up(self) -> Exception:
        """What to raise when time is up. Where every transmission is known to be without effect, so is the request."""
        if self._sent.is_open:
            kind = Unknown if self._violation is None else ProtocolViolation
            error: SubmitError = kind(f"no answer by the deadline; {self._violation or self._last}", xid=self._xid)
        elif self._refusal is not None:
            return self._refusal
        else:
            error = NothingHappened(f"no server took the request: {self._last}", xid=self._xid)
        error.__cause__ = self._last
        return error

    async def _call_off(self) -> None:
        self._sent.open |= bool(self._pending)
        self._sent.pending -= len(self._pending)
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
