"""Carrying a family to its decision: attempt, look at the MIPTs of all sites, decide, finish, or attempt again."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg

from ._answer import Answer, Recorded
from ._asking import Asking
from ._attempt import Attempt, NotInDoubt
from ._branch import Instance
from ._connection import PooledConnection
from ._deadline import Deadline
from ._ending import Ended
from ._pool import Pool
from ._sites import at_each_site
from ._sqlstate import (
    EXPIRED,
    FAMILY_COMMITTED,
    NOT_USABLE,
    OTHER_SITES,
    awaits_decision,
    has_met_another_role,
    is_acknowledged,
    is_given_up,
    may_be_held_up,
    said,
    superseded_by,
)
from ._straight import NotAlone, Tried
from ._text import described
from ._tx import Handler, Tx
from .decision import Entry, Mipts, State, Winner, decide, declared, highest, in_doubt, live, over
from .exceptions import (
    Cancelled,
    Decided,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refuse,
    Refused,
    SiteDown,
    SubmitError,
    Unknown,
)
from .observe import DecisionKind, Phase
from .xinst import new_xinst, xid_time

__all__ = ["Family", "Limits", "Settled"]

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_DECISION_PAUSE = 0.2  # seconds more, while it takes a decision of somebody else's request
_COMMIT_TRIES = 3
_FIRST_TURN = 2.0  # seconds for which an attempt may wait for a lock while a sibling is in doubt
_MOST_LEFT = 2  # instances of a request that may be prepared at a site, and not at all, before one adds another to them


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one submit."""

    deadline: float
    attempts: int
    step_timeout: float


@dataclass(frozen=True, slots=True)
class Settled:
    """A decided family: its winner, whose sites these are, and those (if any) that could not be told yet, and why."""

    winner: Winner
    sites: tuple[str, ...]
    unfinished: Mapping[str, BaseException]
    own: bool
    """Whether the winner is an instance of the call that has settled the family."""

    def answer(self, xid: str, request: str) -> Answer:
        """What the caller who submitted this request is told. Raises Cancelled, Expired, KeyReused or Unknown."""
        if self.winner.acknowledged:
            gone = f"the request {xid!r} is committed and acknowledged: its result is gone"
            raise Unknown(gone, xid=xid) if self.own else Expired(gone, xid=xid)  # of which this call has no part
        if self.winner.request is not None and self.winner.request != request:
            raise KeyReused(f"the XID {xid!r} belongs to another request", xid=xid)
        untold = self._untold(xid)
        if self.winner.result is None:
            raise untold or Cancelled(f"the request {xid!r} has been cancelled", xid=xid)
        recorded = Recorded.read(self.winner.result)
        if recorded.refused and untold is None:
            untold = Refused(f"the request {xid!r} has been refused", xid=xid, result=recorded.result)
        return Answer(recorded, not self.own, untold)

    def check_finished(self, xid: str) -> None:
        """Raises Decided, or Cancelled or Refused where it is that, if a site could not be told."""
        untold = self._untold(xid)
        if untold is not None:
            raise untold

    def _untold(self, xid: str) -> SubmitError | None:
        """What to tell where a site could not be told."""
        if not self.unfinished:
            return None
        sites = tuple(self.unfinished)
        still = f"but not finished at {', '.join(sites)}"
        recorded = None if self.winner.result is None else Recorded.read(self.winner.result)
        error: SubmitError
        if self.winner.acknowledged:
            error = Unknown(f"committed and acknowledged, {still}", xid=xid)
        elif recorded is None:
            error = Cancelled(f"cancelled, {still}", xid=xid, unfinished=sites)
        elif recorded.refused:
            error = Refused(f"refused, {still}", xid=xid, result=recorded.result, unfinished=sites)
        else:
            error = Decided(f"decided, {still}", xid=xid, result=recorded.result, unfinished=sites)
        error.__cause__ = self.unfinished[sites[0]]
        return error


