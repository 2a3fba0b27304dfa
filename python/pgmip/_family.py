"""Carrying a family to its decision: attempt, look at the MIPTs of all sites, decide, finish, or attempt again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from . import _mipt
from ._attempt import Attempt, Ended, Handler
from ._branch import Instance
from ._json import parse
from ._pool import Connection, Pool, at_site
from ._sqlstate import FAMILY_COMMITTED, NOT_USABLE, SITES_DIFFER, sqlstate
from ._steps import Hook, Step, at_each_site, emit
from .decision import Entry, Mipts, Winner, decide, highest, live
from .exceptions import Cancelled, Decided, KeyReused, NothingHappened, ProtocolViolation, SubmitError, Unknown
from .xinst import new_xinst

__all__ = ["Family", "Limits", "Settled", "read"]

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5
_COMMIT_TRIES = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one submit."""

    deadline: float
    attempts: int
    step_timeout: float


async def read(
    pools: Mapping[str, Pool], sites: Sequence[str], xid: str, timeout: float
) -> tuple[dict[str, Sequence[Entry] | None], BaseException | None]:
    """The family's MIPT at each of the sites, None for one that cannot be read, and why the first of those cannot."""
    why: list[BaseException] = []

    async def look(site: str) -> Sequence[Entry] | None:
        try:
            return await at_site(pools[site], lambda conn: _mipt.instances(conn, timeout, xid))
        except psycopg.Error as error:
            why.append(error)
            return None

    mipts = await at_each_site(sites, look)
    return mipts, why[0] if why else None


@dataclass(frozen=True, slots=True)
class Settled:
    """A decided family: its winner, and the sites (if any) that could not be told yet, and why."""

    winner: Winner
    unfinished: Mapping[str, BaseException]

    def result(self, xid: str, request: str) -> Any:
        """What the caller who submitted this request is told. Raises Cancelled, KeyReused or Decided."""
        if self.winner.request is not None and self.winner.request != request:
            raise KeyReused(f"the XID {xid!r} belongs to another request", xid=xid)
        if self.winner.result is None:
            raise Cancelled(f"the request {xid!r} has been cancelled", xid=xid)
        result = parse(self.winner.result)
        self.check_finished(xid, result)
        return result

    def check_finished(self, xid: str, result: Any) -> None:
        if self.unfinished:
            sites = tuple(self.unfinished)
            message = f"decided, but not finished at {', '.join(sites)}"
            raise Decided(message, xid=xid, result=result, unfinished=sites) from self.unfinished[sites[0]]


