"""HTTP: `POST /<transaction>` with `Idempotency-Key` as XID; `asgi(app)` is the application to serve.

# uvicorn shop:server
server = pgmip.http.asgi(app)
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from .app import App

__all__ = ["asgi", "routes"]


def routes(app: App) -> list[BaseRoute]:
    """The route `POST /{transaction}`, to be mounted in a Starlette application of your own."""
    raise NotImplementedError


def asgi(app: App) -> Starlette:
    """An ASGI application with that route, which closes `app` at shutdown."""
    raise NotImplementedError
