"""The shop under Starlette: `uvicorn examples.starlette_shop:server`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pgmip
from pgmip.http import Endpoint, IdempotencyMiddleware, identity, tx
from pgmip.sweeper import Sweeper
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .shop import SITES, Tokens, buy, customer, unauthorized

mip = pgmip.App(sites=SITES)


async def order(request: Request) -> Response:
    """Runs once per attempt, perhaps at several servers; exactly one attempt takes effect."""
    wanted = await request.json()
    bought = await buy(tx(request), identity(request), wanted["item"], wanted["quantity"])
    return JSONResponse(bought, 201, {"Location": f"/orders/{bought['order']}"})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with mip, Sweeper(mip):  # finishes what a server leaves behind that dies for ever
        yield


server = Starlette(
    routes=[Route("/orders", order, methods=["POST"])],
    middleware=[
        Middleware(AuthenticationMiddleware, backend=Tokens(), on_error=unauthorized),
        Middleware(
            IdempotencyMiddleware,
            mip=mip,
            endpoints=[Endpoint("/orders", sites=("store", "bank"))],
            scope=customer,
        ),
    ],
    lifespan=lifespan,
)
