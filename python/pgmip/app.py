"""`App`: transactions over several PostgreSQL databases that survive the death of the process that drives them.

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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

from ._attempt import Handler, Tx
from ._branch import Site
from ._family import Family, Limits, read
from ._json import canonical, parse
from ._pool import Pool
from ._steps import Hook, Step, StepName
from .decision import State, Winner, live
from .exceptions import ProtocolViolation, Unknown
from .xinst import new_xid

__all__ = ["App", "Handler", "Isolation", "Resolution", "Site", "Step", "StepName", "Tx"]

Isolation = Literal["read committed", "repeatable read"]
H = TypeVar("H", bound=Handler)

_LONGEST_XID = 128


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a family: cancelled, or committed with this result."""

    cancelled: bool
    result: Any


@dataclass(frozen=True, slots=True)
class _Transaction:
    handler: Handler
    sites: tuple[str, ...]
    isolation: Isolation


class App:
    """A set of sites and the transactions over them. Keeps no state of its own: run any number, kill any of them."""

    def __init__(
        self,
        sites: Mapping[str, str],
        *,
        pool_size: int = 16,
        deadline: float = 30.0,
        attempts: int = 50,
        step_timeout: float = 5.0,
        parallel: bool = True,
    ) -> None:
        """`sites`: name to conninfo. `pool_size`: how many transactions may run at a site at a time.

        `deadline` (seconds) and `attempts` bound one submit; what is prepared by the deadline is still carried on.
        `step_timeout`: how long a site may take to connect, or to answer a prepare, a commit or a look-up, before
        its connection counts as lost.

        `parallel=False` prepares and commits the sites one after another, in the declared order, so that a process
        killed at `prepared-first-site` leaves exactly one of them prepared: for fault injection. The attribute of the
        same name can be set at any time.
        """
        if not sites:
            raise ValueError("an App needs at least one site")
        self.parallel = parallel
        self._closed = False
        self._limits = Limits(deadline, attempts, step_timeout)
        self._pools = {site: Pool(site, conninfo, pool_size, step_timeout) for site, conninfo in sites.items()}
        self._transactions: dict[str, _Transaction] = {}
        self._hooks: list[Hook] = []

    @property
    def transactions(self) -> tuple[str, ...]:
        """The names that `submit` knows."""
        return tuple(self._transactions)

    def transaction(
        self, *, sites: Iterable[str], isolation: Isolation = "read committed", name: str | None = None
    ) -> Callable[[H], H]:
        """Register `async def handler(tx, request) -> result` under its own name, or `name`.

        Every retry of a request has to name the same sites, so a change of `sites` is a new transaction: give it a
        new name. The result has to be JSON, and so has the request.
        """
        declared = self._known(sites)
        if isolation not in get_args(Isolation):
            raise ValueError(f"isolation has to be one of {get_args(Isolation)}, not {isolation!r}")

        def register(handler: H) -> H:
            known_as = name or handler.__name__
            if not known_as or known_as in self._transactions:
                raise ValueError(f"a transaction needs a name of its own: {known_as!r}")
            self._transactions[known_as] = _Transaction(handler, declared, isolation)
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

        Raises (see pgmip.exceptions) NothingHappened, Decided or Unknown; and, before anything has begun, LookupError
        for an unknown transaction and TypeError or ValueError for a request or an XID that cannot be one. When
        cancelled it leaves no transaction open, but maybe a prepared instance: submit again, or `resolve`.
        """
        self._check_open()
        try:
            transaction = self._transactions[name]
        except KeyError:
            raise LookupError(f"there is no transaction {name!r}") from None
        text = canonical({"transaction": name, "request": request})
        family = self._family(
            new_xid() if xid is None else _checked(xid),
            transaction.sites,
            transaction.isolation,
            alone=xid is None,
            limits=Limits(
                self._limits.deadline if deadline is None else deadline,
                self._limits.attempts if attempts is None else attempts,
                self._limits.step_timeout,
            ),
        )
        settled = await family.run(transaction.handler, text)
        return settled.result(family.xid, text)

    async def resolve(self, xid: str, *, sites: Iterable[str] | None = None) -> Resolution | None:
        """Finish a family without running its handler: commit the winner there is, else cancel the request.

        Cancelling runs an empty instance, which wins unless another one is complete by then; a later submit with this
        XID raises Cancelled. A request that is still being worked on is pre-empted: resolve what is old. `sites` are
        those of the transaction; by default what the MIPTs say. Then None is returned where nothing is in
        doubt because no site knows the XID, or knows more than instances that were aborted.

        Raises Decided where a site could not be told, Unknown where the family could not be resolved, and, before
        anything has begun, ValueError where the family has sites that this App does not know.
        """
        self._check_open()
        known = None if sites is None else self._known(sites)
        mipts, why = await read(self._pools, known or tuple(self._pools), _checked(xid), self._limits.step_timeout)
        entries = [(site, entry) for site, mipt in mipts.items() for entry in mipt or ()]
        if known is None:
            declared = {frozenset(entry.sites or (site,)) for site, entry in entries if entry.state != State.ACTIVE}
            if len(declared) > 1:
                raise ProtocolViolation("instances of the family declare different sites", xid=xid)
            if not declared:
                if why is not None:
                    raise Unknown(f"not all sites could be asked: {why}", xid=xid) from why
                if live(mipts):
                    raise Unknown("the request is being worked on, and its sites are not known yet", xid=xid)
                return None
            known = self._known(sorted(declared.pop()))
        family = self._family(xid, known, "read committed", limits=self._limits)
        winner = family.decide({site: mipts[site] for site in known})
        if winner is not None:
            settled = await family.finish(winner)
        else:
            request = next((entry.request for _, entry in entries if entry.request is not None), None)
            settled = await family.run(None, request)
        resolution = _resolution(settled.winner)
        settled.check_finished(xid, resolution.result)
        return resolution

    def on_step(self, callback: Hook) -> None:
        """Call `callback(step)` at every named step of the protocol, awaiting it where it is async.

        `begun`: the transaction has begun at `step.site` (once per site); `prepared-first-site`, `prepared-all`: this
        attempt is prepared at one site, at all; `committed-first-site`, `committed-all`: the winner, not necessarily
        this attempt, is committed at one site, at all. One site alone commits in one phase, without preparing. The
        attempt waits for the callback, so this is the place for tracing, and for killing the process in a test.
        """
        self._hooks.append(callback)

    async def close(self) -> None:
        """Close the idle connections, and the others as they come back. For good: nothing can be submitted after."""
        self._closed = True
        for pool in self._pools.values():
            await pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _family(
        self, xid: str, sites: tuple[str, ...], isolation: Isolation, *, limits: Limits, alone: bool = False
    ) -> Family:
        return Family(
            xid, sites, isolation, self._pools, self._hooks, limits=limits, parallel=self.parallel, alone=alone
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the App is closed")

    def _known(self, sites: Iterable[str]) -> tuple[str, ...]:
        if isinstance(sites, str):
            raise TypeError("sites are given as a sequence of names")
        declared = tuple(dict.fromkeys(sites))
        unknown = [site for site in declared if site not in self._pools]
        if unknown or not declared:
            raise ValueError(f"not sites of this App: {unknown}" if unknown else "at least one site is needed")
        return declared


def _resolution(winner: Winner) -> Resolution:
    if winner.result is None:
        return Resolution(True, None)
    return Resolution(False, parse(winner.result))


def _checked(xid: str) -> str:
    if not isinstance(xid, str):
        raise TypeError(f"an XID is a string, not {type(xid).__name__}")
    if not 1 <= len(xid.encode()) <= _LONGEST_XID or "\0" in xid:
        raise ValueError(f"an XID has 1 to {_LONGEST_XID} bytes, none of them zero")
    return xid
