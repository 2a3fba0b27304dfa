"""pgmip, the coordinator library of pg_mip.

A request runs as one atomic transaction over several PostgreSQL databases, exactly once, whatever dies meanwhile.
Modules: `app` (App and what handlers see), `exceptions` (what an error means), `decision` (the pure rule), `xinst`
(names of attempts), `http` (ASGI), `testing` (private clusters).
"""

from .app import App, Resolution, Site, Step, Tx
from .exceptions import Cancelled, Decided, KeyReused, NothingHappened, ProtocolViolation, SubmitError, Unknown

__all__ = [
    "App",
    "Cancelled",
    "Decided",
    "KeyReused",
    "NothingHappened",
    "ProtocolViolation",
    "Resolution",
    "Site",
    "Step",
    "SubmitError",
    "Tx",
    "Unknown",
]
