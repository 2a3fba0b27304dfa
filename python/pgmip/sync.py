"""The sync twin of `pgmip.App`, for code without an event loop: the same calls, and handlers that are plain functions::

    app = pgmip.sync.App(sites={"store": "service=store", "bank": "service=bank"})

    @app.transaction(sites=("store", "bank"))
    def buy_confirm(tx, request):
        order = tx.store.fetch_one("INSERT INTO orders ... RETURNING o_id", (...,))
        tx.bank.execute("UPDATE account SET balance = balance - %s ...", (...,))
        return {"order": order.o_id}

    with app:
        result = app.submit("buy_confirm", {"basket": 7}, xid="8f1c...")

An App has worker threads for the handlers, and an event loop in a thread of its own, which does what `pgmip.App` does.
A request's first attempt does without, as long as nothing is in its way, and takes much less processor time. It needs
the event loop where somebody observes the App (metrics, traces, `on_step`, a logger that takes what is of level DEBUG),
where the isolation level is not read committed, with a `session`, and where the answer does not wait for the commit.

Its methods can be called from any number of threads. `pgmip.sweeper`, `pgmip.metrics` and
`pgmip.http` take either App.

A thread cannot be stopped from outside. Where an attempt ends before its handler does (at the deadline, say), the
statement that the handler waits for is cancelled, its transaction is rolled back at once, and what the handler tries
next in it raises RuntimeError. A handler that never returns keeps its thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from psycopg.abc import Params

from . import app as _app
from ._answer import Answer
from ._branch import Branch, Statement, read_all, read_count, read_one
from ._cancellation import ended, uninterrupted
from ._handler import check_plain
from ._json import parse
from ._nesting import check_outside, handling
from ._options import check_count
from ._portal import Closed, Portal
from ._straight import Committed, Straight, Tried
from ._tx import SitesByName
from ._workers import Job, Workers
from .app import Isolation, Resolution, Submitted
from .exceptions import Unknown
from .observe import Hook, Observer

__all__ = ["App", "Copy", "Handler", "Site", "Tx"]

P = ParamSpec("P")
T = TypeVar("T")

_MOMENT = 0.01  # seconds for which an attempt may run before a site knows of it
_LONGER = 0.2  # seconds, and before the event loop does
_KNOWN = 1.0  # seconds, by which it does, at the latest


class _Way(Protocol):
    """How a handler's thread has something done at a site."""

    def call(self, site: str, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, and return or raise what it does."""

    def check_open(self) -> None:
        """Raise RuntimeError where the attempt has ended before its handler."""


class Site:
    """What a handler sees of a site: `tx.store`. As `pgmip.Site`, without `await`."""

    def __init__(self, branch: Branch, way: _Way) -> None:
        self._branch = branch
        self._way = way

    def execute(self, sql: Statement, params: Params | None = None) -> int:
        """Run a statement; the number of rows it touched, -1 where PostgreSQL tells none."""
        return self._call(self._branch.run, sql, params, read_count)

    def execute_many(self, sql: Statement, params_seq: Iterable[Params]) -> int:
        """Run a statement once for each of these parameters; the number of rows that all of them touched."""
        return self._call(self._branch.run_many, sql, params_seq)

    def fetch_one(self, sql: Statement, params: Params | None = None) -> Any:
        """Run a statement; its first row, with an attribute per column (`row.o_id`), or None."""
        return self._call(self._branch.run, sql, params, read_one)

    def fetch_all(self, sql: Statement, params: Params | None = None) -> list[Any]:
        """Run a statement; all of its rows, as in `fetch_one`."""
        return self._call(self._branch.run, sql, params, read_all)

    def finish_with(self, sql: Statement, params: Params | None = None) -> None:
        """Give the handler's last statement here, to be run in one round trip with what ends the transaction."""
        self._way.check_open()
        self._branch.finish_with(sql, params)

    @contextlib.contextmanager
    def copy(self, sql: Statement, params: Params | None = None) -> Iterator[Copy]:
        """`with tx.store.copy("COPY item FROM STDIN") as copy:` writes the rows of a COPY, or reads them to the end."""
        with self._entered(self._branch.copy(sql, params)) as copy:
            yield Copy(copy, self._call)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """`with tx.store.savepoint():` undoes what was done here since then if the block raises, and nothing at
        other sites. What another thread has done here meanwhile goes, too, and it is not told.
        """
        try:
            with self._entered(self._branch.savepoint()):
                yield
        except GeneratorExit as why:
            self._branch.leave(why)
            raise

    def _call(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._way.call(self._branch.site, work, *args, **kwargs)

    @contextlib.contextmanager
    def _entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        entered = self._call(manager.__aenter__)
        try:
            yield entered
        except GeneratorExit:
            raise  # nobody leaves the block any more, maybe not before the process ends, and with it the event loop
        except BaseException as error:
            self._call(manager.__aexit__, type(error), error, error.__traceback__)
            raise
        self._call(manager.__aexit__, None, None, None)


class Copy:
    """The rows of a COPY. As `pgmip.app.Copy`, without `await`."""

    def __init__(self, copy: _app.Copy, call: Callable[..., Any]) -> None:
        self._copy = copy
        self._call = call

    def set_types(self, types: Sequence[int | str]) -> None:
        """The types of the columns: what `read_row` converts to, and `write_row` in binary format."""
        self._copy.set_types(types)

    def write_row(self, row: Sequence[Any]) -> None:
        """Write one row."""
        self._call(self._copy.write_row, row)

    def write(self, block: bytes | str) -> None:
        """Write any part of the data."""
        self._call(self._copy.write, block)

    def read_row(self) -> tuple[Any, ...] | None:
        """Read a row, of str unless `set_types` says otherwise. None: there are no more."""
        row: tuple[Any, ...] | None = self._call(self._copy.read_row)
        return row

    def read(self) -> bytes:
        """Read some data. Empty: there are no more."""
        return bytes(self._call(self._copy.read))


class Tx(SitesByName[Site]):
    """One attempt of a transaction, as its handler sees it: `tx.store` or `tx["store"]` is a site. As `pgmip.Tx`."""

    def __init__(self, xid: str, xinst: int, branches: Mapping[str, Branch], way: _Way) -> None:
        super().__init__({name: Site(branch, way) for name, branch in branches.items()})
        self.xid = xid
        self.xinst = xinst


class _ByLoop:
    """The way of an attempt that an event loop makes."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._running: set[asyncio.Task[Any]] = set()
        self._over = False

    def call(self, site: str, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.call(self._do(lambda: work(*args, **kwargs)))

    def check_open(self) -> None:
        if self._over:
            raise RuntimeError("the transaction is over")

    async def end(self) -> None:
        """Cancel the statements that run, and refuse others."""
        self._over = True
        for task in self._running:
            task.cancel()
        await ended(tuple(self._running))

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.check_open()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await work()
        except asyncio.CancelledError:
            self.check_open()
            raise
        finally:
            self._running.discard(task)


Handler = Callable[[Tx, Any], Any]
H = TypeVar("H", bound=Handler)


class App:
    """As `pgmip.App`, for threads. To be closed; entering it is not needed, leaving it (or `async with`) closes it. Who
    enters it does not wait for the first request to have connections made that are to be kept; that is a first use.
    """

    def __init__(
        self,
        sites: Mapping[str, str],
        *,
        threads: int = 32,
        pool_size: int = 16,
        pool_min_size: int = 0,
        pool_max_idle: float = 600.0,
        prepared_statements: bool = True,
        deadline: float = 30.0,
        attempts: int = 50,
        step_timeout: float = 5.0,
        parallel: bool = True,
        wait_for_commit: bool = True,
    ) -> None:
        """`threads`: how many handlers may run at a time. Everything else is as for `pgmip.App`."""
        check_count("threads", threads, 1)
        self._app = _app.App(
            sites,
            pool_size=pool_size,
            pool_min_size=pool_min_size,
            pool_max_idle=pool_max_idle,
            prepared_statements=prepared_statements,
            deadline=deadline,
            attempts=attempts,
            step_timeout=step_timeout,
            parallel=parallel,
            wait_for_commit=wait_for_commit,
        )
        self._workers = Workers(threads, "pgmip handler")
        self._portal = Portal("pgmip.sync.App")
        self._handlers: dict[str, Handler] = {}
        self._straight = set[Straight]()  # those that run
        self._closing = False
        self._keeps_connections = pool_min_size > 0
        for pool in self._app._pools.values():
            pool.spares.keep()

    @property
    def sites(self) -> Mapping[str, str]:
        """The sites, name to conninfo."""
        return self._app.sites

    @property
    def transactions(self) -> tuple[str, ...]:
        """The names that `submit` knows."""
        return self._app.transactions

    def transaction(
        self, *, sites: Iterable[str], isolation: Isolation = "read committed", name: str | None = None
    ) -> Callable[[H], H]:
        """Register `def handler(tx, request) -> result`, and raise, as `pgmip.App.transaction` does; TypeError for
        an `async def`.
        """
        declared = self._app._known(sites)

        def register(handler: H) -> H:
            check_plain(handler)

            async def run(tx: _app.Tx, request: Any) -> Any:
                return await self._run(handler, tx, declared, request)

            known_as = name or handler.__name__
            self._app.transaction(sites=declared, isolation=isolation, name=known_as)(run)
            self._handlers[known_as] = handler
            return handler

        return register

    def submit(
        self,
        name: str,
        request: Any,
        xid: str | None = None,
        *,
        deadline: float | None = None,
        attempts: int | None = None,
        wait_for_commit: bool | None = None,
        session: Hashable | None = None,
    ) -> Any:
        """Run a transaction exactly once per XID, and raise, as `pgmip.App.submit` does.

        Interrupted (KeyboardInterrupt), it has the request cancelled, which leaves no transaction open.
        """
        if self._portal.is_running() and self._workers.any_begun and not self._closing:
            submitted = self._app._checked(name, request, xid, deadline, attempts, session)
            check_outside("submit")
            waits = self._app._does_wait(submitted, wait_for_commit)
            straight = self._app._straight(submitted, self._portal) if waits else None
            if straight is not None:
                return self._go_straight(straight, submitted)
            return self._call(lambda: self._app._answer_to(submitted, wait_for_commit), xid).told()
        return self._call(
            lambda: self._app.submit(
                name, request, xid,
                deadline=deadline, attempts=attempts, wait_for_commit=wait_for_commit, session=session,
            ),
            xid,
        )  # fmt: skip

    def settle(
        self, xid: str, *, sites: Iterable[str] | None = None, deadline: float | None = None, cancel: bool = True
    ) -> Resolution | None:
        """Carry to its end what somebody else began, as `pgmip.App.settle` does."""
        return self._call(lambda: self._app.settle(xid, sites=sites, deadline=deadline, cancel=cancel), xid)

    def resolve(self, xid: str, *, sites: Iterable[str] | None = None, cancel: bool = True) -> Resolution | None:
        """Settle a request without its handler, as `pgmip.App.resolve` does."""
        return self._call(lambda: self._app.resolve(xid, sites=sites, cancel=cancel), xid)

    def acknowledge(self, xid: str, *, sites: Iterable[str] | None = None) -> None:
        """Say that a result will not be asked for again, as `pgmip.App.acknowledge` does."""
        self._call(lambda: self._app.acknowledge(xid, sites=sites), xid)

    def on_step(self, callback: Hook) -> None:
        """Call `callback(step)` at every step, as `pgmip.App.on_step` does: in the event loop's thread."""
        self._app.on_step(callback)

    def observe(self, observer: Observer) -> None:
        """Have `observer` told of everything that begins from now on: in the event loop's thread."""
        self._app.observe(observer)

    def close(self, *, grace: float = 5.0) -> None:
        """Shut down as `pgmip.App.close` does, and end the threads; that of a handler ends when it returns."""
        try:
            self._closing = True
            if self._portal.is_running():
                known_at = time.monotonic() + _KNOWN
                for straight in tuple(self._straight):  # has ended in a moment, or the event loop knows of it
                    if straight.submitter != threading.get_ident():  # where a signal handler closes it in the midst
                        straight.is_known.wait(max(0.0, known_at - time.monotonic()))
            with contextlib.suppress(Closed):  # already, or by another thread meanwhile
                self._portal.call(self._app.close(grace=grace))
        finally:
            self._workers.close()
            self._portal.close()
            for straight in tuple(self._straight):
                straight.drop()
            self._app._abandon()

    def __enter__(self) -> Self:
        self._begin_to_connect()
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._begin_to_connect()
        return self

    async def __aexit__(self, *failure: object) -> None:
        # It waits for handlers, that may need the caller's event loop and its threads; and goes on if he is cancelled.
        threads = concurrent.futures.ThreadPoolExecutor(1, "pgmip closing")
        closed = asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, self.close)
        threads.shutdown(wait=False)
        await asyncio.shield(closed)

    def _begin_to_connect(self) -> None:
        if self._keeps_connections:
            with contextlib.suppress(Closed):  # as its first request will say
                self._portal.soon(self._app._begin_to_connect)

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]], xid: str | None) -> T:
        try:
            return self._portal.call(call())
        except Closed as error:
            raise _closed(xid) from error

    def _go_straight(self, straight: Straight, submitted: Submitted) -> Any:
        """What becomes of a request whose first attempt is made in a worker thread."""
        put = False
        with handling() as begin:
            job = self._job(straight, submitted, begin)
            self._straight.add(straight)
            try:
                self._workers.put(job)
                put = True
                tried = _soon(straight)
                if isinstance(tried, Committed):
                    answer = self._app._answer_of(tried, submitted)
                else:
                    answer = self._call(lambda: self._behind(straight, submitted), submitted.xid)
            except BaseException:
                if not job.is_over:
                    self._let_go(straight, submitted)
                if not put:
                    self._straight.discard(straight)
                raise
        return answer.told()

    def _behind(self, straight: Straight, submitted: Submitted) -> Coroutine[Any, Any, Answer]:
        self._portal.soon(self._workers.begin)  # where there are too few
        return self._app._answer_behind(straight, submitted)

    def _job(self, straight: Straight, submitted: Submitted, begin: Callable[[], None]) -> Job[Any]:
        handler = self._handlers[submitted.transaction.name]

        def handle(branches: Mapping[str, Branch]) -> Any:
            tx = Tx(straight.xid, straight.xinst, branches, straight)
            return _contained(handler, tx, parse(submitted.text)["request"])

        context = contextvars.copy_context()
        context.run(begin)
        job = straight.to_do(handle, context.run)
        job.call_when_over(lambda: self._straight.discard(straight))
        return job

    def _let_go(self, straight: Straight, submitted: Submitted) -> None:
        """Of one that nobody waits for any more."""
        try:
            self._portal.soon(self._app._let_go, straight, submitted.transaction.sites)
        except RuntimeError:  # there is no event loop any more
            straight.drop()

    async def _run(self, handler: Handler, tx: _app.Tx, sites: Iterable[str], request: Any) -> Any:
        """Run a handler in a worker thread, for one attempt."""
        way = _ByLoop(self._portal)
        facade = Tx(tx.xid, tx.xinst, {name: tx[name]._branch for name in sites}, way)
        context = contextvars.copy_context()
        try:
            return await self._workers.run(lambda: context.run(_contained, handler, facade, request))
        finally:
            await uninterrupted(way.end())


def _soon(straight: Straight) -> Committed | Tried | None:
    """What has become of it before the event loop has to know of it, if it has come to an end by then."""
    for seconds in (_MOMENT, _LONGER):
        if straight.job.wait(min(seconds, straight.deadline.left)) or not straight.is_shown:
            break
    return straight.outcome


def _closed(xid: str | None) -> Unknown:
    return Unknown("this App is closed: submit to another server", xid=xid)


def _contained(handler: Handler, tx: Tx, request: Any) -> Any:
    """Call it. What would end a thread or a process, as sys.exit() does, must not end the event loop; no coroutine
    raises a StopIteration; and another executor's CancelledError is none of ours.
    """
    try:
        return handler(tx, request)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration | concurrent.futures.CancelledError):
            raise
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
