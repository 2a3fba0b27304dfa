"""What is said with a number: of the right type, and one that can be, before anything begins."""

from __future__ import annotations

from numbers import Integral, Real

__all__ = ["check_count", "checked_seconds"]


def checked_seconds(name: str, value: object, *, none: bool = False) -> float:
    """A time, as event loops reckon with it: a sum of theirs and a number of fewer digits would have no more than that.
    Raises TypeError or ValueError for what is none; that there is `none` may be meant.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:
        raise ValueError(f"{name} is a number of seconds, and this one is too large: math.inf is for ever") from None
    if not (seconds > 0 or (none and seconds == 0)):
        raise ValueError(f"{name} is a number of seconds, {'not negative' if none else 'positive'}, not {value!r}")
    return seconds


def check_count(name: str, value: object, least: int) -> None:
    """Raise TypeError or ValueError for what is no whole number, or less than there has to be."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} is at least {least}, not {value!r}")
