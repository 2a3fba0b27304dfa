"""What is done beside an attempt, because it takes long or a site has told of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

from ._cancellation import ended

__all__ = ["Watch"]


class Watch:
    """Is kept in the block by the task that makes the attempt; what is done beside it ends with the block.

    There is one timer for two times, and no generator: hardly any attempt lasts that long, and each one has to pay.
    """

    def __init__(
        self, give_way: Callable[[], Coroutine[Any, Any, None]], turn: float,
        insist: Callable[[], None], late: float, again: float,
    ) -> None:  # fmt: skip
        """`give_way`: what to do beside the attempt after its `turn` (seconds). When it is `late`, by the event loop's
        clock, and each `again` seconds after that, `insist` is called, and the task is cancelled.
        """
        self._loop = asyncio.get_running_loop()
        self._give_way: Callable[[], Coroutine[Any, Any, None]] | None = give_way
        self._turn = turn
        self._insist = insist
        self._late = late
        self._again = again
        self._times = 0
        self.is_on = False
        """Whether something may be done beside the attempt."""
        self._beside: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._turn_ends = self._loop.time() + self._turn
        self.is_on = True
        self._set_timer()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.is_on = False
        self._timer.cancel()
        del self._give_way, self._insist  # these know the attempt, as it knows this
        for _ in range(self._times):
            self._task.uncancel()
        for task in self._beside:
            task.cancel()
        await ended(self._beside)

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have this done in a task of its own."""
        task = self._loop.create_task(work)
        self._beside.append(task)
        return task

    def _set_timer(self) -> None:
        due = self._late if self._give_way is None else min(self._turn_ends, self._late)
        self._timer = self._loop.call_at(due, self._look_at_clock)

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        if self._give_way is not None and now >= self._turn_ends:
            give_way, self._give_way = self._give_way, None
            self.beside(give_way())
        if now >= self._late:
            self._late = now + self._again
            self._insist()
            self._task.cancel()
            self._times += 1
        self._set_timer()
