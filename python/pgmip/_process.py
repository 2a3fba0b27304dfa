"""Which process something belongs to."""

from __future__ import annotations

import os

__all__ = ["Process"]


class Process:
    """The process that uses something first. One that is forked later has the same connections, and no threads: its
    statements would run in its parent's transactions.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid: int | None = None

    def check(self) -> None:
        """Raise RuntimeError in any other process."""
        if self._pid is None:
            self._pid = os.getpid()
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self._what} has been used before this process ({os.getpid()}) was forked, and belongs to process "
                f"{self._pid}: what this one needs, make after the fork"
            )
