"""A sync App's first attempt at a request, in the thread of its handler: without an event loop, which costs several
times what the statements themselves do, as long as nothing is in the way.

It is an attempt like any other one, on the same branches. What takes longer than a moment is watched from the event
loop; and if it comes to anything else than a commit, its request goes on there, as after each attempt that has failed.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import enum
import functools
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from . import _mipt
from ._answer import Recorded
from ._blocking import drive, driven
from ._branch import Branch, Instance
from ._cancellation import ended as ended_all
from ._cancellation import uninterrupted
from ._connection import PooledConnection, cut
from ._deadline import Deadline
from ._ending import Ended, Ending, NotTried
from ._pool import Pool
from ._portal import Portal
from ._process import Process
from ._workers import Job
from .decision import Entry, Mipts, Winner, decide, live
from .xinst import new_xinst

__all__ = ["Committed", "NotAlone", "Straight", "Tried"]

P = ParamSpec("P")
T = TypeVar("T")

_here = threading.local()  # whether a thread drives a statement
_POLL = 0.002  # seconds, and then twice as long each time, until it is looked again whether a statement has ended
_LONGEST_POLL = 0.05
_LONGEST_SHOW = 0.5


@dataclass(frozen=True, slots=True)
class Committed:
    """The attempt has won, alone, and is committed at every site."""

    winner: Winner


@dataclass(frozen=True, slots=True)
class Tried:
    """What else has become of it."""

    xinst: int
    ended: Ended
    siblings: Collection[int] = ()
    """Whom it has met."""
    given_up: Collection[tuple[str, int]] = ()
    """Where it has been rolled back by itself."""


class NotAlone(Exception):
    """Others are at this request, or have been: it may be decided already."""


class _Stage(enum.Enum):
    HANDLER = enum.auto()
    LAST = enum.auto()  # the begin where there was none, and statements of the handler that prepare, too
    END = enum.auto()  # each step of which is over in time


@dataclass(eq=False)
class _Line:
    """The way to a site."""

    pool: Pool
    conn: PooledConnection
    branch: Branch
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever uses it, as by a statement; a handler may do so in several threads."""
    is_given: bool = False
    """Whether the pool has it back, or is about to."""
    is_late: bool = False
    """Whether whoever uses it is to give it back, as it could not be waited for any more."""
    is_asked: bool = False
    """Whether its server has been asked to end a statement, which may reach a later one."""

    @property
    def is_idle(self) -> bool:
        """Whether it has no transaction."""
        return self.conn.pgconn.transaction_status == TransactionStatus.IDLE


