"""One branch at one site: only a reply that says so is a success."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from shop import Shop

from pgmip import _sql
from pgmip._branch import Branch, Instance, Lost, NotPrepared, Prepared, _nothing, read_count, read_one
from pgmip._connection import PooledConnection
from pgmip.decision import Entry, State
from pgmip.xinst import new_xinst

pytestmark = pytest.mark.integration


async def ignore(site: str) -> None:
    pass


def ignore_others(xinsts: Sequence[int]) -> None:
    pass


async def nobody() -> list[Entry]:
    return []


IGNORE: Any = {"on_begun": ignore, "on_beside": ignore_others, "read": nobody}


def ignore_error(error: psycopg.Error | None) -> None:
    pass


async def branch_of(shop: Shop, xid: str, above: int = 0) -> Branch:
    conn = await PooledConnection.connect(shop.clusters["store"].conninfo(), patience=5, ended=ignore_error)
    return Branch("store", conn, Instance(xid, new_xinst(above), ("bank", "store"), "read committed"), **IGNORE)


def branch_over(conn: PooledConnection, xid: str) -> Branch:
    return Branch("store", conn, Instance(xid, new_xinst(), ("store",), "read committed"), **IGNORE)


async def test_prepared(shop: Shop) -> None:
    branch = await branch_of(shop, "yes")
    vote = await branch.prepare("q", "r", 5)
    assert isinstance(vote, Prepared)
    assert [(entry.request, entry.result) for entry in vote.mipt] == [("q", "r")]
    await branch.conn.close()


async def test_a_failed_transaction_is_refused(shop: Shop) -> None:
    branch = await branch_of(shop, "failed")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await branch.run("SELECT 1/0", None, _nothing)
    assert isinstance(branch.failure, psycopg.errors.DivisionByZero)
    assert isinstance(await branch.prepare("q", "r", 5), NotPrepared)
    await branch.conn.close()
    shop.assert_clean()


@pytest.mark.parametrize(
    "sql",
    [_sql.PREPARE + b" LIMIT 0", b"SELECT NULL FROM (SELECT $1::text, $2::text, $3::text) _"],
    ids=["no row", "not ended"],
)
async def test_a_reply_that_does_not_confirm_is_no_success(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, sql: bytes
) -> None:
    monkeypatch.setattr(_sql, "PREPARE", sql)
    branch = await branch_of(shop, "not confirmed")
    assert isinstance(await branch.prepare("q", "r", 5), Lost)
    await branch.conn.close()


@pytest.mark.parametrize("state", [None, "gone", State.ABORTED, State.PREPARED])
async def test_prepared_beside_another(shop: Shop, state: Any) -> None:
    """Then it looks, which may fail, or come too late."""
    first = await branch_of(shop, f"beside {state}")
    second = await branch_of(shop, f"beside {state}", above=first._instance.xinst)
    mipt = (Entry(second._instance.xinst, state),)

    async def read() -> tuple[Entry, ...] | None:
        return {None: None, "gone": ()}.get(state, mipt)

    second._read = read
    assert isinstance(await first.prepare("q", "r", 5), Prepared)
    vote = await second.prepare("q", "s", 5)
    assert vote == Prepared(mipt) if state is State.PREPARED else isinstance(vote, Lost)
    for branch in (first, second):
        await branch.conn.close()


async def test_a_lost_connection_is_not_a_refusal(shop: Shop) -> None:
    branch = await branch_of(shop, "lost")
    await branch.run("SELECT", None, _nothing)
    shop.sql("store", f"SELECT pg_terminate_backend({branch.conn.info.backend_pid})")
    assert isinstance(await branch.prepare("q", "r", 5), Lost)
    await branch.conn.close()
    shop.assert_clean()


async def test_a_connection_is_as_good_after_refusals(shop: Shop) -> None:
    """psycopg prepares what it executes often, and takes it for prepared even where the site had refused to begin."""
    conn = await PooledConnection.connect(shop.clusters["store"].conninfo(), patience=5, ended=ignore_error)

    async def refused() -> None:
        branch = branch_over(conn, "0")
        with psycopg.connect(shop.clusters["store"].conninfo()) as other:
            other.execute("LOCK TABLE mip.mipt")  # lets the site answer after all has been sent
            running = asyncio.create_task(branch.run("SELECT 1", None, _nothing))
            await until_waiting(shop, conn.info.backend_pid)
        with pytest.raises(psycopg.DatabaseError, match="committed"):
            await running
        await branch.rollback(5)

    for number in range(12):
        branch = branch_over(conn, str(number))
        await branch.run("SELECT 1", None, _nothing)
        assert isinstance(await branch.commit_one_phase("q", "r", 5), Prepared)
        if number % 6 == 0:
            await refused()
        await refused()
    await conn.close()


async def until_waiting(shop: Shop, pid: int) -> None:
    while not shop.sql("store", f"SELECT 1 FROM pg_locks WHERE pid = {pid} AND NOT granted"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def until_asleep(shop: Shop, pid: int) -> None:
    asleep = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
    while not shop.sql("store", asleep):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_nothing_can_be_added_to_what_is_over(shop: Shop) -> None:
    branch = await branch_of(shop, "over")
    await branch.prepare("q", "r", 5)
    with pytest.raises(RuntimeError):
        await branch.run("SELECT 1", None, _nothing)
    await branch.conn.close()


async def test_a_connection_that_waits_is_not_taken_for_a_copy(shop: Shop) -> None:
    """As one is left of which the server has ended the session amid a pipeline."""
    for statement, copies in ((b"SELECT pg_sleep(60)", False), (b"COPY (SELECT 1) TO STDOUT", True)):
        branch = await branch_of(shop, "waits")
        wire = branch.conn.pgconn
        wire.send_query(statement)
        while copies and wire.is_busy():
            wire.consume_input()
        if not copies:  # a cancel that comes before the statement is none, and it goes on for a client that has gone
            await until_asleep(shop, wire.backend_pid)
        assert wire.transaction_status == TransactionStatus.ACTIVE
        assert branch._copies_still(psycopg.OperationalError("cannot exit pipeline mode")) is copies
        await branch.conn.cancel_safe()
        await branch.conn.close()


@pytest.mark.parametrize("default", ["read committed", "repeatable read", "serializable"])
async def test_runs_at_its_own_isolation_level_whatever_that_of_the_session(shop: Shop, default: str) -> None:
    conn = await PooledConnection.connect(shop.clusters["store"].conninfo(), patience=5, ended=ignore_error)
    await conn.execute(f"SET default_transaction_isolation = '{default}'")
    for xid in (f"first {default}", f"second {default}"):
        branch = branch_over(conn, xid)
        assert await branch.run("SHOW transaction_isolation", None, read_one) == ("read committed",)
        assert await branch.run("UPDATE item SET stock = stock + 1 WHERE i_id = 2", None, read_count) == 1
        assert isinstance(await branch.commit_one_phase("q", "r", 5), Prepared)
    assert conn.starts is (default == "read committed")  # else each time there would be a further trip
    await conn.close()
    shop.assert_clean()


@pytest.mark.parametrize("used", range(3, 8))
async def test_a_session_whose_isolation_level_becomes_another_one(shop: Shop, used: int) -> None:
    """Whether or not the statement that comes with the begin has been prepared by then."""
    conn = await PooledConnection.connect(shop.clusters["store"].conninfo(), patience=5, ended=ignore_error)
    for number in range(used + 2):
        if number == used:
            await conn.execute("SET default_transaction_isolation = 'repeatable read'")
        branch = branch_over(conn, f"becomes {used} {number}")
        assert await branch.run("SELECT i_id FROM item WHERE i_id = %s", (2,), read_one) == (2,)
        assert isinstance(await branch.commit_one_phase("q", "r", 5), Prepared)
    await conn.close()
    shop.assert_clean()


@pytest.mark.parametrize("how", ["many", "copy"])
async def test_what_waits_for_a_begin_that_is_refused_does_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """There is no transaction then, and what would be done without one would stay."""
    monkeypatch.setattr(_sql, "START", _sql.START.replace(b"mip.start", b"mip.begins"))
    branch = await branch_of(shop, "refused")

    async def write() -> None:
        if how == "many":
            await branch.run_many("INSERT INTO orders (xid, xinst, qty) VALUES (%s, 1, 1)", [("refused",)])
        else:
            async with branch.copy("COPY orders (xid, xinst, qty) FROM STDIN", None) as copy:
                await copy.write_row(("refused", 1, 1))

    first = asyncio.create_task(branch.run("SELECT 1", None, _nothing))
    await asyncio.sleep(0)
    assert branch.begun
    for beside in (write(), write()):  # as the first one begins, and afterwards
        with pytest.raises(psycopg.errors.UndefinedFunction):
            await beside
    with pytest.raises(psycopg.errors.UndefinedFunction):
        await first
    assert shop.sql("store", "SELECT count(*) FROM orders WHERE xid = 'refused'") == [(0,)]
    await branch.conn.close()
    shop.assert_clean()


async def test_a_begin_that_is_refused_at_once_leaves_nothing_to_be_ended(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the extension is not installed: its error, and no other one, and no transaction."""
    monkeypatch.setattr(_sql, "START", _sql.START.replace(b"mip.start", b"mip.begins"))
    branch = await branch_of(shop, "not installed")
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedFunction):
            await branch.run("SELECT 1", None, _nothing)
    assert not branch.begun
    assert isinstance(branch.failure, psycopg.errors.UndefinedFunction)
    vote = await branch.prepare("q", "r", 5)
    assert isinstance(vote, NotPrepared)
    assert isinstance(vote.error, psycopg.errors.UndefinedFunction)
    await branch.conn.close()
    shop.assert_clean()
