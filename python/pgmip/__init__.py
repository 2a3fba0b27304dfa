"""pgmip, the coordinator library of pg_mip.

A request runs as one atomic transaction over several PostgreSQL databases, exactly once, whatever dies meanwhile.
Modules: `app` (App and what handlers see), `sync` (the same without an event loop), `exceptions` (what an error means),
`decision` (the pure rule), `xinst` (names of attempts), `http` (ASGI), `client` (of that), `observe` (metrics, logs,
traces), `testing` (private clusters).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .app import App, Resolution, Site, Step, Tx
from .exceptions import (
    Cancelled,
    Decided,
    EarlierLost,
    Expired,
    KeyReused,
    NothingHappened,
    ProtocolViolation,
    Refuse,
    Refused,
    SiteDown,
    SubmitError,
    Unknown,
)

__all__ = [
    "App",
    "Cancelled",
    "Decided",
    "EarlierLost",
    "Expired",
    "KeyReused",
    "NothingHappened",
    "ProtocolViolation",
    "Refuse",
    "Refused",
    "Resolution",
    "Site",
    "SiteDown",
    "Step",
    "SubmitError",
    "Tx",
    "Unknown",
]

if TYPE_CHECKING:
    from .client import Client as Client
    from .client import SyncClient as SyncClient


def __getattr__(name: str) -> Any:
    """Import what needs an optional package only where it is asked for."""
    if name not in ("Client", "SyncClient"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".client", __name__), name)
