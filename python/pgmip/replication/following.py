"""Whether a log is still the one that has been read, by where it begins and ends. Engines have it in common."""

from __future__ import annotations

from .engine import Forked, Place, Trimmed, WentBack

__all__ = ["check_after", "check_follows"]


def check_follows(first: int | None, last: int | None, follows: bool, known: Place | None) -> None:
    """Raise an error where the log, with these bounds, does not follow what has been read of it. `follows`: whether it
    has that entry.
    """
    if first is None or last is None:
        raise WentBack("the log is empty, which no log is that has begun: it has lost all messages")
    if follows:
        return
    assert known is not None
    if last < known.position:
        raise WentBack(_lost(last, known.position))
    if first > known.position:
        raise Trimmed(f"the log begins at position {first}, behind {known.position}, the last that has been read")
    raise Forked(f"position {known.position} has been read, and the log has another entry there")


def check_after(first: int, last: int, after: int) -> None:
    """Raise an error where the log, with these bounds, cannot be read on behind that position."""
    if last < after:
        raise WentBack(_lost(last, after))
    if first > after + 1:
        raise Trimmed(f"the log begins at position {first}, and the next one needed is {after + 1}")


def _lost(last: int, position: int) -> str:
    return f"the log ends at position {last}, before {position}, which has been read: it has lost messages"
