"""Requests that have been answered before they are committed everywhere, by the sessions of those who have asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Hashable, Iterable

__all__ = ["Late", "Sessions"]

_MOST = 10_000


class Late:
    """A request that is decided: who has decided it commits it, and where that has failed, somebody else has to."""

    __slots__ = ("left", "sites", "xid", "xinst")

    def __init__(self, xid: str, xinst: int, sites: Collection[str], left: Iterable[str]) -> None:
        """`xinst`: the winner. `left`: those of its sites where it may not be committed yet, and somebody is at it."""
        self.xid = xid
        self.xinst = xinst
        self.sites = frozenset(sites)
        self.left = {site: asyncio.Event() for site in left}

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """One XID may be that of several requests, over different sites; one request may be submitted again."""
        return self.xid, self.sites

    @property
    def is_left_behind(self) -> bool:
        """Whether nobody is at it any more."""
        return all(event.is_set() for event in self.left.values())

    def done(self, site: str) -> None:
        """It is committed here, or never will be."""
        event = self.left.pop(site, None)
        if event is not None:
            event.set()

    def leave(self) -> None:
        """Where it is not committed by now, somebody else has to do it."""
        for event in self.left.values():
            event.set()

    async def wait(self, sites: Iterable[str], seconds: float) -> None:
        """Until it is committed at these of its sites, or left behind; no longer than that."""
        events = [self.left[site] for site in sites if site in self.left]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for event in events:
                    await event.wait()


class Sessions:
    """What is late, by session, and where something has been lost that a session has to be told of yet; a bounded
    number of both, as not all of these come back.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._count = 0
        self._late: dict[Hashable, dict[tuple[str, frozenset[str]], Late]] = {}
        self._lost: dict[Hashable, dict[tuple[str, str], None]] = {}  # XIDs and sites, in their order
        self._lost_count = 0

    def add(self, session: Hashable, late: Late) -> bool:
        """To be looked for by the session's next request, while something of it is left. False: there is no room."""
        there = self._late.get(session, {})
        if late.key not in there:
            if self._count >= self._most:
                return False
            self._count += 1
        self._late.setdefault(session, there)[late.key] = late
        return True

    def done(self, session: Hashable, late: Late, site: str) -> None:
        """As `Late.done`."""
        late.done(site)
        there = self._late.get(session, {})
        if not late.left and there.get(late.key) is late:
            del there[late.key]
            self._count -= 1
            if not there:
                del self._late[session]

    def lose(self, session: Hashable, late: Late, site: str) -> None:
        """It never will be committed here: its session has to be told, unless too much else has been lost since."""
        self.done(session, late, site)
        there = self._lost[session] = self._lost.pop(session, {})
        self._lost_count += (late.xid, site) not in there
        there[late.xid, site] = None
        if self._lost_count > self._most:
            oldest = next(iter(self._lost))
            self._told(oldest, next(iter(self._lost[oldest])))

    def has_lost(self, session: Hashable, sites: Collection[str]) -> bool:
        """Whether something of it is lost at one of these sites."""
        return any(site in sites for _, site in self._lost.get(session, ()))

    def tell(self, session: Hashable, sites: Collection[str]) -> list[tuple[str, str]]:
        """The XIDs of its requests that are lost at these sites, and where: it is told of them thereby."""
        told = [lost for lost in self._lost.get(session, ()) if lost[1] in sites]
        for lost in told:
            self._told(session, lost)
        return told

    def _told(self, session: Hashable, lost: tuple[str, str]) -> None:
        self._lost_count -= 1
        del self._lost[session][lost]
        if not self._lost[session]:
            del self._lost[session]

    def of(self, session: Hashable) -> tuple[Late, ...]:
        """What is late now."""
        return tuple(self._late.get(session, {}).values())

    def left_behind(self) -> list[tuple[Hashable, Late]]:
        """All that nobody is at any more, with the sessions; what has been so for longest comes first, or nearly so."""
        return [
            (session, late) for session, there in self._late.items() for late in there.values() if late.is_left_behind
        ]
