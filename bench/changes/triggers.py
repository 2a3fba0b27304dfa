"""Row triggers that capture changes: one in SQL, which writes them into a table, and one in C, which keeps them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pgmip.testing import Cluster

__all__ = ["in_c", "in_sql"]


def in_sql(table: str) -> str:
    return f"""
        CREATE TABLE changed (op text, relation oid, old text, new text) USING heap;
        CREATE FUNCTION write_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO changed VALUES (tg_op, tg_relid, old::text, new::text);
            RETURN NULL;
        END $$;
        {_after(table, "write_change")}"""


def in_c(table: str, cluster: Cluster) -> str:
    library = _library(cluster)
    return f"""
        CREATE FUNCTION remember_change() RETURNS trigger LANGUAGE c AS '{library}';
        CREATE FUNCTION remembered_changes() RETURNS bigint LANGUAGE c AS '{library}';
        CREATE FUNCTION remembered_bytes() RETURNS bigint LANGUAGE c AS '{library}';
        {_after(table, "remember_change")}"""


def _after(table: str, function: str) -> str:
    events = f"AFTER INSERT OR UPDATE OR DELETE ON {table}"
    return f"CREATE TRIGGER change {events} FOR EACH ROW EXECUTE FUNCTION {function}()"


def _library(cluster: Cluster) -> Path:
    made = cluster.directory / "trigger.so"
    if not made.exists():
        source = Path(__file__).parent / "trigger.c"
        asked = [str(cluster.bindir / "pg_config"), "--includedir-server"]
        headers = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{headers}", "-o", made, source], check=True)
    return made
