"""What both services share: who the customers are, and how one of them buys something."""

from __future__ import annotations

import os
from typing import Any

import pgmip
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

SITES = {"store": os.environ.get("STORE", "dbname=store"), "bank": os.environ.get("BANK", "dbname=bank")}
TOKENS = {"alice-secret": "alice", "bob-secret": "bob"}


async def buy(tx: pgmip.Tx, customer: str, item: int, quantity: int) -> dict[str, Any]:
    """Take the goods from the store and the money from the bank: both, or neither.

    A refusal undoes what came before it at both, and is the answer to this request for ever, like any other result.
    """
    goods = await tx.store.fetch_one(
        "UPDATE item SET stock = stock - %(n)s WHERE i_id = %(item)s AND stock >= %(n)s RETURNING price",
        {"n": quantity, "item": item},
    )
    if goods is None:
        raise HTTPException(409, "sold out")
    order = await tx.store.fetch_one(
        "INSERT INTO orders (customer, i_id, quantity) VALUES (%s, %s, %s) RETURNING o_id",
        (customer, item, quantity),
    )
    amount = goods.price * quantity
    paid = await tx.bank.execute(
        "UPDATE account SET balance = balance - %(sum)s WHERE owner = %(who)s AND balance >= %(sum)s",
        {"sum": amount, "who": customer},
    )
    if not paid:
        raise HTTPException(402, "not enough money in the account")
    await tx.bank.execute(
        "INSERT INTO payment (owner, amount, o_id) VALUES (%s, %s, %s)", (customer, amount, order.o_id)
    )
    return {"order": order.o_id, "paid": amount}


class Tokens(AuthenticationBackend):
    """Authentication is done outside of pgmip's middleware, which is told the customer's name by `customer`."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        scheme, _, token = conn.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token not in TOKENS:
            raise AuthenticationError("no such customer")
        return AuthCredentials(["customer"]), SimpleUser(TOKENS[token])


def unauthorized(_: HTTPConnection, error: AuthenticationError) -> Response:
    return JSONResponse({"detail": str(error)}, 401, {"WWW-Authenticate": "Bearer"})


def customer(scope: Any) -> str:
    """Whose request this is, and so whose keys."""
    return str(scope["user"].username)