class Family:
    """One caller's view of one family, for the time of one `submit` or `resolve`."""

    def __init__(
        self, phase: Phase, sites: Sequence[str], isolation: str, pools: Mapping[str, Pool],
        *, deadline: Deadline, attempts: int, parallel: bool, alone: bool = False, left: set[int] | None = None,
        on_decided: Callable[[Settled], None] | None = None, on_committed: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """`phase`: the operation that looks at the family. `alone`: the XID is new, so that nobody else can have an
        instance of it. `left`: instances of earlier operations that may be prepared somewhere, as if they were of this
        one; afterwards, those that still may. `on_decided`: called when there is a winner, before it is committed, if
        every site has shown that it is prepared there: one that has not may have lost it, which its commit shows;
        `on_committed`: with each site where it is so by us.
        """
        self.xid = phase.xid
        self._phase = phase
        self._sites = tuple(sites)
        self._isolation = isolation
        self._pools = pools
        self._asking = Asking(pools, deadline, phase, self._meet)
        self._deadline = deadline
        self._attempts = attempts
        self._parallel = parallel
        self._alone = alone
        self._on_decided = on_decided
        self._on_committed = on_committed
        self._own: set[int] = set()
        self._siblings: set[int] = set()
        self._harmless: set[int] = set()  # instances that can have no effect any more: own ones, and those given up
        self._left = set() if left is None else left  # own instances that may be prepared somewhere
        self._earlier = frozenset(self._left)  # of which those are of operations before this one
        self._lost = False  # whether one of this operation's may have been, which a site may have forgotten since
        self._freed = False  # whether we have given one up, of whomever
        self._settles = False  # what has been left behind, instead of being submitted
        self._was_in_doubt = False  # what it settles
        self._given_up = False  # whether somebody else has given an attempt of ours up, and goes on
        self._foreign: Mipts = {}  # in which another instance has won that shares one of our sites
        self._exposed = False  # whether one was, so that others may have seen it
        self._tried: Tried | None = None

    def go_on_from(self, tried: Tried) -> None:
        """Have this be the first attempt of `run`."""
        self._tried = tried

    @property
    def first_turn(self) -> float:
        """Seconds for which a first attempt may wait for a lock while a sibling is in doubt."""
        return _FIRST_TURN

    async def is_in_the_way(self, xinst: int) -> bool:
        """Whether one's own instance waits for a lock while a sibling is in doubt, which others may wait for."""
        return await self._asking.waits(self._sites, xinst) and await self._is_in_doubt(xinst)

    async def run(
        self, handler: Handler | None, request: str | None, before: Callable[[], Awaitable[None]] | None = None
    ) -> Settled:
        """Attempt until there is a winner, and finish it. Without a handler the attempts are empty and cancel.
        `before`: what the first one has to wait for, unless there is a winner already.

        Raises NothingHappened, Unknown or Expired, and what `before` raises.
        """
        try:
            settled = await self._run(handler, request, before)
        except (KeyReused, Unknown):
            settled = await self._settled_elsewhere(request)
            if settled is None:
                raise
        assert settled is not None
        return settled

    async def settle(self, handler: Handler | None, request: str | None, *, in_doubt: bool) -> Settled | None:
        """The same for what no client has submitted here: the handler runs only while something is in doubt that it is
        to repeat, and the attempts are empty where there is nothing else to be finished, and from then on where the XID
        turns out to be too old. None where nothing is in doubt any more, because somebody else has taken it back.
        `in_doubt`: whether anything has been; what never was may be cancelled all the same.
        """
        self._settles = True
        self._was_in_doubt = in_doubt
        return await self._run(handler, request)

    async def _run(
        self, handler: Handler | None, request: str | None, before: Callable[[], Awaitable[None]] | None = None
    ) -> Settled | None:
        try:
            if before is not None:
                known = await self._known()
                if known is not None:
                    return known
                await before()
            return await self._carry(handler, request)
        except KeyReused:
            await self.give_back()
            raise

    async def _known(self) -> Settled | None:
        """What the family has come to by now, as far as the sites say."""
        mipts = {} if self._alone else await self._read()
        winner = self.decide(mipts)
        return None if winner is None else await self.finish(winner, mipts)

    async def give_back(self) -> None:
        """Roll back what is prepared over our sites, where another instance has won that shares one of them.

        That site has never prepared what is over ours, or it could not have prepared the winner; and it never will.
        Raises Unknown where it has forgotten something: ours, which is committed, or by now the winner.
        """
        mipts = await self._read()
        forgotten = xid_time(self.xid) is None and not self._are_foreign(_committed(mipts))
        if forgotten or self._have_committed(mipts):
            raise Unknown("another request had the XID, and a site has forgotten one of both", xid=self.xid)
        for site, mipt in over(self._sites, mipts).items():
            for entry in mipt or ():
                if entry.state is State.PREPARED:
                    await self._asking.roll_back(site, entry.xinst)

    async def _settled_elsewhere(self, request: str | None) -> Settled | None:
        """What this very request has come to over other sites: its transaction may have had others, or other names for
        them, when it was decided. What has been acknowledged has no texts any more, and may be it.
        """
        for sites in declared(self._foreign) - {frozenset(self._sites)}:
            winner = decide(over(sites, self._foreign))
            if winner is not None and (winner.acknowledged or winner.request == request):
                return await self._tell_elsewhere(winner, sites)
        return None

    async def _tell_elsewhere(self, winner: Winner, sites: Iterable[str]) -> Settled:
        async def tell(site: str) -> BaseException | None:
            if site in winner.committed:
                return None
            if site not in self._pools:
                return LookupError(f"{site} is no site of this App")
            return await self._commit_at(self._phase, site, winner, None)

        told = await at_each_site(sites, tell, parallel=self._parallel)
        unfinished = {site: error for site, error in told.items() if error is not None}
        return Settled(winner, tuple(told), unfinished, own=False)

    async def _carry(self, handler: Handler | None, request: str | None) -> Settled | None:
        clock = asyncio.get_running_loop().time
        above, took, stuck, freed = max(self._left, default=0), 0.0, 0, False
        cause: BaseException | None = await self._insist_on_giving_up()
        reason = cause
        mipts: Mipts = {}
        if self._tried is not None and (self._left or isinstance(self._tried.ended.error, NotAlone)):
            ended = await self._take_over(self._tried)  # and it does not count, or nothing more is to be tried
            if isinstance(ended, Settled):
                return ended
            above, self._tried = max(above, *self._own), None
        for number in range(0 if self._left else self._attempts):
            if number:
                pause = _pause(number, took) + (_DECISION_PAUSE if awaits_decision(reason) else 0)
                if pause >= self._deadline.left:
                    break
                await asyncio.sleep(pause)
            tried, self._tried = self._tried, None
            try:
                xinst = new_xinst(above) if tried is None else tried.xinst
            except OverflowError as error:
                cause = reason = error
                break
            began = clock()
            turn = _FIRST_TURN * 2.0 ** min(stuck, 16)
            adopt = None
            if self._settles:
                adopt = functools.partial(self._adopt, request, repeat=handler is not None, free=freed)
            if tried is not None:
                ended = await self._take_over(tried)
            else:
                ended = await self._try(xinst, handler, request, after=cause, turn=turn, adopt=adopt)
            if isinstance(ended, Ended) and isinstance(ended.error, Refuse):
                ended = await self._record(ended, xinst, request, turn=turn, adopt=adopt)
            if isinstance(ended, Settled):
                return ended
            took = clock() - began
            cause, reason = ended.error, ended.reason
            mipts = ended.mipts if ended.adopts else await self._read()
            winner = self.decide(mipts)
            if winner is None and self._left:
                mipts = await self._give_up_own(mipts)
                winner = self.decide(mipts)
            if winner is not None:
                return await self.finish(winner, mipts, adopted=ended.adopts)
            unknown = None in mipts.values() or live(mipts) - self._own
            if isinstance(reason, NotInDoubt) and not (unknown or self._ours_in_doubt(mipts) or self._freed):
                return None
            if self._settles and said(reason) == OTHER_SITES:
                await self._free(mipts)  # and let it be: the sites do not know of us meanwhile
                mipts = await self._read()
                raise await self._undecided(mipts, f"in the way of others: {_why(cause)}", reason) from cause
            theirs = self._settles and handler is None and has_met_another_role(reason)
            if theirs and await self._have_ended_orphans(mipts):
                return None
            stuck += ended.stuck
            freed = (ended.stuck or may_be_held_up(reason)) and await self._free(mipts, later=self._settles)
            if said(reason) == EXPIRED and handler is None:
                await self._end(mipts, cause)
            if handler is not None and self._settles and (said(reason) == EXPIRED or self._to_be_cancelled(mipts)):
                handler = None
            elif not ended.retry and not freed:
                raise await self._undecided(mipts, f"the transaction failed: {_why(cause)}", reason) from cause
            down = await self._insist_on_giving_up()
            if down is not None:
                cause = reason = down
            if self._left:
                break
            above = max(above, *self._own, ended.highest, highest(mipts))
        mipts = await self._read()
        winner = self.decide(mipts)
        if winner is not None:
            return await self.finish(winner, mipts)
        raise await self._undecided(mipts, f"out of time or attempts: {_why(cause)}", reason) from cause

    async def finish(
        self, winner: Winner, mipts: Mipts, attempt: Attempt | None = None, *, adopted: bool = False
    ) -> Settled:
        """Commit the winner of these MIPTs at all sites, over the connections of `attempt` where it has them.
        `adopted`: whether it has made an attempt needless.

        Raises ProtocolViolation where a site does not know it.
        """
        done = len(winner.committed)
        stopped: Exception | None = None
        phase = attempt.phase if attempt is not None else self._phase
        self._phase.decision = self._kind(winner, adopted)
        if self._on_decided is not None and _is_everywhere(winner.xinst, mipts):
            self._on_decided(Settled(winner, self._sites, {}, winner.xinst in self._own))

        async def commit(site: str) -> BaseException | None:
            nonlocal done, stopped
            if site in winner.committed:
                return None
            error = await self._commit_at(phase, site, winner, attempt.connection(site) if attempt else None)
            if error is None:
                if self._on_committed is not None:
                    self._on_committed(site)
                done += 1
                if done == 1:
                    try:
                        await phase.step("committed-first-site", winner.xinst, site)
                    except Exception as failed:  # which is no reason to interrupt what the others are at
                        if not self._parallel:
                            raise
                        stopped = failed
            return error

        if done and attempt is not None:  # committed in one phase
            await phase.step("committed-first-site", winner.xinst, next(iter(winner.committed)))
        ended = await at_each_site(self._sites, commit, parallel=self._parallel)
        if stopped is not None:
            raise stopped
        unfinished = {site: error for site, error in ended.items() if error is not None}
        self._left.clear()
        if unfinished:
            self._left.add(winner.xinst)
        else:
            await phase.step("committed-all", winner.xinst, None)
        return Settled(winner, self._sites, unfinished, winner.xinst in self._own)

    async def commit_late(self, site: str, xinst: int) -> BaseException | None:
        """Commit here what has been decided earlier; why that is not known to be done. A ProtocolViolation where the
        site does not know it.
        """
        try:
            return await self._commit_at(self._phase, site, Winner(xinst, None, None, frozenset()), None)
        except ProtocolViolation as violation:
            return violation

    async def is_forgotten(self, xinst: int) -> bool:
        """Whether what has been decided earlier is committed and over, where a site does not know it any more: another
        one shows that it is acknowledged. Not where the XID carries a time: who has forgotten it says that it has
        expired, and who does not know it has lost it.
        """
        if xid_time(self.xid) is not None:
            return False
        mipts, _ = await self._asking.read([site for site in self._sites if site in self._pools])
        if len(mipts) < len(self._sites) or None in mipts.values():
            return False
        seen = [entry for mipt in mipts.values() for entry in mipt or () if entry.xinst == xinst]
        return any(entry.acknowledged for entry in seen) and not any(_is_open(entry) for entry in seen)

    async def acknowledge(self, settled: Settled) -> None:
        """Tell every site that nobody will ask for the result again. Raises Unknown where one cannot be told."""
        unfinished = dict(settled.unfinished) or await self._not_durable(settled.winner)

        if not unfinished:
            told = await at_each_site(self._sites, self._asking.acknowledge, parallel=self._parallel)
            unfinished = {site: error for site, error in told.items() if error is not None}
        if unfinished:
            site, why = next(iter(unfinished.items()))
            raise Unknown(f"{site} could not be told of the acknowledgement: {why}", xid=self.xid) from why

    async def _not_durable(self, winner: Winner) -> dict[str, BaseException]:
        """Sites where a crash may undo the commit, and why. A commit's reply may be lost so; what a MIPT says, not."""
        told = [site for site in self._sites if site not in winner.committed]
        mipts, why = await self._asking.read(told)
        return {
            site: why or psycopg.OperationalError("it has lost the commit in a crash")
            for site, mipt in mipts.items()
            if mipt is None or any(entry.state is State.PREPARED for entry in mipt)
        }

    # -- parts of run --------------------------------------------------------------------------------------------

    async def _try(
        self, xinst: int, handler: Handler | None, request: str | None, *,
        after: BaseException | None, turn: float, adopt: Callable[[], Awaitable[bool]] | None,
    ) -> Settled | Ended:  # fmt: skip
        """Make one attempt, `after` another one failed. Settled where it is complete, and so the family decided."""
        self._own.add(xinst)
        with self._phase.part("attempt", xinst=xinst) as phase:
            phase.after = after
            attempt = Attempt(
                Instance(self.xid, xinst, tuple(sorted(self._sites)), self._isolation),
                self._sites, self._asking.within(phase), parallel=self._parallel,
                in_doubt=lambda: self._is_in_doubt(xinst), turn=turn, adopt=adopt,
            )  # fmt: skip
            settled = None
            try:
                ended = await attempt.run(handler, request)
                phase.error = ended.error
                winner = self.decide(ended.mipts) if ended.error is None else None
                if winner is not None:
                    settled = await self.finish(winner, ended.mipts, attempt)
            except BaseException:
                if attempt.may_be_prepared:
                    self._left.add(xinst)
                await attempt.close(hard=True)
                raise
            await attempt.close()
        self._note(xinst, ended)
        return settled or ended

    async def _take_over(self, tried: Tried) -> Settled | Ended:
        """What has become of an attempt that was made elsewhere, as by `_try`."""
        ended, settled = tried.ended, None
        self._own.add(tried.xinst)
        self._siblings.discard(tried.xinst)  # whoever was in the way of it was looked for meanwhile
        self._asking.given_up.update(tried.given_up)
        with self._phase.part("attempt", xinst=tried.xinst) as phase:
            phase.error = ended.error
        self._meet({}, *tried.siblings)
        try:
            winner = self.decide(ended.mipts) if ended.error is None else None
            if winner is not None:
                settled = await self.finish(winner, ended.mipts)
        except BaseException:
            self._left.add(tried.xinst)
            raise
        self._note(tried.xinst, ended)
        return settled or ended

    def _note(self, xinst: int, ended: Ended) -> None:
        """What an attempt of ours has come to."""
        self._meet(ended.mipts, *(sibling for word in ended.words for sibling in superseded_by(word)))
        self._given_up |= any(is_given_up(word) for word in ended.words)
        self._exposed |= ended.exposed
        if ended.left:
            self._left.add(xinst)
            self._lost = True
        elif not ended.by_handler:
            self._harmless.add(xinst)

    async def _record(
        self, ended: Ended, xinst: int, request: str | None, *, turn: float, adopt: Callable[[], Awaitable[bool]] | None
    ) -> Settled | Ended:
        """Record the refusal with which an attempt has ended: by another instance, that writes nothing."""
        assert isinstance(ended.error, Refuse)
        recorded = Recorded(ended.error.result, refused=True)

        async def refuse(_: Tx, __: object) -> Recorded:
            return recorded

        try:
            further = new_xinst(xinst)
        except OverflowError as error:
            return replace(ended, error=error)
        return await self._try(further, refuse, request, after=ended.error, turn=turn, adopt=adopt)

    async def _read(self) -> Mipts:
        mipts, _ = await self._asking.read(self._sites)
        return mipts

    async def _is_in_doubt(self, but: int) -> bool:
        """Whether an instance is prepared somewhere, `but` one's own."""
        return any(entry.xinst != but for entry in in_doubt(await self._read()))

    async def _adopt(self, request: str | None, *, repeat: bool, free: bool) -> bool:
        """Whether this request is in doubt, so that it is to be repeated, while all sites know of an instance of ours;
        or there is none to `repeat`, but something to be cancelled. What is to be given up (`free`), or too much of it
        has been left, is given up now. Raises _Crowded where that is not possible.

        So whoever has taken his back, and looks at the sites then, finds ours, or we find nothing, and let it be: see
        docs/decisions.md on NothingHappened. What is given up is so only now for the same reason. What is empty does
        not count: it may be of somebody who cancels what has been taken back by now.
        """
        mipts = await self._read()
        ours = self._ours_in_doubt(mipts)
        if not ours and (repeat or (self._was_in_doubt and not self._freed)):
            return False
        if repeat and not any(entry.request == request and entry.result is not None for entry in ours):
            return False
        if free or self._crowded(mipts):
            await self._free(mipts)
        if self._crowded(mipts) and self._crowded(await self._read()):
            raise _Crowded(f"{_MOST_LEFT} attempts or more are prepared at some of the sites, and cannot be given up")
        return True

    def _crowded(self, mipts: Mipts) -> bool:
        """Whether there is no room for one more instance that may be left."""
        return any(len(in_doubt({site: mipt})) >= _MOST_LEFT for site, mipt in over(self._sites, mipts).items())

    async def _free(self, mipts: Mipts, *, later: bool = False) -> bool:
        """Give up what is prepared at some sites only, whoever's it is: others may wait for its rows, and hold what we
        need. An instance that one site has refused for ever can be complete nowhere. Whether anything was; or is to
        be, `later`. What is over other sites is left alone: what has not come to ours may have come to all of its own.
        """
        partial = _partial(over(self._sites, mipts))
        if later:
            return bool(partial)
        freed = False
        for xinst, missing in partial.items():
            if await self._give_up(xinst, missing):
                freed = self._freed = True
                if xinst in self._own:  # of others the coordinator may be alive, and try again
                    self._harmless.add(xinst)
        return freed

    async def _insist_on_giving_up(self) -> SiteDown | None:
        """Have nothing left that may be prepared somewhere, within the deadline: a further attempt might leave as much,
        and so might all that follow, where a site prepares nothing and cannot be asked. SiteDown at once where that is
        known of one. What is complete ends it, too.
        """
        number = 0
        while self._left:
            number += 1
            pause = _pause(number, 0.0)
            if pause >= self._deadline.left:
                break
            await asyncio.sleep(pause)
            try:
                for site in self._sites:
                    await self._pools[site].check_up_to_ask()
            except SiteDown as error:
                return error
            mipts = await self._read()
            if self.decide(mipts) is not None or self.decide(await self._give_up_own(mipts)) is not None:
                break
        return None

    async def _give_up_own(self, mipts: Mipts) -> Mipts:
        """Give up what our attempts may have left prepared somewhere. The MIPTs afterwards: one of them may turn out to
        be complete.
        """
        left = sorted(self._left)
        for xinst in left:
            missing = [site for site in self._sites if not _is_prepared(xinst, mipts[site])]
            if missing and await self._give_up(xinst, missing):
                self._harmless.add(xinst)
        return await self._read() if left else mipts

    async def _give_up(self, xinst: int, missing: Sequence[str]) -> bool:
        """Have an instance refused for ever where it is `missing`, and roll it back elsewhere; whether that is done."""
        # At all of them: what came to one of these late would be in doubt again, for others to repeat.
        refused = await at_each_site(missing, lambda site: self._asking.refuse(site, xinst, self._sites))
        if not any(refused.values()):
            return False
        others = [site for site in self._sites if not refused.get(site)]
        errors = await at_each_site(others, lambda site: self._asking.roll_back(site, xinst))
        if any(errors.values()):
            return False
        self._left.discard(xinst)
        return True

    async def _end(self, mipts: Mipts, cause: BaseException | None) -> None:
        """End what is in doubt, though a site has refused as expired even an empty instance. Raises Cancelled.

        Nothing is prepared at that site, then, and nothing ever will be. So no instance can become complete any more:
        one that is not committed, in MIPTs read after the refusal, may be rolled back by anybody.
        """
        ours = over(self._sites, mipts)
        prepared = [
            (site, entry.xinst) for site, mipt in ours.items() for entry in mipt or () if entry.state is State.PREPARED
        ]
        if None in mipts.values() or not prepared:
            return
        for site, xinst in prepared:
            error = await self._asking.roll_back(site, xinst)
            if error is not None:
                why = f"{site} could not be told that the request has expired: {error}"
                raise Unknown(why, xid=self.xid) from error
        raise Cancelled(f"the request {self.xid!r} has expired undecided", xid=self.xid) from cause

    async def _have_ended_orphans(self, mipts: Mipts) -> bool:
        """Give up what is in doubt of a role that has been dropped, as nobody can begin an instance any more that would
        cancel it; whether nothing is left.
        """
        if not await self._asking.is_orphaned(self._sites):
            return False
        await self._free(mipts)
        mipts = await self._read()
        return not (None in mipts.values() or live(mipts))

    def decide(self, mipts: Mipts) -> Winner | None:
        """The winner, if these MIPTs have one. Raises KeyReused where the XID is that of a request over other sites, or
        Unknown, as `check_alone`.

        Who is merely prepared over other sites may go away again, and then this request may run: that decides nothing.
        Nor does another winner where this request has one: a site has forgotten that, or it could not have the other.
        """
        self._meet(mipts)
        if self._have_committed(mipts):
            mipts = over(self._sites, mipts)
        elif self._are_foreign(mipts):
            self.check_alone(mipts)
            return None
        try:
            return decide(mipts)
        except ProtocolViolation as violation:
            violation.xid = self.xid
            raise

    def check_alone(self, mipts: Mipts) -> None:
        """Raises KeyReused where another request, over other sites, has won. Unknown where one of ours has not been
        read, and the XID carries no time: the others may have forgotten that ours is committed.
        """
        committed = _committed(mipts)
        if self._are_foreign(committed):
            self._foreign = committed
            unread = [site for site, mipt in over(self._sites, mipts).items() if mipt is None]
            if unread and xid_time(self.xid) is None:
                what = f"another request has the XID by now, and there is no answer from {', '.join(unread)}"
                raise Unknown(what, xid=self.xid)
            raise KeyReused(f"the XID {self.xid!r} belongs to a request over other sites", xid=self.xid)

    def _have_committed(self, mipts: Mipts) -> bool:
        return any(over(self._sites, _committed(mipts)).values())

    def _meet(self, mipts: Mipts, *others: int) -> None:
        """Remember whom these MIPTs, or a site's refusal, have shown to be there."""
        self._siblings |= (live(mipts) | set(others)) - self._own
        self._given_up |= any(
            entry.state is State.ABORTED
            and entry.xinst in self._own | self._earlier
            and (site, entry.xinst) not in self._asking.given_up
            for site, mipt in mipts.items()
            for entry in mipt or ()
        )
        self._phase.siblings = len(self._siblings)

    def _are_foreign(self, mipts: Mipts) -> bool:
        """Whether there are instances over other sites than ours, which cannot be judged from here."""
        return bool(declared(mipts) - {frozenset(self._sites)})

    def _ours_in_doubt(self, mipts: Mipts) -> list[Entry]:
        return in_doubt(over(self._sites, mipts))

    def _to_be_cancelled(self, mipts: Mipts) -> bool:
        """Whether all that is in doubt is of somebody who has not come to the end of cancelling it."""
        ours = self._ours_in_doubt(mipts)
        return all(entry.result is None for entry in ours) and bool(ours)

    async def _undecided(self, mipts: Mipts, why: str, reason: BaseException | None) -> SubmitError:
        """What to tell the caller who gives up while there is no winner in these MIPTs, which were read just now.
        `reason`: what a site has said last.
        """
        still_open = self._why_open(mipts)
        if still_open is not None:
            return Unknown(f"{still_open}; {why}", xid=self.xid)
        expired = said(reason) == EXPIRED or await self._has_expired()
        if expired is None:
            return Unknown(f"no site says whether the request has expired; {why}", xid=self.xid)
        if expired and self._lost:
            return Unknown(f"expired, and an attempt may have been committed before; {why}", xid=self.xid)
        return Expired(why, xid=self.xid) if expired else NothingHappened(why, xid=self.xid)

    async def _has_expired(self) -> bool | None:
        """Whether the sites, who know nothing of the request, may have forgotten it; None where they do not say. A
        single one that has not expired it would have kept an entry. Asked after they have been read: that it has let
        an instance begin says nothing of what it has done, and forgotten, since.
        """
        if (self._alone and not self._lost) or xid_time(self.xid) is None:
            return False
        return await self._asking.has_expired(self._sites)

    def _why_open(self, mipts: Mipts) -> str | None:
        """Why something of the family may take effect though nobody submits it anew; None where that is ruled out.

        Nobody says "nothing has happened" but because of this. docs/decisions.md has the argument.
        """
        unread = [site for site, mipt in mipts.items() if mipt is None]
        if self._left:
            return "an attempt may be prepared"
        # Whom we have met before may be between two attempts.
        given_up = self._given_up and (self._exposed or not self._alone)
        if in_doubt(mipts) or given_up or (self._siblings | live(mipts)) - self._harmless:
            return "a sibling may still be on its way"
        if unread and (self._exposed or not self._alone):
            return f"no answer from {', '.join(unread)}"
        return None

    def _kind(self, winner: Winner, adopted: bool) -> DecisionKind:
        if winner.result is None and not winner.acknowledged:
            return "cancelled"
        if winner.xinst in self._own:
            return "own"
        if winner.committed:
            return "earlier"
        return "adopted" if adopted else "sibling"

    async def _commit_at(
        self, phase: Phase, site: str, winner: Winner, conn: PooledConnection | None
    ) -> BaseException | None:
        for number in range(_COMMIT_TRIES):
            if number:
                await asyncio.sleep(random.uniform(0, 0.1 * number))
                if self._deadline.is_over:
                    break
            try:
                await self._asking.within(phase).commit(site, winner.xinst, conn)
                return None
            except psycopg.Error as error:
                if said(error) == EXPIRED and not is_acknowledged(error):
                    return None  # committed there, and removed since
                if said(error) in (FAMILY_COMMITTED, NOT_USABLE, EXPIRED):
                    if winner.acknowledged and xid_time(self.xid) is None:
                        mipts, why = await self._asking.read((site,))
                        if not self._have_committed(mipts):
                            return why or await self._end_losers_at(site, mipts, winner)
                    raise ProtocolViolation(
                        f"site {site!r} does not accept instance {winner.xinst}, the winner: {error}", xid=self.xid
                    ) from error
                last = error
        return last

    async def _end_losers_at(self, site: str, mipts: Mipts, winner: Winner) -> BaseException | None:
        """Where the winner has been committed and forgotten (its XID carries no time, and has expired), while another
        site still knows that it is acknowledged: what was prepared since, over our sites, can be complete nowhere.
        """
        known, why = await self._asking.read([site for site in winner.committed if site in self._pools])
        if not any(entry.xinst == winner.xinst for mipt in known.values() for entry in mipt or ()):
            return why or LookupError(f"no site knows instance {winner.xinst}, the winner, any more")
        for entry in self._ours_in_doubt(mipts):
            why = why or await self._asking.roll_back(site, entry.xinst)
        return why


class _Crowded(Exception):
    """There is no room for one more instance."""


def _committed(mipts: Mipts) -> Mipts:
    return {site: [entry for entry in mipt or () if entry.state is State.COMMITTED] for site, mipt in mipts.items()}


def _is_open(entry: Entry) -> bool:
    """Whether somebody has to know of it yet."""
    return entry.state is State.PREPARED or (entry.state is State.COMMITTED and not entry.acknowledged)


def _is_prepared(xinst: int, mipt: Sequence[Entry] | None) -> bool:
    return any(entry.xinst == xinst and entry.state is State.PREPARED for entry in mipt or ())


def _is_everywhere(xinst: int, mipts: Mipts) -> bool:
    """Whether all sites show an instance prepared or committed, so that they commit it, or have."""
    kept = (State.PREPARED, State.COMMITTED)
    return all(any(entry.xinst == xinst and entry.state in kept for entry in mipt or ()) for mipt in mipts.values())


def _partial(mipts: Mipts) -> dict[int, list[str]]:
    """The instances that are prepared, but not at every site, each with the sites where it is not."""
    prepared = {
        site: {entry.xinst for entry in mipt if entry.state is State.PREPARED}
        for site, mipt in mipts.items()
        if mipt is not None
    }
    everywhere = set[int]().union(*prepared.values())
    missing = {xinst: [site for site in prepared if xinst not in prepared[site]] for xinst in everywhere}
    return {xinst: sites for xinst, sites in missing.items() if sites}


def _why(cause: BaseException | None) -> str:
    return "no attempt was made" if cause is None else described(cause)


def _pause(number: int, took: float) -> float:
    """How long to wait before the attempt of this number, after one that took so many seconds.

    Siblings that supersede one another have to get out of step: the pauses grow until one attempt fits into them.
    """
    return random.uniform(0, min(max(_LONGEST_PAUSE, 2 * took), _FIRST_PAUSE * 2.0 ** min(number, 64)))
