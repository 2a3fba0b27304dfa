"""The way from code without an event loop into one."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, cast

from ._process import Process

__all__ = ["Closed", "Portal"]

_ROUNDS = 100  # for which a loop that ends is run again in vain
_LONGEST = 3.0  # seconds that a cancelled task takes to end; more than an operation does beyond its deadline
_TIMES = 3  # that it is cancelled
_PATIENCE = 1.0  # seconds that a forgotten thread has to end

P = ParamSpec("P")
T = TypeVar("T")


class Closed(RuntimeError):
    """The event loop was closed before the call, or during it."""


@dataclass(slots=True)
class _State:
    """Of a portal, for what outlives it."""

    closed: bool = False
    waits: dict[object, Callable[[], object]] = field(default_factory=dict)
    """Of each that is under way, what ends it when the loop is no more: it may have heard of it too late to do it."""


class _Called(Generic[T]):
    """A coroutine that somebody elsewhere waits for, and what it comes to: all of it is done in the loop's thread, its
    task goes there, too. What a signal handler raises as a task goes in the caller's thread would be lost.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], waits: dict[object, Callable[[], object]], wake: Callable[[], object]
    ) -> None:
        """`wake`: called once, when it is over. `waits`: those of the portal's state."""
        self.coroutine = coroutine
        self._waits = waits
        self._wake = wake
        self._task: asyncio.Task[T] | None = None
        self._came: tuple[BaseException | None, T | None] | None = None
        self.is_told = False

    def tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """From the caller's thread: have it begin. If the loop closes before it hears that, it is over."""
        self.is_told = True
        self._waits[self] = self._end
        loop.call_soon_threadsafe(self._begin)

    def call_off(self) -> None:
        """In the loop: cancel it, or see that it is never run."""
        if self._task is None:
            self.forget()
        else:
            self._task.cancel()

    def forget(self) -> None:
        """It is over. If the loop that was told of it has closed without beginning it, nobody awaits it."""
        self._waits.pop(self, None)
        if inspect.getcoroutinestate(self.coroutine) == inspect.CORO_CREATED:
            with contextlib.suppress(ValueError):  # it is begun just now
                self.coroutine.close()

    @property
    def has_come(self) -> bool:
        """Whether it has returned or raised: else it was cancelled, or the loop has closed."""
        return self._came is not None

    def result(self) -> T:
        """Where it has come: what it returned, or raised."""
        assert self._came is not None
        (error, result), self._came = self._came, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # which has this frame
        return cast(T, result)

    def _begin(self) -> None:
        try:
            self._task = asyncio.create_task(self.coroutine)
            self._task.add_done_callback(self._ended)
        except BaseException as error:  # for want of memory, say
            self._came = error, None
            self._end()
            raise

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._task = None
        try:
            if not task.cancelled():
                error = task.exception()
                self._came = error, task.result() if error is None else None
        finally:
            self._end()

    def _end(self) -> None:
        if self._waits.pop(self, None) is not None:
            self._wake()


