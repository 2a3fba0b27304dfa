"""One branch at one site: only a reply that says so is a success."""

from __future__ import annotations

import psycopg
import pytest
from shop import Shop

from pgmip import _branch
from pgmip._branch import Branch, Instance, Lost, Prepared, Refused
from pgmip.xinst import new_xinst

pytestmark = pytest.mark.integration


async def ignore(site: str) -> None:
    pass


async def branch_of(shop: Shop, xid: str) -> Branch:
    conn = await psycopg.AsyncConnection.connect(shop.clusters["store"].conninfo(), autocommit=True)
    return Branch("store", conn, Instance(xid, new_xinst(), ("bank", "store"), "read committed"), ignore)


async def test_prepared(shop: Shop) -> None:
    branch = await branch_of(shop, "yes")
    vote = await branch.prepare("q", "r", 5)
    assert isinstance(vote, Prepared)
    assert [(entry.request, entry.result) for entry in vote.mipt] == [("q", "r")]
    await branch.conn.close()


async def test_a_failed_transaction_is_refused(shop: Shop) -> None:
    branch = await branch_of(shop, "failed")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await branch.run("SELECT 1/0", None)
    assert isinstance(branch.failure, psycopg.errors.DivisionByZero)
    assert isinstance(await branch.prepare("q", "r", 5), Refused)
    await branch.conn.close()
    shop.assert_clean()


@pytest.mark.parametrize("tail", [b"WHERE xinst = 0", b"LIMIT 0"], ids=["prepared unseen", "not prepared"])
async def test_a_reply_that_does_not_confirm_is_no_success(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    monkeypatch.setattr(_branch, "_PREPARE", _branch._PREPARE + b" " + tail)
    branch = await branch_of(shop, tail.decode())
    assert isinstance(await branch.prepare("q", "r", 5), Lost)
    await branch.conn.close()


async def test_a_lost_connection_is_not_a_refusal(shop: Shop) -> None:
    branch = await branch_of(shop, "lost")
    await branch.run("SELECT", None)
    shop.sql("store", f"SELECT pg_terminate_backend({branch.conn.info.backend_pid})")
    assert isinstance(await branch.prepare("q", "r", 5), Lost)
    await branch.conn.close()
    shop.assert_clean()


async def test_nothing_can_be_added_to_what_is_over(shop: Shop) -> None:
    branch = await branch_of(shop, "over")
    await branch.prepare("q", "r", 5)
    with pytest.raises(RuntimeError):
        await branch.run("SELECT 1", None)
    await branch.conn.close()
