"""`Agent`: carries bytes between a database that is replicated and its log, and decides nothing.

Two sessions at the database. The *taker* takes the messages of transactions that are at their COMMIT there, and
appends them. The *applier* reads the log and hands every entry over, in order, each in a transaction of its own. Both
may end at any moment, as may the agent itself: what has been taken is taken again, under the same ids, and the database
says where the log is to be read from. So after any error a session is ended, and another one begun.

The log may go back meanwhile, or be another one: with each call it is told what the applier has handed over last, and
does nothing where it has not got that (`Engine`). Where it has something else there the applier begins anew, and the
database compares what is in the log with what it has applied.

A third one, the *trimmer*, is there now and then only: it has the log remove what no replica needs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from .. import _sql
from .._connection import Connection, ObedientConnection, cut_after, is_silent
from .._direct import ask, number
from .._options import check_count, checked_seconds
from .._text import text
from ..logs import failure_fields, quoted_sqlstate
from .beginning import check_end
from .engine import Engine, Entry, LogError, Message, Place, Refused, Trimmed, Unavailable, WentBack
from .session import session

__all__ = ["Agent", "Event", "EventName", "Part", "State", "Stopped"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_DIVERGED = "MP030"
_WAIT = 1.0  # seconds that the taker and the reader wait for something to come
_FIRST_PAUSE = 0.1


class Part(StrEnum):
    """One of the agent's sessions at the database."""

    TAKER = "taker"
    APPLIER = "applier"
    TRIMMER = "trimmer"
    """Of which it is only told what goes wrong."""


class EventName(StrEnum):
    """What an agent has done or met."""

    BEGUN = "begun"
    """A session has begun."""
    LOST = "lost"
    """A session has ended, by an error; another one will be begun."""
    UNANSWERED = "unanswered"
    """The log has not answered; it will be asked again. What has come of an append is not known until then."""
    ANSWERED = "answered"
    """It has answered again."""
    PROGRESS = "progress"
    """Messages have been appended or received since the last time."""


