"""New names: an XINST for every attempt, and an XID for a request whose client brought none.

An XINST has 63 bits: 37 for the time since 2020, in ticks of 16 ms, and 26 random ones. So a retry, at any server, is
above what it repeats without having asked anybody, and two attempts of the same tick differ (but for one case in
2**26; the sites refuse the second one, and it is repeated).

Clocks may be wrong. Where one is behind, its attempts are refused as superseded and repeated just above the highest
that was seen. Where one is ahead, the others have to follow: no clock goes beyond 2085, which leaves room for 2**34
attempts above, and close to the end of the numbers the steps become smaller, so that only the last one has none above.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable

__all__ = ["MAX_XINST", "checked_xid", "clock", "new_xid", "new_xinst", "xid_time"]

MAX_XINST = 2**63 - 1
_EPOCH_MS = 1_577_836_800_000  # 2020-01-01
_TICK_MS = 16
_RANDOM_BITS = 26
_LAST_TICK = 2**37 - 2**33
_LONGEST_XID = 128

clock: Callable[[], int] = time.time_ns
"""The wall clock, in nanoseconds since 1970. Replaced in tests."""


def new_xinst(above: int = 0) -> int:
    """A new XINST, larger than `above`: by the clock, or where that is behind, by a random step above it.

    Raises OverflowError above MAX_XINST - 1.
    """
    if above >= MAX_XINST:
        raise OverflowError(f"there is no XINST above {above}")
    tick = min(max((_now_ms() - _EPOCH_MS) // _TICK_MS, 0), _LAST_TICK)
    floor = max(tick << _RANDOM_BITS, above)
    room = MAX_XINST - floor
    return floor + 1 + secrets.randbelow(min(2**_RANDOM_BITS, (room + 1) // 2))


def new_xid() -> str:
    """A new XID that carries its time: a version 7 UUID."""
    value = (_now_ms() << 80) | (7 << 76) | (secrets.randbits(12) << 64) | (2 << 62) | secrets.randbits(62)
    return str(uuid.UUID(int=value))


def checked_xid(xid: str) -> str:
    """This XID, if it can be one. Raises TypeError or ValueError."""
    if not isinstance(xid, str):
        raise TypeError(f"an XID is a string, not {type(xid).__name__}")
    if not 1 <= len(xid.encode()) <= _LONGEST_XID or "\0" in xid:
        raise ValueError(f"an XID has 1 to {_LONGEST_XID} bytes, none of them zero")
    return xid


def xid_time(xid: str) -> int | None:
    """The time in an XID, in milliseconds since 1970, or None where it has none (SQL: `mip.xid_time`).

    Only a version 7 UUID has one, written as `new_xid` writes it: 36 characters, in lower case.
    """
    try:
        known = uuid.UUID(xid)
    except ValueError:
        return None
    if known.version != 7 or known.variant != uuid.RFC_4122 or str(known) != xid:
        return None
    return known.int >> 80


def _now_ms() -> int:
    return min(max(clock() // 1_000_000, 0), 2**48 - 1)
