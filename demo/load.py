"""Builds the two databases: schema, then generated rows with COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql

from . import generate

Tables = Mapping[str, Callable[[], Iterator[tuple[Any, ...]]]]


def load_store(conninfo: str, *, access_method: str) -> None:
    _load(conninfo, access_method, "store.sql", generate.STORE)


def load_bank(conninfo: str, *, access_method: str) -> None:
    _load(conninfo, access_method, "bank.sql", generate.BANK)


def _load(conninfo: str, access_method: str, schema: str, tables: Tables) -> None:
    with psycopg.connect(conninfo, autocommit=True) as conn:
        if access_method == "mip":
            conn.execute("CREATE EXTENSION IF NOT EXISTS pg_mip")
        with conn.transaction():
            conn.execute(
                sql.SQL("SET LOCAL default_table_access_method = {}").format(sql.Identifier(access_method))
            )
            conn.execute(resources.files(__package__).joinpath(schema).read_bytes())
            for table, rows in tables.items():
                _copy(conn, table, rows())
            _advance_sequences(conn)
        conn.execute("VACUUM (ANALYZE)")


def _copy(conn: psycopg.Connection[Any], table: str, rows: Iterator[tuple[Any, ...]]) -> None:
    into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
    with conn.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows:
            copy.write_row(row)


def _advance_sequences(conn: psycopg.Connection[Any]) -> None:
    """Identity columns go on after the loaded rows."""
    columns = conn.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND is_identity = 'YES'"
    ).fetchall()
    for table, column in columns:
        conn.execute(
            sql.SQL("SELECT setval(pg_get_serial_sequence({}, {}), max({}) + 1, false) FROM {} HAVING max({}) > 0")
            .format(table, column, sql.Identifier(column), sql.Identifier(table), sql.Identifier(column))
        )
