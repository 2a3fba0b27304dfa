"""New names: an XINST for every attempt, and an XID for a request whose client brought none.

An XINST has 63 bits: 41 of milliseconds since 2020 (enough until 2089) and 22 random ones. So attempts are ordered by
time without anybody having to ask, and two coordinators that begin in the same millisecond differ.
"""

from __future__ import annotations

import secrets
import time
import uuid

__all__ = ["MAX_XINST", "new_xid", "new_xinst"]

MAX_XINST = 2**63 - 1
_EPOCH_MS = 1_577_836_800_000  # 2020-01-01
_RANDOM_BITS = 22


def new_xinst(above: int = 0) -> int:
    """A new XINST, larger than `above`: by the clock, or where a clock is behind, by a random step above it.

    Raises OverflowError where 63 bits have no room above `above`.
    """
    now = (time.time_ns() // 1_000_000 - _EPOCH_MS) << _RANDOM_BITS
    xinst = max(now, above + 1) + secrets.randbits(_RANDOM_BITS)
    if xinst > MAX_XINST:
        raise OverflowError(f"no instance id is left above {above}")
    return xinst


def new_xid() -> str:
    """A new XID that carries its time: a version 7 UUID."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | (7 << 76) | (secrets.randbits(12) << 64) | (2 << 62) | secrets.randbits(62)
    return str(uuid.UUID(int=value))
