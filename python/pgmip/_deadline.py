"""How long one call may take."""

from __future__ import annotations

import asyncio

__all__ = ["OVERTIME", "Deadline"]

OVERTIME = 2.0
"""Seconds beyond its deadline that a call may take to undo what it has begun, and to find out what has become of it."""
_LEAST = 0.1  # seconds; a site that answers at once is heard even when there is no time left


class Deadline:
    """When one call has to end, from now on. Times are the event loop's."""

    def __init__(self, seconds: float, step_timeout: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._step_timeout = step_timeout
        self.at = self._clock() + seconds
        """When the handler is interrupted; no attempt begins after it."""
        self.insist_after = min(step_timeout, OVERTIME / 2)
        """Seconds that it is given to end, and its statements to be cancelled."""

    @property
    def left(self) -> float:
        """Seconds until then, or none."""
        return max(0.0, self.at - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether there is no time left to undo or to find out anything either: what has been tried is not repeated."""
        return self._clock() >= self.at + OVERTIME

    def step(self) -> float:
        """Seconds that a site may take for its next answer: what it always may, but no more than there are left."""
        return max(_LEAST, min(self._step_timeout, self.at + OVERTIME - self._clock()))