class Portal:
    """An event loop in a thread of its own, for the sync twins: from the first call until it is closed. A forgotten one
    ends when nobody has it any more, or with the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = Process(name)
        # Between those who call and who closes. A signal handler may close in the middle of a call of its own thread.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._state = _State()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, wait for it, and return or raise what it does. From any thread but that one.

        An interrupted wait cancels the coroutine, by whatever a signal handler raises (KeyboardInterrupt, or a worker's
        time limit; an OSError asyncio may take for one of its own, and lose). Raises Closed, and RuntimeError in a
        process forked since the first call.
        """
        called: _Called[T] | None = None
        try:
            over = _thread.allocate_lock()  # a Future's condition may be left held by who is interrupted
            over.acquire()
            called = _Called(coroutine, self._state.waits, over.release)
            self._check_caller()
            self._tell(called.tell)
            over.acquire()
        except BaseException:
            if called is None:
                coroutine.close()
            else:
                self._take_back(called)
            raise
        called.forget()
        if called.has_come:
            return called.result()
        if self._state.closed:
            raise Closed(f"{self._name} was closed meanwhile")
        raise concurrent.futures.CancelledError

    async def reach(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop; a wait that is cancelled cancels the coroutine, and lasts until its end."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        cancelled: asyncio.CancelledError | None = None

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(end)

        called = _Called(coroutine, self._state.waits, wake)
        try:
            self._process.check()
            self._tell(called.tell)
        except BaseException:
            self._take_back(called)
            raise
        while not over.done():
            try:
                await asyncio.wait({over})
            except asyncio.CancelledError as error:
                if cancelled is None:  # a second time would interrupt it in cleaning up
                    with contextlib.suppress(Closed):  # closed meanwhile, and so cancelled
                        self.soon(called.call_off)
                cancelled = error
        called.forget()
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled  # which has this frame
        if called.has_come:
            return called.result()
        raise Closed(f"cancelled, as when {self._name} is closed meanwhile")

    def soon(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a function called there, some time. Raises as `call` does."""

        def tell(loop: asyncio.AbstractEventLoop) -> None:
            loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
            if loop.is_closed():  # it may not have been heard
                raise Closed(f"{self._name} is closed")

        self._process.check()
        self._tell(tell)

    def soon_without_waiting(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """The same, by a thread that somebody may wait for who has been interrupted in a call, and calls again or
        closes: not even for the lock. Raises RuntimeError where the loop is closed; while it closes it may not hear.
        """
        loop = self._loop
        if loop is None:
            raise Closed(f"{self._name} has no event loop")
        loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
        if loop.is_closed():
            raise Closed(f"{self._name} is closed")

    def is_running(self) -> bool:
        """Whether it has been called, and has not been closed. Raises RuntimeError as `call` does."""
        self._check_caller()
        return self._loop is not None and not self._state.closed

    def _check_caller(self) -> None:
        self._process.check()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback in the event loop cannot wait for it: use another thread")

    def close(self) -> None:
        """End the thread; what is still running there is cancelled."""
        self._process.check()
        with self._lock:
            self._state.closed = True  # before anything is cancelled by it
            if self._loop is not None and not self._stopped:
                try:
                    self._loop.call_soon_threadsafe(self._loop.stop)  # after all that has been called
                except RuntimeError:
                    if not self._loop.is_closed():  # a signal handler's
                        raise
                self._stopped = True  # last: who is interrupted before stops it when he closes again
        if self._thread is not None:
            self._thread.join()

    def _take_back(self, called: _Called[Any]) -> None:
        """End a call that has failed. If the loop was told of it, it may be at it."""
        if called.is_told:
            with contextlib.suppress(RuntimeError):  # it is closed
                self.soon(called.call_off)
                return
        called.forget()

    def _tell(self, how: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Tell the loop something."""
        with self._lock:
            loop = self._open_loop()
            try:
                how(loop)
            except RuntimeError:
                if loop.is_closed():  # meanwhile, by a signal handler
                    raise Closed(f"{self._name} is closed") from None
                raise

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None and not self._state.closed:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=(loop, self._state), name=self._name, daemon=True)
            end = weakref.finalize(self, _end, self._state, loop, thread)  # first: it may be interrupted as it starts
            try:
                thread.start()
            except RuntimeError:
                if thread.ident is None:  # there are too many
                    end.detach()
                    loop.close()
                raise
            if self._loop is None:  # else a signal handler has been faster, and this one ends with the portal
                self._loop, self._thread = loop, thread
        if self._loop is None or self._state.closed:
            raise Closed(f"{self._name} is closed")
        return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, state: _State) -> None:
        threads = ThreadPoolExecutor(thread_name_prefix="pgmip look-up")
        loop.set_default_executor(threads)
        try:
            try:
                loop.run_forever()
            finally:  # also by what ends a thread, raised by a callback: nobody is to call it any more
                state.closed = True
                _cancel_what_is_left(loop)
                with contextlib.suppress(BaseException):
                    loop.run_until_complete(loop.shutdown_asyncgens())
                # Some may have found it open, and told it since. Behind this it hears nothing: what was told yet later
                # was never begun.
                _cancel_what_is_left(loop)
                # Not waited for: a name may be looked up for as long as it takes.
                threads.shutdown(wait=False, cancel_futures=True)
                loop.close()
        finally:
            for end in tuple(state.waits.values()):
                with contextlib.suppress(Exception):  # it has ended by now, or the loop that waits
                    end()


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    """And what has been called, but not begun yet. All of it ends, though some of it may end the thread once more, for
    which asyncio.Runner would leave the others: their callers would wait for ever. But not what begins anew whenever it
    ends, nor what does not end whenever it is cancelled, nor in a loop that cannot run any more.
    """
    cancelled: set[asyncio.Task[Any]] = set()
    first: set[asyncio.Task[Any]] | None = None
    before, in_vain, late = -1, 0, 0
    while in_vain < _ROUNDS and late < _TIMES:
        with contextlib.suppress(BaseException):
            loop.call_soon(loop.stop)
            loop.run_forever()
        left = asyncio.all_tasks(loop)
        if not left:
            return
        first = left if first is None else first & left
        in_vain = in_vain + 1 if len(first) == before else 0
        before = len(first)
        for task in left - cancelled:  # once: a second time would interrupt it in cleaning up
            cancelled.add(task)
            task.cancel()
        if not _run_until_ended(loop, left):
            late += 1
            cancelled.clear()  # somebody has swallowed it, as psycopg_pool does where it connects


def _run_until_ended(loop: asyncio.AbstractEventLoop, tasks: Collection[asyncio.Task[Any]]) -> bool:
    """False: not in time. That one of them, or a callback, ends the loop counts as an end."""
    over = loop.time() + _LONGEST
    timer = loop.call_at(over, loop.stop)
    with contextlib.suppress(BaseException):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    timer.cancel()
    return loop.time() < over


def _end(state: _State, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the thread of a portal that nobody has closed, while the interpreter is still whole. Wait for nothing that
    does not end.
    """
    state.closed = True  # there may be threads that wait for it, or call it yet
    with contextlib.suppress(RuntimeError):  # closed
        loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:
        with contextlib.suppress(RuntimeError):  # it has never started
            thread.join(_PATIENCE)
