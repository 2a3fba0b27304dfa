"""The sync twin of `pgmip.App`, for code without an event loop: the same calls, and handlers that are plain functions::

    app = pgmip.sync.App(sites={"store": "service=store", "bank": "service=bank"})

    @app.transaction(sites=("store", "bank"))
    def buy_confirm(tx, request):
        order = tx.store.fetch_one("INSERT INTO orders ... RETURNING o_id", (...,))
        tx.bank.execute("UPDATE account SET balance = balance - %s ...", (...,))
        return {"order": order.o_id}

    with app:
        result = app.submit("buy_confirm", {"basket": 7}, xid="8f1c...")

An App has an event loop in a thread of its own, which does what `pgmip.App` does, and worker threads for the handlers.
Its methods can be called from any number of threads, handlers included. `pgmip.sweeper`, `pgmip.metrics` and
`pgmip.http` take either App.

A thread cannot be stopped from outside. Where an attempt ends before its handler does (at the deadline, say), the
statement that the handler waits for is cancelled, its transaction is rolled back at once, and what the handler tries
next in it raises RuntimeError. A handler that never returns keeps its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, Self, TypeVar

from psycopg.abc import Params

from . import app as _app
from ._branch import Statement
from ._cancellation import ended, uninterrupted
from ._handler import check_plain
from ._options import check_count
from ._portal import Closed, Portal
from ._tx import SitesByName
from .app import Isolation, Resolution
from .exceptions import Unknown
from .observe import Hook, Observer

__all__ = ["App", "Copy", "Handler", "Site", "Tx"]

P = ParamSpec("P")
T = TypeVar("T")


class Site:
    """What a handler sees of a site: `tx.store`. As `pgmip.Site`, without `await`."""

    def __init__(self, tx: Tx, site: _app.Site) -> None:
        self._tx = tx
        self._site = site

    def execute(self, sql: Statement, params: Params | None = None) -> int:
        """Run a statement; the number of rows it touched, -1 where PostgreSQL tells none."""
        return self._tx._call(self._site.execute, sql, params)

    def execute_many(self, sql: Statement, params_seq: Iterable[Params]) -> int:
        """Run a statement once for each of these parameters; the number of rows that all of them touched."""
        return self._tx._call(self._site.execute_many, sql, params_seq)

    def fetch_one(self, sql: Statement, params: Params | None = None) -> Any:
        """Run a statement; its first row, with an attribute per column (`row.o_id`), or None."""
        return self._tx._call(self._site.fetch_one, sql, params)

    def fetch_all(self, sql: Statement, params: Params | None = None) -> list[Any]:
        """Run a statement; all of its rows, as in `fetch_one`."""
        return self._tx._call(self._site.fetch_all, sql, params)

    def finish_with(self, sql: Statement, params: Params | None = None) -> None:
        """Give the handler's last statement here, to be run in one round trip with what ends the transaction."""
        self._tx._check_open()
        self._site.finish_with(sql, params)

    @contextlib.contextmanager
    def copy(self, sql: Statement, params: Params | None = None) -> Iterator[Copy]:
        """`with tx.store.copy("COPY item FROM STDIN") as copy:` writes the rows of a COPY, or reads them to the end."""
        with self._tx._entered(self._site.copy(sql, params)) as copy:
            yield Copy(self._tx, copy)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """`with tx.store.savepoint():` undoes what was done here since then if the block raises, and nothing at
        other sites. What another thread has done here meanwhile goes, too, and it is not told.
        """
        try:
            with self._tx._entered(self._site.savepoint()):
                yield
        except GeneratorExit as why:
            self._site._branch.leave(why)
            raise


class Copy:
    """The rows of a COPY. As `pgmip.app.Copy`, without `await`."""

    def __init__(self, tx: Tx, copy: _app.Copy) -> None:
        self._tx = tx
        self._copy = copy

    def set_types(self, types: Sequence[int | str]) -> None:
        """The types of the columns: what `read_row` converts to, and `write_row` in binary format."""
        self._copy.set_types(types)

    def write_row(self, row: Sequence[Any]) -> None:
        """Write one row."""
        self._tx._call(self._copy.write_row, row)

    def write(self, block: bytes | str) -> None:
        """Write any part of the data."""
        self._tx._call(self._copy.write, block)

    def read_row(self) -> tuple[Any, ...] | None:
        """Read a row, of str unless `set_types` says otherwise. None: there are no more."""
        return self._tx._call(self._copy.read_row)

    def read(self) -> bytes:
        """Read some data. Empty: there are no more."""
        return self._tx._call(self._copy.read)


class Tx(SitesByName[Site]):
    """One attempt of a transaction, as its handler sees it: `tx.store` or `tx["store"]` is a site. As `pgmip.Tx`."""

    def __init__(self, tx: _app.Tx, sites: Iterable[str], portal: Portal) -> None:
        super().__init__({name: Site(self, tx[name]) for name in sites})
        self.xid = tx.xid
        self.xinst = tx.xinst
        self._portal = portal
        self._running: set[asyncio.Task[Any]] = set()
        self._over = False

    def _call(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """From the handler's thread: do this in the event loop."""
        return self._portal.call(self._do(lambda: work(*args, **kwargs)))

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

    async def _do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await work()
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            self._running.discard(task)

    def _check_open(self) -> None:
        if self._over:
            raise RuntimeError("the transaction is over")

    async def _end(self) -> None:
        """Cancel the statements that run, and refuse others."""
        self._over = True
        for task in self._running:
            task.cancel()
        await ended(tuple(self._running))


Handler = Callable[[Tx, Any], Any]
H = TypeVar("H", bound=Handler)


class App:
    """As `pgmip.App`, for threads. To be closed; entering it is not needed, leaving it (or `async with`) closes it."""

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
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="pgmip handler")
        self._portal = Portal("pgmip.sync.App")

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

            self._app.transaction(sites=declared, isolation=isolation, name=name or handler.__name__)(run)
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
            with contextlib.suppress(Closed):  # already, or by another thread meanwhile
                self._portal.call(self._app.close(grace=grace))
        finally:
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._portal.close()
            self._app._abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await asyncio.to_thread(self.close)  # which waits for handlers, that may need the caller's event loop

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]], xid: str | None) -> T:
        try:
            return self._portal.call(call())
        except Closed as error:
            raise Unknown("this App is closed: submit to another server", xid=xid) from error

    async def _run(self, handler: Handler, tx: _app.Tx, sites: Iterable[str], request: Any) -> Any:
        """Run a handler in a worker thread, for one attempt."""
        loop = asyncio.get_running_loop()
        facade = Tx(tx, sites, self._portal)
        context = contextvars.copy_context()
        try:
            return await loop.run_in_executor(self._workers, lambda: context.run(_contained, handler, facade, request))
        finally:
            await uninterrupted(facade._end())


def _contained(handler: Handler, tx: Tx, request: Any) -> Any:
    """Call it. What would end a thread or a process, as sys.exit() does, must not end the event loop; and no future
    takes a StopIteration: whoever waits for it would wait for ever.
    """
    try:
        return handler(tx, request)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
