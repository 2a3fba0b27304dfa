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
from typing import Any, ParamSpec, TypeVar, cast

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
        self._state = _State()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, wait for it, and return or raise what it does. From any thread but that one.

        An interrupted wait cancels the coroutine, by whatever a signal handler raises (KeyboardInterrupt, or a worker's
        time limit). Raises Closed, and RuntimeError in a process forked since the first call.
        """
        over = _thread.allocate_lock()  # a Future's condition may be left held by who is interrupted
        tasks: list[asyncio.Task[T]] = []
        came: list[tuple[BaseException | None, T | None]] = []
        waits, told = self._state.waits, False

        def tell(loop: asyncio.AbstractEventLoop) -> None:
            nonlocal told
            told = True
            waits[over] = end
            loop.call_soon_threadsafe(begin)

        def begin() -> None:
            try:
                tasks.append(asyncio.create_task(coroutine))
                tasks[0].add_done_callback(ended)
            except BaseException as error:  # for want of memory, say
                came.append((error, None))
                end()
                raise

        def ended(task: asyncio.Task[T]) -> None:
            tasks.clear()  # so that it goes here: what a signal handler raises as it goes at the caller's is lost
            if not task.cancelled():
                error = task.exception()
                came.append((error, None if error else task.result()))
            end()

        def end() -> None:
            if waits.pop(over, None) is not None:
                over.release()

        try:
            over.acquire()
            self._check_caller()
            self._tell(tell)
            over.acquire()
        except BaseException:
            waits.pop(over, None)
            self._take_back(coroutine, told)
            raise
        _forget(coroutine)
        if came:
            return cast(T, _result_of(*came.pop()))
        if self._state.closed:
            raise Closed(f"{self._name} was closed meanwhile")
        raise concurrent.futures.CancelledError

    async def reach(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop; a wait that is cancelled cancels the coroutine, and lasts until its end."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        tasks: list[asyncio.Task[T]] = []
        cancelled: asyncio.CancelledError | None = None
        waits, told = self._state.waits, False

        def tell(there: asyncio.AbstractEventLoop) -> None:
            nonlocal told
            told = True
            there.call_soon_threadsafe(begin)
            waits[over] = lambda: loop.call_soon_threadsafe(end)

        def begin() -> None:
            tasks.append(asyncio.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: loop.call_soon_threadsafe(end))

        def end() -> None:
            waits.pop(over, None)
            if not over.done():
                over.set_result(None)

        try:
            self._process.check()
            self._tell(tell)
        except BaseException:
            self._take_back(coroutine, told)
            raise
        while not over.done():
            try:
                await asyncio.wait({over})
            except asyncio.CancelledError as error:
                if cancelled is None:  # a second time would interrupt it in cleaning up
                    with contextlib.suppress(Closed):  # closed meanwhile, and so cancelled
                        self.soon(lambda: tasks[0].cancel())
                cancelled = error
        _forget(coroutine)
        ended = bool(tasks) and tasks[0].done() and not tasks[0].cancelled()
        if cancelled is not None:
            if ended:
                tasks[0].exception()  # has been seen
            raise cancelled
        if not ended:
            raise Closed(f"cancelled, as when {self._name} is closed meanwhile")
        return tasks[0].result()

    def soon(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a function called there, some time. Raises as `call` does."""
        self._process.check()
        self._tell(lambda loop: loop.call_soon_threadsafe(lambda: function(*args, **kwargs)))

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
            closed, self._state.closed = self._state.closed, True  # before anything is cancelled by it
            if self._loop is not None and not closed:
                self._loop.call_soon_threadsafe(self._loop.stop)  # after all that has been called
        if self._thread is not None:
            self._thread.join()

    def _take_back(self, coroutine: Coroutine[Any, Any, Any], told: bool) -> None:
        """End a coroutine whose call has failed. If the loop was `told`, and is not closed, it may be at it."""
        if told:
            with contextlib.suppress(Exception):
                self.soon(_call_off, coroutine)
                return
        _forget(coroutine)

    def _tell(self, how: Callable[[asyncio.AbstractEventLoop], T]) -> T:
        """Tell the loop something, which it hears before it ends."""
        with self._lock:
            loop = self._open_loop()
            try:
                told = how(loop)
            except RuntimeError:
                if self._state.closed:  # meanwhile, by a signal handler
                    raise Closed(f"{self._name} is closed") from None
                raise
            if loop.is_closed():  # likewise, too late for an error: it may not have been heard
                raise Closed(f"{self._name} is closed")
            return told

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None and not self._state.closed:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=(loop, self._state), name=self._name, daemon=True)
            weakref.finalize(self, _end, self._state, loop, thread)  # first: it may be interrupted as it starts
            thread.start()
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


def _result_of(error: BaseException | None, result: T | None) -> T | None:
    if error is not None:
        try:
            raise error
        finally:
            del error  # which has this frame
    return result


def _forget(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Of a call that is over: if the loop that was told of it has closed without beginning it, nobody awaits it."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()


def _call_off(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Called in the loop: cancel the coroutine there, or see that it is never run."""
    for task in asyncio.all_tasks():
        if task.get_coro() is coroutine:
            task.cancel()
            return
    coroutine.close()


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