class Straight(Ending):
    """One attempt."""

    def __init__(
        self, xid: str, pools: Mapping[str, Pool], portal: Portal, deadline: Deadline, request: str
    ) -> None:
        """`pools`: those of its sites. `deadline`: by the monotonic clock."""
        super().__init__()
        self.xid = xid
        self.xinst = new_xinst()
        self.request = request
        self.deadline = deadline
        self.job: Job[None]
        """Made by `to_do`."""
        self.submitter = threading.get_ident()
        """The thread that made this, and waits."""
        self.is_known = threading.Event()
        """Whether it has ended, or the event loop watches it."""
        self._pools = pools
        self._portal = portal
        self._process = Process("this transaction")
        self._process.check()
        self._lines: dict[str, _Line] = {}
        self._held: list[_Line] = []  # whose turn is that of the worker
        self._dropped: list[AsyncGenerator[Any, Any]] | None = []  # until the end
        self._is_begun = False  # whether it has its connections
        self._showing = threading.Lock()
        self._returned = False
        self._votes_are_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()  # of what follows
        self._stage = _Stage.HANDLER
        self._stopped: Ended | None = None
        self._late: Ended | None = None
        self._siblings = set[int]()
        self._given_up = set[tuple[str, int]]()
        self._heard: list[psycopg.Error] = []  # of the sites, where it has been stopped
        self._outcome: Committed | Tried | None = None  # once that is known

    def to_do(self, handler: Callable[[Mapping[str, Branch]], Any], run: Callable[..., Any]) -> Job[Any]:
        """What a worker has to do: `run` is what runs it, as in a context."""
        self.job = Job(functools.partial(run, self._run, handler))
        return self.job

    @property
    def outcome(self) -> Committed | Tried | None:
        """What has become of it, once its job is over. None where nothing has been done, for want of a connection at
        hand.
        """
        if not self.job.is_over:
            return None
        if self._outcome is None and self._is_begun:  # interrupted from outside where nothing is handled
            return self._tried(Ended({}, RuntimeError("the attempt was interrupted"), left=True, exposed=True))
        return self._outcome

    @property
    def is_shown(self) -> bool:
        """Whether a site knows of the instance, or is being told."""
        return any(branch.begun for branch in tuple(self._branches.values()))

    def call(self, site: str, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """From the handler, in any of its threads: do this at a site."""
        self._process.check()  # before any lock, which another thread may have had as this was forked
        line = self._lines.get(site)
        if line is None:
            raise RuntimeError("the transaction is over")
        if getattr(_here, "drives", False):  # as for parameters that are made meanwhile: it would wait for itself
            raise RuntimeError("a statement cannot wait for another one, which its parameters would be made of")
        try:
            with line.turn:
                return self._drive(work(*args, **kwargs))
        finally:
            if line.is_late:
                self._give_late(line)

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        before = sys.get_asyncgen_hooks()
        try:
            self.check_open()
            _here.drives = True
            sys.set_asyncgen_hooks(None, self._drop)  # an event loop of the handler's own has no part in it
            return drive(work)
        except BaseException:
            self.check_open()
            raise
        finally:
            sys.set_asyncgen_hooks(*before)
            _here.drives = False
            work.close()

    def check_open(self) -> None:
        """Raises RuntimeError where the attempt has ended before its handler."""
        if self._stopped is not None:
            raise RuntimeError("the transaction is over")

    def _drop(self, left: AsyncGenerator[Any, Any]) -> None:
        """Of a block that nobody leaves any more, as that of a COPY: where it is about to be forgotten, in whatever
        thread, the connection may be in use. At the end that is closed, or there is nothing to be said on it.
        """
        if self._dropped is not None:
            self._dropped.append(left)
        else:
            with contextlib.suppress(BaseException):
                drive(left.aclose())

    # -- in a worker ---------------------------------------------------------------------------------------------------

    def _run(self, handler: Callable[[Mapping[str, Branch]], Any]) -> None:
        try:
            if not self._take():
                return
            self._is_begun = True
            ended = self._attempt(handler) if self._stopped is None else self._as_known(self._stopped)
            self._outcome = self._commit(ended.mipts) if ended.error is None else self._tried(ended)
        except BaseException as error:  # what nobody has foreseen says nothing of the request
            exposed = self.may_be_prepared or self._votes_are_out
            self._outcome = self._tried(Ended({}, error, left=exposed, exposed=exposed, words=self._words()))
        finally:
            if self._process.is_this:
                for _ in range(2):  # what has struck it once from outside does not a second time
                    with contextlib.suppress(BaseException):  # nothing there changes what has become of it
                        self._give_back()
                        break
            self.is_known.set()

    def _take(self) -> bool:
        """Have a connection for each site, in the order in which all take them; whether they were at hand."""
        names = tuple(sorted(self._pools))
        instance = Instance(self.xid, self.xinst, names, "read committed")
        for site in names:
            pool = self._pools[site]
            conn = pool.spare()
            if conn is None:
                return False
            try:
                branch = Branch(
                    site, conn, instance,
                    on_begun=_nothing, on_beside=self._beside, read=functools.partial(self._read, site),
                )  # fmt: skip
            except BaseException:
                pool.spares.put(conn, used=False)
                raise
            self._branches = {**self._branches, site: branch}  # others may look at them
            self._lines = {**self._lines, site: _Line(pool, conn, branch)}
        return True

    def _attempt(self, handler: Callable[[Mapping[str, Branch]], Any]) -> Ended:
        result, raised = None, None
        try:
            result = handler(self._branches)
        except Exception as error:
            raised = error
        self._process.check()  # of who was forked by the handler, nothing here is
        with self._showing:  # what is being shown is so by then, and nothing is later
            self._returned = True
            for branch in self._branches.values():
                branch.handler_returned()
        with self._lock:
            if self._stopped is not None:
                return self._as_known(self._stopped)
            self._stage = _Stage.LAST
        self._held = [line for line in self._lines.values() if line.turn.acquire(blocking=False)]
        ended = self._conclude(result, raised)
        if ended.error is None or self._late is None:
            return ended
        late = self._late
        return replace(ended, error=late.error, reason=late.reason, retry=late.retry, stuck=late.stuck)

    def _conclude(self, result: Any, raised: Exception | None) -> Ended:
        """What it comes to, of which the handler has returned this, or `raised`."""
        if raised is not None:
            cause = self._cause(raised)
            return self._failed(cause, self._origin(raised) if cause is raised else cause)
        try:
            text = (result if isinstance(result, Recorded) else Recorded(result)).text
            failure = self._failure() or self._left_running()
            if failure is None and self._show():
                failure = self._failure()
        except Exception as error:
            cause = self._cause(error)
            return self._failed(cause, cause)
        if failure is not None:
            return self._failed(failure, failure)
        if self._siblings:
            return self._as_known(_not_alone())
        return self._prepare(text)

    def _left_running(self) -> psycopg.Error | None:
        late = (line.branch for line in self._lines.values() if line not in self._held)
        return next((branch.left_running() for branch in late), None)

    def _show(self) -> bool:
        """Have all sites know of the instance before it may be prepared at one, as `Attempt` has; whether one had not.
        """
        unaware = [branch for branch in self._branches.values() if not branch.begun]
        for begun in driven([branch.begin() for branch in unaware]):
            begun.result()
        return bool(unaware)

    def _prepare(self, result: str) -> Ended:
        has_last = any(branch.has_last for branch in self._branches.values())
        if self._late is not None or not (has_last or self._is_last_step()):
            return self._failed(NotTried(), None)
        self._votes_are_out = True
        for voted in driven([self._vote(site, result) for site in self._branches]):
            voted.result()
        self._is_last_step()
        return drive(self._judge({site: self._votes[site] for site in self._branches}))

    def _is_last_step(self) -> bool:
        """From here on all that is done is over in time, and not to be interrupted; False where it has been, before."""
        with self._lock:
            self._stage = _Stage.END
            return self._late is None

    async def _vote(self, site: str, result: str) -> None:
        branch = self._branches[site]
        end = branch.commit_one_phase if len(self._branches) == 1 else branch.prepare
        try:
            self._votes[site] = await end(self.request, result, self.deadline.step())
        except BaseException:
            self._votes[site] = branch.interrupted()
            raise

    async def _take_back(self, sites: Sequence[str]) -> bool:
        return all(one.result() for one in driven([self._roll_back(site) for site in sites]))

    async def _roll_back(self, site: str) -> bool:
        self._given_up.add((site, self.xinst))
        try:
            mipt = await _mipt.rollback(self._lines[site].conn, self.deadline.step(), self.xid, self.xinst)
        except psycopg.Error:
            self._given_up.discard((site, self.xinst))
            return False
        self._meet(mipt)
        return True

    def _meet(self, mipt: Sequence[Entry]) -> None:
        self._siblings |= live({"": mipt}) - {self.xinst}

    def _commit(self, mipts: Mipts) -> Committed | Tried:
        """Commit it where it has met nobody; else that is to be decided."""
        if any(len(mipt or ()) != 1 for mipt in mipts.values()) or self._siblings:
            return self._tried(Ended(mipts))
        winner = decide(mipts)
        if winner is None or winner.xinst != self.xinst:
            return self._tried(Ended(mipts))
        left = [line for site, line in self._lines.items() if site not in winner.committed]
        told = driven([_mipt.commit(line.conn, self.deadline.step(), self.xid, self.xinst) for line in left])
        try:
            for one in told:
                one.result()
        except psycopg.Error:
            return self._tried(Ended(mipts))
        return Committed(winner)

    def _tried(self, ended: Ended) -> Tried:
        return Tried(self.xinst, ended, frozenset(self._siblings), frozenset(self._given_up))

    async def _read(self, site: str) -> Sequence[Entry] | None:
        try:
            mipt = await _mipt.instances(self._lines[site].conn, self.deadline.step(), self.xid)
        except psycopg.Error:
            return None
        self._meet(mipt)
        return mipt

    def _beside(self, xinsts: Sequence[int]) -> None:
        """Others are prepared: the event loop knows what to make of it."""
        with self._lock:
            self._siblings.update(xinsts)
            if self._stage is _Stage.HANDLER and self._stopped is None:
                self._stopped = _not_alone()
        self.job.wake()  # as the handler may go on for long

    def _give_back(self) -> None:
        """All connections, without a transaction. What is still running there, in a thread that the handler has left
        behind, is ended.
        """
        for branch in self._branches.values():
            branch.end()
        lines = self._lines.values()
        self._held += [line for line in lines if line not in self._held and line.turn.acquire(blocking=False)]
        others = [line for line in lines if line not in self._held]
        still_open = [line for line in self._held if not (line.is_given or line.is_asked or line.is_idle)]
        driven([line.branch.rollback(self.deadline.step()) for line in still_open])
        while self._held:
            line = self._held[-1]
            self._give(line)
            self._held.pop()
            line.turn.release()
        if others:
            self._end_from_here(others)
        dropped, self._dropped = self._dropped, None
        for left in dropped or ():
            self._drop(left)
        self._branches, self._lines, self._held = {}, {}, []  # which know of this, as this of them

    def _give(self, line: _Line) -> None:
        """In one's turn."""
        with self._lock:
            given, line.is_given = line.is_given, True
        if given:
            return
        if line.is_asked or not line.is_idle:
            line.conn.abandon()
        if not line.pool.spares.put(line.conn, used=line.branch.begun):
            try:
                self._portal.soon_without_waiting(line.pool.give_soon, line.conn)
            except RuntimeError:  # there is no event loop any more
                line.conn.abandon()

    def _give_late(self, line: _Line) -> None:
        """In the thread that has used it for too long."""
        if line.turn.acquire(blocking=False):
            try:
                self._give(line)
            finally:
                line.turn.release()

    def _end_from_here(self, lines: Iterable[_Line]) -> None:
        try:
            self._portal.call(self._end_all(lines))
        except RuntimeError:
            for line in lines:
                line.conn.cut()
                with line.turn:
                    line.conn.abandon()

    # -- in other threads ----------------------------------------------------------------------------------------------

    def _show_one(self) -> None:
        """In a thread of its own: let a site know of the instance, where the handler has not done so by now."""
        with self._showing, contextlib.suppress(Exception):  # what went wrong is noted
            begun = self._returned or self.is_shown
            for site, line in self._lines.items() if not begun else ():
                self.call(site, line.branch.begin)
                break

    def drop(self) -> None:
        """End it where there is no event loop any more: what it waits for fails. From any thread."""
        with self._lock:
            if self._stage is _Stage.HANDLER and self._stopped is None:
                self._stopped = _not_in_time(RuntimeError("the App has been closed"))
            ends_by_itself = self._stage is _Stage.END
        for line in self._lines.values() if not ends_by_itself else ():
            line.conn.cut()

    # -- in the event loop ---------------------------------------------------------------------------------------------

    async def watch(self, turn: float, in_the_way: Callable[[], Awaitable[bool]]) -> Committed | Tried | None:
        """What becomes of it. It is stopped where it has met somebody, at the deadline, and where this is cancelled;
        and, each `turn` (in seconds), where it waits for a lock while somebody who is `in_the_way` may wait for us.
        """
        self.is_known.set()
        try:
            self._show_soon(_POLL)
            while not await self.job.wait_in_loop(min(turn, self.deadline.left), lambda: self._stopped is not None):
                why = self._stopped or await self._why_stop(in_the_way)
                if why is not None and await self._stop(why):
                    return self._outcome or self._tried(self._as_known(self._stopped or why))
        except BaseException:
            await uninterrupted(self._stop(_not_in_time(TimeoutError("it was cancelled"))))
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self.outcome

    def _show_soon(self, pause: float) -> None:
        """Once it has begun. In a thread, as that may wait; one that the loop would not wait for, nor need."""
        if self.is_shown or self._returned or self.job.is_over:
            return
        if self._is_begun:
            with contextlib.suppress(RuntimeError):  # there is no room for it
                _thread.start_new_thread(self._show_one, ())
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause, self._show_soon, min(2 * pause, _LONGEST_SHOW))

    async def stop(self) -> None:
        """End it, as nobody waits for it any more."""
        self.is_known.set()
        await self._stop(_not_in_time(TimeoutError("it was cancelled")))

    @property
    def left(self) -> set[int]:
        """Its instance, where that may be prepared somewhere when it has ended."""
        tried = self.outcome
        is_left = isinstance(tried, Tried) and (tried.ended.left or tried.ended.error is None)
        return {self.xinst} if is_left else set()

    async def _why_stop(self, in_the_way: Callable[[], Awaitable[bool]]) -> Ended | None:
        try:
            async with asyncio.timeout(self.deadline.left):
                if self.deadline.left and await in_the_way():
                    return _not_in_time(TimeoutError("a sibling is in doubt"), retry=True)
        except TimeoutError:
            pass
        return None if self.deadline.left else _not_in_time(TimeoutError("the deadline has passed"))

    def _as_known(self, why: Ended) -> Ended:
        """Why it has ended before its end, with what the sites have said, when no statement is under way."""
        by_handler = self._ended_by_handler()
        # In this order: of a connection that the event loop closes just now, it has noted before what that has said.
        return replace(why, by_handler=by_handler, exposed=by_handler, words=(*self._words(), *self._heard))

    async def _stop(self, why: Ended) -> bool:
        """End it, if it has not come to its end by now, and have its transactions rolled back; whether that is so, and
        only the handler still has to return. If not, its job is over, in time.
        """
        with self._lock:
            if self._stage is _Stage.HANDLER:
                self._stopped = self._stopped or why
            elif self._stage is _Stage.LAST:
                self._late = self._late or why
            stage = self._stage
        lines = tuple(self._lines.values())
        if stage is _Stage.HANDLER:
            self.job.drop()  # nor is it begun
            await self._end_all(lines)
            return True
        if stage is _Stage.LAST:
            await self._interrupt_last(lines)
        return await self.job.wait_in_loop() and False

    async def _interrupt_last(self, lines: Sequence[_Line]) -> None:
        asking = [asyncio.create_task(self._ask(line)) for line in lines]
        try:
            if not await self.job.wait_in_loop(self.deadline.insist_after):
                self._cut_what_is_asked(lines)
            await self.job.wait_in_loop()
        finally:
            self._cut_what_is_asked(lines)  # which nobody uses any more
            await _cancelled(asking)

    def _cut_what_is_asked(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            if line.is_asked:
                cut(line.conn)

    async def _ask(self, line: _Line) -> None:
        """Have the server end a statement, unless there is none of the handler's any more."""
        with self._lock:
            if line.is_given or self._stage is _Stage.END:
                return
            line.is_asked = True
        with contextlib.suppress(psycopg.Error, OSError):
            await line.conn.cancel_from_loop(timeout=self.deadline.step())

    async def _end_all(self, lines: Iterable[_Line]) -> None:
        await asyncio.gather(*(uninterrupted(self._end(line)) for line in lines))

    async def _end(self, line: _Line) -> None:
        """Have what runs there ended, and the connection closed, which ends its transaction."""
        if not line.turn.acquire(blocking=False) and not await self._interrupt(line):
            return
        try:
            given, line.is_given = line.is_given, True
            if not given:
                if (failure := line.branch.failure) is not None:  # what it says now
                    self._heard.append(failure)
                line.conn.abandon()
        finally:
            line.turn.release()
        if not given:
            await line.pool.give(line.conn, good=False)

    async def _interrupt(self, line: _Line) -> bool:
        """Have what runs there ended, until it is one's turn; or whoever has it give it back, where it is the handler's
        own code that does not end, as for parameters.
        """
        asking = asyncio.create_task(self._ask(line))
        insists = self.deadline.insist_after
        late, pause, taken = time.monotonic() + insists, _POLL, False
        try:
            while not (taken := line.turn.acquire(blocking=False)):
                if time.monotonic() > late:
                    self._cut_what_is_asked([line])
                line.is_late = time.monotonic() > late + insists
                if line.is_late:
                    taken = line.turn.acquire(blocking=False)  # he may not have seen that
                    break
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_POLL)
            return taken
        finally:  # also where it has been interrupted: whoever has it gives it back
            self._cut_what_is_asked([line])
            try:
                await _cancelled([asking])
            except BaseException:
                if taken:
                    line.turn.release()
                raise


def _not_alone() -> Ended:
    error = NotAlone("the request is at other servers, too")
    return Ended({}, error, error, retry=True)


def _not_in_time(error: Exception, retry: bool = False) -> Ended:
    return Ended({}, error, error, retry=retry, stuck=retry)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await ended_all(tasks)


async def _nothing(site: str) -> None:
    """There is nobody to be told of a step."""
