"""What an operation asks of sites outside of its transactions. All of it may be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from . import _mipt
from ._connection import PooledConnection, is_usable
from ._deadline import Deadline
from ._pool import Pool, at_site
from ._sites import at_each_site
from ._sqlstate import EXPIRED, is_acknowledged, said
from .decision import Entry, Mipts
from .observe import Phase, PhaseName

__all__ = ["Asking"]

T = TypeVar("T")


def _meet_nobody(mipts: Mipts, *others: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Asking:
    """The sites, as one operation asks them about one family: each answer is a part of `phase`, and bounded by the
    deadline. With `conn` it is asked over that connection, if it is usable.
    """

    pools: Mapping[str, Pool]
    deadline: Deadline
    phase: Phase
    meet: Callable[..., None] = _meet_nobody
    """Is told of each MIPT that is read, and of instances that a site has told of otherwise, before anybody acts on it:
    whom an operation has met once, it cannot rule out any more.
    """
    given_up: set[tuple[str, int]] = field(default_factory=set)
    """Where which instances are aborted because this operation has asked for it, if they are: whoever else has done it
    goes on. Not where an answer has been lost, after which it may have been anybody.
    """

    def within(self, phase: Phase) -> Asking:
        """The same as part of another phase of the operation."""
        return Asking(self.pools, self.deadline, phase, self.meet, self.given_up)

    async def read(self, sites: Sequence[str]) -> tuple[dict[str, Sequence[Entry] | None], BaseException | None]:
        """The MIPT at each of the sites, None for one that cannot be read, and why the first of those cannot."""
        why: list[BaseException] = []

        async def look(site: str) -> Sequence[Entry] | None:
            try:
                return await self._part("read", site, None, _mipt.instances)
            except psycopg.Error as error:
                why.append(error)
                return None

        mipts = await at_each_site(sites, look)
        self.meet(mipts)
        return mipts, why[0] if why else None

    async def read_over(self, conn: PooledConnection, site: str) -> Sequence[Entry] | None:
        """The MIPT at a site, over this connection; None where it cannot be read."""
        try:
            mipt = await self._part("read", site, conn, _mipt.instances)
        except psycopg.Error:
            return None
        self.meet({site: mipt})
        return mipt

    async def waits(self, sites: Sequence[str], xinst: int) -> bool:
        """Whether an instance is known to wait for a lock at one of the sites."""

        async def ask(site: str) -> bool:
            try:
                return await self._at(site, None, _mipt.waits, xinst)
            except psycopg.Error:
                return False

        return any((await at_each_site(sites, ask)).values())

    async def has_expired(self, sites: Sequence[str]) -> bool | None:
        """Whether those of the sites that can be asked have expired the request, all of them; None where none can, or
        where one has it committed.
        """

        async def ask(site: str) -> bool | psycopg.Error | None:
            try:
                return await self._part("read", site, None, _mipt.has_expired)
            except psycopg.Error as error:
                return error

        answers = [it for it in (await at_each_site(sites, ask)).values() if not isinstance(it, psycopg.Error)]
        return None if None in answers or not answers else False not in answers

    async def is_orphaned(self, sites: Sequence[str]) -> bool:
        """Whether all of the sites say that what may have an effect has no owner any more, who could cancel it."""

        async def ask(site: str) -> bool:
            try:
                return await self._at(site, None, _mipt.is_orphaned)
            except psycopg.Error:
                return False

        return all((await at_each_site(sites, ask)).values())

    async def refuse(self, site: str, xinst: int, sites: Sequence[str]) -> bool:
        """Have an instance never be prepared here; whether that is certain. It is, too, where the site has expired the
        request and has nothing of it in doubt.
        """
        await self._note(site, xinst)
        try:
            return await self._part("refuse", site, None, _mipt.refuse, xinst, sorted(sites), of=xinst)
        except psycopg.Error as error:
            self.given_up.discard((site, xinst))
            return said(error) == EXPIRED and not is_acknowledged(error)

    async def roll_back(self, site: str, xinst: int, conn: PooledConnection | None = None) -> psycopg.Error | None:
        """Roll an instance back, as `_mipt.rollback` says; why that is not known to be done."""
        await self._note(site, xinst, conn)
        try:
            mipt = await self._part("rollback", site, conn, _mipt.rollback, xinst, of=xinst)
        except psycopg.Error as error:
            self.given_up.discard((site, xinst))
            return error
        self.meet({site: mipt})
        return None

    async def _note(self, site: str, xinst: int, conn: PooledConnection | None = None) -> None:
        """That it is about to be given up by us. Whoever has done so before is seen now: afterwards it could not be
        told from our doing. Where it has just been prepared over `conn`, nobody can have, or nearly so.
        """
        if conn is None or not is_usable(conn):
            mipts, _ = await self.read((site,))
            if mipts[site] is None:
                return
        self.given_up.add((site, xinst))

    async def commit(self, site: str, xinst: int, conn: PooledConnection | None) -> None:
        """Commit the winner. Raises psycopg.Error."""
        await self._part("commit", site, conn, _mipt.commit, xinst, of=xinst)

    async def acknowledge(self, site: str) -> psycopg.Error | None:
        """Say that nobody will ask for the result again; why that is not known to be done."""
        try:
            await self._part("acknowledge", site, None, _mipt.acknowledge)
        except psycopg.Error as error:
            return error
        return None

    async def _part(
        self, name: PhaseName, site: str, conn: PooledConnection | None, ask: Callable[..., Awaitable[T]], *values: Any,
        of: int | None = None,
    ) -> T:  # fmt: skip
        with self.phase.part(name, xinst=of, site=site):
            return await self._at(site, conn, ask, *values)

    async def _at(
        self, site: str, conn: PooledConnection | None, ask: Callable[..., Awaitable[T]], *values: Any
    ) -> T:
        return await at_site(
            self.pools[site],
            lambda conn: ask(conn, self.deadline.step(), self.phase.xid, *values),
            conn,
            patience=self.deadline.step,
        )
