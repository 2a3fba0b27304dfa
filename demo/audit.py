"""The independent auditor: opens a database of its own before the shop does, and asks audit.sql afterwards.

    take_notes(at, store=..., bank=...)   # stock, balances, carts
    ...                                   # the shop is open
    with Auditor(at) as auditor:
        auditor.hear(requests, answers)
        findings = auditor.audit()

`at` is a connection string to the cluster where the auditor has its database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from .requests import Request

ANSWERED = "every request was answered"
DATABASE = "audit"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One check, and what it found wrong: (key, wrong)."""

    check: str
    wrong: list[tuple[str, str]]

    def __str__(self) -> str:
        if not self.wrong:
            return self.check
        more = f", and {len(self.wrong) - _SHOWN} more" if len(self.wrong) > _SHOWN else ""
        shown = "; ".join(f"{key}: {wrong}" for key, wrong in self.wrong[:_SHOWN])
        return f"{self.check}: {shown}{more}"


def checks() -> list[tuple[str, str]]:
    """The title and the query of each check in audit.sql."""
    parts = resources.files(__package__).joinpath("audit.sql").read_text().split("\n-- check: ")[1:]
    return [(title, query) for title, _, query in (part.partition("\n") for part in parts)]


def take_notes(at: str, *, store: str, bank: str) -> None:
    """Make the auditor's database, with a view on both sites, and write down what there is before the shop opens."""
    with psycopg.connect(at, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {DATABASE}")
    with psycopg.connect(at, dbname=DATABASE, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION postgres_fdw")
        _look_at(conn, "store", store)
        _look_at(conn, "bank", bank)
        conn.execute(_NOTES)


def _look_at(conn: psycopg.Connection[Any], name: str, conninfo: str) -> None:
    where = {key: str(value) for key, value in conninfo_to_dict(conninfo).items()}
    user = where.pop("user")
    options = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(k), v) for k, v in where.items())
    schema = sql.Identifier(name)
    for statement in (
        sql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({})").format(schema, options),
        sql.SQL("CREATE USER MAPPING FOR CURRENT_USER SERVER {} OPTIONS (user {})").format(schema, user),
        sql.SQL("CREATE SCHEMA {}").format(schema),
        sql.SQL("IMPORT FOREIGN SCHEMA public FROM SERVER {} INTO {}").format(schema, schema),
        sql.SQL("IMPORT FOREIGN SCHEMA pg_catalog LIMIT TO (pg_prepared_xacts) FROM SERVER {} INTO {}").format(
            schema, schema
        ),
    ):
        conn.execute(statement)


class Auditor:
    def __init__(self, at: str) -> None:
        self._conn: psycopg.Connection[Any] = psycopg.connect(at, dbname=DATABASE, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._conn.close()

    def hear(self, requests: Iterable[Request], answers: Iterable[tuple[str, bytes]]) -> None:
        """What customers asked, and every answer that any of them received (key, body)."""
        with self._conn.cursor() as cursor:
            with cursor.copy("COPY asked FROM STDIN") as copy:
                for request in requests:
                    copy.write_row((request.key, request.cart, request.customer))
            with cursor.copy("COPY answered FROM STDIN") as copy:
                for answer in answers:
                    copy.write_row(answer)

    def audit(self) -> list[Finding]:
        """Every check with what it found."""
        self._conn.execute("ANALYZE")
        return [Finding(title, self._conn.execute(query.encode()).fetchall()) for title, query in checks()]


_NOTES = b"""
CREATE SCHEMA before;
CREATE TABLE before.item AS SELECT i_id, i_cost::numeric, i_stock FROM store.item;
CREATE TABLE before.orders AS SELECT o_id FROM store.orders;
CREATE TABLE before.customer AS SELECT c_id, c_discount::numeric FROM store.customer;
CREATE TABLE before.shopping_cart_line AS SELECT * FROM store.shopping_cart_line;
CREATE TABLE before.account AS SELECT * FROM bank.account;

CREATE TABLE asked (key text PRIMARY KEY, cart integer NOT NULL, customer integer NOT NULL);
CREATE TABLE answered (key text NOT NULL, body bytea NOT NULL);
CREATE INDEX ON answered (key);

CREATE VIEW told AS
SELECT DISTINCT ON (key) key, convert_from(body, 'UTF8')::jsonb AS answer FROM answered ORDER BY key;

CREATE VIEW expected AS
SELECT key, customer, sub_total + round(sub_total * 0.0825, 2) + 3 + lines AS total
FROM asked JOIN before.customer ON c_id = customer,
     LATERAL (SELECT round(sum(scl_qty * i_cost) * (100 - c_discount) / 100, 2) AS sub_total, count(*) AS lines
              FROM before.shopping_cart_line JOIN before.item ON i_id = scl_i_id WHERE scl_sc_id = cart) AS total;
"""
