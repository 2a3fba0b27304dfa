"""Everybody but the workers: outsiders, the sweeper, VACUUM, killers."""

from __future__ import annotations

import os
import random
import signal
import time

import psycopg
from family import ACCOUNTS, commit, read
from server import Server
from shared import Soak, is_stock

# What an outsider may run into: it waits at most lock_timeout.
EXPECTED = {"40001", "40P01", "55P03"}


def outsider(soak: Soak, rng: random.Random, connection: psycopg.Connection) -> None:
    """A plain transaction on the rows that the instances use."""
    a, b = rng.sample(ACCOUNTS, 2)
    if rng.random() < 0.8:
        a, b = min(a, b), max(a, b)
    item = rng.randint(1, 6)
    amount = rng.randint(1, 50)
    isolation = rng.choice(["READ COMMITTED"] * 3 + ["REPEATABLE READ", "SERIALIZABLE"])
    statements = rng.choice(
        [
            [
                f"UPDATE account SET balance = balance - {amount} WHERE id = {a}",
                f"UPDATE account SET balance = balance + {amount} WHERE id = {b}",
            ],
            [f"INSERT INTO visit (account) VALUES ({a})", f"INSERT INTO visit (account) VALUES ({b})"],
            [f"SELECT * FROM account WHERE id = {a} FOR SHARE", "SELECT pg_sleep(0.01)"],
            [f"SELECT * FROM account WHERE id = {a} FOR KEY SHARE", "SELECT pg_sleep(0.02)"],
            [f"SELECT * FROM item WHERE id = {item} FOR NO KEY UPDATE SKIP LOCKED"],
            [f"UPDATE account SET note = 'n{amount}' WHERE id = {a}"],
            [f"UPDATE item SET text = repeat('u', 4000) WHERE id = {item}"],
            ["DELETE FROM visit WHERE id IN (SELECT id FROM visit ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED)"],
            [f"UPDATE ticket SET id = -{rng.randint(1, 10**12)} WHERE number = {amount % 20 + 1}"],
        ]
    )
    try:
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        for statement in statements:
            connection.execute(statement)
        connection.execute(rng.choice(["COMMIT"] * 4 + ["ROLLBACK"]))
        soak.count("outsiders")
    except psycopg.Error as error:
        if error.sqlstate not in EXPECTED and not is_stock(str(error)):
            raise
        soak.count("outsiders refused")
        connection.execute("ROLLBACK")
    time.sleep(rng.random() * 0.02)


def sweeper(soak: Soak, rng: random.Random, connection: psycopg.Connection) -> None:
    """Finishes what coordinators have left in doubt for a while."""
    rows = connection.execute(
        "SELECT DISTINCT xid FROM mip.in_doubt WHERE since < now() - interval '500 ms'"
    ).fetchall()
    for (request,) in rows:
        try:
            commit(soak, connection, request, read(soak, connection, request))
            soak.count("swept")
        except psycopg.Error as error:
            # decided and forgotten meanwhile
            if error.sqlstate != "MP006" or read(soak, connection, request):
                raise
    time.sleep(0.2)


def vacuum(soak: Soak, rng: random.Random, connection: psycopg.Connection) -> None:
    table = rng.choice(["account", "item", "orders", "line", "tally", "ticket", "visit", "mip.mipt"])
    options = rng.choice(["", "(FREEZE)", "(FREEZE, DISABLE_PAGE_SKIPPING)", "(ANALYZE)"])
    try:
        if rng.random() < 0.05:
            connection.execute("CHECKPOINT")
        connection.execute(f"VACUUM {options} {table}")
        soak.count("vacuums")
    except psycopg.Error as error:
        if error.sqlstate != "55P03":
            raise
    time.sleep(rng.random() * 0.05)


def terminator(soak: Soak, rng: random.Random, connection: psycopg.Connection) -> None:
    """Ends some client's session."""
    time.sleep(rng.random() * 1.0)
    rows = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
    ).fetchall()
    soak.counters["sessions terminated"] += len(rows)


def power_cut(soak: Soak, rng: random.Random, server: Server, connection: psycopg.Connection) -> None:
    """kill -9: the whole server, or one backend (the server restarts itself)."""
    if soak.stop.wait(rng.uniform(4, 12)):
        return
    if rng.random() < 0.3:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
        ).fetchone()
        if row:
            os.kill(row[0], signal.SIGKILL)
            soak.count("backends killed")
        return
    server.crash()
    soak.count("servers killed")
    server.start()


def start(soak: Soak, server: Server) -> None:
    bodies = {
        "outsider 1": outsider,
        "outsider 2": outsider,
        "sweeper": sweeper,
        "vacuum": vacuum,
        "terminator": terminator,
    }
    for name, body in bodies.items():
        rng = soak.rng(name)
        soak.run(name, lambda connection, body=body, rng=rng: body(soak, rng, connection))
