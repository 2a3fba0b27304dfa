"""Problem documents (RFC 9457): how HTTP says what did not come to a result, written by the server, read by the client.

The member `type` tells the kinds apart, since several share a status, and since a status may also come from something
in between that knows nothing of the request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from .exceptions import Cancelled, Expired, KeyReused, NothingHappened, ProtocolViolation, SubmitError

__all__ = ["MEDIA_TYPE", "RETRY_AFTER", "Kind", "Problem"]

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
    Kind.FAILED: (500, "The transaction failed and has no effect"),
    Kind.UNKNOWN: (503, "The outcome is open: send the request again"),
    Kind.PROTOCOL_VIOLATION: (503, "The outcome is open: the sites contradict each other"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its kind, what is particular about this occurrence, and the key of the request if it had one."""

    kind: Kind
    detail: str
    key: str | None = None

    @classmethod
    def of(cls, error: SubmitError, key: str | None) -> Self:
        """The problem that an exception of `App.submit` is."""
        return cls(_kind_of(error), str(error), key)

    @classmethod
    def read(cls, body: bytes) -> Self | None:
        """The problem that a document states, or None where it is none of ours."""
        try:
            document = json.loads(body)
            prefix, _, kind = document["type"].rpartition(":")
            if prefix != _PREFIX:
                return None
            return cls(Kind(kind), str(document.get("detail", "")), document.get("idempotency_key"))
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
        return json.dumps(document).encode()


def _kind_of(error: SubmitError) -> Kind:
    match error:
        case KeyReused():
            return Kind.KEY_REUSED
        case Cancelled():
            return Kind.CANCELLED
        case Expired():
            return Kind.EXPIRED
        case NothingHappened():
            return Kind.FAILED
        case ProtocolViolation():
            return Kind.PROTOCOL_VIOLATION
    return Kind.UNKNOWN
