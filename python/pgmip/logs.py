"""Logging: what an App does, as records of the standard library's logger `pgmip`, with fields for machines.

Every App logs. Where nothing is configured Python prints what is a warning or worse; for the rest::

    handler = logging.StreamHandler()
    handler.setFormatter(pgmip.logs.JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

========  ==================================================================================================
Level     What
========  ==================================================================================================
ERROR     The MIPTs contradict each other (`protocol_violation`); an observer has failed.
WARNING   A site cannot be reached or does not answer; an operation has ended `unknown`, `decided` with a site
          still to be told, or `nothing_happened` (but INFO, where an endpoint has said why to its client). The
          message ends with the SQLSTATE, if one of PostgreSQL's errors is why, or with the class of the
          exception, if a handler's own is.
INFO      A failed attempt (which ends likewise); an operation that found a sibling's work and completed it,
          or was refused.
DEBUG     Everything else: all phases with their durations.
========  ==================================================================================================

The fields of a record (`extra`) are FIELDS: `error` (the class of the exception) and `sqlstate` (its own, or of what
has caused it) are those of a failure, `decision` is an operation's, `idempotency_key` is the header's, in records of
`pgmip.http`. Never a request, a result, a row or the text of an
exception, which may quote them: but for the logger `pgmip.http`, which has the texts that HTTP clients are not told.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime

import psycopg

from ._recorded import Unrecorded
from ._sqlstate import sqlstate
from ._text import is_foreign
from .observe import Observer, Phase

__all__ = ["FIELDS", "JsonFormatter", "Logs"]

FIELDS = (
    "phase", "xid", "xinst", "site", "transaction", "outcome", "seconds", "error", "sqlstate", "decision",
    "idempotency_key",
)  # fmt: skip
"""What records carry beside what every record has; None where it does not apply."""

_OF_THE_SITE = frozenset({"connection", "server_down", "timeout", "out_of_memory", "too_many_connections"})
_COMPLETED = ("sibling", "adopted")  # for another server
_WARNINGS = frozenset({"unknown", "decided", "nothing_happened"})


class Logs(Observer):
    """Logs the end of every phase. Every App has one."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("pgmip")

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        return _Logged(self._logger, phase)

    def is_idle(self) -> bool:
        return not self._logger.isEnabledFor(logging.DEBUG)


class _Logged:
    """A phase."""

    __slots__ = ("_began", "_logger", "_phase")

    def __init__(self, logger: logging.Logger, phase: Phase) -> None:
        self._logger = logger
        self._phase = phase

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        level = _level(self._phase)
        if self._logger.isEnabledFor(level):
            why = quoted_reason(self._phase.error) if level >= logging.INFO else ""
            fields = _fields(self._phase, time.perf_counter() - self._began)
            self._logger.log(level, _message(self._phase) + why, extra=fields)


class JsonFormatter(logging.Formatter):
    """One line of JSON per record: time (UTC), level, logger, message, the FIELDS that it has, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _level(phase: Phase) -> int:
    if phase.error is None:
        return logging.INFO if phase.decision in _COMPLETED else logging.DEBUG
    if phase.outcome == "protocol_violation":
        return logging.ERROR
    if phase.site is not None:
        return logging.WARNING if phase.outcome in _OF_THE_SITE else logging.DEBUG
    if phase.outcome in _WARNINGS:
        told = phase.error is not None and isinstance(phase.error.__cause__, Unrecorded)
        return logging.INFO if told else logging.WARNING
    if phase.name == "handler":
        return logging.DEBUG  # its attempt tells
    return logging.INFO


def _message(phase: Phase) -> str:
    what = phase.name if phase.transaction is None else f"{phase.name} {phase.transaction}"
    where = "" if phase.site is None else f" at {phase.site}"
    how = phase.outcome if phase.decision is None else f"{phase.outcome} ({phase.decision})"
    return f"{what}{where}: {how}"


def _fields(phase: Phase, seconds: float) -> dict[str, object]:
    return {
        "phase": phase.name,
        "xid": phase.xid,
        "xinst": phase.xinst,
        "site": phase.site,
        "transaction": phase.transaction,
        "outcome": phase.outcome,
        "seconds": round(seconds, 6),
        "decision": phase.decision,
        "idempotency_key": None,
        **failure_fields(phase.error),
    }


def failure_fields(error: BaseException | None) -> dict[str, object]:
    """What may be logged of an error. Not its text: PostgreSQL's messages quote values, a handler's what they like."""
    return {"error": None if error is None else type(error).__name__, "sqlstate": _sqlstate_behind(error)}


def quoted_sqlstate(error: BaseException | None) -> str:
    """The SQLSTATE of an error, or of what has caused it, for the end of a message; empty where there is none."""
    state = _sqlstate_behind(error)
    return "" if state is None else f" (SQLSTATE {state})"


def quoted_reason(error: BaseException | None) -> str:
    """The same; without one the class of the exception that is why, where it is neither psycopg's nor pgmip's."""
    foreign = [one for one in _causes(error) if is_foreign(one) and not isinstance(one, psycopg.Error)]
    return quoted_sqlstate(error) or (f" ({type(foreign[0]).__name__})" if foreign else "")


def _sqlstate_behind(error: BaseException | None) -> str | None:
    return next((state for one in _causes(error) if (state := sqlstate(one)) is not None), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised `from`, and so on."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
