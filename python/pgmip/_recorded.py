"""HTTP messages as JSON: a request that can be replayed, a response that is the same each time, and their XID."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

from ._json import canonical
from .xinst import xid_time

__all__ = ["NOT_RECORDED", "REPLAYED", "Headers", "RecordedRequest", "Response", "Unrecorded", "xid_of"]

Headers = list[tuple[bytes, bytes]]

REPLAYED = "Idempotency-Replayed"
"""The response header, `true`, of an answer that another transmission has come to."""

NOT_RECORDED = frozenset(
    {
        b"connection",
        b"date",
        b"idempotency-replayed",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Response headers that are about one connection or one moment, so that a replay must not repeat them."""


_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What of a request the sites keep. A retransmission has the same, or the key belongs to another request."""

    identity: str
    path: str
    query: bytes
    headers: Headers
    body: bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "path": self.path,
            "query": self.query.decode("latin-1"),
            "headers": _headers_to_json(self.headers),
            "body": _body_to_json(self.body),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(
            value["identity"],
            value["path"],
            value["query"].encode("latin-1"),
            _headers_from_json(value["headers"]),
            _body_from_json(value["body"]),
        )


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response."""

    status: int
    headers: Headers
    body: bytes

    @classmethod
    def recorded(
        cls, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, head: bool = False
    ) -> Self:
        """The response without what is not recorded. Its length is stated, for it is known now. `head`: the answer to a
        HEAD, whose length is that of another one.

        Raises TypeError or ValueError for what HTTP cannot carry: it could not be sent, now or ever.
        """
        headers = [(name.lower(), value.strip(b" \t")) for name, value in headers]
        named = {
            token.strip().lower()
            for name, value in headers
            if name == b"connection"
            for token in value.split(b",")
        }
        kept = [(name, value) for name, value in headers if name not in NOT_RECORDED and name not in named]
        _check_status(status)
        if status in (204, 304) and body:  # frameworks give them some, and servers leave it out
            body = b""
            kept = [(name, value) for name, value in kept if status == 304 or name != b"content-length"]
        _check_headers(kept, None if head or status == 304 else len(body))
        if not any(name == b"content-length" for name, _ in kept) and status not in (204, 304):
            kept.append((b"content-length", b"%d" % len(body)))
        return cls(status, kept, body)

    def replayed(self) -> Response:
        """The same, as the answer to another transmission than the one that has come to it."""
        says_so = (REPLAYED.lower().encode(), b"true")
        return self if says_so in self.headers else replace(self, headers=[*self.headers, says_so])

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "headers": _headers_to_json(self.headers),
            "body": _body_to_json(self.body),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return cls(value["status"], _headers_from_json(value["headers"]), _body_from_json(value["body"]))


class Unrecorded(Exception):
    """Takes an attempt back whose endpoint has said that it cannot use the request as it was sent."""


def xid_of(key: str, identity: str, transaction: str) -> str:
    """The XID for a client's key: another one for every identity and transaction, however the keys are chosen.

    It cannot be computed back, and has a length of its own. A key that is a version 7 UUID gives one, with the same
    time, so that it can expire (`mip.retention`); others give a hash.
    """
    digest = hashlib.sha256(canonical([transaction, identity, key]).encode()).digest()
    milliseconds = xid_time(key)
    if milliseconds is None:
        return "http-" + digest.hex()
    bits = int.from_bytes(digest)
    value = (milliseconds << 80) | (7 << 76) | (bits % (1 << 12) << 64) | (2 << 62) | (bits >> 12) % (1 << 62)
    return str(uuid.UUID(int=value))


def _check_status(status: object) -> None:
    if not isinstance(status, int):
        raise TypeError(f"the status of a response is an int, not {status!r}")
    if not 200 <= status <= 599:
        raise ValueError(f"the status of a response is one from 200 to 599, not {status!r}")


def _check_headers(headers: Headers, length: int | None) -> None:
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"not the name of a header: {name!r}")
        if _UNPRINTABLE.search(value):
            raise ValueError(f"the header {name.decode()} has what cannot be in one: {value!r}")
        if name == b"content-length" and length is not None and not (value.isdigit() and int(value) == length):
            raise ValueError(f"the response says that its length is {value!r}, and has {length} bytes")


def _headers_to_json(headers: Headers) -> list[list[str]]:
    return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]


def _headers_from_json(value: Any) -> Headers:
    return [(name.encode("latin-1"), text.encode("latin-1")) for name, text in value]


def _body_to_json(body: bytes) -> Any:
    """As text where it is text, which an operator can read."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _body_from_json(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
