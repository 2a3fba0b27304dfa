"""Connections that threads use, and no event loop: kept from their pool between the transactions of a sync App."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from ._connection import PooledConnection, is_usable

__all__ = ["Spares"]

_LONGEST = 60.0  # seconds for which one is kept from its pool, which sees to its lifetime


class Spares:
    """Of one pool, which counts them as taken. Until a sync App asks for any, none are kept.

    Whoever waits for a connection in the event loop comes before whoever might use one later: he is counted first, and
    looks then, so that what is put here beside that is seen by him, or handed over.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle = deque[PooledConnection]()  # the one that was used last at the end
        self._all = set[PooledConnection]()
        self._wanted = 0
        self._kept = False

    def keep(self) -> None:
        """Keep some from now on."""
        self._kept = True

    def take(self, trusted: float) -> PooledConnection | None:
        """In a thread that is to use it: the one that was used last, if that is less than `trusted` seconds ago."""
        with self._lock:
            if not self._kept or not self._idle:
                return None
            conn = self._idle.pop()
            if conn.heard < time.monotonic() - trusted or not is_usable(conn):
                self._idle.append(conn)  # for the event loop, which finds out
                return None
            conn.in_thread = True
            return conn

    def put(self, conn: PooledConnection, *, used: bool) -> bool:
        """In the thread that has taken it, and maybe used: whether it is kept. If not, the pool is to have it back."""
        with self._lock:
            conn.in_thread = False
            if not is_usable(conn):
                self._all.discard(conn)
                return False
            if used:
                conn.heard = time.monotonic()
            return self._keep(conn)

    def add(self, conn: PooledConnection) -> bool:
        """In the event loop, of one that is usable: whether it is kept."""
        with self._lock:
            return self._kept and conn.let_go() and self._keep(conn)

    def forget(self, conn: PooledConnection) -> None:
        """In the event loop: the pool has it back."""
        with self._lock:
            self._all.discard(conn)

    def _keep(self, conn: PooledConnection) -> bool:
        if not self._kept or self._wanted or conn.taken < time.monotonic() - _LONGEST:
            self._all.discard(conn)
            return False
        self._all.add(conn)
        self._idle.append(conn)
        return True

    @contextlib.contextmanager
    def wanted(self) -> Iterator[PooledConnection | None]:
        """In the event loop: one, or nothing that is there is kept from whoever waits in the block."""
        with self._lock:
            self._wanted += 1
            conn = self._idle.pop() if self._idle else None
            if conn is not None:
                self._all.discard(conn)
        try:
            yield conn
        finally:
            with self._lock:
                self._wanted -= 1

    def stale(self, trusted: float) -> list[PooledConnection]:
        """In the event loop: what has not been used for so many seconds, to be given to the pool."""
        before = time.monotonic() - trusted
        with self._lock:
            stale = [conn for conn in self._idle if conn.heard < before]
            for conn in stale:
                self._idle.remove(conn)
                self._all.discard(conn)
            return stale

    @property
    def any_idle(self) -> bool:
        """Whether nobody uses one of them."""
        return bool(self._idle)

    @property
    def any_left(self) -> bool:
        """Whether there are some, idle or not."""
        return bool(self._all)

    def close(self) -> list[PooledConnection]:
        """Keep none any more. Those that are idle, to be given to the pool."""
        with self._lock:
            self._kept = False
            idle = list(self._idle)
            self._idle.clear()
            self._all -= set(idle)
            return idle
