"""What an error of PostgreSQL means for the attempt that met it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg.pq import ConnStatus

from .exceptions import SiteDown

__all__ = [
    "EXPIRED",
    "FAMILY_COMMITTED",
    "NOT_USABLE",
    "OTHER_SITES",
    "SessionEnded",
    "awaits_decision",
    "has_met_another_role",
    "is_acknowledged",
    "is_definite",
    "is_given_up",
    "is_protocol",
    "is_retryable",
    "may_be_held_up",
    "said",
    "sqlstate",
    "superseded_by",
]

FAMILY_COMMITTED = "MP001"
SUPERSEDED = "MP002"
OTHER_SITES = "MP003"
DUPLICATE = "MP004"
DOOMED = "MP005"
NOT_USABLE = "MP006"
EXPIRED = "MP007"
_UNKNOWN = "08007"

_RETRYABLE = frozenset(
    {
        FAMILY_COMMITTED,
        SUPERSEDED,  # by a higher instance
        DUPLICATE,  # instance id already used
        DOOMED,  # ended so that a sibling could be committed, or given up
        "26000",  # somebody has dropped our prepared statements, which are forgotten
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55006",  # somebody else writes to the family's MIPT entries
        "53200",  # out of memory: also max_prepared_transactions reached
        "53300",  # too many connections
        "57P01",  # the server is shutting down, has crashed, or is starting up
        "57P02",
        "57P03",
        "57P05",  # has ended an idle session, just when we took it
    }
)

# deadlock, lock_timeout, statement_timeout; and no room to prepare, which what is in doubt may have taken
_HELD_UP = frozenset({"40P01", "53200", "55P03", "57014"})


def sqlstate(error: BaseException | None) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None


def said(error: BaseException | None) -> str | None:
    """The SQLSTATE where it means what it says.

    A handler's SQL may raise those of the extension, in PL/pgSQL by RAISE. But no SQL can make up the name of the C
    function that has raised an error. NOT_USABLE says nothing of the request, whoever raises it.
    """
    state = sqlstate(error)
    if not isinstance(error, psycopg.Error) or state is None or not state.startswith("MP") or state == NOT_USABLE:
        return state
    return state if _is_extensions(error) else None


def _is_extensions(error: psycopg.Error) -> bool:
    return (error.diag.source_function or "").startswith("mip")


def is_acknowledged(error: psycopg.Error) -> bool:
    """Whether a site says that the request is committed and acknowledged there, which is no word on whose commit."""
    return error.sqlstate == EXPIRED and json.loads(error.diag.message_detail or "{}").get("reason") == "acknowledged"


def superseded_by(error: BaseException | None) -> tuple[int, ...]:
    """The sibling that a site has prepared, and has refused this attempt for."""
    if not isinstance(error, psycopg.Error) or said(error) != SUPERSEDED:
        return ()
    xinst = json.loads(error.diag.message_detail or "{}").get("xinst")
    return () if xinst is None else (xinst,)


class SessionEnded(psycopg.OperationalError):
    """A site has ended the session of an instance."""


def is_given_up(error: BaseException | None) -> bool:
    """Whether somebody may have given this attempt up, or stands in its way and goes on, by a site's word: while it was
    there, or before it came, or when it was about to be prepared. Of an instance that executes nothing the site ends
    the session.
    """
    return (
        said(error) in (OTHER_SITES, DUPLICATE, DOOMED, "57P01")
        or isinstance(error, SessionEnded)
        or _has_met_a_change(error)
        or has_met_another_role(error)
    )


def has_met_another_role(error: BaseException | None) -> bool:
    """Whether the family is another role's, of whose instances no more is told."""
    return isinstance(error, psycopg.Error) and error.diag.source_function == "mip_raise_stranger"


def _has_met_a_change(error: BaseException | None) -> bool:
    """Whether a sibling, of whom no more is told, has changed its state there meanwhile."""
    return _is_about("mipt", error)


def is_protocol(error: BaseException | None) -> bool:
    """Whether the extension itself refused: the whole attempt is lost, whatever the handler makes of the error."""
    return (said(error) or "").startswith("MP")


def is_retryable(error: BaseException | None) -> bool:
    """Whether a new instance may do better: the error is about rivals or about reaching the site, not the request."""
    if isinstance(error, SiteDown):
        return False  # that has been waited for
    if sqlstate(error) is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return said(error) in _RETRYABLE or _is_cut(error)


def _is_cut(error: BaseException | None) -> bool:
    """Whether the connection has been ended on the way: so says a pooler, whose messages lack a field of PostgreSQL's.
    Its own error of that class is about a connection of the statement's, to yet another server.
    """
    of_connection = isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("08")
    return of_connection and error.diag.severity_nonlocalized != "ERROR"  # type: ignore[union-attr]


def may_be_held_up(error: BaseException | None) -> bool:
    """Whether the attempt may have waited, in vain, for who waits for a sibling that is in doubt; or may fail until a
    request is decided that fails, in turn, until ours is.
    """
    return sqlstate(error) in _HELD_UP or awaits_decision(error)


def awaits_decision(error: BaseException | None) -> bool:
    """Whether the error comes again until somebody else's request, which is in doubt, is decided."""
    return _is_about("in_doubt", error)


def _is_about(relation: str, error: BaseException | None) -> bool:
    """Whether the error names this relation of the extension's, as its own ones do that have another's SQLSTATE."""
    return isinstance(error, psycopg.Error) and (error.diag.schema_name, error.diag.table_name) == ("mip", relation)


def is_definite(error: BaseException, conn: psycopg.AsyncConnection[Any]) -> bool:
    """Whether the site said no, so that nothing was prepared or committed by the statement.

    Only an ERROR received over a connection that still stands says so. A lost connection does not, nor does the FATAL
    of a session that is being ended: it may come after the deed. Nor does who says that he does not know, as a replica
    that has been interrupted while it waited for the log.
    """
    return (
        isinstance(error, psycopg.Error)
        and error.sqlstate not in (None, _UNKNOWN)
        and error.diag.severity_nonlocalized == "ERROR"
        and conn.pgconn.status == ConnStatus.OK
    )
