"""Problem documents (RFC 9457): how HTTP says what did not come to a result, written by the server, read by the client.

The member `type` tells the kinds apart, since several share a status, and since a status may also come from something
in between that knows nothing of the request.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import psycopg

from ._json import canonical, parse
from ._text import text
from .exceptions import (
    Cancelled,
    EarlierLost,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refused,
    SubmitError,
)
from .logs import failure_fields, quoted_sqlstate

__all__ = ["MEDIA_TYPE", "RETRY_AFTER", "Kind", "Problem", "log_failure"]

_logger = logging.getLogger("pgmip.http")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 1
"""Seconds that a 409 or 503 asks to wait."""

_PREFIX = "urn:pgmip:problem"


class Kind(StrEnum):
    """The last word of a problem's `type`."""

    KEY_MISSING = "key-missing"
    KEY_INVALID = "key-invalid"
    BAD_REQUEST = "bad-request"
    NO_SUCH_TRANSACTION = "no-such-transaction"
    IN_PROGRESS = "in-progress"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    TOO_LARGE = "too-large"
    KEY_REUSED = "key-reused"
    REFUSED = "refused"
    LOST = "lost"
    FAILED = "failed"
    UNKNOWN = "unknown"
    PROTOCOL_VIOLATION = "protocol-violation"

    @property
    def status(self) -> int:
        return _MEANING[self][0]

    @property
    def summary(self) -> str:
        return _MEANING[self][1]


_MEANING: dict[Kind, tuple[int, str]] = {
    Kind.KEY_MISSING: (400, "The header Idempotency-Key is missing"),
    Kind.KEY_INVALID: (400, "Not a usable Idempotency-Key"),
    Kind.BAD_REQUEST: (400, "Not a usable request"),
    Kind.NO_SUCH_TRANSACTION: (404, "No such transaction"),
    Kind.IN_PROGRESS: (409, "A request with this Idempotency-Key is being worked on"),
    Kind.CANCELLED: (410, "Cancelled"),
    Kind.EXPIRED: (410, "The result is gone, and the request never runs again"),
    Kind.TOO_LARGE: (413, "The request is too large"),
    Kind.KEY_REUSED: (422, "Idempotency-Key already used for another request"),
    Kind.REFUSED: (422, "The request is refused: it has no effect, and never will"),
    Kind.LOST: (424, "A site has lost an earlier request"),
    Kind.FAILED: (500, "The transaction failed and has no effect"),
    Kind.UNKNOWN: (503, "The outcome is open: send the request again"),
    Kind.PROTOCOL_VIOLATION: (503, "The outcome is open: the sites contradict each other"),
}


_DETAILS: dict[Kind, str] = {
    Kind.CANCELLED: "an operator has cancelled the request: nothing has happened, and nothing will",
    Kind.EXPIRED: "the request is acknowledged, or too old; what became of it is not known here any more",
    Kind.KEY_REUSED: "the key belongs to another request, which is decided; use a new one",
    Kind.REFUSED: "see the member result",
    Kind.LOST: "an earlier request of yours, answered as done, is lost; this one has not begun: look, then send it",
    Kind.FAILED: "the server's log has the reason; the request may be sent again",
    Kind.UNKNOWN: "the server's log has the reason; send the request again, with the same key",
    Kind.PROTOCOL_VIOLATION: "the server's log has the reason; an operator has to look at it",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its kind, what is particular about this occurrence, and the key of the request if it had one; what a
    request was refused with.
    """

    kind: Kind
    detail: str
    key: str | None = None
    result: Any = None

    @classmethod
    def of(cls, error: SubmitError, key: str | None, *, debug: bool = False) -> Self:
        """The problem that an exception of `App.submit` is. Its text, which may quote rows, addresses and whatever a
        handler raises, is in it with `debug` only.
        """
        kind = _kind_of(error)
        result = error.result if isinstance(error, Refused) else None
        return cls(kind, text(error) if debug else _DETAILS[kind], key, result)

    @classmethod
    def refused(cls, result: Any) -> Self:
        """The problem with which an endpoint answers that refuses by `Refuse`. Raises TypeError or ValueError where the
        result is not JSON.
        """
        return cls(Kind.REFUSED, _DETAILS[Kind.REFUSED], None, parse(canonical(result)))

    @classmethod
    def read(cls, body: bytes) -> Self | None:
        """The problem that a document states, or None where it is none of ours."""
        try:
            document = json.loads(body)
            prefix, _, kind = document["type"].rpartition(":")
            if prefix != _PREFIX:
                return None
            known = Kind(kind)
            return cls(known, str(document.get("detail", "")), document.get("idempotency_key"), document.get("result"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    @property
    def status(self) -> int:
        return self.kind.status

    @property
    def headers(self) -> list[tuple[str, str]]:
        retry = [("retry-after", str(RETRY_AFTER))] if self.status in (409, 503) else []
        return [("content-type", MEDIA_TYPE), *retry]

    @property
    def body(self) -> bytes:
        document: dict[str, Any] = {
            "type": f"{_PREFIX}:{self.kind}",
            "title": self.kind.summary,
            "status": self.status,
            "detail": self.detail,
        }
        if self.key is not None:
            document["idempotency_key"] = self.key
        if self.kind is Kind.REFUSED:
            document["result"] = self.result
        return json.dumps(document).encode()


def _kind_of(error: SubmitError) -> Kind:
    match error:
        case KeyReused():
            return Kind.KEY_REUSED
        case Refused():
            return Kind.REFUSED
        case Cancelled():
            return Kind.CANCELLED
        case Expired():
            return Kind.EXPIRED
        case NothingHappened():
            return Kind.FAILED
        case EarlierLost():
            return Kind.LOST
        case ProtocolViolation():
            return Kind.PROTOCOL_VIOLATION
    return Kind.UNKNOWN


def log_failure(error: Exception, xid: str, key: str) -> None:
    """Tell the log what the client of a request is not told: why it has failed, or is open."""
    contradiction = isinstance(error, ProtocolViolation | EarlierLost)
    if isinstance(error, SubmitError) and not contradiction and _kind_of(error).status < 500:
        return  # that is the client's business, who is told all there is to tell
    cause = error.__cause__
    # The detail of an error of the extension, which may have been passed on by others, may be a result.
    quotes = isinstance(cause, psycopg.Error) and (cause.sqlstate or "").startswith("MP")
    says = cause.diag.message_primary if quotes else text(error)  # type: ignore[union-attr]
    fields = {"xid": xid, "idempotency_key": key, **failure_fields(error)}
    what = f"{fields['error']}{quoted_sqlstate(error)}: {says}"
    foreseen = isinstance(error, SubmitError) and not contradiction
    with contextlib.suppress(Exception):  # a log that fails, as by a filter of it, changes no answer
        _logger.log(logging.WARNING if foreseen else logging.ERROR, "request %r: %s", xid, what, extra=fields)
