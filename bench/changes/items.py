"""The table that is changed, in each way that it is watched."""

from __future__ import annotations

from pgmip.testing import Cluster

from ..rounds import create_database
from . import triggers
from .session import Session

__all__ = ["OPS", "TABLES", "WHAT", "captured", "change", "create", "fill", "transactions"]

OPS = ("I", "U", "D")
PLAIN, SQL, C = TABLES = ("item", "item_sql", "item_c")  # without a trigger, and with one in either language
WHAT = "what an item is like"  # of each row
COLUMNS = "(id int PRIMARY KEY, n int NOT NULL, t text NOT NULL)"
CHANGES = {
    "I": "INSERT INTO {table} SELECT i, i, '{what}' FROM generate_series({first}, {last}) i",
    "U": "UPDATE {table} SET n = n + 1 WHERE id BETWEEN {first} AND {last}",
    "D": "DELETE FROM {table} WHERE id BETWEEN {first} AND {last}",
}


def change(op: str, first: object, last: object, table: str = PLAIN) -> str:
    """A statement that changes these rows."""
    return CHANGES[op].format(table=table, first=first, last=last, what=WHAT)


def transactions(size: int) -> str:
    return f"transactions of {size:,} row{'s' if size > 1 else ''}"


def _procedure(table: str) -> str:
    """All rows, so many in a transaction, without a client that would take its time in between."""
    cases = "".join(f" WHEN '{op}' THEN {change(op, 'f', 'f + per - 1', table)};" for op in OPS)
    return (
        f"CREATE PROCEDURE change_{table}(op text, rows int, per int, extracted boolean) LANGUAGE plpgsql AS $$ BEGIN"
        f" FOR f IN 1..rows BY per LOOP CASE op{cases} END CASE;"
        " IF extracted THEN PERFORM length(mip.writeset()); END IF; COMMIT; END LOOP; END $$"
    )


def create(cluster: Cluster, dbname: str) -> None:
    """A database with these tables."""
    create_database(cluster, "mip", dbname)
    for table in TABLES:
        cluster.run_sql(f"CREATE TABLE {table} {COLUMNS}; {_procedure(table)}", dbname=dbname)
    cluster.run_sql(triggers.in_sql(SQL), dbname=dbname)
    cluster.run_sql(triggers.in_c(C, cluster), dbname=dbname)


def fill(session: Session, rows: int, table: str = PLAIN) -> None:
    """These rows, and no others; what has been written of them before is gone."""
    session.run(f"TRUNCATE {table}, changed")
    session.run(change("I", 1, rows, table))
    session.run("TRUNCATE changed")


def captured(session: Session, *statements: str) -> bytes:
    """The writeset of a transaction that does this."""
    session.run("BEGIN; SET LOCAL mip.capture_writeset = on")
    for statement in statements:
        session.run(statement)
    ((writeset,),) = session.conn.execute("SELECT mip.writeset()", binary=True).fetchall()
    session.run("COMMIT")
    made: bytes = writeset
    return made
