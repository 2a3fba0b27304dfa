"""`App`: transactions over several PostgreSQL databases that survive the death of the process that drives them::

    app = App(sites={"store": "service=store", "bank": "service=bank"})

    @app.transaction(sites=("store", "bank"))
    async def buy_confirm(tx, request):
        order = await tx.store.fetch_one("INSERT INTO orders ... RETURNING o_id", (...,))
        await tx.bank.execute("UPDATE account SET balance = balance - %s ...", (...,))
        return {"order": order.o_id}

    async with app:
        result = await app.submit("buy_confirm", {"basket": 7}, xid="8f1c...")

SQL is psycopg's: `%s` and `%(name)s` stand for parameters. See pgmip.exceptions for what an exception means.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, get_args

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ._answer import Answer, Recorded
from ._asking import Asking
from ._branch import Site
from ._copy import Copy
from ._deadline import Deadline
from ._family import Family, Limits, Settled
from ._found import Found, find
from ._handler import check_async
from ._json import canonical, parse
from ._left import Left
from ._nesting import check_outside, handled
from ._options import check_count, checked_seconds
from ._pool import Pool, PoolSettings
from ._portal import Portal
from ._process import Home
from ._running import Running
from ._sessions import Late, Sessions
from ._sites import at_each_site
from ._straight import Committed, Straight
from ._text import described
from ._tx import Handler, Tx
from .decision import Winner, explain
from .exceptions import Cancelled, Decided, EarlierLost, KeyReused, ProtocolViolation, SubmitError, Unknown
from .logs import Logs
from .observe import Hook, Hooked, Observer, Phase, PhaseName, Step, StepName
from .tracing import Tracing
from .tracing import installed as tracing_installed
from .xinst import checked_xid, new_xid

__all__ = ["App", "Copy", "Handler", "Isolation", "Resolution", "Site", "Step", "StepName", "Tx"]

Isolation = Literal["read committed", "repeatable read", "serializable"]
H = TypeVar("H", bound=Handler)

_TIDYING = 5.0  # seconds, for each request that has been left behind
_UNTIDY = 10.0  # seconds, until it is looked again whether room can be made


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a family: cancelled, or refused by its handler with this result, or committed with it."""

    cancelled: bool
    result: Any
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """As it is registered."""

    name: str
    handler: Handler
    sites: tuple[str, ...]
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request, with what has been said of it."""

    transaction: Transaction
    text: str
    xid: str
    is_new: bool
    """Whether the XID is of our own making."""
    seconds: float | None
    attempts: int | None
    session: Hashable | None


class App:
    """A set of sites and the transactions over them. Keeps no state that matters: run any number, kill any of them.

    It belongs to the process, and to the event loop, that use it first. It may be made before a fork, but not used
    before and after it; and what runs in several event loops, as by `asyncio.run` each time, needs an App for each.
    """

    def __init__(
        self,
        sites: Mapping[str, str],
        *,
        pool_size: int = 16,
        pool_min_size: int = 0,
        pool_max_idle: float = 600.0,
        prepared_statements: bool = True,
        deadline: float = 30.0,
        attempts: int = 50,
        step_timeout: float = 5.0,
        parallel: bool = True,
        wait_for_commit: bool = True,
    ) -> None:
        """`sites`: name to conninfo.

        `pool_size`: how many transactions may run at a site at a time, each over a connection of its own; a few more
        connections are for what finishes transactions. Connections above `pool_min_size` are closed when they have
        not been needed for `pool_max_idle` seconds; of those that finish transactions as many are kept, up to four.

        `prepared_statements=False` is for poolers that give a session to others between transactions but do not keep
        track of prepared statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`): with them one
        client's statement could be executed for another's.

        `deadline` (seconds) and `attempts` bound one submit; what is prepared by the deadline is still carried on.
        Where a site does not answer it may be missed by up to two and a half seconds: for undoing what was begun, and
        for finding out what has become of the request. Code that does not let the event loop go on, and a handler that
        does not end when it is cancelled, come on top.

        `step_timeout`: how long a site may take to connect, or to answer a prepare, a commit or a look-up, before its
        connection counts as lost; less where the deadline is closer.

        `parallel=False` prepares and commits the sites one after another, in the declared order, so that a process
        killed at `prepared-first-site` leaves exactly one of them prepared: for fault injection. The attribute of the
        same name can be set at any time.

        `wait_for_commit=False` has `submit` answer as soon as the request is decided, because an instance of it is
        prepared at every site, and commit it in the background: then the sites may show it a moment later only. What
        is not committed when this process dies is left in doubt with its locks, as always, for whoever submits or
        settles the request. Give a `session` to `submit`, where its caller's next request has to see it. Serializable
        transactions are committed first all the same: whoever knows the answer may expect to find it.
        """
        if not isinstance(sites, Mapping):
            raise TypeError(f"the sites of an App are a mapping of names to conninfos, not a {type(sites).__name__}")
        if not sites:
            raise ValueError("an App needs at least one site")
        for site, conninfo in sites.items():
            try:
                conninfo_to_dict(conninfo)
            except psycopg.ProgrammingError as error:
                raise ValueError(f"site {site!r} has no usable conninfo: {error}") from error
        check_count("pool_size", pool_size, 1)
        check_count("pool_min_size", pool_min_size, 0)
        pool_max_idle = checked_seconds("pool_max_idle", pool_max_idle, none=True)
        deadline = checked_seconds("deadline", deadline, none=True)
        check_count("attempts", attempts, 1)
        step_timeout = checked_seconds("step_timeout", step_timeout)
        self.parallel = parallel
        self._waits = wait_for_commit
        self._sites = dict(sites)
        home = Home("this App", "pgmip.sync.App")
        self._running = Running(home)
        self._limits = Limits(deadline, attempts, step_timeout)
        settings = PoolSettings(pool_min_size, pool_size, pool_max_idle, prepared_statements)
        self._pools = {site: Pool(site, conninfo, settings, step_timeout, home) for site, conninfo in sites.items()}
        self._transactions: dict[str, Transaction] = {}
        self._left = Left()
        self._sessions = Sessions()
        self._tidy_at = 0.0  # by the event loop's clock
        self._observers: list[Observer] = [*([Tracing()] if tracing_installed else []), Logs()]

    @property
    def sites(self) -> Mapping[str, str]:
        """The sites, name to conninfo."""
        return MappingProxyType(self._sites)

    @property
    def deadline(self) -> float:
        """How long one submit may take, in seconds."""
        return self._limits.deadline

    @property
    def step_timeout(self) -> float:
        """How long (seconds) a site may take for a step, before its connection counts as lost."""
        return self._limits.step_timeout

    @property
    def transactions(self) -> tuple[str, ...]:
        """The names that `submit` knows."""
        return tuple(self._transactions)

    def transaction(
        self, *, sites: Iterable[str], isolation: Isolation = "read committed", name: str | None = None
    ) -> Callable[[H], H]:
        """Register `async def handler(tx, request) -> result` under its own name, or `name`.

        Every retry of a request has to name the same sites, so a change of `sites` is a new transaction: give it a
        new name. The result has to be JSON, and so has the request, both nested less than 200 deep.
        `raise Refuse(result)` undoes what the handler has written, and is the request's answer.

        At the deadline the handler is cancelled, and where it swallows that, again every second.

        A handler cannot `submit`, `settle`, `resolve` or `acknowledge`, of this App or another one: that would not be
        undone with its attempt. Nor can its tasks, until its request has been answered.

        Raises TypeError for a handler that is no coroutine function, and for one name in place of `sites`; ValueError
        for sites that this App does not have, and for a name that is taken.
        """
        declared = self._known(sites)
        if isolation not in get_args(Isolation):
            raise ValueError(f"isolation has to be one of {get_args(Isolation)}, not {isolation!r}")

        def register(handler: H) -> H:
            check_async(handler)
            known_as = name or handler.__name__
            if not known_as or known_as in self._transactions:
                raise ValueError(f"a transaction needs a name of its own: {known_as!r}")
            self._transactions[known_as] = Transaction(known_as, handler, declared, isolation)
            return handler

        return register

    async def submit(
        self,
        name: str,
        request: Any,
        xid: str | None = None,
        *,
        deadline: float | None = None,
        attempts: int | None = None,
        wait_for_commit: bool | None = None,
        session: Hashable | None = None,
    ) -> Any:
        """Run a transaction exactly once per XID; its result is the same for every retransmission, at any server.

        Without `xid` a new one is used, which is then known only from the exception. A request that an earlier
        submit has decided is not run again: its result is returned.

        `wait_for_commit`: as the App has it for this transaction, unless said here. Without it the result, or that the
        request is Refused, is told when it is decided; what goes wrong afterwards is logged. With it, too, a site where
        `mip.synchronous_commit_prepared` is off may undo a commit in a crash, until it is repeated.

        `session` says whose request it is, as the authenticated user does: unless the request is decided already, what
        this App has answered earlier with the same session is committed first at the sites that both have. Where that
        cannot be, Unknown is raised, and nothing has begun; where such a site has lost what it had prepared,
        EarlierLost, which names all that is known to be lost there by then, and only once.
        Ten thousand requests that wait to be committed are remembered; beyond that none with a session is answered
        before its commit, nor by Decided, in whose place it is Unknown. So are ten thousand that are lost at a site and
        of which their sessions do not know yet, those of late.

        Raises (see pgmip.exceptions) NothingHappened (Refused, where the handler has refused the request, now or
        earlier), Decided, Unknown or Expired; and, before anything has begun, LookupError for an unknown transaction,
        TypeError or ValueError for a request, an XID or a limit that cannot be one, and RuntimeError within a handler,
        in a process that was forked after this App had been used, and in another event loop than the first.
        When cancelled it leaves no transaction open, but maybe a prepared instance: submit again, or `settle`. The same
        goes for what is no Exception, as KeyboardInterrupt, wherever it is raised: it passes through.
        """
        answer = await self._answer(
            name, request, xid,
            deadline=deadline, attempts=attempts, wait_for_commit=wait_for_commit, session=session,
        )  # fmt: skip
        return answer.told()

    async def _answer(
        self, name: str, request: Any, xid: str | None = None, *,
        deadline: float | None = None, attempts: int | None = None,
        wait_for_commit: bool | None = None, session: Hashable | None = None,
    ) -> Answer:  # fmt: skip
        """As `submit`, which raises some answers."""
        return await self._answer_to(self._checked(name, request, xid, deadline, attempts, session), wait_for_commit)

    async def _answer_to(self, submitted: Submitted, wait_for_commit: bool | None) -> Answer:
        """The same for what has been checked."""
        phase = self._operation("submit", submitted.xid, submitted.transaction.name)
        answered = None if self._does_wait(submitted, wait_for_commit) else asyncio.get_running_loop().create_future()
        return await self._running.run(self._submit(phase, submitted, answered=answered), phase.xid, answered)

    async def _answer_behind(self, straight: Straight, submitted: Submitted) -> Answer:
        """The same where the first attempt is being made already, in a thread."""
        phase = self._operation("submit", submitted.xid, submitted.transaction.name)
        return await self._running.run(self._submit(phase, submitted, straight=straight), phase.xid)

    @staticmethod
    def _answer_of(committed: Committed, submitted: Submitted) -> Answer:
        settled = Settled(committed.winner, submitted.transaction.sites, {}, own=True)
        return settled.answer(submitted.xid, submitted.text)

    def _checked(
        self, name: str, request: Any, xid: str | None, deadline: float | None, attempts: int | None,
        session: Hashable | None,
    ) -> Submitted:  # fmt: skip
        seconds = _checked_deadline(deadline)
        if attempts is not None:
            check_count("attempts", attempts, 1)
        hash(session)  # raises TypeError
        try:
            transaction = self._transactions[name]
        except KeyError:
            raise LookupError(f"there is no transaction {name!r}") from None
        text = canonical({"transaction": name, "request": request})
        known_as = checked_xid(new_xid() if xid is None else xid)
        return Submitted(transaction, text, known_as, xid is None, seconds, attempts, session)

    def _does_wait(self, submitted: Submitted, wait_for_commit: bool | None) -> bool:
        by_default = self._waits or submitted.transaction.isolation == "serializable"
        return by_default if wait_for_commit is None else wait_for_commit

    async def settle(
        self, xid: str, *, sites: Iterable[str] | None = None, deadline: float | None = None, cancel: bool = True
    ) -> Resolution | None:
        """Carry to its end what somebody else began: as a retransmission would, or by cancelling it.

        Commits the winner where there is one. Else the handler that the request names runs again, as a further
        instance; where this App does not have it, or has it with other sites, the request is cancelled as by
        `resolve`, or with `cancel=False` left alone, and Unknown is raised. A request that is still being worked on
        is pre-empted: settle what is old. Any number of processes may settle the same request.

        `sites` are those of the transaction; by default what the MIPTs say, and then None is returned where nothing
        is in doubt (any more), because no site knows the XID or knows more than instances that were aborted; None also
        where the request is committed and acknowledged. Where the XID has been given to several requests, over
        different sites, all that they have in doubt is settled: what shares a site with a winner has lost and is rolled
        back, and what stands in the way of another gives way. Returned is what became of the one that won.

        Raises Decided, Cancelled or Refused where that could not be told to a site; Unknown where the family could not
        be settled (also where the handler raises, or where this call has given up what others may wait for, and come no
        further), and of several requests where one is still in doubt, or more than one has won, at sites
        that they do not share; KeyReused where another request has won that shares one of `sites`; ValueError where
        something in doubt has sites that this App does not know, or, before anything has begun, others than `sites`;
        and TypeError for one name in place of `sites`; both for a deadline that cannot be one.
        """
        seconds = _checked_deadline(deadline)
        known = self._given(sites)
        work = self._settle(self._operation("settle", xid), known, run=True, cancel=cancel, deadline=seconds)
        return await self._running.run(work, xid)

    async def resolve(
        self, xid: str, *, sites: Iterable[str] | None = None, cancel: bool = True
    ) -> Resolution | None:
        """Settle a request without its handler: commit the winner there is, else cancel the request.

        Cancelling runs an empty instance, which wins unless another one is complete by then; a later submit with this
        XID raises Cancelled (or Expired, where it is too old by then). With `cancel=False` nothing is cancelled:
        Unknown is raised where there is no winner. What is of a role that has been dropped a superuser has rolled back
        instead, as nobody can run an instance any more, and None is returned. Everything else is as for `settle`.
        """
        known = self._given(sites)
        return await self._running.run(self._settle(self._operation("resolve", xid), known, cancel=cancel), xid)

    async def acknowledge(self, xid: str, *, sites: Iterable[str] | None = None) -> None:
        """Say that the result of a request has arrived and will not be asked for again: the sites drop its texts.

        From then on `submit` with this XID raises Expired. A decided request that a site has not been told of is
        finished first. Where no site knows the XID there is nothing to do. `sites` are those of the transaction; by
        default what the MIPTs say. May be repeated.

        Raises Unknown where the request is not decided, or where a site could not be reached; KeyReused where another
        one has won that shares a site with it; and ValueError, before anything has begun, where the request has sites
        that this App does not know, or others than `sites`, or where several with this XID have won, at sites that they
        do not share: name those of one.
        """
        known = self._given(sites)
        await self._running.run(self._acknowledge(self._operation("acknowledge", xid), known), xid)

    def on_step(self, callback: Hook) -> None:
        """Call `callback(step)` at every named step of the protocol, awaiting it where it is async.

        `begun`: the transaction has begun at `step.site` (once per site); `prepared-first-site`, `prepared-all`: this
        attempt is prepared at one site, at all; `committed-first-site`, `committed-all`: the winner, not necessarily
        this attempt, is committed at one site, at all. One site alone commits in one phase, without preparing. The
        attempt waits for the callback, so this is the place for tracing, and for killing the process in a test. What it
        raises ends the attempt: from `prepared-first-site` on that makes the outcome Unknown.
        """
        self.observe(Hooked(callback))

    def observe(self, observer: Observer) -> None:
        """Have `observer` told of everything that begins from now on; see pgmip.observe."""
        # What has begun keeps the observers that it was begun with.
        self._observers = [*self._observers, observer]

    async def close(self, *, grace: float = 5.0) -> None:
        """Shut down: begin nothing more, let what runs finish for `grace` seconds, roll back what has not, disconnect.

        For good. Whoever submits from now on, or is not finished in time, gets Unknown: another server can go on. What
        is prepared by then stays so until somebody does. Beside a site that does not answer it takes up to
        `step_timeout` and 3.5 seconds longer than `grace`. May be called again, to wait no longer. Where the
        event loop is closed in which it was used, so is what ran there, and only the connections are left to be closed.
        """
        await self._running.close(checked_seconds("grace", grace, none=True))
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    def _abandon(self) -> None:
        """Close the connections that `close` has not come to, where the event loop is no more that they belong to."""
        for pool in self._pools.values():
            pool.abandon()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _open(self) -> None:
        for pool in self._pools.values():
            await pool.open()

    def _begin_to_connect(self) -> None:
        """Where connections are to be kept. In the event loop."""
        self._running.also(self._open())

    def _straight(self, submitted: Submitted, portal: Portal) -> Straight | None:
        """What makes the first attempt in a thread, where all that this leaves out is not asked for. From any thread.
        """
        transaction = submitted.transaction
        if (
            transaction.isolation != "read committed" or submitted.session is not None or not self.parallel
            or self._left.knows(submitted.xid, transaction.sites)
            or not all(observer.is_idle() for observer in self._observers)
        ):  # fmt: skip
            return None
        pools = {site: self._pools[site] for site in transaction.sites}
        # By the clock of event loops, too, where it may go on.
        return Straight(submitted.xid, pools, portal, self._deadline(submitted.seconds, time.monotonic), submitted.text)

    def _let_go(self, straight: Straight, sites: Collection[str]) -> None:
        """Of an attempt that nobody waits for any more."""

        async def stop() -> None:
            with self._left.of(straight.xid, sites) as left:
                await straight.stop()
                left |= straight.left

        if not self._running.also(stop()):
            straight.drop()

    async def _submit(
        self, phase: Phase, submitted: Submitted, *, answered: asyncio.Future[Answer] | None = None,
        straight: Straight | None = None,
    ) -> Answer:  # fmt: skip
        transaction, text, session = submitted.transaction, submitted.text, submitted.session
        late: Late | None = None  # once it is told

        def tell(settled: Settled) -> None:
            nonlocal late
            if answered is None or answered.done():
                return
            with contextlib.suppress(Exception):  # told in the end: nothing here keeps the winner from being committed
                answer = settled.answer(phase.xid, text)
                promise = self._late(phase.xid, settled, set(settled.sites) - settled.winner.committed)
                if self._remember(session, promise):
                    late = promise
                    answered.set_result(answer)

        def committed(site: str) -> None:
            if late is not None:
                self._sessions.done(session, late, site)

        with phase, _no_surprise(phase.xid), self._left.of(phase.xid, transaction.sites) as left:
            end = self._deadline(submitted.seconds) if straight is None else straight.deadline
            family = self._family(
                phase, transaction.sites, transaction.isolation, end, submitted.attempts,
                alone=submitted.is_new, left=left, on_decided=tell, on_committed=committed,
            )  # fmt: skip
            if straight is not None:
                in_the_way = functools.partial(family.is_in_the_way, straight.xinst)
                try:
                    tried = await straight.watch(family.first_turn, in_the_way)
                except BaseException:
                    left |= straight.left
                    raise
                if isinstance(tried, Committed):
                    phase.decision = "own"
                    return self._answer_of(tried, submitted)
                if tried is not None:
                    family.go_on_from(tried)
            try:
                with handled(transaction.handler, answered) as handler:
                    settled = await family.run(handler, text, self._to_catch_up(phase.xid, transaction, session, end))
                answer = settled.answer(family.xid, text)
                if isinstance(answer.error, Decided) and late is None:
                    late = self._late(phase.xid, settled, settled.unfinished)
                    if not self._remember(session, late):
                        raise _no_room(answer.error)
            finally:
                if late is not None:
                    late.leave()
            phase.error = answer.error
            return answer

    # -- what is late ----------------------------------------------------------------------------------------------

    def _late(self, xid: str, settled: Settled, left: Iterable[str]) -> Late:
        """What has to be committed yet. At a site that this App does not have none of its sessions can miss it."""
        return Late(xid, settled.winner.xinst, settled.sites, (site for site in left if site in self._pools))

    def _remember(self, session: Hashable | None, late: Late) -> bool:
        """Have a session's next request see it; whether there is room for that. Where there is none, it is made."""
        if session is None or not late.left or self._sessions.add(session, late):
            return True
        now = asyncio.get_running_loop().time()
        if now >= self._tidy_at:
            self._tidy_at = math.inf
            self._running.beside(self._tidy())
        return False

    async def _tidy(self) -> None:
        """Forget what has been committed of what was left behind, whoever has done so, or do it."""
        try:
            away: set[str] = set()
            for session, late in self._sessions.left_behind():
                if away.isdisjoint(late.left):
                    with contextlib.suppress(Exception):  # logged; the session is told, should it come back
                        failed = await self._finish_late(session, late, late.left, self._deadline(_TIDYING))
                        away |= {site for site, why in failed.items() if not isinstance(why, ProtocolViolation)}
        finally:
            self._tidy_at = asyncio.get_running_loop().time() + _UNTIDY

    def _to_catch_up(
        self, xid: str, transaction: Transaction, session: Hashable | None, deadline: Deadline
    ) -> Callable[[], Awaitable[None]] | None:
        """What brings a session's request up to date, if anything has to: the same request is told again what it has
        been told.
        """
        late = [one for one in self._sessions.of(session) if one.xid != xid and one.left.keys() & transaction.sites]
        if not late and not self._sessions.has_lost(session, transaction.sites):
            return None
        return functools.partial(self._catch_up, xid, session, late, transaction.sites, deadline)

    async def _catch_up(
        self, xid: str, session: Hashable | None, late: Sequence[Late], sites: Sequence[str], deadline: Deadline
    ) -> None:
        """Have committed at these sites what the session has been answered before, so that its request sees that."""
        lost = self._sessions.tell(session, sites)
        if lost:
            raise EarlierLost(_lost(lost), xid=xid)
        for one in late:
            # For as long as a site may take to answer; who is at it may wait for us, as in a hook, or have stopped.
            await one.wait(sites, min(self._limits.step_timeout, deadline.left / 2))
            failed = await self._finish_late(session, one, one.left.keys() & sites, deadline)
            if failed:
                site, why = next(iter(failed.items()))  # what is lost comes first
                if not isinstance(why, ProtocolViolation):
                    raise Unknown(_not_caught_up(one.xid, site, str(why)), xid=xid) from why
                raise EarlierLost(_lost(self._sessions.tell(session, sites)), xid=xid) from why

    async def _finish_late(
        self, session: Hashable | None, late: Late, sites: Collection[str], deadline: Deadline
    ) -> dict[str, BaseException]:
        """Have it committed at these of its sites; where that is not known to be done, and why."""
        if not sites:
            return {}
        if not deadline.left:
            return dict.fromkeys(sites, TimeoutError("the deadline has passed"))
        with self._operation("settle", late.xid) as phase:
            family = self._family(phase, tuple(late.sites), "read committed", deadline)
            told = await at_each_site(sites, lambda site: family.commit_late(site, late.xinst))
            lost = {site: error for site, error in told.items() if isinstance(error, ProtocolViolation)}
            failed = lost | {site: error for site, error in told.items() if error is not None}
            if lost and await family.is_forgotten(late.xinst):
                failed, told = {}, dict.fromkeys(late.left)
            else:
                for site in lost:
                    self._sessions.lose(session, late, site)
            for site in told.keys() - failed.keys():
                self._sessions.done(session, late, site)
            phase.error = next(iter(failed.values()), None)
            return failed

    async def _settle(
        self, phase: Phase, sites: tuple[str, ...] | None, *, run: bool = False, cancel: bool = True,
        deadline: float | None = None,
    ) -> Resolution | None:  # fmt: skip
        end = self._deadline(deadline)
        with phase, _no_surprise(phase.xid, ValueError):
            found = await self._find(phase, sites, end)
            return await self._settle_found(phase, found, run=run, cancel=cancel, deadline=end)

    async def _settle_found(
        self, phase: Phase, found: Sequence[Found], *, run: bool = False, cancel: bool, deadline: Deadline
    ) -> Resolution | None:
        if not found:
            return None
        if len(found) > 1:
            return await self._settle_several(phase, found, run=run, cancel=cancel, deadline=deadline)
        self._check_known(phase.xid, found[0])
        return await self._settle_one(phase, found[0], run=run, cancel=cancel, deadline=deadline)

    async def _settle_several(
        self, phase: Phase, found: Sequence[Found], *, run: bool, cancel: bool, deadline: Deadline
    ) -> Resolution | None:
        """Settle what several requests have in doubt under one XID, as far as this App knows their sites. Each ends, as
        none waits for another one: what shares a site with a winner is rolled back, and else gives way.
        """
        told: list[Resolution] = []
        why: BaseException | None = None
        for one in found:
            if not self._unknown_of(one):
                try:
                    resolution = await self._settle_one(phase, one, run=run, cancel=cancel, deadline=deadline)
                    told += [resolution] if resolution is not None else []
                except SubmitError as error:  # as KeyReused, of what shares a site with a winner
                    why = why or error
        # What has given way, or lost, is over for all that; what counts is what is left.
        mipts, unread = await Asking(self._pools, deadline, phase).read(tuple(self._pools))
        for one in found:
            now = Found(one.sites, {site: mipts.get(site) for site in one.sites})
            if now.is_in_doubt:
                self._check_known(phase.xid, one)
                raise Unknown(f"still in doubt over {', '.join(one.sites)}: {why}", xid=phase.xid) from why
            if None in (mipts.get(site, ()) for site in one.sites):
                raise Unknown(f"not all sites could be asked: {unread}", xid=phase.xid) from unread
        if len(told) > 1:
            raise Unknown("several requests have this XID, and are settled: name the sites of one", xid=phase.xid)
        return told[0] if told else None

    async def _settle_one(
        self, phase: Phase, found: Found, *, run: bool, cancel: bool, deadline: Deadline
    ) -> Resolution | None:
        transaction = self._named_in(found) if run else None
        phase.transaction = transaction.name if transaction else None
        family = self._family(
            phase,
            transaction.sites if transaction else found.sites,
            transaction.isolation if transaction else "read committed",
            deadline,
        )
        with _no_surprise(phase.xid):
            try:
                settled = await self._decided(family, found, transaction, cancel=cancel)
            except Cancelled:
                return Resolution(True, None)
            if settled is None:
                return None
            settled.check_finished(phase.xid)
            return None if settled.winner.acknowledged else _resolution(settled.winner)

    async def _decided(
        self, family: Family, found: Found, transaction: Transaction | None, *, cancel: bool
    ) -> Settled | None:
        try:
            winner = family.decide(found.mipts)
        except KeyReused:
            await family.give_back()
            raise
        if winner is not None:
            return await family.finish(winner, found.mipts)
        if transaction is None and not cancel:
            known = "" if self._named_in(found) else f", and {_no_handler(found)}"
            raise Unknown(f"the request is not decided{known}. {explain(found.mipts).reason}", xid=family.xid)
        if transaction is None:
            return await family.settle(None, found.request, in_doubt=found.is_in_doubt)
        with handled(transaction.handler) as handler:
            return await family.settle(handler, found.request, in_doubt=found.is_in_doubt)

    async def _acknowledge(self, phase: Phase, sites: tuple[str, ...] | None) -> None:
        deadline = self._deadline(None)
        with phase:
            with _no_surprise(phase.xid, ValueError):
                found = await self._find(phase, sites, deadline)
                # What shares a site with one that has won can be decided no more.
                found = [one for one in found if one.is_decided] or found
                if len(found) > 1:
                    raise ValueError(f"several requests have the XID {phase.xid!r}: name the sites of one")
                for one in found:
                    self._check_known(phase.xid, one)
            with _no_surprise(phase.xid):
                for one in found:
                    family = self._family(phase, one.sites, "read committed", deadline)
                    await self._acknowledge_found(family, one)

    async def _acknowledge_found(self, family: Family, found: Found) -> None:
        if all(mipt == () for mipt in found.mipts.values()):
            return
        winner = family.decide(found.mipts)
        if winner is None:
            why = f"only a decided request can be acknowledged. {explain(found.mipts).reason}"
            raise Unknown(why, xid=family.xid)
        family.check_alone(found.mipts)
        await family.acknowledge(await family.finish(winner, found.mipts))

    async def _find(self, phase: Phase, sites: tuple[str, ...] | None, deadline: Deadline) -> list[Found]:
        return await find(Asking(self._pools, deadline, phase), sites)

    def _deadline(self, seconds: float | None, clock: Callable[[], float] | None = None) -> Deadline:
        return Deadline(self._limits.deadline if seconds is None else seconds, self._limits.step_timeout, clock)

    def _unknown_of(self, found: Found) -> list[str]:
        return [site for site in found.sites if site not in self._pools]

    def _check_known(self, xid: str, found: Found) -> None:
        unknown = self._unknown_of(found)
        if unknown:
            raise ValueError(f"the request {xid!r} has sites that this App does not know: {unknown}")

    def _named_in(self, found: Found) -> Transaction | None:
        """The transaction that a family's request names, if it is known here with the family's sites."""
        try:
            transaction = self._transactions[parse(found.request or "")["transaction"]]
        except (ValueError, LookupError, TypeError):
            return None
        return transaction if set(transaction.sites) == set(found.sites) else None

    def _operation(self, name: PhaseName, xid: str, transaction: str | None = None) -> Phase:
        check_outside(name)
        return Phase(self._observers, name, checked_xid(xid), transaction=transaction)

    def _family(
        self, phase: Phase, sites: tuple[str, ...], isolation: Isolation, deadline: Deadline,
        attempts: int | None = None, *, alone: bool = False, left: set[int] | None = None,
        on_decided: Callable[[Settled], None] | None = None, on_committed: Callable[[str], None] | None = None,
    ) -> Family:  # fmt: skip
        return Family(
            phase, sites, isolation, self._pools,
            deadline=deadline, attempts=self._limits.attempts if attempts is None else attempts,
            parallel=self.parallel, alone=alone, left=left, on_decided=on_decided, on_committed=on_committed,
        )  # fmt: skip

    def _given(self, sites: Iterable[str] | None) -> tuple[str, ...] | None:
        return None if sites is None else self._known(sites)

    def _known(self, sites: Iterable[str]) -> tuple[str, ...]:
        if isinstance(sites, str):
            raise TypeError(f"sites are given as a sequence of names, ({sites!r},), not as one name, {sites!r}")
        declared = tuple(dict.fromkeys(sites))
        unknown = [site for site in declared if site not in self._pools]
        if unknown or not declared:
            raise ValueError(f"not sites of this App: {unknown}" if unknown else "at least one site is needed")
        return declared


def _checked_deadline(deadline: object) -> float | None:
    return None if deadline is None else checked_seconds("deadline", deadline, none=True)


@contextlib.contextmanager
def _no_surprise(xid: str, *foreseen: type[Exception]) -> Iterator[None]:
    """What nobody has foreseen says nothing of the request."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (SubmitError, *foreseen)):
            raise
        raise Unknown(f"something unexpected has happened: {described(error)}", xid=xid) from error


def _not_caught_up(earlier: str, site: str, why: str) -> str:
    return f"an earlier request of this session, {earlier}, is not committed at {site}: {why}"


def _lost(lost: Sequence[tuple[str, str]]) -> str:
    """By XID and site; one session can have lost several, of which it is told here only."""
    return "; ".join(_not_caught_up(earlier, site, "the site has lost it") for earlier, site in lost)


def _no_room(decided: Decided) -> Unknown:
    """What is told instead where the session's next request might not see it."""
    error = Unknown(f"{decided}, and there is no room to remember that for its session", xid=decided.xid)
    error.__cause__ = decided.__cause__
    return error


def _no_handler(found: Found) -> str:
    """That there is no handler here for what is in doubt, and where there may be one."""
    try:
        name = str(parse(found.request or "")["transaction"])
    except (ValueError, LookupError, TypeError):
        return "names no transaction"
    missing = f"this App has no transaction {name!r} over {', '.join(found.sites)}"
    if not re.match(r"[A-Z]+ /", name):
        return missing
    return f"{missing}: an endpoint runs again in its server, by a pgmip.Sweeper there"


def _resolution(winner: Winner) -> Resolution:
    if winner.result is None:
        return Resolution(True, None)
    recorded = Recorded.read(winner.result)
    return Resolution(False, recorded.result, recorded.refused)
