"""What an App does, told to those who watch: metrics, logs, traces, and tests that break it::

    class Slow(Observer):
        @contextmanager
        def phase(self, phase):
            began = time.monotonic()
            yield
            print(phase.name, phase.site, time.monotonic() - began, phase.outcome)

    app.observe(Slow())

A *phase* takes time; phases nest: an operation (`submit`, `settle`, `resolve`, `acknowledge`) has attempts, an attempt
has the phases of its sites. A *step* is a moment that the protocol has a name for, see `App.on_step`. Neither carries
a request or a result: those may be secret. An exception may quote them, so tell its `outcome` rather than its text.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import psycopg

from ._sqlstate import said, sqlstate
from ._text import described
from .exceptions import Refuse, SubmitError

__all__ = ["DecisionKind", "Hook", "Observer", "Phase", "PhaseName", "Step", "StepName", "outcome"]

StepName = Literal["begun", "prepared-first-site", "prepared-all", "committed-first-site", "committed-all"]
PhaseName = Literal[
    "submit", "settle", "resolve", "acknowledge",
    "attempt", "handler", "connect", "prepare", "commit", "rollback", "refuse", "read",
]  # fmt: skip
DecisionKind = Literal["own", "sibling", "adopted", "earlier", "cancelled"]

_log = logging.getLogger("pgmip")


@dataclass(frozen=True, slots=True)
class Step:
    """A step that one attempt has just taken; see `App.on_step`. `site` is None for the steps of all sites."""

    name: StepName
    xid: str
    xinst: int
    site: str | None


Hook = Callable[[Step], Awaitable[None] | None]

NOTHING = nullcontext()
"""The context manager of who does not look at a phase. It is not even entered: most phases are looked at by few."""


class Observer:
    """Watches an App (`App.observe`). Override what you need; what is not overridden costs next to nothing.

    Both methods are called by the task that does the work, which waits for them: be quick, and never block.
    """

    def phase(self, phase: Phase) -> AbstractContextManager[Any]:
        """A context manager that is entered where the phase begins and left where it has ended, always without an
        exception: how it ended is in `phase` then. What this method or its context manager raises is logged and
        otherwise ignored.
        """
        return NOTHING

    def step(self, step: Step) -> Awaitable[None] | None:
        """Called at a step, and awaited where it is async. What it raises ends the attempt."""
        return None

    def is_idle(self) -> bool:
        """Whether what begins now need not be told: a sync App takes a shorter way where nobody looks at it, but for
        what does not go as it should. Called by any thread.
        """
        return False


class Phase:
    """Something that takes time and may fail. A context manager; parts of it are made by `part`."""

    __slots__ = (
        "_entered", "_observers",
        "after", "decision", "error", "name", "siblings", "site", "transaction", "xid", "xinst",
    )  # fmt: skip

    def __init__(
        self, observers: Sequence[Observer], name: PhaseName, xid: str, *,
        transaction: str | None = None, xinst: int | None = None, site: str | None = None,
    ) -> None:  # fmt: skip
        self._observers = observers
        self._entered: list[AbstractContextManager[Any]] = []
        self.name: PhaseName = name
        self.xid = xid
        self.transaction = transaction
        """The name of the transaction, where it is known."""
        self.xinst = xinst
        """The instance concerned; None where that is a whole family."""
        self.site = site
        """The site concerned; None where that is all of them."""
        self.error: BaseException | None = None
        """Once it has ended: why it failed, or None."""
        self.after: BaseException | None = None
        """Of an attempt that is a retry: why the one before it failed."""
        self.decision: DecisionKind | None = None
        """Of an operation that has found a winner: an instance of its `own`, a `sibling`'s that it completes, one
        that is `adopted` because it is prepared at every site before an own one has done its work, one that was
        committed `earlier`; or that the request is `cancelled`."""
        self.siblings = 0
        """Of an operation: how many instances of others it has seen active or prepared."""

    @property
    def outcome(self) -> str:
        """How it ended; see the function `outcome`."""
        return outcome(self.error)

    def part(self, name: PhaseName, *, xinst: int | None = None, site: str | None = None) -> Phase:
        """A phase within this one."""
        xinst = self.xinst if xinst is None else xinst
        return Phase(self._observers, name, self.xid, transaction=self.transaction, xinst=xinst, site=site)

    async def step(self, name: StepName, xinst: int, site: str | None) -> None:
        """Tell of a step taken within this phase."""
        step = Step(name, self.xid, xinst, site)
        for observer in self._observers:
            try:
                answer = observer.step(step)
                if answer is not None and inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # also a psycopg.Error or a SubmitError: of no site, and no word on this request
                raise RuntimeError(f"an observer has failed at {name}: {described(error)}") from error

    def __enter__(self) -> Self:
        for observer in self._observers:
            try:
                manager = observer.phase(self)
                if manager is NOTHING:
                    continue
                manager.__enter__()
            except Exception:
                _tell_of_failure()
            else:
                self._entered.append(manager)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error or self.error
        _leave(self._entered)


def _leave(entered: list[AbstractContextManager[Any]]) -> None:
    """Those of observers, the last one first. That one fails is no reason to fail: how what is observed has ended must
    be told.
    """
    if not entered:
        return
    try:
        entered.pop().__exit__(None, None, None)
    except Exception:
        _tell_of_failure()
    finally:
        _leave(entered)


def _tell_of_failure() -> None:
    """The log: unless that is what has failed, as by a filter of it that raises."""
    with suppress(Exception):
        _log.exception("an observer has failed")


class Hooked(Observer):
    """An observer of steps alone, made of a function."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def step(self, step: Step) -> Awaitable[None] | None:
        return self._hook(step)


_SQLSTATES = {
    "MP001": "family_committed",
    "MP002": "superseded",
    "MP003": "sites_differ",
    "MP004": "instance_used",
    "MP005": "doomed",
    "MP006": "not_usable",
    "MP007": "expired",
    "40001": "serialization_failure",
    "40P01": "deadlock",
    "53200": "out_of_memory",
    "53300": "too_many_connections",
    "57014": "statement_cancelled",
    "57P01": "server_down",
    "57P02": "server_down",
    "57P03": "server_down",
}


def outcome(error: BaseException | None) -> str:
    """One word for how something ended, out of a small set: fit for a metric's label, and never anybody's data.

    `ok`; the exceptions of pgmip by name (`nothing_happened`, `unknown` ...; `refused` for `Refuse`, too); what an
    SQLSTATE means for a coordinator (`superseded`, `deadlock` ...), else `constraint` or `sql_error`; `connection`
    where it was lost or not had; `timeout`; `interrupted` where the task was cancelled; `exception` for any other.
    """
    match error:
        case None:
            return "ok"
        case SubmitError():
            return "".join("_" + c.lower() if c.isupper() else c for c in type(error).__name__).removeprefix("_")
        case Refuse():
            return "refused"
        case psycopg.Error():
            return _of_postgres(error)
        case TimeoutError():
            return "timeout"
        case asyncio.CancelledError():
            return "interrupted"
    return "exception"


def _of_postgres(error: psycopg.Error) -> str:
    if sqlstate(error) is None:
        return "connection" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else "sql_error"
    state = said(error) or ""
    return _SQLSTATES.get(state) or ("constraint" if state.startswith("23") else "sql_error")
