"""`Sweeper`: finishes the requests that nobody retransmits::

    async with app, pgmip.sweeper.Sweeper(app):
        ...  # serve

or, with a `pgmip.sync.App`, which has the event loop that this needs::

    with app, pgmip.sweeper.Sweeper(app):
        ...

An app server that dies leaves instances in doubt, and their rows locked, until somebody retransmits the request. A
sweeper is that somebody. Run one beside every app server, or a few as processes of their own (`pgmip sweep`): any
number of them at once does no harm, and none keeps a state that could be lost.

It listens to `mip_in_doubt`, which the sites send for instances prepared for longer than `mip.push_after`, and looks
by itself from time to time as well, so a lost notification, a lost connection or a pooler that knows no LISTEN costs no
more than time. What it does with a request is `App.settle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from . import _mipt, _sql
from ._cancellation import obeyed
from ._connection import Connection, ObedientConnection, connected, cut_after
from ._options import check_count, checked_seconds
from ._pool import at_site
from ._portal import Closed
from ._sites import at_each_site
from ._text import described
from ._twin import AnyApp, inner, portal_of, within
from .app import Resolution
from .decision import Entry, State
from .exceptions import Unknown
from .logs import failure_fields, quoted_reason

__all__ = ["Event", "EventName", "Sweeper"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_FIRST_DEADLINE = 10.0



class EventName(StrEnum):
    """What a sweeper has done or met."""

    COMMITTED = "committed"
    """A request is finished: it has taken effect."""
    CANCELLED = "cancelled"
    """A request is finished: it has been cancelled."""
    REFUSED = "refused"
    """A request is finished: its handler has refused it, and nothing has happened."""
    UNDONE = "undone"
    """Nothing of a request is left, and nothing has happened. A retransmission runs it, as may who has begun it."""
    FAILED = "failed"
    """A request could not be finished; it will be tried again."""
    ACKNOWLEDGED = "acknowledged"
    """A request older than the retention is known to be finished everywhere, and its texts are dropped."""
    LISTENING = "listening"
    """A site can be reached, for the first time or again."""
    LOST = "lost"
    """A site cannot be reached; it will be tried again."""


_LEVELS = {
    EventName.COMMITTED: logging.INFO,
    EventName.CANCELLED: logging.INFO,
    EventName.REFUSED: logging.INFO,
    EventName.UNDONE: logging.WARNING,
    EventName.FAILED: logging.WARNING,
    EventName.ACKNOWLEDGED: logging.DEBUG,
    EventName.LISTENING: logging.INFO,
    EventName.LOST: logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a sweeper has done or met; see `Sweeper`."""

    name: EventName
    xid: str | None = None
    site: str | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Trouble:
    """A request that could not be finished: how often, and the loop's time from which to try again."""

    failures: int = 0
    until: float = 0.0


