"""Threads that run handlers."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from ._process import Process

__all__ = ["Job", "Workers"]

T = TypeVar("T")


class Job(Generic[T]):
    """Something that a worker does, and returns the result of; it raises nothing.

    To be waited for in any thread, or event loop. A signal handler may raise whatever it likes in that: a bare lock is
    taken or not, where a Future's condition can be left held.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._claim = _thread.allocate_lock()  # of who runs it, or sees to it that nobody does
        self._over = _thread.allocate_lock()
        self._over.acquire()
        self._callbacks: list[Callable[[], object]] = []
        self._waiters: list[Callable[[], None]] = []  # in event loops
        self.is_over = False
        """Whether it has ended, or will not begin."""
        self.result: T | None = None
        """None where it has not begun."""

    def run(self) -> None:
        """In a worker, which sees to its `end`; without effect a second time."""
        if not self._claim.acquire(blocking=False):
            return
        work, self._work = self._work, None
        assert work is not None
        self.result = work()

    def drop(self) -> None:
        """Have it not begin, if it has not by now."""
        if self._claim.acquire(blocking=False):
            self._work = None
            self.end()

    def end(self) -> None:
        """It is over, and nobody runs it; once more where that has been interrupted."""
        self.is_over = True
        with contextlib.suppress(RuntimeError):  # it is by now
            self._over.release()
        for callback in tuple(self._callbacks):
            callback()
        self._callbacks.clear()
        self.wake()

    def wake(self) -> None:
        """Have whoever waits for it in an event loop look again."""
        for waiter in tuple(self._waiters):
            waiter()

    def wait(self, seconds: float) -> bool:
        """Whether it is over by then."""
        if self._over.acquire(timeout=seconds):
            with contextlib.suppress(RuntimeError):  # it has been once more
                self._over.release()
        return self.is_over

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """In the worker, or here where it is over by now; maybe twice, where it is so just then."""
        self._callbacks.append(callback)
        if self.is_over:
            callback()

    async def wait_in_loop(self, seconds: float | None = None, or_until: Callable[[], bool] = lambda: False) -> bool:
        """The same in an event loop, which does not wait for longer where `or_until` is so, of which `wake` tells."""
        loop, here = asyncio.get_running_loop(), threading.get_ident()
        woken = asyncio.Event()

        def wake() -> None:
            if threading.get_ident() == here:
                woken.set()
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

        self._waiters.append(wake)
        try:
            async with asyncio.timeout(seconds):
                while not (self.is_over or or_until()):
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            pass
        finally:
            self._waiters.remove(wake)
        return self.is_over


class Workers:
    """At most so many threads, which end when nobody has this any more, or with the process.

    Who gives them work puts it into a queue, and does nothing that an interruption could leave half done: threads are
    begun by `begin`, and by each other.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._queue = queue.SimpleQueue[Job[Any] | None]()
        self._state = _State()
        weakref.finalize(self, self._queue.put, None)

    def begin(self) -> None:
        """Have there be one, at least. Not in a thread in which signal handlers are run."""
        _begin_another(self._queue, self._state, self._most, self._name)

    @property
    def any_begun(self) -> bool:
        """Whether there is one."""
        return self._state.all > 0

    def put(self, job: Job[Any]) -> None:
        """Have it done, some time; once this has been closed it is dropped."""
        if self._state.closed:
            job.drop()
        else:
            self._queue.put(job)

    async def run(self, work: Callable[[], T]) -> T:
        """In an event loop: what it returns or raises. Who is cancelled does not wait for its end."""
        job = Job(functools.partial(_outcome, work))
        self.begin()
        self.put(job)
        try:
            await job.wait_in_loop()
        finally:
            job.drop()
        if job.result is None:
            raise RuntimeError("no threads are begun any more")
        result, error = job.result
        if error is not None:
            raise error
        return cast(T, result)

    def close(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self._state.closed = True
        self._queue.put(None)


class _State:
    """Of the threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all = 0
        self.idle = set[object]()
        self.closed = False


def _begin_another(jobs: queue.SimpleQueue[Job[Any] | None], state: _State, most: int, name: str) -> None:
    """Unless one waits for something to do, or there are enough."""
    with state.lock:
        if state.idle or state.all >= most or state.closed:
            return
        state.all += 1
        number = state.all
        state.idle.add(me := object())
    try:
        words = (me, jobs, state, most, name)
        threading.Thread(target=_work, args=words, name=f"{name}_{number - 1}", daemon=True).start()
    except BaseException:  # there is no room for one more, say
        with state.lock:
            state.all -= 1
            state.idle.discard(me)
        if not state.all:
            raise


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error


def _work(
    me: object, jobs: queue.SimpleQueue[Job[Any] | None], state: _State, most: int, name: str
) -> None:
    process = Process("this thread")
    job: Job[Any] | None = None
    process.check()
    while process.is_this:  # else a handler has forked it
        # None of it is the worker's. What strikes a thread from outside, as a handler's time-out that comes late, may
        # do so in most places: where a call has returned, but not where a `for` has its next one.
        with contextlib.suppress(BaseException):
            if job is None:
                with state.lock:
                    state.idle.add(me)
                for found in iter(jobs.get, None):
                    job = found
                    break
                if job is None:
                    break
            with state.lock:
                state.idle.discard(me)
            if not state.closed:
                with contextlib.suppress(BaseException):  # no room for one more, say
                    _begin_another(jobs, state, most, name)
                job.run()
            job.end()
            job = None  # and what it knows, until there is another one
    if process.is_this:
        jobs.put(None)  # for the others
