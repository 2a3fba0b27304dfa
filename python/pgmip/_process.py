"""Which process, and which event loop, something belongs to."""

from __future__ import annotations

import asyncio
import os

__all__ = ["Home", "Process"]


class Process:
    """The process that uses something first. One that is forked later has the same connections, and no threads: its
    statements would run in its parent's transactions.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid: int | None = None

    @property
    def is_this(self) -> bool:
        """Whether it is this one."""
        return self._pid in (None, os.getpid())

    def check(self) -> None:
        """Raise RuntimeError in any other process."""
        if self._pid is None:
            self._pid = os.getpid()
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self._what} has been used before this process ({os.getpid()}) was forked, and belongs to process "
                f"{self._pid}: what this one needs, make after the fork"
            )


class Home(Process):
    """The process, and the event loop in it, that use something first: its connections wait in that loop."""

    def __init__(self, what: str, without: str) -> None:
        """`without`: what does the same and needs no event loop of its user's."""
        super().__init__(what)
        self._without = without
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise RuntimeError in any other process, and in any other event loop."""
        super().check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise RuntimeError(
                f"{self._what} has been used in another event loop, to which its connections belong: use it in one "
                f"only (a single asyncio.run), or make one for each; {self._without} needs none of your own"
            )

    @property
    def is_gone(self) -> bool:
        """Whether that event loop is closed: nothing can run there any more."""
        super().check()
        return self._loop is not None and self._loop.is_closed()
