"""Requests that have been answered before they are committed, by the sessions of those who have asked."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
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


class Sessions:
    """What is late of each session; where there is too much of it, of those whose last requests are the newest."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._late: dict[Hashable, dict[str, Late]] = {}

    def add(self, session: Hashable, late: Late) -> None:
        """To be looked for by the session's next request, until it is `done`."""
        self._late[session] = self._late.pop(session, {}) | {late.xid: late}
        if len(self._late) > self._most:
            del self._late[next(iter(self._late))]

    def done(self, session: Hashable, xid: str) -> None:
        """It is committed at all of its sites."""
        late = self._late.get(session, {})
        late.pop(xid, None)
        if not late:
            self._late.pop(session, None)

    def has(self, session: Hashable, late: Late) -> bool:
        """Whether it is still late."""
        return self._late.get(session, {}).get(late.xid) is late

    def of(self, session: Hashable) -> Iterator[Late]:
        """What is late now."""
        yield from tuple(self._late.get(session, {}).values())
