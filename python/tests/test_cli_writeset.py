"""`pgmip writeset` against two real sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shop import Shop
from test_cli import NOWHERE, OK, PROBLEMS, UNREACHABLE, USAGE, Cli

pytestmark = pytest.mark.integration

TABLE = "CREATE TABLE notes (id integer PRIMARY KEY, note text) USING mip"


@pytest.fixture
def cli(shop: Shop) -> Cli:
    return Cli(shop.conninfos())


@pytest.fixture
def taken(shop: Shop) -> Iterator[bytes]:
    """The writeset of a transaction at the store that has been rolled back, so the bank's table is like the store's."""
    for site in ("store", "bank"):
        shop.sql(site, f"{TABLE}; INSERT INTO notes VALUES (1, 'one'), (2, 'two')")
    with psycopg.connect(shop.clusters["store"].conninfo()) as conn:
        conn.execute("SET LOCAL mip.capture_writeset = on")
        conn.execute("UPDATE notes SET note = E'\\x1b[31mred' WHERE id = 1")
        conn.execute("DELETE FROM notes WHERE id = 2")
        conn.execute("INSERT INTO notes VALUES (3)")
        row: Any = conn.execute("SELECT mip.writeset()").fetchone()
        conn.rollback()
    yield row[0]
    for site in ("store", "bank"):
        shop.sql(site, "DROP TABLE IF EXISTS notes")


def test_show(cli: Cli, taken: bytes, tmp_path: Path) -> None:
    """From a file, as bytes and as psql prints them."""
    raw, printed = tmp_path / "raw", tmp_path / "printed"
    raw.write_bytes(taken)
    printed.write_text(f"\\x{taken.hex()}\n")
    document = cli.json("writeset", "show", "--at", "bank", str(raw))
    assert document["info"]["inserted"] == document["info"]["updated"] == document["info"]["deleted"] == 1
    assert [(c["op"], c["relation"], c["identity"], c["row"]) for c in document["changes"]] == [
        ("U", "public.notes", {"id": "1"}, {"note": "\x1b[31mred"}),
        ("D", "public.notes", {"id": "2"}, None),
        ("I", "public.notes", None, {"id": "3", "note": None}),
    ]
    assert cli.json("writeset", "show", "--at", "bank", str(printed)) == document
    shown = cli("writeset", "show", "--at", "bank", str(raw), code=OK).stdout
    assert "1 inserted, 1 updated, 1 deleted" in shown
    assert "\x1b" not in shown
    assert "note = NULL" in shown


def test_apply(cli: Cli, shop: Shop, taken: bytes, tmp_path: Path) -> None:
    """All of it, or nothing."""
    file = tmp_path / "w"
    file.write_bytes(taken)
    assert "bank: 3 changes" in cli("writeset", "apply", "--at", "bank", str(file), code=OK).stdout
    rows = [(1, "\x1b[31mred"), (3, None)]
    assert shop.sql("bank", "SELECT * FROM notes ORDER BY id") == rows
    assert "is not there" in cli("writeset", "apply", "--at", "bank", str(file), code=PROBLEMS).stderr
    assert shop.sql("bank", "SELECT * FROM notes ORDER BY id") == rows
    assert cli.json("writeset", "apply", "--at", "store", str(file))["changes"] == 3


def test_apply_in_time(cli: Cli, shop: Shop, taken: bytes, tmp_path: Path) -> None:
    """Beside somebody who has locked a row the site gives up: it makes no changes later."""
    file = tmp_path / "w"
    file.write_bytes(taken)
    with psycopg.connect(shop.clusters["bank"].conninfo()) as conn:
        conn.execute("UPDATE notes SET note = 'other' WHERE id = 2")
        refused = cli("writeset", "apply", "--at", "bank", "--timeout", "0.5", str(file), code=PROBLEMS)
        assert "statement timeout" in refused.stderr
        conn.rollback()
    assert shop.sql("bank", "SELECT * FROM notes ORDER BY id") == [(1, "one"), (2, "two")]


def test_diff(cli: Cli, shop: Shop, taken: bytes) -> None:
    assert "same" in cli("writeset", "diff", "notes", code=OK).stdout
    shop.sql("bank", "UPDATE notes SET note = 'eins' WHERE id = 1")
    document = cli.json("writeset", "diff", "notes", "nothing", code=PROBLEMS)
    assert document["differ"] == ["notes"]
    assert document["tables"]["nothing"] == {"store": None, "bank": None}
    shop.sql("bank", "UPDATE notes SET note = 'one' WHERE id = 1")
    document = cli.json("writeset", "diff", "notes", "nothing", code=PROBLEMS)
    assert document["differ"] == []
    assert document["missing"] == ["nothing"], "what is nowhere is not the same everywhere"
    said = cli("writeset", "diff", "nothing", code=PROBLEMS)
    assert "no table nothing" in said.stderr
    assert "same" not in said.stdout
    assert cli.json("writeset", "diff", "notes")["differ"] == [], "whatever the order"
    shop.sql("bank", "DROP TABLE notes")
    found = cli.json("writeset", "diff", code=PROBLEMS)
    assert "notes" in found["differ"], "all that have opted in anywhere"
    assert cli.json("writeset", "diff", "notes", code=UNREACHABLE, bank=NOWHERE)["errors"]["bank"]


def test_what_cannot_be_done(cli: Cli, taken: bytes, tmp_path: Path) -> None:
    file = tmp_path / "w"
    cli("writeset", "show", "--at", "store", str(file), code=USAGE)  # is not there
    file.write_bytes(taken[:-1])
    assert "not a writeset" in cli("writeset", "show", "--at", "store", str(file), code=PROBLEMS).stderr
    file.write_text("nonsense")
    assert "not a writeset" in cli("writeset", "apply", "--at", "store", str(file), code=PROBLEMS).stderr
    cli("writeset", "apply", str(file), code=USAGE)  # at which site?
    cli("writeset", "apply", "--at", "store", str(file), code=UNREACHABLE, store=NOWHERE)
    assert "two sites" in cli("writeset", "diff", code=USAGE, bank="").stderr