_LEVELS = {
    EventName.BEGUN: logging.INFO,
    EventName.LOST: logging.WARNING,
    EventName.UNANSWERED: logging.WARNING,
    EventName.ANSWERED: logging.INFO,
    EventName.PROGRESS: logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class State:
    """Where an agent is."""

    member: str | None
    """The replica's name; None before the applier has begun."""
    applied: int | None
    """The position that the replica has applied, likewise."""
    end: int | None
    """The position of the log's last entry; None where the log does not tell."""
    appended: int
    """How many messages this agent has appended."""
    received: Mapping[str, int]
    """How many entries it has handed over, by what has come of them (see mip.replica_receive)."""
    appended_per_second: float
    received_per_second: float

    @property
    def behind(self) -> int | None:
        """How many entries of the log are still to be applied."""
        return None if self.applied is None or self.end is None else max(0, self.end - self.applied)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an agent has done or met."""

    name: EventName
    part: Part | None = None
    error: BaseException | None = None
    state: State | None = None


class Stopped(Exception):
    """The replica cannot go on with this log, and will not by itself: the log is not the one it has followed, replicas
    have diverged, or what it needs of the log is gone. What has told so is in `__cause__`.
    """

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True)
class _Session:
    """Of one part: how often in a row it has failed, and what has been told of that."""

    part: Part
    work: Callable[[_Session], Awaitable[None]]
    failures: int = 0
    told: str | None = None


@dataclass(slots=True)
class _Rates:
    """So many a second, between the last two looks."""

    appended: float = 0.0
    received: float = 0.0


@dataclass(slots=True)
class _Counts:
    appended: int = 0
    received: Counter[str] = field(default_factory=Counter)

    def since(self, before: _Counts, seconds: float) -> _Rates:
        return _Rates(
            (self.appended - before.appended) / seconds, (self.received.total() - before.received.total()) / seconds
        )

    def copy(self) -> _Counts:
        return _Counts(self.appended, self.received.copy())


class Agent:
    """The agent of one replica. `await run()` until `stop()`."""

    def __init__(
        self,
        database: str,
        log: Engine,
        *,
        max_bytes: int = 1 << 20,
        patience: float = 30.0,
        longest_pause: float = 2.0,
        report_every: float = 10.0,
        trim_every: float = 60.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """`database`: a connection string. `max_bytes`: so much is taken, or read, at once, or a single message.

        Times in seconds. `patience`: for how long to wait for a database that does not answer. `longest_pause`: what
        the pauses between attempts grow to. `report_every`: how often to tell of PROGRESS, where there is any, and to
        measure the rates. `trim_every`: how often to remove from the log what no replica needs any more.

        `on_event` is called for every event, and must not raise. Events are logged, too (`pgmip.replication.agent`).
        """
        check_count("max_bytes", max_bytes, 1)
        self._database = database
        self._log = log
        self._max_bytes = max_bytes
        self._patience = checked_seconds("patience", patience)
        self._longest_pause = checked_seconds("longest_pause", longest_pause)
        self._report_every = checked_seconds("report_every", report_every)
        self._trim_every = checked_seconds("trim_every", trim_every)
        self._on_event = on_event
        self._stopping = asyncio.Event()
        self._applies = asyncio.Event()
        self._known: Place | None = None  # the last entry that has been handed over
        self._member: str | None = None
        self._applied: int | None = None
        self._counts = _Counts()
        self._rates = _Rates()

    async def run(self) -> None:
        """Carry messages until `stop` is called. What databases and logs do is told as an event; raises Stopped where
        the replica cannot go on.
        """
        sessions = (
            _Session(Part.TAKER, self._take),
            _Session(Part.APPLIER, self._apply),
            _Session(Part.TRIMMER, self._trim),
        )
        works = (*map(self._keep, sessions), self._report(), self._stopping.wait())
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work) for work in works]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(tasks)
            self._stopping.clear()
        for task in ended:
            task.result()

    def stop(self) -> None:
        """Let `run` end. May be called by a signal handler of the event loop."""
        self._stopping.set()

    async def state(self) -> State:
        """Where it is now."""
        end = None
        with contextlib.suppress(LogError):
            end = await self._log.end()
        return State(
            self._member, self._applied, end, self._counts.appended, dict(self._counts.received),
            self._rates.appended, self._rates.received,
        )  # fmt: skip

    async def _keep(self, it: _Session) -> None:
        """Begin one session after another."""
        while True:
            try:
                await it.work(it)
            except (psycopg.Error, LogError) as error:
                _check_end(error)
                it.failures += 1
                self._tell_lost(it, error)
            await asyncio.sleep(self._pause(it.failures))

    # -- the taker -----------------------------------------------------------------------------------------------

    async def _take(self, it: _Session) -> None:
        """Append what is to be committed here. Not before the applier has found that this is the log which the replica
        follows, and that it can follow it. Nor without it: of two agents that serve one replica, as when one is about
        to be replaced, the other one waits.
        """
        async with session(self._database, "pgmip replica taker", self._patience) as conn:
            self._tell_begun(it)
            while True:
                await self._applies.wait()
                with cut_after(conn, _WAIT + self._patience):
                    wanted = (self._max_bytes, round(_WAIT * 1000), self._log.max_message)
                    rows = await ask(conn, _sql.REPLICA_TAKE, *wanted)
                if rows:
                    applied = max(number(applied) for *_, applied in rows)
                    await self._append(conn, [_message(id, content) for id, content, _ in rows], applied)
                it.failures = 0

    async def _append(self, conn: Connection, messages: Sequence[Message], applied: int) -> None:
        """`applied`: no message knows of more."""
        await self._answered(Part.TAKER, conn, lambda: self._append_behind(messages, applied))
        self._counts.appended += len(messages)

    async def _append_behind(self, messages: Sequence[Message], applied: int) -> None:
        """Only where the log has all that the messages know of: whoever received them there would stop, although it
        follows that log. Where another agent has come to apply here that one is to append them.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT):
                await self._applies.wait()
        if not self._applies.is_set() or self._known is None or self._known.position < applied:
            raise psycopg.OperationalError("this agent does not apply the log")
        await self._log.append(messages, self._known)

    # -- the applier ---------------------------------------------------------------------------------------------

    async def _apply(self, it: _Session) -> None:
        """Hand over what is in the log."""
        async with session(self._database, "pgmip replica applier", self._patience) as conn:
            await self._check_begun(conn)
            ((self._member, self._applied, after),) = await _rows(conn, _sql.REPLICA_START)
            begun = self._applied or 0
            self._known = None
            try:
                self._tell_begun(it)
                await self._check_log(conn)
                while True:
                    entries = await self._read(conn, after)
                    await self._receive(conn, entries)
                    it.failures = 0
                    after += len(entries)
                    if after >= begun:
                        self._applies.set()
            finally:
                self._applies.clear()

    async def _check_begun(self, conn: Connection) -> None:
        """Who follows no log yet would take any, and all that is in it. To be looked at before this session is the
        applier: who lets it begin is one.
        """
        if await _rows(conn, _sql.REPLICA_APPLIED) == [(0,)]:
            raise Refused("this replica follows no log yet", hint="let it begin: pgmip replica init")

    async def _check_log(self, conn: Connection) -> None:
        """Raise WentBack where this replica has applied what is not in the log."""
        check_end(await self._answered(Part.APPLIER, conn, self._log.end), self._applied or 0)

    async def _read(self, conn: Connection, after: int) -> Sequence[Entry]:
        read = partial(self._log.read, after, self._max_bytes, wait=_WAIT, known=self._known)
        entries = await self._answered(Part.APPLIER, conn, read)
        if not entries:
            await self._check(conn)
        return entries

    async def _receive(self, conn: ObedientConnection, entries: Sequence[Entry]) -> None:
        """One after another, each with its answer before the next: a pipeline was tried, and is no faster, as the
        database has more to do than the agent.
        """
        known = await self._load(conn, entries)
        for entry in entries[known:]:
            self._known = entry.place  # before it is committed there, and known to a message
            ((verdict,),) = await ask(conn, _sql.REPLICA_RECEIVE, entry.position, entry.content)
            self._counts.received[(verdict or b"").decode()] += 1
            self._applied = max(self._applied or 0, entry.position)

    async def _load(self, conn: Connection, entries: Sequence[Entry]) -> int:
        """Those that have been applied before, all at once; how many these are."""
        if not entries or entries[0].position > (self._applied or 0):
            return 0
        applied = [entry for entry in entries if entry.position <= (self._applied or 0)]
        self._known = applied[-1].place
        contents = [entry.content for entry in applied]
        ((known,),) = await _rows(conn, _sql.REPLICA_LOAD, (entries[0].position, contents))
        self._counts.received["loaded"] += known
        return int(known)

    # -- the trimmer ---------------------------------------------------------------------------------------------

    async def _trim(self, it: _Session) -> None:
        """Remove from the log what no replica needs any more. Beside the other two, since it may take long."""
        while True:
            await asyncio.sleep(self._trim_every)
            await self._applies.wait()
            async with session(self._database, "pgmip replica trimmer", self._patience) as conn:
                with cut_after(conn, self._patience):
                    ((upto,),) = await _rows(conn, _sql.REPLICA_TRIM)
                if upto:
                    await self._answered(Part.TRIMMER, conn, partial(self._log.trim, upto, self._known))
            it.failures, it.told = 0, None

    # -- all -----------------------------------------------------------------------------------------------------

    async def _answered(self, part: Part, conn: Connection, ask: Callable[[], Awaitable[T]]) -> T:
        """What the log answers, however often it has to be asked, as long as the session at the database lasts."""
        failures = 0
        while True:
            try:
                answer = await ask()
                break
            except Unavailable as error:
                failures += 1
                if failures == 1:
                    self._tell(Event(EventName.UNANSWERED, part, error))
                await asyncio.sleep(self._pause(failures))
                await self._check(conn)
        if failures:
            self._tell(Event(EventName.ANSWERED, part))
        return answer

    async def _check(self, conn: Connection) -> None:
        """Raise psycopg.OperationalError where the server has ended the session."""
        if not is_silent(conn):
            with cut_after(conn, self._patience):
                await conn.execute(b"SELECT")

    # -- what is told --------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        told = self._counts.copy()
        while True:
            await asyncio.sleep(self._report_every)
            self._rates = self._counts.since(told, self._report_every)
            if self._counts != told:
                told = self._counts.copy()
                self._tell(Event(EventName.PROGRESS, state=await self.state()))

    def _tell_begun(self, it: _Session) -> None:
        it.told = None
        self._tell(Event(EventName.BEGUN, it.part))

    def _tell_lost(self, it: _Session, error: BaseException) -> None:
        """Where it is news."""
        if it.told != text(error):
            it.told = text(error)
            self._tell(Event(EventName.LOST, it.part, error))

    def _tell(self, event: Event) -> None:
        message = "replica" if event.part is None else f"replica's {event.part}"
        fields = failure_fields(event.error)
        reason = "" if event.error is None else f": {fields['error']}{quoted_sqlstate(event.error)}"
        with contextlib.suppress(Exception):  # a log that fails stops no agent
            logger.log(_LEVELS[event.name], "%s: %s%s", message, event.name, reason, extra=fields)
        if self._on_event is not None:
            self._on_event(event)

    def _pause(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return random.uniform(0.5, 1) * min(self._longest_pause, _FIRST_PAUSE * 2.0 ** min(failures, 30))


def _check_end(error: Exception) -> None:
    """Raise Stopped where it is no use to begin anew."""
    if isinstance(error, Trimmed):
        hint = "set this replica up anew, from a backup of another one"
        raise Stopped(f"this replica has been away for too long: {text(error)}", hint=hint) from error
    if isinstance(error, WentBack):
        raise Stopped(
            text(error), hint="see which replica has read the most, before anything else is written"
        ) from error
    if isinstance(error, psycopg.Error) and error.sqlstate == _DIVERGED:
        hint = error.diag.message_hint or "compare the replicas, before anything else is written"
        told = (error.diag.message_primary, error.diag.message_detail)
        raise Stopped(": ".join(filter(None, told)) or text(error), hint=hint) from error


def _message(id: bytes | None, content: bytes | None) -> Message:
    assert content is not None
    return Message(UUID(bytes=id), content)


async def _rows(conn: Connection, statement: bytes, parameters: Sequence[Any] = ()) -> list[Any]:
    return await (await conn.execute(statement, parameters, binary=True)).fetchall()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
