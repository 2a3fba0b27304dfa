"""What takes a `pgmip.App` takes its sync twin, too, whose event loop is in a thread of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from . import sync
from ._portal import Portal
from .app import App

__all__ = ["AnyApp", "inner", "portal_of", "within"]

T = TypeVar("T")

AnyApp = App | sync.App


def inner(app: AnyApp) -> App:
    """The one that does the work."""
    return app._app if isinstance(app, sync.App) else app


def portal_of(app: AnyApp) -> Portal | None:
    """The way to its event loop, where that is not the caller's."""
    return app._portal if isinstance(app, sync.App) else None


async def within(app: AnyApp, work: Coroutine[Any, Any, T]) -> T:
    """Do what is asked of `inner(app)`, in its event loop."""
    portal = portal_of(app)
    return await (work if portal is None else portal.reach(work))
