"""How long one call may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["OVERTIME", "Deadline"]

OVERTIME = 2.5
"""Seconds beyond its deadline that a call may take to undo what it has begun, and to find out what has become of it."""
_LAST = 1.0  # of these; whatever has to be asked then, be it of sites that have stopped, fits into them
_SHARES = 4  # what is left is for so many answers; a question may take two: a connection's, and its own
_LEAST = 0.001  # seconds; nothing is begun with a time that has passed


class Deadline:
    """When one call has to end, from now on. Times are the event loop's, or of another `clock`."""

    def __init__(self, seconds: float, step_timeout: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._step_timeout = step_timeout
        self.at = self._clock() + seconds
        """When the handler is interrupted; no attempt begins after it."""
        self.insist_after = min(step_timeout, 1.0)
        """Seconds that it is given to end, and its statements to be cancelled."""
        self._last = self.at + OVERTIME - _LAST
        self._end: float | None = None  # once the last answers are being asked for

    @property
    def left(self) -> float:
        """Seconds until then, or none."""
        return max(0.0, self.at - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether there is no time left to undo or to find out anything either: what has been tried is not repeated."""
        return self._clock() >= self._last

    def step(self) -> float:
        """Seconds that a site may take for its next answer: what it always may, but no more than there are left.

        In the end that is a share of what is left, so that however many do not answer, the call is over in time. Where
        it comes to its end later than that (a handler would not end, say), half of those last seconds begin anew.
        """
        now = self._clock()
        left = self._last - now
        if left < _LAST / _SHARES:
            if self._end is None:
                self._end = max(self._last + _LAST, now + _LAST / 2)
            left = (self._end - now) / _SHARES
        return max(_LEAST, min(self._step_timeout, left))
