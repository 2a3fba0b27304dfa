"""`App`: transactions over several PostgreSQL databases that survive the death of the process that drives them::

    app = App(sites={"store": "service=store", "bank": "service=bank"})

    @app.transaction(sites=("store", "bank"))
    async def buy_confirm(tx, request):
        order = await tx.store.fetch_one("INSERT INTO orders ... RETURNING o_id", (...,))
        await tx.bank.execute("UPDATE account SET balance = balance - %s ...", (...,))
        return {"order": order.o_id}

    async with app:
        result = await app.submit("buy_confirm", {"basket": 7}, xid="8f1c...")

SQL is psycopg's: `%s` and `%(name)s` stand for parameters. See pgmip.exceptions for what an exception means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ._attempt import Handler, Tx
from ._branch import Site
from ._family import Family, Found, Limits, Settled, find
from ._json import canonical, parse
from ._pool import Pool, PoolSettings
from ._process import Process
from ._running import Running
from .decision import Winner, explain
from .exceptions import Cancelled, SubmitError, Unknown
from .logs import Logs
from .observe import Hook, Hooked, Observer, Phase, PhaseName, Step, StepName
from .tracing import Tracing
from .tracing import installed as tracing_installed
from .xinst import checked_xid, new_xid

__all__ = ["App", "Handler", "Isolation", "Resolution", "Site", "Step", "StepName", "Tx"]

Isolation = Literal["read committed", "repeatable read"]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a family: cancelled, or committed with this result."""

    cancelled: bool
    result: Any


@dataclass(frozen=True, slots=True)
class _Transaction:
    name: str
    handler: Handler
    sites: tuple[str, ...]
    isolation: Isolation


