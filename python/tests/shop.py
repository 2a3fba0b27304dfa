"""The example that the integration tests run: an order at the store, paid at the bank.

There is no unique constraint on the XID anywhere: that an order is there once is the protocol's doing alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgmip import App, Refuse, Step, Tx, Unknown
from pgmip.sweeper import Sweeper
from pgmip.testing import Cluster

SCHEMA = {
    "store": """
        CREATE TABLE item (i_id int PRIMARY KEY, stock int NOT NULL CHECK (stock >= 0));
        CREATE TABLE orders (o_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid text, xinst bigint, qty int);
        SELECT mip.enable('item'), mip.enable('orders');
    """,
    "bank": """
        CREATE TABLE account (a_id int PRIMARY KEY, balance bigint NOT NULL);
        CREATE TABLE payment (p_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid text, xinst bigint, amount int);
        SELECT mip.enable('account'), mip.enable('payment');
    """,
}
STOCK, BALANCE, PRICE = 10_000, 1_000_000, 7
BUY = {"item": 1, "qty": 2}
# of an instance: what it leaves at the store, and at the bank
ORDER = "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, 0)"
PAYMENT = "INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, 0)"
RIVAL = "DO $$BEGIN RAISE serialization_failure; END$$"  # as if somebody had been faster


def make_app(conninfos: dict[str, str], kind: type[App] = App, **parameters: Any) -> App:
    app = kind(conninfos, **parameters)

    @app.transaction(sites=("store", "bank"))
    async def buy(tx: Tx, request: Any) -> Any:
        qty = request["qty"]
        left = await tx.store.fetch_one("SELECT stock FROM item WHERE i_id = %s FOR UPDATE", (request["item"],))
        if left.stock < qty:
            return {"refused": "out of stock"}
        await tx.store.execute("UPDATE item SET stock = stock - %s WHERE i_id = %s", (qty, request["item"]))
        order = await tx.store.fetch_one(
            "INSERT INTO orders (xid, xinst, qty) VALUES (%s, %s, %s) RETURNING o_id", (tx.xid, tx.xinst, qty)
        )
        await tx.bank.execute("UPDATE account SET balance = balance - %s WHERE a_id = 1", (qty * PRICE,))
        tx.bank.finish_with(
            "INSERT INTO payment (xid, xinst, amount) VALUES (%s, %s, %s)", (tx.xid, tx.xinst, qty * PRICE)
        )
        # As unrepeatable as results get.
        return {"order": order.o_id, "xinst": tx.xinst, "token": secrets.token_hex(8)}

    @app.transaction(sites=("store", "bank"))
    async def decline(tx: Tx, request: Any) -> Any:
        """Buys, and then refuses."""
        raise Refuse(await buy(tx, request))

    @app.transaction(sites=("store",))
    async def restock(tx: Tx, request: Any) -> Any:
        row = await tx.store.fetch_one(
            "UPDATE item SET stock = stock + %s WHERE i_id = %s RETURNING stock", (request["qty"], request["item"])
        )
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        return {"stock": row.stock, "xinst": tx.xinst, "token": secrets.token_hex(8)}

    @app.transaction(sites=("store", "bank"), isolation="repeatable read")
    async def carefully(tx: Tx, request: Any) -> Any:
        try:
            async with tx.store.savepoint():
                await tx.store.execute("SELECT 1/0")
        except psycopg.errors.DivisionByZero:
            pass
        async with tx.bank.savepoint():
            await tx.bank.execute("UPDATE account SET balance = balance - 0 WHERE a_id = 1")
        return {"items": len(await tx.store.fetch_all("SELECT * FROM item"))}

    return app


@dataclass
class Shop:
    clusters: dict[str, Cluster]

    def conninfos(self, **ports: int) -> dict[str, str]:
        """How to reach the sites: directly, or through a proxy on the port given."""
        return {
            site: cluster.conninfo(
                tcp=True, port=ports.get(site, cluster.port), sslmode="disable", gssencmode="disable"
            )
            for site, cluster in self.clusters.items()
        }

    def sql(self, site: str, sql: str) -> list[tuple[Any, ...]]:
        return self.clusters[site].run_sql(sql)

    def reset(self) -> None:
        for site in self.clusters:  # what a failed test may have left
            for xid, xinst in self.sql(site, "SELECT xid, xinst FROM mip.in_doubt"):
                self.sql(site, f"SELECT mip.rollback('{xid}', {xinst})")
        self.sql("store", f"DELETE FROM orders; DELETE FROM item; INSERT INTO item VALUES (1, {STOCK}), (2, 0)")
        self.sql("bank", f"DELETE FROM payment; DELETE FROM account; INSERT INTO account VALUES (1, {BALANCE})")

    def effects(self, xid: str) -> tuple[list[int], list[int]]:
        """The instances whose order, and whose payment, is there."""
        orders = self.sql("store", f"SELECT xinst FROM orders WHERE xid = '{xid}' ORDER BY xinst")
        payments = self.sql("bank", f"SELECT xinst FROM payment WHERE xid = '{xid}' ORDER BY xinst")
        return [row[0] for row in orders], [row[0] for row in payments]

    def assert_once(self, xid: str, result: Any) -> None:
        """The request has taken effect once at both sites, by the same instance, whose result this is."""
        assert self.effects(xid) == ([result["xinst"]], [result["xinst"]])

    def assert_never(self, xid: str) -> None:
        assert self.effects(xid) == ([], [])

    def assert_clean(self) -> None:
        """Nothing in doubt, no transaction left open, nothing lost or made up."""
        for site in self.clusters:
            assert self.sql(site, "SELECT * FROM mip.in_doubt") == []
            assert self.sql(site, "SELECT gid FROM pg_prepared_xacts") == []
            self.assert_no_open_transaction(site)
        ((sold,),) = self.sql("store", "SELECT coalesce(sum(qty), 0) FROM orders")
        ((stock,),) = self.sql("store", "SELECT stock FROM item WHERE i_id = 1")
        ((balance,),) = self.sql("bank", "SELECT balance FROM account")
        assert (stock, balance) == (STOCK - sold, BALANCE - sold * PRICE)

    def assert_no_open_transaction(self, site: str) -> None:
        sql = """
            SELECT pid, state, query FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
                AND state <> 'starting'  -- from 18 on: a client that has gone before it was let in
        """
        for _ in range(100):  # a server needs a moment to see that its client is gone
            left = self.sql(site, sql)
            if not left:
                return
            time.sleep(0.02)
        raise AssertionError(f"open at {site}: {left}")


def give_up_at(app: App, step_name: str, xid: str | None = None) -> None:
    """At this step, of any request or of this one: as a server that dies there."""

    def give_up(step: Step) -> None:
        if step.name == step_name and xid in (None, step.xid):
            raise asyncio.CancelledError

    app.parallel = False
    app.on_step(give_up)


async def leave_at(app: App, step_name: str, xid: str) -> None:
    """Submit, and give up at a step."""
    give_up_at(app, step_name, xid)
    with pytest.raises(Unknown):
        await app.submit("buy", BUY, xid=xid)


def pausing(app: App, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Gives it a transaction that pauses between its sites: when it is there, and when it may go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.transaction(sites=("store", "bank"), name=name)
    async def pauses(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        begun.set()
        await go_on.wait()
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return begun, go_on


def forgetting_the_first() -> Any:
    """In place of psycopg's `cancel_safe`: the first cancel comes before its statement has begun at the server."""
    real, asked = psycopg.AsyncConnection.cancel_safe, []

    async def cancel_safe(conn: Any, **options: Any) -> None:
        asked.append(conn)
        if len(asked) > 1:
            await real(conn, **options)

    return cancel_safe


def die_at(step_name: str, xid: str, mode: str, *conninfos: str) -> None:
    """The body of a process that submits one request, or sweeps, and is killed at a step of it."""
    app = make_app(dict(zip(SCHEMA, conninfos, strict=True)), parallel=mode == "parallel")

    def die(step: Step) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    app.on_step(die)
    name = "decline" if mode == "decline" else "buy"
    asyncio.run(Sweeper(app, older_than=0).sweep() if mode == "sweep" else app.submit(name, BUY, xid=xid))


async def kill_server_at(shop: Shop, step_name: str, xid: str, mode: str = "serial") -> None:
    """Run that process, until it is dead. `mode`: "serial", "parallel", or "sweep" or "decline"
    (and serial).
    """
    here = Path(__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c",
        "import runpy, sys; sys.path[:0] = sys.argv[1:3]; runpy.run_path(sys.argv[3])['die_at'](*sys.argv[4:])",
        str(here.parent), str(here.parent.parent), str(here),
        step_name, xid, mode, *shop.conninfos().values(),
    )  # fmt: skip
    assert await process.wait() == -signal.SIGKILL


if __name__ == "__main__":
    die_at(*sys.argv[1:])
