"""What the submits of an App have left prepared, for when the same request comes again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

__all__ = ["Left"]

_MOST = 10_000


class Left:
    """The instances that may be prepared somewhere, by request; of the requests that were submitted last.

    Who submits again, and again, would else leave one more each time. That costs nothing but rooms at a site, so it
    does no harm that other servers do not know of them, nor that what has been forgotten adds one.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._left: dict[tuple[str, frozenset[str]], frozenset[int]] = {}

    def knows(self, xid: str, sites: Collection[str]) -> bool:
        """Whether anything is left of a request. From any thread."""
        return (xid, frozenset(sites)) in self._left

    @contextlib.contextmanager
    def of(self, xid: str, sites: Collection[str]) -> Iterator[set[int]]:
        """What is left of a request, to be kept up to date by who works on it meanwhile, maybe beside others."""
        key = (xid, frozenset(sites))
        known = self._left.get(key, frozenset())
        left = set(known)
        try:
            yield left
        finally:
            now = self._left.pop(key, frozenset()) - known | left
            if now:
                self._left[key] = now
                if len(self._left) > self._most:
                    del self._left[next(iter(self._left))]
