"""Requests that have been answered before they are committed everywhere, by the sessions of those who have asked."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

__all__ = ["Late", "Sessions"]

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Late:
    """A request that is decided. `task` commits it; where that has not come to its end, somebody else has to."""

    xid: str
    sites: tuple[str, ...]
    task: asyncio.Task[Any]

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        """One XID may be that of several requests, over different sites; one request may be submitted again."""
        return self.xid, frozenset(self.sites)


class Sessions:
    """What is late, by session; of a bounded number of these, as not all of them come back for what is left behind."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._late: dict[Hashable, dict[tuple[str, frozenset[str]], Late]] = {}

    def add(self, session: Hashable, late: Late) -> bool:
        """To be looked for by the session's next request, until it is `done`. False: there is no room."""
        if session not in self._late and len(self._late) >= self._most:
            return False
        self._late.setdefault(session, {})[late.key] = late
        return True

    def done(self, session: Hashable, late: Late) -> None:
        """It is committed at all of its sites."""
        there = self._late.get(session, {})
        there.pop(late.key, None)
        if not there:
            self._late.pop(session, None)

    def has(self, session: Hashable, late: Late) -> bool:
        """Whether it is still late."""
        return late.key in self._late.get(session, {})

    def of(self, session: Hashable) -> tuple[Late, ...]:
        """What is late now."""
        return tuple(self._late.get(session, {}).values())