class Family:
    """One caller's view of one family, for the time of one `submit` or `resolve`."""

    def __init__(
        self, xid: str, sites: Sequence[str], isolation: str, pools: Mapping[str, Pool], hooks: Sequence[Hook],
        *, limits: Limits, parallel: bool, alone: bool = False,
    ) -> None:  # fmt: skip
        """`alone`: the XID is new, so that nobody else can have an instance of it."""
        self.xid = xid
        self._sites = tuple(sites)
        self._isolation = isolation
        self._pools = pools
        self._hooks = hooks
        self._limits = limits
        self._parallel = parallel
        self._alone = alone
        self._harmless: set[int] = set()  # own instances that can have no effect any more
        self._left = False  # whether an own instance may be prepared somewhere

    async def run(self, handler: Handler | None, request: str | None) -> Settled:
        """Attempt until there is a winner, and finish it. Without a handler the attempts are empty and cancel.

        Raises NothingHappened or Unknown.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._limits.deadline
        above = 0
        cause: BaseException | None = None
        for number in range(self._limits.attempts):
            if number:
                pause = random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number))
                if clock() + pause >= deadline:
                    break
                await asyncio.sleep(pause)
            xinst = new_xinst(above)
            ended = await self._try(xinst, deadline, handler, request)
            if isinstance(ended, Settled):
                return ended
            cause = ended.error
            mipts = await self._read(cause)
            winner = self.decide(mipts)
            if winner is not None:
                return await self.finish(winner)
            if not ended.retry:
                raise self._undecided(mipts, f"the transaction failed: {cause}") from cause
            above = max(above, xinst, ended.highest, highest(mipts))
        raise self._undecided(await self._read(cause), f"out of time or attempts: {cause}") from cause

    async def finish(self, winner: Winner, attempt: Attempt | None = None) -> Settled:
        """Commit a winner at all sites, over the connections of `attempt` where it has them.

        Raises ProtocolViolation where a site does not know it.
        """
        done = len(winner.committed)

        async def commit(site: str) -> BaseException | None:
            nonlocal done
            if site in winner.committed:
                return None
            error = await self._commit_at(site, winner.xinst, attempt.connection(site) if attempt else None)
            if error is None:
                done += 1
                if done == 1:
                    await self._emit("committed-first-site", winner, site)
            return error

        if done and attempt is not None:  # committed in one phase
            await self._emit("committed-first-site", winner, next(iter(winner.committed)))
        ended = await at_each_site(self._sites, commit, parallel=self._parallel)
        unfinished = {site: error for site, error in ended.items() if error is not None}
        if not unfinished:
            await self._emit("committed-all", winner, None)
        return Settled(winner, unfinished)

    # -- parts of run --------------------------------------------------------------------------------------------

    async def _try(self, xinst: int, deadline: float, handler: Handler | None, request: str | None) -> Settled | Ended:
        """Make one attempt. Settled where it is complete, and so the family decided."""
        attempt = Attempt(
            Instance(self.xid, xinst, tuple(sorted(self._sites)), self._isolation),
            self._sites, self._pools, self._hooks,
            timeout=self._limits.step_timeout, deadline=deadline, parallel=self._parallel,
        )  # fmt: skip
        settled = None
        try:
            ended = await attempt.run(handler, request)
            winner = self.decide(ended.mipts) if ended.error is None else None
            if winner is not None:
                settled = await self.finish(winner, attempt)
        except BaseException:
            await attempt.close(hard=True)
            raise
        await attempt.close()
        if ended.left:
            self._left = True
        else:
            self._harmless.add(xinst)
        return settled or ended

    async def _read(self, cause: BaseException | None) -> Mipts:
        mipts, _ = await read(self._pools, self._sites, self.xid, self._limits.step_timeout)
        declared = {frozenset(entry.sites) for mipt in mipts.values() for entry in mipt or () if entry.sites}
        if sqlstate(cause) == SITES_DIFFER or declared - {frozenset(self._sites)}:
            raise KeyReused(f"the XID {self.xid!r} belongs to a request over other sites", xid=self.xid) from cause
        return mipts

    def decide(self, mipts: Mipts) -> Winner | None:
        """The winner, if these MIPTs have one."""
        try:
            return decide(mipts)
        except ProtocolViolation as violation:
            violation.xid = self.xid
            raise

    def _undecided(self, mipts: Mipts, why: str) -> SubmitError:
        """What to tell the caller who gives up while there is no winner."""
        unread = [site for site, mipt in mipts.items() if mipt is None]
        if self._left:
            return Unknown(f"an attempt may be prepared; {why}", xid=self.xid)
        if live(mipts) - self._harmless:
            return Unknown(f"a sibling may still be on its way; {why}", xid=self.xid)
        if unread and not self._alone:
            return Unknown(f"no answer from {', '.join(unread)}; {why}", xid=self.xid)
        return NothingHappened(why, xid=self.xid)

    async def _commit_at(self, site: str, xinst: int, conn: Connection | None) -> BaseException | None:
        for number in range(_COMMIT_TRIES):
            await asyncio.sleep(random.uniform(0, 0.1 * number))
            try:
                await at_site(
                    self._pools[site],
                    lambda conn: _mipt.commit(conn, self._limits.step_timeout, self.xid, xinst),
                    conn,
                )
                return None
            except psycopg.Error as error:
                if sqlstate(error) in (FAMILY_COMMITTED, NOT_USABLE):
                    raise ProtocolViolation(
                        f"site {site!r} does not accept instance {xinst}, the winner: {error}", xid=self.xid
                    ) from error
                last = error
        return last

    async def _emit(self, name: Any, winner: Winner, site: str | None) -> None:
        await emit(self._hooks, Step(name, self.xid, winner.xinst, site))
