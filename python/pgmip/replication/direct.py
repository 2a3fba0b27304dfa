"""Statements of the agent's own, straight through libpq: at two thirds of the processor time of psycopg's cursors,
which convert anybody's parameters and results.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from .._connection import ObedientConnection

__all__ = ["Row", "Statement", "Value", "ask", "bytea_array", "flag", "maybe_number", "number", "numbers", "uuid_array"]

Value = bytes | str | int | UUID | None
Row = tuple[bytes | None, ...]
"""As PostgreSQL's send functions have it."""

_numbers = count(1)
_BYTEA, _UUID = 17, 2950
_HEAD = 20  # bytes in front of an array's elements, where it has any


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """Parameters are `$1`, `$2` and so on. A `bytes` is sent as it is, in binary format; all else as text."""

    sql: bytes
    name: bytes = field(default_factory=lambda: f"pgmip_{next(_numbers)}".encode())


async def ask(conn: ObedientConnection, statement: Statement, *values: Value) -> list[Row]:
    """What it returns. Prepared once for a connection; nobody may have it forgotten (DISCARD, DEALLOCATE)."""
    async with conn.lock:
        if statement not in conn.prepared:
            conn.pgconn.send_prepare(statement.name, statement.sql)
            await _result(conn)
            conn.prepared.add(statement)
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        conn.pgconn.send_query_prepared(statement.name, [_sent(value) for value in values], formats, Format.BINARY)
        result = await _result(conn)
    columns = range(result.nfields)
    return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


def _sent(value: Value) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


async def _result(conn: ObedientConnection) -> PGresult:
    """Raises what psycopg would; a cancellation has the server end the statement, as with psycopg's own."""
    results: Sequence[PGresult] = await conn.wait(generators.execute(conn.pgconn))
    if not results:
        raise psycopg.InternalError("the server has answered nothing")
    for result in results:  # an error comes behind what was returned where it is the commit that has failed
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result)
    return results[0]


def number(sent: bytes | None) -> int:
    """Of an integer of any size."""
    if sent is None:
        raise psycopg.DataError("null where a number was expected")
    return int.from_bytes(sent, "big", signed=True)


def maybe_number(sent: bytes | None) -> int | None:
    return None if sent is None else number(sent)


def numbers(sent: bytes | None) -> list[int]:
    """Of an array of bigint, of one dimension, or none, and without nulls."""
    if sent is None:
        raise psycopg.DataError("null where numbers were expected")
    return [value for _, value in struct.iter_unpack("!iq", sent[_HEAD:])]


def flag(sent: bytes | None) -> bool:
    return sent == b"\x01"


def uuid_array(values: Sequence[UUID]) -> bytes:
    return _array(_UUID, [value.bytes for value in values])


def bytea_array(values: Sequence[bytes]) -> bytes:
    return _array(_BYTEA, values)


def _array(of: int, elements: Sequence[bytes]) -> bytes:
    """As array_recv reads it: of one dimension, or none, and without nulls."""
    head = struct.pack("!iiI", 1 if elements else 0, 0, of)
    bounds = struct.pack("!ii", len(elements), 1) if elements else b""
    return head + bounds + b"".join(struct.pack("!i", len(element)) + element for element in elements)
