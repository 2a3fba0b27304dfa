"""One attempt: an instance run and prepared at all of its sites."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from ._answer import Recorded
from ._asking import Asking
from ._branch import Branch, Instance, NotPrepared, Prepared, Vote
from ._cancellation import ended, uninterrupted
from ._connection import PooledConnection, cut
from ._ending import Ended, Ending, NotTried
from ._json import parse
from ._pool import Pool
from ._sites import at_each_site
from ._tx import Handler, Tx
from ._watch import Watch
from .decision import Mipts, decide, declared
from .exceptions import ProtocolViolation
from .observe import StepName

__all__ = ["Attempt", "NotInDoubt"]

_PATIENCE = 0.2  # seconds of waiting for one's turn, before the siblings are looked at
_UNSEEN = 0.01  # seconds for which a handler may run before a site knows of it


class Attempt(Ending):
    """Runs one instance up to its prepared state. To be closed, whatever happened."""

    def __init__(
        self, instance: Instance, order: Sequence[str], asking: Asking, *, parallel: bool,
        in_doubt: Callable[[], Awaitable[bool]], turn: float,
        adopt: Callable[[], Awaitable[bool]] | None,
    ) -> None:  # fmt: skip
        """`order`: the sites in the order in which to prepare them where not in parallel. `in_doubt`: whether a sibling
        is prepared. `turn`: how long (seconds) the attempt may wait for a lock then, or keep one of the few places that
        there are for such requests. `adopt`, where no client has submitted this: asked when all sites know of the
        instance, whether there is a reason for it; without one it goes no further.
        """
        super().__init__()
        self._instance = instance
        self._order = order
        self._asking = asking
        self._pools = asking.pools
        self._deadline = asking.deadline
        self.phase = asking.phase
        self._parallel = parallel
        self._in_doubt = in_doubt
        self._turn = turn
        self._adopt = adopt
        self._gave_way = False
        self._limit: asyncio.Timeout
        insist_after = self._deadline.insist_after
        self._watch = Watch(self._give_way, turn, self._cut, self._deadline.at + insist_after, insist_after)
        self._looks: asyncio.Task[None] | None = None
        self._decided: Mipts | None = None  # by others
        self._of_handler: Exception | None = None

    async def run(self, handler: Handler | None, request: str | None) -> Ended:
        """Run the handler, or without one the empty instance that cancels the family, and prepare at all sites.

        Never raises for what the handler, a site or the network does.
        """
        preparing = False
        try:
            async with asyncio.timeout_at(self._deadline.at) as self._limit, self._watch:
                await self._connect()
                if self._adopt is not None:
                    await self._show()
                    if not await self._adopt():
                        raise NotInDoubt("nothing that is to be repeated is in doubt any more")
                text = await self._result_of(handler, request)
                failure = self._failure()  # by now: a statement that has been left running may end meanwhile
                if failure is None and await self._show():
                    failure = self._failure()
                if failure is None and any(branch.has_last for branch in self._branches.values()):
                    preparing = True  # and waiting for locks, as the handler may
                    await self._prepare(request, text)
        except Exception as error:
            if self._limit.expired():
                if self._decided is not None:
                    ended = await self._out_of_time(TimeoutError("it is prepared at every site"), retry=True)
                    return ended if ended.error is None else replace(ended, mipts=self._decided, adopts=True)
                early = self._limit.when() != self._deadline.at
                why = TimeoutError("a sibling is in doubt" if early else "the deadline has passed")
                return await self._out_of_time(why, early)
            if preparing:
                raise
            cause = self._cause(error)
            if cause is not error:
                return self._failed(cause, cause)
            return self._failed(error, self._origin(error) if error is self._of_handler else error)
        if not preparing:
            failure = failure or self._failure()
            if failure is not None:
                return self._failed(failure, failure)
            await self._prepare(request, text)
        return await self._judge(self._votes)

    def connection(self, site: str) -> PooledConnection | None:
        """This attempt's own connection to a site, while it has one."""
        branch = self._branches.get(site)
        return branch.conn if branch is not None else None

    async def close(self, *, hard: bool = False) -> None:
        """End open transactions and give the connections back; `hard` closes them without asking the server."""
        still_open = [site for site, branch in self._branches.items() if branch.end()]
        if hard or still_open:
            await uninterrupted(self._close(still_open, hard))
        else:
            await self._give_back()

    async def _close(self, still_open: Sequence[str], hard: bool) -> None:
        try:
            if not hard:
                await at_each_site(still_open, lambda site: self._branches[site].rollback(self._deadline.step()))
        finally:
            await self._give_back(hard)

    async def _give_back(self, hard: bool = False) -> None:
        """All of them, also where this is cancelled."""
        branches, self._branches = self._branches, {}
        async with contextlib.AsyncExitStack() as all_of_them:
            for site, branch in branches.items():
                all_of_them.push_async_callback(self._pools[site].give, branch.conn)
                if branch.end() or hard:
                    all_of_them.push_async_callback(self._disconnect, branch)

    async def _disconnect(self, branch: Branch) -> None:
        await branch.close(self._deadline.step())

    async def _out_of_time(self, why: TimeoutError, retry: bool) -> Ended:
        """The same; but a branch that was preparing may have done it."""
        if not self._votes:
            return replace(self._failed(why, why), retry=retry, stuck=self._gave_way)
        ended = await self._judge({site: NotPrepared(NotTried()) for site in self._order} | self._votes)
        if ended.error is None:
            return ended  # complete after all
        return replace(ended, error=why, reason=why, retry=retry, stuck=self._gave_way)

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """End the attempt if one of those turns out to be prepared at every site of which one has told."""
        mipts, _ = await self._asking.read(self._order)
        if self._deadline.left and self._have_winner(mipts):
            self._decided = mipts
            self._interrupt()

    def _have_winner(self, mipts: Mipts) -> bool:
        try:
            return declared(mipts) == {frozenset(self._order)} and decide(mipts) is not None
        except ProtocolViolation:
            return False  # for who is asked when this attempt has ended

    def _interrupt(self, seconds: float = 0.0) -> None:
        self._limit.reschedule(min(self._deadline.at, asyncio.get_running_loop().time() + seconds))

    def _cut(self) -> None:
        """Where the deadline has passed for long: a cancelled statement asks its server to end it, which may not answer
        either.
        """
        for branch in self._branches.values():
            cut(branch.conn)

    async def _give_way(self) -> None:
        """After its turn, end the attempt if it waits for a lock while a sibling is in doubt."""
        # Afterwards there is nothing to give way in; and its questions would use up what the last ones have.
        while self._deadline.left:
            # In this order: what was in doubt may have been given up right before the handler began.
            if await self._asking.waits(self._order, self._instance.xinst) and await self._in_doubt():
                self._gave_way = True
                self._interrupt()
                return
            await asyncio.sleep(self._turn)

    async def _connect(self) -> None:
        for site in self._order:
            await self._pools[site].check_up()
        for site in sorted(self._order):  # everybody in the same order, so that nobody waits in a circle
            with self.phase.part("connect", site=site):
                conn = await self._place(self._pools[site])
                self._branches[site] = Branch(  # before an observer is told, and raises
                    site, conn, self._instance,
                    on_begun=self._begun, on_beside=self._beside,
                    read=functools.partial(self._asking.read_over, conn, site),
                )  # fmt: skip
        if self._instance.isolation == "serializable" and len(self._branches) > 1:
            everywhere = any(branch.serializable == "everywhere" for branch in self._branches.values())
            for branch in self._branches.values():
                branch.everywhere = everywhere

    async def _place(self, pool: Pool) -> PooledConnection:
        """A connection, when it is our turn. Those before us may wait for rows of our own request, in doubt: so such
        a request does not wait behind them; only, and for a while at a time, behind others in doubt.
        """
        patience = _PATIENCE
        while True:
            conn = await pool.take(patience)
            if conn is not None:
                return conn
            if await self._in_doubt():
                conn = await pool.take_in_doubt()
                self._interrupt(self._turn)
                return conn
            patience *= 2

    async def _result_of(self, handler: Handler | None, request: str | None) -> str | None:
        if handler is None or request is None:
            return None
        with self.phase.part("handler"):
            tx = Tx(self._instance, self._branches)
            work = functools.partial(self._handle, handler, tx, parse(request)["request"])
            try:
                result = await self._seen(work)
            except Exception as error:
                self._of_handler = error
                raise
        return (result if isinstance(result, Recorded) else Recorded(result)).text

    async def _handle(self, handler: Handler, tx: Tx, request: Any) -> Any:
        try:
            return await handler(tx, request)
        finally:
            for branch in self._branches.values():  # before any other task runs
                branch.handler_returned()

    async def _seen(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """What the handler's `work` returns. Let a site know of the instance where it does not do so at once; and
        nothing after its end.
        """
        loop = asyncio.get_running_loop()
        begun: list[asyncio.Task[None]] = []
        branches = self._branches.values()

        def begin() -> None:
            if not any(branch.begun for branch in branches):
                begun.append(loop.create_task(self._branches[self._order[0]].begin()))

        timer = loop.call_later(_UNSEEN, begin)
        try:
            return await _uncancelled(work)
        except BaseException:
            for task in begun:
                task.cancel()
            raise
        finally:
            timer.cancel()
            await ended(begun)  # what went wrong is noted

    async def _show(self) -> bool:
        """Have all sites know of the instance before it may be prepared at one; whether one had not. What prepares it
        may be on its way for long; and who looks at the sites meanwhile, and sees nobody, says that nothing will come
        of the request. Also where we have made the XID: who is told that it is not known what has become of it may send
        it to others.
        """
        unaware = [site for site in self._order if not self._branches[site].begun]
        await at_each_site(unaware, lambda site: self._branches[site].begin())
        return bool(unaware)

    async def _prepare(self, request: str | None, result: str | None) -> None:
        """Have all sites vote."""

        async def prepare(site: str) -> None:
            vote = self._votes[site] = await self._vote(site, request, result)
            if isinstance(vote, Prepared) and len(self._order) > 1:
                done = [vote for vote in self._votes.values() if isinstance(vote, Prepared)]
                if len(done) == 1:
                    await self._step("prepared-first-site", site)
                if len(done) == len(self._order):
                    await self._step("prepared-all", None)

        await at_each_site(self._order, prepare, parallel=self._parallel)

    async def _vote(self, site: str, request: str | None, result: str | None) -> Vote:
        branch = self._branches[site]
        if not self._parallel:
            if any(not isinstance(vote, Prepared) for vote in self._votes.values()):
                return NotPrepared(NotTried())
            if (failure := branch.failure) is not None:  # since we have looked, other sites may have let us wait
                return NotPrepared(failure)
        one_phase = len(self._order) == 1
        end = branch.commit_one_phase if one_phase else branch.prepare
        with self.phase.part("commit" if one_phase else "prepare", site=site) as phase:
            try:
                vote = await end(request, result, self._deadline.step())
            except BaseException:
                self._votes[site] = branch.interrupted()
                raise
            phase.error = vote.error
        return vote

    async def _take_back(self, sites: Sequence[str]) -> bool:
        """Roll the prepared branches back; whether all of them are known to be gone."""

        async def take_back(site: str) -> psycopg.Error | None:
            return await self._asking.roll_back(site, self._instance.xinst, self.connection(site))

        return not any((await at_each_site(sites, take_back)).values())

    def _beside(self, xinsts: Sequence[int]) -> None:
        self._asking.meet({}, *xinsts)
        # A statement that has been left running may still have to tell of others.
        if (self._looks is None or self._looks.done()) and self._watch.is_on and self._adopt is None:
            self._looks = self._watch.beside(self._look())

    async def _begun(self, site: str) -> None:
        await self._step("begun", site)

    async def _step(self, name: StepName, site: str | None) -> None:
        await self.phase.step(name, self._instance.xinst, site)


async def _uncancelled(work: Callable[[], Awaitable[Any]]) -> Any:
    """What `work` returns. A CancelledError of its own making is an error like others: nobody has cancelled us.

    It runs in a task of its own, so that what it does to that is not taken for a cancellation of ours: a TaskGroup of
    Python 3.11 may leave its task cancelled.
    """
    task = asyncio.create_task(_outcome(work))
    cancelled = False
    try:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
                task.cancel()
    except GeneratorExit:
        raise  # the loop itself has ended
    except BaseException:
        task.cancel()
        await ended([task])
        raise
    result, error = (None, asyncio.CancelledError()) if task.cancelled() else task.result()
    if cancelled and (error is None or isinstance(error, Exception | asyncio.CancelledError)):
        raise asyncio.CancelledError from error
    if isinstance(error, asyncio.CancelledError):
        raise RuntimeError("the handler was cancelled from within") from error
    if error is not None:
        raise error
    return result


async def _outcome(work: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """What it returns, or raises, as values: KeyboardInterrupt, say, would stop the loop where it leaves a task."""
    try:
        return await work(), None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error


class NotInDoubt(Exception):
    """What was to be repeated unasked has been finished, or taken back, meanwhile."""
