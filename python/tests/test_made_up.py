"""SQLSTATEs of the extension that a handler's own SQL has made up: they say nothing of the request."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shop import BUY, ORDER, PAYMENT, Shop, leave_at
from test_settle import a_month_later

from pgmip import App, Expired, NothingHappened, SubmitError, Tx, Unknown
from pgmip.xinst import new_xid

Server = Callable[..., App]
TOP = Path(__file__).parents[2]
# Of which the library concludes nothing
OTHERS = {"NOT_USABLE", "NO_ROW", "OTHER_TABLE", "REWRITTEN", "ROLLED_BACK", "DIVERGED"}
STATES = ["MP001", "MP002", "MP003", "MP004", "MP005", "MP007"]


def making_up(state: str) -> str:
    detail = '{"xinst": 1, "result": "1", "reason": "acknowledged"}'
    return f"DO $$BEGIN RAISE SQLSTATE '{state}' USING DETAIL = '{detail}', SCHEMA = 'mip'; END$$"


async def execute(tx: Tx, sql: str) -> None:
    await tx.store.execute(sql)  # type: ignore[arg-type]


async def finish_with(tx: Tx, sql: str) -> None:
    tx.store.finish_with(sql)  # type: ignore[arg-type]


async def from_another(tx: Tx, sql: str) -> None:
    try:
        await tx.store.execute(sql)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise RuntimeError("in a repository") from error


@pytest.mark.integration
@pytest.mark.parametrize("raised", [execute, finish_with, from_another])
@pytest.mark.parametrize("state", STATES)
async def test_nothing_is_concluded(server: Server, shop: Shop, state: str, raised: Callable[..., Any]) -> None:
    app, xid, attempts = server(), new_xid(), 0

    @app.transaction(sites=("store", "bank"))
    async def unlucky(tx: Tx, request: Any) -> None:
        nonlocal attempts
        attempts += 1
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        await raised(tx, making_up(state))

    with pytest.raises(SubmitError) as caught:
        await app.submit("unlucky", None, xid=xid)
    assert (attempts, type(caught.value)) == (1, NothingHappened)
    shop.assert_never(xid)
    shop.assert_clean()


@pytest.mark.integration
@pytest.mark.parametrize("state", STATES)
async def test_undone_by_a_savepoint(server: Server, shop: Shop, state: str) -> None:
    app, xid = server(), new_xid()

    @app.transaction(sites=("store", "bank"))
    async def careful(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        with pytest.raises(psycopg.Error):
            async with tx.store.savepoint():
                await execute(tx, making_up(state))
        return {"xinst": tx.xinst}

    shop.assert_once(xid, await app.submit("careful", None, xid=xid))
    shop.assert_clean()


@pytest.mark.integration
@pytest.mark.parametrize("state", ["MP003", "MP007"])
async def test_nothing_is_cancelled_for_it(server: Server, shop: Shop, state: str) -> None:
    """Nor given up: the handler may come to its end another time."""
    app, xid = App(shop.conninfos()), new_xid()
    await leave_at(server(), "prepared-first-site", xid)

    @app.transaction(sites=("store", "bank"))
    async def buy(tx: Tx, request: Any) -> None:
        await execute(tx, making_up(state))

    async with app:
        with pytest.raises(Unknown):
            await app.settle(xid)
    assert len(shop.sql("store", "SELECT FROM mip.in_doubt")) == 1
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


@pytest.mark.integration
async def test_one_that_is_only_passed_on(server: Server, shop: Shop) -> None:
    """By a function that has caught it: what the extension has said stays its word."""
    app, xid = a_month_later(server, shop), new_xid()

    @app.transaction(sites=("store", "bank"))
    async def passes_on(tx: Tx, request: Any) -> None:
        await tx.store.execute("""
            DO $$BEGIN
                UPDATE item SET stock = stock - 1;
            EXCEPTION WHEN SQLSTATE 'MP007' THEN
                RAISE;
            END$$
        """)

    with pytest.raises(Expired):
        await app.submit("passes_on", None, xid=xid)
    shop.assert_never(xid)
    shop.assert_clean()


def test_the_extension_raises_them_in_functions_of_its_own_name() -> None:
    """By which they are known."""
    raised = set()
    for path in (TOP / "src").rglob("*.c"):
        function = ""
        for line in path.read_text().splitlines():
            begins = re.match(r"(\w+)\(", line)
            function = begins[1] if begins else function
            state = re.search(r"errcode\(ERRCODE_MIP_(\w+)\)", line)
            if state and state[1] not in OTHERS:
                raised.add(state[1])
                assert function.startswith("mip"), f"{path.name}: {function} raises {state[1]}"
    assert len(raised) == len(STATES)
