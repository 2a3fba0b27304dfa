"""The agent's own statements, straight through libpq."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import psycopg
import pytest

from pgmip._connection import ObedientConnection, cut
from pgmip._direct import (
    Answers,
    Query,
    ask,
    bytea_array,
    converted,
    flag,
    maybe_number,
    number,
    numbers,
    text_array,
    together,
    uuid_array,
)
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

ECHO = b"SELECT $1::bytea, $2::text, $3::bigint, $4::uuid, $5::text"
SLEEP = b"SELECT pg_sleep($1::int)::text"
NOTHING = b"LISTEN something"
LONG = 5_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("direct", preload=()) as cluster:
        yield cluster


@pytest.fixture
async def conn(cluster: Cluster) -> AsyncIterator[ObedientConnection]:
    async with await ObedientConnection.connect(cluster.conninfo(), autocommit=True) as conn:
        yield conn


async def _works(conn: ObedientConnection) -> bool:
    return await ask(conn, b"SELECT 1") == [(b"\0\0\0\1",)]


async def test_values(conn: ObedientConnection) -> None:
    id, content = uuid4(), random.randbytes(LONG)
    for _ in range(2):
        ((raw, words, n, its_id, nothing),) = await ask(conn, ECHO, content, "a\nü'", -(1 << 63), id, None)
        assert (raw, words, number(n), its_id, nothing) == (content, "a\nü'".encode(), -(1 << 63), id.bytes, None)
    assert await ask(conn, ECHO, b"", "", 0, id, "") == [(b"", b"", bytes(8), id.bytes, b"")]
    assert await ask(conn, NOTHING) == []
    assert await ask(conn, b"SELECT WHERE false") == []


@pytest.mark.parametrize("of", [0, 1, 3])
async def test_arrays(conn: ObedientConnection, of: int) -> None:
    ids, contents = [uuid4() for _ in range(of)], [random.randbytes(n) for n in range(of)]
    whole = b"SELECT array_to_string($1::uuid[], ','), array_to_string($2::bytea[], ',')"
    ((found, raw),) = await ask(conn, whole, uuid_array(ids), bytea_array(contents))
    assert found == ",".join(map(str, ids)).encode()
    assert raw == ",".join("\\x" + content.hex() for content in contents).encode()
    words = ["", 'a "b", {c}\\\\', "ü", "NULL"][:of]
    ((said,),) = await ask(conn, b"SELECT to_json($1::text[])", text_array(words))
    assert json.loads(said or b"") == words
    few = b"SELECT ARRAY(SELECT n::bigint - 2 FROM generate_series(1, $1::int) n)"
    ((sent,),) = await ask(conn, few, of)
    assert numbers(sent) == [n - 1 for n in range(of)]


async def test_numbers(conn: ObedientConnection) -> None:
    several = b"SELECT -2::smallint, 1 << 30, true, false, NULL::int"
    ((small, large, yes, no, none),) = await ask(conn, several)
    assert (number(small), number(large), flag(yes), flag(no)) == (-2, 1 << 30, True, False)
    assert (maybe_number(small), maybe_number(none)) == (-2, None)
    for read in (number, numbers):
        with pytest.raises(psycopg.DataError):
            read(none)


async def test_errors(conn: ObedientConnection) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
            await ask(conn, DIVIDE, 0)
        with pytest.raises(psycopg.errors.UndefinedTable):
            await ask(conn, MISSING)
    ((half,),) = await ask(conn, DIVIDE, 2)
    assert number(half) == 5
    await conn.execute(b"CREATE TEMPORARY TABLE missing ()")
    assert await ask(conn, MISSING) == []  # it has been prepared only now


DIVIDE = b"SELECT 10 / $1::int"
MISSING = b"SELECT FROM missing"


@pytest.mark.parametrize("used", range(3, 8))  # from the sixth time on it is prepared
@pytest.mark.parametrize("fails", ["it", "what is before it"])
async def test_what_anybody_has_used_before(conn: ObedientConnection, fails: str, used: int) -> None:
    """psycopg's account is of what the server has."""

    async def divide(by: int, *before: Query) -> psycopg.Error | None:
        answers = Answers()
        await together(conn, [*before, converted(conn, "SELECT 10 / %s::int", (by,))], answers)
        return answers.error

    assert [await divide(2) for _ in range(used)] == [None] * used
    if fails == "it":
        assert isinstance(await divide(0), psycopg.errors.DivisionByZero)
    else:
        assert isinstance(await divide(2, Query(MISSING)), psycopg.errors.UndefinedTable)
    assert [await divide(5) for _ in range(6)] == [None] * 6
    ((times,),) = await ask(conn, b"SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT 10 / $1%'")
    assert number(times) == 1


async def test_a_commit_that_fails(conn: ObedientConnection) -> None:
    """Behind what was returned."""
    await conn.execute(b"CREATE TEMPORARY TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    add = b"INSERT INTO once VALUES (1), ($1) RETURNING n"
    assert len(await ask(conn, add, 2)) == 2
    with pytest.raises(psycopg.errors.UniqueViolation):
        await ask(conn, add, 3)
    assert await _works(conn)


async def test_cancelled(conn: ObedientConnection) -> None:
    """The server is told to end the statement, and the connection is as good as before."""
    async with asyncio.timeout(20):
        for _ in range(5):
            asking = asyncio.create_task(ask(conn, SLEEP, 600))
            await asyncio.sleep(random.uniform(0, 0.05))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await _works(conn)


async def test_cut(conn: ObedientConnection) -> None:
    asking = asyncio.create_task(ask(conn, SLEEP, 600))
    await asyncio.sleep(0.1)
    cut(conn)
    with pytest.raises(psycopg.OperationalError):
        await asking


async def test_ended(conn: ObedientConnection, cluster: Cluster) -> None:
    asking = asyncio.create_task(ask(conn, SLEEP, 600))
    await asyncio.sleep(0.1)
    cluster.run_sql(f"SELECT pg_terminate_backend({conn.info.backend_pid})")
    with pytest.raises(psycopg.errors.AdminShutdown):
        await asking


async def test_one_at_a_time(conn: ObedientConnection) -> None:
    """Beside others of the same connection, psycopg's as well."""
    async with asyncio.timeout(20):
        await asyncio.gather(*(_works(conn) for _ in range(5)), *(conn.execute(b"SELECT 1") for _ in range(5)))


async def test_notifications(conn: ObedientConnection) -> None:
    heard: list[str] = []
    conn.add_notify_handler(lambda notification: heard.append(notification.payload))
    await conn.execute(b"LISTEN something")
    await ask(conn, b"SELECT pg_notify('something', $1)", "x")
    assert await _works(conn)
    assert heard == ["x"]
