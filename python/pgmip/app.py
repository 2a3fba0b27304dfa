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

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

__all__ = ["App", "Handler", "Isolation", "Resolution", "Site", "Step", "StepName", "Tx"]

Json = Any
Isolation = Literal["read committed", "repeatable read"]
StepName = Literal["begun", "prepared-first-site", "prepared-all", "committed-first-site", "committed-all"]


@dataclass(frozen=True, slots=True)
class Step:
    """A named step of the protocol that one attempt has just taken; see `App.on_step`."""

    name: StepName
    xid: str
    xinst: int
    site: str | None


class Site(Protocol):
    """A branch: the part of a transaction at one site. Begun by its first statement."""

    async def execute(self, sql: str, params: Any = None) -> int:
        """Run a statement; the number of rows it touched (-1 where PostgreSQL tells none)."""

    async def fetch_one(self, sql: str, params: Any = None) -> Any:
        """Its first row, with a column per attribute (`row.o_id`, also `row[0]`), or None."""

    async def fetch_all(self, sql: str, params: Any = None) -> list[Any]:
        """All of its rows, as in fetch_one."""


class Tx(Protocol):
    """One attempt of a transaction, as its handler sees it: `tx.store`, `tx["store"]`, `tx.xid`."""

    xid: str
    xinst: int

    def __getattr__(self, site: str) -> Site: ...
    def __getitem__(self, site: str) -> Site: ...


Handler = Callable[[Tx, Json], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of a family: cancelled, or committed with this result."""

    cancelled: bool
    result: Json


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
        """`sites`: name to conninfo. `pool_size`: connections per site. `deadline` (seconds) and `attempts` bound
        one submit. `step_timeout`: how long a site may take to connect or to answer a prepare, commit or look-up.
        `parallel=False` prepares and commits the sites one after another, in the declared order, so that a process
        killed at `prepared-first-site` leaves exactly one site prepared: for fault injection.
        """
        raise NotImplementedError

    def transaction(
        self, *, sites: Iterable[str], isolation: Isolation = "read committed", name: str | None = None
    ) -> Callable[[Handler], Handler]:
        """Register `async def handler(tx, request) -> result` under its own name, or `name`."""
        raise NotImplementedError

    async def submit(
        self,
        name: str,
        request: Json,
        xid: str | None = None,
        *,
        deadline: float | None = None,
        attempts: int | None = None,
    ) -> Json:
        """Run the transaction exactly once per XID and return its result, the same for every retransmission."""
        raise NotImplementedError

    async def resolve(self, xid: str, *, sites: Iterable[str] | None = None) -> Resolution | None:
        """Finish a family left in doubt without running its handler; None where no site knows it."""
        raise NotImplementedError

    def on_step(self, callback: Callable[[Step], Awaitable[None] | None]) -> None:
        """Call `callback` (sync or async, awaited) at every named step. For tracing, and for killing at a step."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all connections."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
