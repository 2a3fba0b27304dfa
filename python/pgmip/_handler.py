"""Whether a handler is of the kind that an App runs: seen when it is registered, not at the first request; but for an
endpoint, which a framework runs: that is seen at its first statement.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["check_async", "check_can_await", "check_plain"]


def check_async(handler: Callable[..., Any]) -> None:
    """Raises TypeError for what cannot be awaited, as far as that can be seen. A decorator may be between."""
    if not any(inspect.iscoroutinefunction(code) for code in (*_code(handler), inspect.unwrap(handler))):
        raise TypeError(
            f"{_name(handler)} is no coroutine function: a handler of a pgmip.App is an `async def`, and awaits its "
            "statements. For plain functions there is pgmip.sync.App"
        )


def check_plain(handler: Callable[..., Any]) -> None:
    """Raises TypeError for what returns something to await, or to iterate over, where its result should be."""
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_one(code) for code in _code(handler) for is_one in kinds):
        raise TypeError(
            f"{_name(handler)} is no plain function: a handler of a pgmip.sync.App is a `def` that returns its "
            "result. For `async def` there is pgmip.App"
        )


def check_can_await() -> None:
    """Raises RuntimeError in a thread without an event loop, where a statement would be made and never run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "a statement of a pgmip.App is awaited: its handlers and endpoints are `async def`. For plain functions "
            "there is pgmip.sync.App"
        ) from None


def _code(handler: Callable[..., Any]) -> tuple[Any, Any]:
    """What may be a function: it, or its way to be called, where it is an object."""
    return handler, getattr(handler, "__call__", None)  # noqa: B004  not whether it has one, but which


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", repr(handler))
