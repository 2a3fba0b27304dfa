"""The way from code without an event loop into one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["Portal"]

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own, for the sync twins. To be closed; a forgotten one ends with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, wait for it, and return or raise what it does. From any thread but that one.

        An interrupted wait (KeyboardInterrupt) cancels the coroutine.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError(f"{self._thread.name} is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def reach(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop; a wait that is cancelled cancels the coroutine, and lasts until its end."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        tasks: list[asyncio.Task[T]] = []
        cancelled: asyncio.CancelledError | None = None

        def begin() -> None:
            tasks.append(asyncio.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: loop.call_soon_threadsafe(over.set_result, None))

        try:
            self.soon(begin)
        except BaseException:
            coroutine.close()
            raise
        while not over.done():
            try:
                await asyncio.wait({over})
            except asyncio.CancelledError as error:
                if cancelled is None:  # a second time would interrupt it in cleaning up
                    with contextlib.suppress(RuntimeError):  # closed meanwhile, and so cancelled
                        self.soon(lambda: tasks[0].cancel())
                cancelled = error
        if cancelled is not None:
            if not tasks[0].cancelled():
                tasks[0].exception()  # has been seen
            raise cancelled
        if tasks[0].cancelled():
            raise RuntimeError(f"cancelled, as when {self._thread.name} is closed meanwhile")
        return tasks[0].result()

    def soon(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a function called there, some time. Raises RuntimeError when closed."""
        self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def close(self) -> None:
        """End the thread; what is still running there is cancelled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            runner.get_loop().run_forever()