class Sweeper:
    """Finishes what is in doubt, until it is stopped. Use as a context manager, or `await run()`."""

    def __init__(
        self,
        app: AnyApp,
        *,
        interval: float = 10.0,
        older_than: float | None = None,
        cancel_unknown_after: float | None = 60.0,
        concurrency: int = 4,
        jitter: float = 1.0,
        longest_pause: float = 300.0,
        acknowledge_every: float | None = 3600.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """All times in seconds. `interval`: how often to look without having been notified.

        `older_than`: for how long all instances of a request have to be there before it counts as left behind; by
        default what the site has in `mip.push_after`. A request with a younger instance, of whatever state, is being
        worked on, and is left alone.

        `cancel_unknown_after`: for how long a request has to be in doubt to be cancelled where `app` has no handler
        for it; None: never. By default other servers, that know it, get a minute's precedence.

        `concurrency`: how many requests at a time. `jitter`: how long at most to wait before each, so that several
        sweepers do not all take the same one. `longest_pause`: what the pauses between the attempts at one request,
        or at reaching a site, grow to.

        `acknowledge_every`: how often to acknowledge requests that are finished at all of their sites and older than
        `mip.retention` (otherwise their entries stay); None: leave that to others.

        `on_event` is called for every event, in the App's event loop, and must not raise. Events are logged, too
        (`pgmip.sweeper`).

        Raises TypeError or ValueError for what cannot be a time, or a number of requests.
        """
        check_count("concurrency", concurrency, 1)
        self._given = app
        self._app = inner(app)
        self._portal = portal_of(app)
        self._interval = checked_seconds("interval", interval)
        self._older_than = _seconds("older_than", older_than)
        self._cancel_unknown_after = _seconds("cancel_unknown_after", cancel_unknown_after)
        self._slots = asyncio.Semaphore(concurrency)
        self._jitter = checked_seconds("jitter", jitter, none=True)
        self._longest_pause = checked_seconds("longest_pause", longest_pause, none=True)
        self._acknowledge_every = _seconds("acknowledge_every", acknowledge_every)
        self._on_event = on_event
        self._stopped = asyncio.Event()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._reached: dict[str, bool] = {}
        self._running: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Sweep until `stop` is called; what has been taken up by then is carried to its end. With a `pgmip.sync.App`
        also until that is closed, whose event loop it needs.

        Raises nothing for what sites and requests do. When cancelled it leaves no transaction open.
        """
        with contextlib.suppress(Closed):
            await within(self._given, self._run())

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._watch(site)) for site in self._app.sites]
        if self._acknowledge_every is not None:
            every = self._acknowledge_every
            tasks += [asyncio.create_task(self._acknowledge_old(site, every)) for site in self._app.sites]
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            await _cancel([stopped, *tasks])
            while self._busy:
                await asyncio.wait(self._busy.values())
        finally:
            await _cancel([stopped, *tasks, *self._busy.values()])
            self._stopped.clear()  # not at the beginning: somebody may have called it already
        for task in tasks:
            if not task.cancelled():
                task.result()  # a bug, to be seen

    def stop(self) -> None:
        """Let `run` end: take nothing up any more. May be called by a signal handler of the event loop."""
        if self._portal is None:
            self._stopped.set()
            return
        with contextlib.suppress(Closed):  # with its App, and so it has ended
            self._portal.soon(self._stopped.set)

    async def sweep(self) -> list[Event]:
        """One pass: attend to all that is old by now, once and at once, and return what came of it."""
        return await within(self._given, self._sweep())

    async def _sweep(self) -> list[Event]:
        events: list[Event] = []
        found: set[str] = set()

        async def look(site: str) -> None:
            try:
                async with self._connection(site) as conn:
                    found.update(await self._old(conn))
            except psycopg.Error as error:
                events.append(self._tell(Event(EventName.LOST, site=site, error=error)))

        async def attend(xid: str) -> None:
            async with self._slots:
                event = await self._settle(xid)
            if event is not None:
                events.append(event)

        await at_each_site(self._app.sites, look)
        await at_each_site(found, attend)
        return events

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        self.stop()
        await self._running

    def __enter__(self) -> Self:
        if self._portal is None:
            raise TypeError("a sweeper of a pgmip.App needs an event loop: use `async with`")
        return self._portal.call(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._portal is not None
        with contextlib.suppress(Closed):  # with its App, and so it has ended
            self._portal.call(self.__aexit__(kind, error, trace))

    # -- sites ---------------------------------------------------------------------------------------------------

    async def _watch(self, site: str) -> None:
        """Keep looking at one site for what is old."""
        failures = 0

        async def watch() -> None:
            nonlocal failures
            async with self._connection(site) as conn:
                with cut_after(conn, self._app.step_timeout):
                    await conn.execute(_sql.LISTEN)
                while True:
                    found = await self._old(conn)
                    self._tell_reach(site)
                    failures = 0
                    self._take_up(found)
                    await self._notification(conn)

        while True:
            try:
                await obeyed(watch())
            except psycopg.Error as error:
                self._tell_reach(site, error)
                failures += 1
            await asyncio.sleep(_pause(failures, self._interval))

    def _tell_reach(self, site: str, error: BaseException | None = None) -> None:
        """Say that a site can be reached, or why not, where that is news."""
        if self._reached.get(site) is (error is None):
            return
        self._reached[site] = error is None
        self._tell(Event(EventName.LOST if error else EventName.LISTENING, site=site, error=error))
        if error is None:
            self._app._pools[site].reached()
            self._trouble.clear()  # which this site may have been

    async def _notification(self, conn: Connection) -> None:
        """Wait until there is something to look at, or until it is time to look anyway."""
        timeout = self._interval * random.uniform(0.8, 1.2)
        async with contextlib.aclosing(conn.notifies(timeout=timeout, stop_after=1)) as notifications:
            async for _ in notifications:
                pass

    async def _old(self, conn: Connection) -> list[str]:
        """The requests that are in doubt here, and old enough to be looked at."""
        with cut_after(conn, self._app.step_timeout), _legible():
            cursor = await conn.execute(_sql.OLD, (self._older_than, _sql.PUSH_AFTER))
            return [xid for (xid,) in await cursor.fetchall()]

    async def _acknowledge_old(self, site: str, every: float) -> None:
        """Acknowledge, from time to time, what this site has had for longer than the retention."""
        while True:
            await asyncio.sleep(every * random.uniform(0.5, 1))
            with contextlib.suppress(psycopg.Error):  # that it is lost is told by _watch
                rows = await obeyed(self._finished(site))
                # Those that cannot be acknowledged must not be in the way of the others for ever.
                for xid, sites in random.sample(rows, len(rows)):
                    if await self._acknowledge(xid, sites):
                        break

    async def _finished(self, site: str) -> list[Any]:
        async with self._connection(site) as conn:
            with cut_after(conn, self._app.step_timeout), _legible():
                return await (await conn.execute(_sql.FINISHED)).fetchall()

    async def _acknowledge(self, xid: str, sites: list[str]) -> bool:
        """Acknowledge one request; whether a site is out of reach."""
        async with self._slots:
            try:
                await self._app.acknowledge(xid, sites=sites)
            except Exception as error:
                self._tell(Event(EventName.FAILED, xid, error=error))
                return False in self._reached.values()
        self._tell(Event(EventName.ACKNOWLEDGED, xid))
        return False

    @contextlib.asynccontextmanager
    async def _connection(self, site: str) -> AsyncIterator[Connection]:
        """A connection besides those of the App, which are for its transactions."""
        conninfo = make_conninfo(
            self._app.sites[site], fallback_application_name="pgmip sweeper", client_encoding="utf-8"
        )
        # No prepared statements: some poolers lose them.
        attempt = ObedientConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        conn = await connected(attempt, self._app.step_timeout)
        try:
            yield conn
        finally:
            await conn.close()

    # -- requests ------------------------------------------------------------------------------------------------

    def _take_up(self, found: Sequence[str]) -> None:
        """Attend to each of these requests that nobody here attends to already."""
        now = asyncio.get_running_loop().time()
        # Whoever was in trouble, and has not been found for long, has been finished by somebody else.
        forgotten = [xid for xid, it in self._trouble.items() if it.until + 2 * self._longest_pause < now]
        for xid in forgotten:
            del self._trouble[xid]
        for xid in random.sample(found, len(found)):
            trouble = self._trouble.get(xid)
            if xid not in self._busy and (trouble is None or trouble.until <= now):
                self._busy[xid] = asyncio.create_task(self._attend(xid))

    async def _attend(self, xid: str) -> None:
        try:
            async with self._slots:
                await asyncio.sleep(random.uniform(0, self._jitter))
                if self._stopped.is_set():
                    return
                event = await self._settle(xid)
        finally:
            del self._busy[xid]
        if event is None or event.name is not EventName.FAILED:
            self._trouble.pop(xid, None)
            return
        trouble = self._trouble.setdefault(xid, _Trouble())
        trouble.failures += 1
        trouble.until = asyncio.get_running_loop().time() + _pause(trouble.failures, self._longest_pause)

    async def _settle(self, xid: str) -> Event | None:
        """Finish a request if it is still left behind."""
        try:
            age = await self._left_for(xid)
            if age is None:
                return None
            cancel = self._cancel_unknown_after is not None and age >= self._cancel_unknown_after
            resolution = await self._app.settle(xid, cancel=cancel, deadline=self._deadline(xid))
        except Exception as error:  # whatever one request does, the others have to be attended to
            undone = type(error) is Unknown and await self._is_undone(xid)
            return self._tell(Event(EventName.UNDONE if undone else EventName.FAILED, xid, error=error))
        if resolution is None:
            return None
        return self._tell(Event(_name_of(resolution), xid))

    def _deadline(self, xid: str) -> float:
        """Short at first: a handler may wait for rows of another request that is in doubt, and waits for its turn."""
        trouble = self._trouble.get(xid)
        failures = trouble.failures if trouble is not None else 0
        return min(self._app.deadline, _FIRST_DEADLINE * 2.0 ** min(failures, 30))

    async def _left_for(self, xid: str) -> float | None:
        """For how long a request has been left behind; None where it has been finished, or is being worked on."""

        async def look(site: str) -> tuple[float | None, bool]:
            async def read(conn: Connection) -> tuple[float | None, bool]:
                with cut_after(conn, self._app.step_timeout):
                    cursor = await conn.execute(_sql.LEFT, (self._older_than, _sql.PUSH_AFTER, xid))
                    (row,) = await cursor.fetchall()
                    return row[0], row[1]

            try:
                return await at_site(self._app._pools[site], read)
            except psycopg.Error:
                return None, True  # the others may know enough for a decision

        answers = (await at_each_site(self._app.sites, look)).values()
        ages = [age for age, _ in answers if age is not None]
        return max(ages) if ages and all(left for _, left in answers) else None

    async def _is_undone(self, xid: str) -> bool:
        """Whether the sites of the request know of nothing but instances that were aborted."""

        async def look(site: str) -> Sequence[Entry] | None:
            try:
                return await at_site(
                    self._app._pools[site], lambda conn: _mipt.instances(conn, self._app.step_timeout, xid)
                )
            except Exception:  # as above
                return None

        mipts = await at_each_site(self._app.sites, look)
        entries = [entry for mipt in mipts.values() for entry in mipt or ()]
        sites = {site for entry in entries for site in entry.sites or ()} or set(self._app.sites)
        aborted = bool(entries) and all(entry.state is State.ABORTED for entry in entries)
        return aborted and all(mipts.get(site) is not None for site in sites)

    def _tell(self, event: Event) -> Event:
        if event.xid is not None:
            message = f"request {event.xid!r}: {event.name}"
        else:
            message = f"site {event.site!r}: {event.name}"
        fields = {"xid": event.xid, "site": event.site, **failure_fields(event.error)}
        if event.error is not None:
            message += f": {fields['error']}{quoted_reason(event.error)}"
        with contextlib.suppress(Exception):  # a log that fails, as by a filter of it, stops no sweeper
            logger.log(_LEVELS[event.name], "%s", message, extra=fields)
        if self._on_event is not None:
            self._on_event(event)
        return event


@contextlib.contextmanager
def _legible() -> Iterator[None]:
    """What a loader raises that is registered for all connections is an error of what has been read."""
    try:
        yield
    except psycopg.Error:
        raise
    except Exception as error:
        raise psycopg.DataError(f"what the site has answered cannot be read: {described(error)}") from error


def _seconds(name: str, value: float | None) -> float | None:
    return None if value is None else checked_seconds(name, value, none=True)


def _name_of(resolution: Resolution) -> EventName:
    if resolution.cancelled:
        return EventName.CANCELLED
    return EventName.REFUSED if resolution.refused else EventName.COMMITTED


def _pause(failures: int, longest: float) -> float:
    """How long to wait after so many failures in a row."""
    return random.uniform(0.5, 1) * min(longest, _FIRST_PAUSE * 2.0 ** min(failures, 30))


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
