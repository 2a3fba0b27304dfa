"""What an exception says, for messages. A handler's own may fail in saying it."""

from __future__ import annotations

__all__ = ["described", "is_foreign", "text"]


def text(error: BaseException) -> str:
    """What it says; where that fails, its class."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def described(error: BaseException) -> str:
    """What it says, after its class: a KeyError, for one, says no more than the key. What is pgmip's own says all."""
    return f"{type(error).__name__}: {text(error)}" if is_foreign(error) else text(error)


def is_foreign(error: BaseException) -> bool:
    """Whether it is none of pgmip's exceptions."""
    return type(error).__module__.partition(".")[0] != __package__
