"""The shop under FastAPI: `uvicorn examples.fastapi_shop:server`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pgmip
from fastapi import Depends, FastAPI, Request, Response
from pgmip.http import Endpoint, IdempotencyMiddleware, identity, tx
from pgmip.sweeper import Sweeper
from pydantic import BaseModel, PositiveInt
from starlette.middleware.authentication import AuthenticationMiddleware

from .shop import SITES, Tokens, buy, customer, unauthorized

mip = pgmip.App(sites=SITES)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with mip, Sweeper(mip):  # finishes what a server leaves behind that dies for ever
        yield


server = FastAPI(lifespan=lifespan)
server.add_middleware(
    IdempotencyMiddleware, mip=mip, endpoints=[Endpoint("/orders", sites=("store", "bank"))], scope=customer
)
server.add_middleware(AuthenticationMiddleware, backend=Tokens(), on_error=unauthorized)  # the last one is outermost


def transaction(request: Request) -> pgmip.Tx:
    return tx(request)


def whose(request: Request) -> str:
    return identity(request)


class Order(BaseModel):
    item: int
    quantity: PositiveInt


@server.post("/orders", status_code=201)
async def order(
    wanted: Order,
    response: Response,
    tx: Annotated[pgmip.Tx, Depends(transaction)],
    customer: Annotated[str, Depends(whose)],
) -> dict[str, Any]:
    """Runs once per attempt, perhaps at several servers; exactly one attempt takes effect."""
    bought = await buy(tx, customer, wanted.item, wanted.quantity)
    response.headers["Location"] = f"/orders/{bought['order']}"
    return bought
