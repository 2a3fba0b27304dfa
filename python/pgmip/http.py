"""HTTP: `POST /<transaction>` with `Idempotency-Key` as XID; `asgi(app)` is the application to serve.

    # uvicorn shop:server
    server = pgmip.http.asgi(app)

The body is the request (JSON), the answer its result. Every retransmission, to any server, gets the same bytes.

======  ==================================================================================
Status  Meaning for the request
======  ==================================================================================
200     It has taken effect, exactly once (also where a site is still to be told).
400     No `Idempotency-Key`, or not a usable one, or the body is not JSON. Nothing happened.
404     There is no such transaction. Nothing happened.
410     It has been cancelled by an operator: nothing happened, and nothing will.
422     The key belongs to another request. This one has no effect.
500     The transaction failed and has no effect.
503     The outcome is open: send the same request again, to any server (`Retry-After`).
======  ==================================================================================

All but 200 are `application/problem+json` (RFC 9457).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ._json import canonical, parse
from .app import App
from .exceptions import Cancelled, Decided, KeyReused, NothingHappened, SubmitError

__all__ = ["RETRY_AFTER", "asgi", "routes"]

RETRY_AFTER = 1
"""Seconds that a 503 asks to wait."""


def routes(app: App) -> list[BaseRoute]:
    """The route `POST /{transaction}`, to be mounted in a Starlette application of your own."""

    async def post(request: Request) -> Response:
        return await _post(app, request)

    return [Route("/{transaction}", post, methods=["POST"])]


def asgi(app: App) -> Starlette:
    """An ASGI application with that route, which closes `app` at shutdown."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    return Starlette(routes=routes(app), lifespan=lifespan)


async def _post(app: App, request: Request) -> Response:
    name = request.path_params["transaction"]
    if name not in app.transactions:
        return _problem(404, f"there is no transaction {name!r}")
    key = _key(request.headers.get("idempotency-key", ""))
    if not key:
        return _problem(400, "the header Idempotency-Key is missing")
    try:
        body = parse((await request.body()).decode())
    except ValueError as error:
        return _problem(400, f"the body is not JSON: {error}", key)
    try:
        result = await app.submit(name, body, xid=key)
    except Decided as error:
        result = error.result
    except SubmitError as error:
        return _problem(_status(error), str(error), key)
    except ValueError as error:
        return _problem(400, str(error), key)
    return Response(canonical(result), media_type="application/json")


def _key(header: str) -> str:
    """The key is a quoted string by the draft; bare ones are common and accepted."""
    header = header.strip()
    if len(header) >= 2 and header[0] == header[-1] == '"':
        return header[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return header


def _status(error: SubmitError) -> int:
    match error:
        case KeyReused():
            return 422
        case Cancelled():
            return 410
        case NothingHappened():
            return 500
    return 503


_TITLES = {
    400: "Not a usable request",
    404: "No such transaction",
    410: "Cancelled",
    422: "Idempotency-Key already used for another request",
    500: "The transaction failed and has no effect",
    503: "The outcome is open: send the request again",
}


def _problem(status: int, detail: str, key: str | None = None) -> Response:
    body: dict[str, Any] = {"title": _TITLES[status], "status": status, "detail": detail}
    if key is not None:
        body["idempotency_key"] = key
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return Response(json.dumps(body), status, headers, media_type="application/problem+json")