class App:
    """A set of sites and the transactions over them. Keeps no state of its own: run any number, kill any of them.

    It belongs to the process that uses it first. It may be made before a fork, but not used before and after it.
    """

    def __init__(
        self,
        sites: Mapping[str, str],
        *,
        pool_size: int = 16,
        pool_min_size: int = 0,
        pool_max_idle: float = 600.0,
        prepared_statements: bool = True,
        deadline: float = 30.0,
        attempts: int = 50,
        step_timeout: float = 5.0,
        parallel: bool = True,
    ) -> None:
        """`sites`: name to conninfo.

        `pool_size`: how many transactions may run at a site at a time, each over a connection of its own; a few more
        connections are for what finishes transactions. Connections above `pool_min_size` are closed when they have
        not been needed for `pool_max_idle` seconds.

        `prepared_statements=False` is for poolers that give a session to others between transactions but do not keep
        track of prepared statements (PgBouncer before 1.21, or with `max_prepared_statements = 0`): with them one
        client's statement could be executed for another's.

        `deadline` (seconds) and `attempts` bound one submit; what is prepared by the deadline is still carried on.
        `step_timeout`: how long a site may take to connect, or to answer a prepare, a commit or a look-up, before
        its connection counts as lost.

        `parallel=False` prepares and commits the sites one after another, in the declared order, so that a process
        killed at `prepared-first-site` leaves exactly one of them prepared: for fault injection. The attribute of the
        same name can be set at any time.
        """
        if not sites:
            raise ValueError("an App needs at least one site")
        for site, conninfo in sites.items():
            try:
                conninfo_to_dict(conninfo)
            except psycopg.ProgrammingError as error:
                raise ValueError(f"site {site!r} has no usable conninfo: {error}") from error
        self.parallel = parallel
        self._sites = dict(sites)
        process = Process("this App")
        self._running = Running(process)
        self._limits = Limits(deadline, attempts, step_timeout)
        settings = PoolSettings(pool_min_size, pool_size, pool_max_idle, prepared_statements)
        self._pools = {site: Pool(site, conninfo, settings, step_timeout, process) for site, conninfo in sites.items()}
        self._transactions: dict[str, _Transaction] = {}
        self._observers: list[Observer] = [*([Tracing()] if tracing_installed else []), Logs()]

    @property
    def sites(self) -> Mapping[str, str]:
        """The sites, name to conninfo."""
        return MappingProxyType(self._sites)

    @property
    def deadline(self) -> float:
        """How long one submit may take, in seconds."""
        return self._limits.deadline

    @property
    def step_timeout(self) -> float:
        """How long (seconds) a site may take for a step, before its connection counts as lost."""
        return self._limits.step_timeout

    @property
    def transactions(self) -> tuple[str, ...]:
        """The names that `submit` knows."""
        return tuple(self._transactions)

    def transaction(
        self, *, sites: Iterable[str], isolation: Isolation = "read committed", name: str | None = None
    ) -> Callable[[H], H]:
        """Register `async def handler(tx, request) -> result` under its own name, or `name`.

        Every retry of a request has to name the same sites, so a change of `sites` is a new transaction: give it a
        new name. The result has to be JSON, and so has the request, both nested less than 200 deep.

        At the deadline the handler is cancelled, and where it swallows that, again every `step_timeout` seconds.
        """
        declared = self._known(sites)
        if isolation not in get_args(Isolation):
            raise ValueError(f"isolation has to be one of {get_args(Isolation)}, not {isolation!r}")

        def register(handler: H) -> H:
            known_as = name or handler.__name__
            if not known_as or known_as in self._transactions:
                raise ValueError(f"a transaction needs a name of its own: {known_as!r}")
            self._transactions[known_as] = _Transaction(known_as, handler, declared, isolation)
            return handler

        return register

    async def submit(
        self,
        name: str,
        request: Any,
        xid: str | None = None,
        *,
        deadline: float | None = None,
        attempts: int | None = None,
    ) -> Any:
        """Run a transaction exactly once per XID; its result is the same for every retransmission, at any server.

        Without `xid` a new one is used, which is then known only from the exception. A request that an earlier
        submit has decided is not run again: its result is returned.

        Raises (see pgmip.exceptions) NothingHappened, Decided, Unknown or Expired; and, before anything has begun,
        LookupError for an unknown transaction, TypeError or ValueError for a request or an XID that cannot be one, and
        RuntimeError in a process that was forked after this App had been used.
        When cancelled it leaves no transaction open, but maybe a prepared instance: submit again, or `settle`. The same
        goes for what is no Exception, as KeyboardInterrupt, wherever it is raised: it passes through.
        """
        try:
            transaction = self._transactions[name]
        except KeyError:
            raise LookupError(f"there is no transaction {name!r}") from None
        text = canonical({"transaction": name, "request": request})
        phase = self._operation("submit", new_xid() if xid is None else xid, name)
        limits = self._limits.until(deadline, attempts)
        return await self._running.run(self._submit(phase, transaction, text, limits, alone=xid is None), phase.xid)

    async def settle(
        self, xid: str, *, sites: Iterable[str] | None = None, deadline: float | None = None, cancel: bool = True
    ) -> Resolution | None:
        """Carry to its end what somebody else began: as a retransmission would, or by cancelling it.

        Commits the winner where there is one. Else the handler that the request names runs again, as a further
        instance; where this App does not have it, or has it with other sites, the request is cancelled as by
        `resolve`, or with `cancel=False` left alone, and Unknown is raised. A request that is still being worked on
        is pre-empted: settle what is old. Any number of processes may settle the same request.

        `sites` are those of the transaction; by default what the MIPTs say, and then None is returned where nothing
        is in doubt (any more), because no site knows the XID or knows more than instances that were aborted; None also
        where the request is committed and acknowledged.

        Raises Decided, or Cancelled, where that could not be told to a site; NothingHappened where this call has undone
        what others may wait for, and come no further; Unknown where the family could not be settled (also where the
        handler raises); and, before anything has begun, ValueError where the family has sites that this App does not
        know, or others than `sites`.
        """
        work = self._settle(self._operation("settle", xid), sites, run=True, cancel=cancel, deadline=deadline)
        return await self._running.run(work, xid)

    async def resolve(
        self, xid: str, *, sites: Iterable[str] | None = None, cancel: bool = True
    ) -> Resolution | None:
        """Settle a request without its handler: commit the winner there is, else cancel the request.

        Cancelling runs an empty instance, which wins unless another one is complete by then; a later submit with this
        XID raises Cancelled (or Expired, where it is too old by then). With `cancel=False` nothing is cancelled:
        Unknown is raised where there is no winner. Everything else is as for `settle`.
        """
        return await self._running.run(self._settle(self._operation("resolve", xid), sites, cancel=cancel), xid)

    async def acknowledge(self, xid: str, *, sites: Iterable[str] | None = None) -> None:
        """Say that the result of a request has arrived and will not be asked for again: the sites drop its texts.

        From then on `submit` with this XID raises Expired. A decided request that a site has not been told of is
        finished first. Where no site knows the XID there is nothing to do. `sites` are those of the transaction; by
        default what the MIPTs say. May be repeated.

        Raises Unknown where the request is not decided, or where a site could not be reached.
        """
        await self._running.run(self._acknowledge(self._operation("acknowledge", xid), sites), xid)

    def on_step(self, callback: Hook) -> None:
        """Call `callback(step)` at every named step of the protocol, awaiting it where it is async.

        `begun`: the transaction has begun at `step.site` (once per site); `prepared-first-site`, `prepared-all`: this
        attempt is prepared at one site, at all; `committed-first-site`, `committed-all`: the winner, not necessarily
        this attempt, is committed at one site, at all. One site alone commits in one phase, without preparing. The
        attempt waits for the callback, so this is the place for tracing, and for killing the process in a test. What it
        raises makes the outcome Unknown.
        """
        self.observe(Hooked(callback))

    def observe(self, observer: Observer) -> None:
        """Have `observer` told of everything that begins from now on; see pgmip.observe."""
        # What has begun keeps the observers that it was begun with.
        self._observers = [*self._observers, observer]

    async def close(self, *, grace: float = 5.0) -> None:
        """Shut down: begin nothing more, let what runs finish for `grace` seconds, roll back what has not, disconnect.

        For good. Whoever submits from now on, or is not finished in time, gets Unknown: another server can go on. What
        is prepared by then stays so until somebody does. May be called again, to wait no longer.
        """
        await self._running.close(grace)
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def __aenter__(self) -> Self:
        for pool in self._pools.values():
            await pool.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _submit(
        self, phase: Phase, transaction: _Transaction, text: str, limits: Limits, *, alone: bool
    ) -> Any:
        with phase, _no_surprise(phase.xid):
            family = self._family(phase, transaction.sites, transaction.isolation, alone=alone, limits=limits)
            settled = await family.run(transaction.handler, text)
            return settled.result(family.xid, text)

    async def _settle(
        self, phase: Phase, sites: Iterable[str] | None, *, run: bool = False, cancel: bool = True,
        deadline: float | None = None,
    ) -> Resolution | None:  # fmt: skip
        with phase:
            with _no_surprise(phase.xid, ValueError):
                found = await self._find(phase, sites)
            if found is None:
                return None
            transaction = self._named_in(found) if run else None
            phase.transaction = transaction.name if transaction else None
            family = self._family(
                phase,
                transaction.sites if transaction else found.sites,
                transaction.isolation if transaction else "read committed",
                limits=self._limits.until(deadline),
            )
            with _no_surprise(phase.xid):
                try:
                    settled = await self._decided(family, found, transaction, cancel=cancel)
                except Cancelled:
                    return Resolution(True, None)
                if settled is None:
                    return None
                settled.check_finished(phase.xid)
                return None if settled.winner.acknowledged else _resolution(settled.winner)

    async def _decided(
        self, family: Family, found: Found, transaction: _Transaction | None, *, cancel: bool
    ) -> Settled | None:
        winner = family.decide(found.mipts)
        if winner is not None:
            return await family.finish(winner)
        if transaction is None and not cancel:
            raise Unknown(f"the request is not decided. {explain(found.mipts).reason}", xid=family.xid)
        return await family.settle(transaction.handler if transaction else None, found.request)

    async def _acknowledge(self, phase: Phase, sites: Iterable[str] | None) -> None:
        with phase:
            with _no_surprise(phase.xid, ValueError):
                found = await self._find(phase, sites)
            if found is None:
                return
            family = self._family(phase, found.sites, "read committed", limits=self._limits)
            with _no_surprise(phase.xid):
                await self._acknowledge_found(family, found)

    async def _acknowledge_found(self, family: Family, found: Found) -> None:
        winner = family.decide(found.mipts)
        if winner is None:
            why = f"only a decided request can be acknowledged. {explain(found.mipts).reason}"
            raise Unknown(why, xid=family.xid)
        await family.acknowledge(await family.finish(winner))

    async def _find(self, phase: Phase, sites: Iterable[str] | None) -> Found | None:
        known = None if sites is None else self._known(sites)
        return await find(phase, self._pools, known, self._limits.step_timeout)

    def _named_in(self, found: Found) -> _Transaction | None:
        """The transaction that a family's request names, if it is known here with the family's sites."""
        try:
            transaction = self._transactions[parse(found.request or "")["transaction"]]
        except (ValueError, LookupError, TypeError):
            return None
        return transaction if set(transaction.sites) == set(found.sites) else None

    def _operation(self, name: PhaseName, xid: str, transaction: str | None = None) -> Phase:
        return Phase(self._observers, name, checked_xid(xid), transaction=transaction)

    def _family(
        self, phase: Phase, sites: tuple[str, ...], isolation: Isolation, *, limits: Limits, alone: bool = False
    ) -> Family:
        return Family(phase, sites, isolation, self._pools, limits=limits, parallel=self.parallel, alone=alone)

    def _known(self, sites: Iterable[str]) -> tuple[str, ...]:
        if isinstance(sites, str):
            raise TypeError("sites are given as a sequence of names")
        declared = tuple(dict.fromkeys(sites))
        unknown = [site for site in declared if site not in self._pools]
        if unknown or not declared:
            raise ValueError(f"not sites of this App: {unknown}" if unknown else "at least one site is needed")
        return declared


@contextlib.contextmanager
def _no_surprise(xid: str, *foreseen: type[Exception]) -> Iterator[None]:
    """What nobody has foreseen says nothing of the request."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (SubmitError, *foreseen)):
            raise
        raise Unknown(f"something unexpected has happened: {type(error).__name__}: {error}", xid=xid) from error


def _resolution(winner: Winner) -> Resolution:
    if winner.result is None:
        return Resolution(True, None)
    return Resolution(False, parse(winner.result))
