"""The header `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._problem import Kind, Problem

__all__ = ["format_key", "key_of"]

# An Item of Structured Fields (RFC 9651) that is a String; parameters are allowed and mean nothing here.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?:[ ]*;.*)?', re.ASCII)
# Not by the draft, but common: the key as it is. A comma would make two lines of one.
_BARE = re.compile(r'[^\s",;\\\x00-\x1f\x7f][^",\\\x00-\x1f\x7f]*')


def key_of(lines: Sequence[str]) -> str | Problem:
    """The key that these header lines carry, or why they carry none."""
    if not lines:
        return Problem(Kind.KEY_MISSING, "this operation needs the header Idempotency-Key, once per request")
    if len(lines) > 1:
        return Problem(Kind.KEY_INVALID, "the header Idempotency-Key is there more than once")
    line = lines[0].strip(" \t")
    if not line:
        return Problem(Kind.KEY_MISSING, "the header Idempotency-Key is empty")
    quoted = _QUOTED.fullmatch(line)
    if quoted:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif _BARE.fullmatch(line):
        key = line
    else:
        return Problem(Kind.KEY_INVALID, "the header Idempotency-Key is not a string in double quotes")
    return key or Problem(Kind.KEY_INVALID, "the key is empty")


def format_key(key: str) -> str:
    """The header that carries this key. Raises ValueError where it cannot: keys are printable ASCII."""
    if not re.fullmatch(r"[ -~]+", key):
        raise ValueError("an XID that goes over HTTP is printable ASCII")
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
