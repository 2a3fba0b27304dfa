"""Builds the two databases: the book store of workload/ with full carts, and the bank."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

import psycopg
from pgmip.testing import Cluster
from psycopg import sql

from workload.load import load

from . import generate


def load_store(cluster: Cluster, *, access_method: str) -> None:
    _create_database(cluster, "store", access_method)
    load(cluster.conninfo("store"), generate.SIZE, seed=generate.SEED, quiet=True)
    _fill(cluster, "store", "shopping_cart", "shopping_cart_line")


def load_bank(cluster: Cluster, *, access_method: str) -> None:
    _create_database(cluster, "bank", access_method)
    _fill(cluster, "bank", "account")


def _create_database(cluster: Cluster, name: str, access_method: str) -> None:
    cluster.create_database(name)
    if access_method == "mip":
        cluster.run_sql("CREATE EXTENSION pg_mip", dbname=name)
    cluster.run_sql(f"ALTER DATABASE {name} SET default_table_access_method = {access_method}")


def _fill(cluster: Cluster, name: str, *tables: str) -> None:
    """What the demo adds: its schema, and rows."""
    with psycopg.connect(cluster.conninfo(name), autocommit=True) as conn:
        with conn.transaction():
            conn.execute(resources.files(__package__).joinpath(f"{name}.sql").read_bytes())
            for table in tables:
                _copy(conn, table, generate.TABLES[table]())
        conn.execute("VACUUM (ANALYZE)")


def _copy(conn: psycopg.Connection[Any], table: str, rows: Iterator[generate.Row]) -> None:
    into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
    with conn.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows:
            copy.write_row(row)
