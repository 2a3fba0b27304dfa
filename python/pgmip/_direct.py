"""Several statements in one round trip, straight through libpq: pgmip's own, and one of a handler's beside them. It
takes a fraction of the processor time of psycopg's cursors and pipelines, which convert anybody's parameters and
results, and send in pieces what goes together.

What is prepared on a connection is in psycopg's own account of that (its PrepareManager), so that either knows what the
other has prepared, or what a DEALLOCATE ALL has taken away; and a connection that is to prepare nothing does not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg import generators
from psycopg._preparing import Key, Prepare
from psycopg._queries import PostgresQuery
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from ._connection import ObedientConnection

__all__ = [
    "Answers",
    "Query",
    "Row",
    "Value",
    "ask",
    "bytea_array",
    "converted",
    "flag",
    "maybe_number",
    "number",
    "numbers",
    "show",
    "text_array",
    "together",
    "uuid_array",
]

Value = bytes | str | int | UUID | None
Row = tuple[bytes | None, ...]
"""As PostgreSQL's send functions have it."""

_BYTEA, _TEXT, _UUID = 17, 25, 2950
_HEAD = 20  # bytes in front of an array's elements, where it has any
_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY)
_COPIES = (ExecStatus.COPY_IN, ExecStatus.COPY_OUT, ExecStatus.COPY_BOTH)
_NO_CONTEXT = Transformer()


class Query(PostgresQuery):
    """A statement of pgmip's own, as it is sent. Its parameters are `$1`, `$2` and so on: a `bytes` goes in binary
    format, all else as text, in UTF-8: that is the encoding of all connections of ours, but while a handler has set
    another one, and then only ASCII is sent. Results come in binary format.
    """

    __slots__ = ("prepare", "result_format")

    def __init__(self, sql: bytes, *values: Value) -> None:
        super().__init__(_NO_CONTEXT)
        self.query = sql
        self.params = [_sent(value) for value in values]
        self.formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        self.prepare: bool | None = True
        self.result_format = Format.BINARY


def converted(conn: ObedientConnection, sql: Any, params: Any) -> Query:
    """A statement of anybody's, as psycopg sends it: prepared once it has been seen often enough."""
    theirs = PostgresQuery(Transformer(conn))
    theirs.convert(sql, params)
    query = Query(theirs.query)
    query.params, query.formats, query.types = theirs.params, theirs.formats, theirs.types
    query.prepare, query.result_format = None, Format.TEXT
    return query


def show(cursor: psycopg.AsyncCursor[Any], result: PGresult) -> None:
    """Have a cursor return what such a statement has come to."""
    cursor._tx = Transformer(cursor)
    cursor._set_results([result])


@dataclass(slots=True)
class Answers:
    """What a server has said to several statements."""

    results: list[PGresult] = field(default_factory=list)
    """Of those that it has carried out: the first ones, in their order."""
    error: psycopg.Error | None = None
    """Why not all of them: of the first that failed."""
    sent: int = 0
    """How many of them may have been sent: the first ones."""

    def fail(self, error: psycopg.Error) -> None:
        self.error = self.error or error

    def check(self) -> None:
        """Raise `error`, if there is one."""
        if self.error is not None:
            raise self.error


async def together(conn: ObedientConnection, queries: Sequence[Query], answers: Answers) -> None:
    """Run these, up to the first that fails, and have `answers` filled. A cancellation has the server end them, as with
    psycopg's own; what it has answered is in `answers` then, too.

    Not for several commands in one string, nor for COPY: where one has been begun the connection is of no use any more.
    """
    async with conn.lock:
        if conn._prepared._to_flush:
            await conn.wait(conn._prepared.maintain_gen(conn))
        await conn.exchange(_exchange(conn, queries, answers))


async def ask(conn: ObedientConnection, sql: bytes, *values: Value) -> list[Row]:
    """What a statement returns. Raises psycopg.Error."""
    answers = Answers()
    await together(conn, (Query(sql, *values),), answers)
    answers.check()
    (result,) = answers.results
    columns = range(result.nfields)
    return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


def _exchange(conn: ObedientConnection, queries: Sequence[Query], answers: Answers) -> PQGen[None]:
    wire, known = conn.pgconn, conn._prepared
    wire.enter_pipeline_mode()
    sent = _send(conn, queries, answers)
    wire.pipeline_sync()
    try:
        yield from generators.send(wire)
        for key, prepare, name in sent:
            prepared = (yield from generators.fetch_many(wire)) if prepare is Prepare.SHOULD else []
            executed = yield from generators.fetch_many(wire)
            if key is not None:
                # What has been prepared stays so where it fails. Behind what has failed nothing is prepared.
                failed = any(result.status not in _DONE for result in executed)
                known.validate(key, prepare, name, prepared if prepared and failed else executed)
            if _is_left_copying(answers, prepared + executed):
                return
        while not _is_over(answers, (yield from generators.fetch_many(wire))):
            pass
        wire.exit_pipeline_mode()
    except psycopg.OperationalError as lost:
        answers.fail(lost)  # unless the server has said before why it ends the connection
    if isinstance(answers.error, psycopg.errors.InvalidSqlStatementName):
        known.clear()  # somebody has dropped what it names


def _send(
    conn: ObedientConnection, queries: Sequence[Query], answers: Answers
) -> list[tuple[Key | None, Prepare, bytes]]:
    """What has been sent: its key where it is new to psycopg's account, or is prepared with it, whether that, and its
    name.
    """
    wire, known = conn.pgconn, conn._prepared
    sent = []
    for query in queries:
        prepare, name = known.get(query, query.prepare)
        answers.sent += 1
        try:
            if prepare is Prepare.SHOULD:
                wire.send_prepare(name, query.query, query.types)
            if prepare is Prepare.NO:
                types = query.types or None
                wire.send_query_params(query.query, query.params, types, query.formats, query.result_format)
            else:
                wire.send_query_prepared(name, query.params, query.formats, query.result_format)
        except Exception as error:  # what has been sent is to be read all the same
            # Too many parameters, say: libpq's error would be that of a connection, after which one tries again.
            stands = wire.status == ConnStatus.OK
            answers.fail(psycopg.ProgrammingError(str(error)) if stands else psycopg.OperationalError(str(error)))
            break
        key = known.maybe_add_to_cache(query, prepare, name)
        if key is None and prepare is Prepare.SHOULD:  # it does not say so of what it has counted before
            key = known.key(query)
        sent.append((key, prepare, name))
    return sent


def _is_left_copying(answers: Answers, results: Sequence[PGresult]) -> bool:
    """Add what a statement has come to; whether the server waits for the rest of a COPY now."""
    refusal = next((result for result in results if result.status not in _DONE), None)
    if refusal is None and results:
        answers.results.append(results[-1])
    elif refusal is None or refusal.status in _COPIES:
        answers.fail(psycopg.ProgrammingError("a statement has brought no result that could be used"))
    else:
        answers.fail(error_from_result(refusal))
    return refusal is not None and refusal.status in _COPIES


def _is_over(answers: Answers, results: Sequence[PGresult]) -> bool:
    """Whether this is the end of all; what fails behind the last statement's result is its commit."""
    if not results:
        raise psycopg.OperationalError("the server has answered nothing")
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            answers.fail(error_from_result(result))
    return results[-1].status == ExecStatus.PIPELINE_SYNC


def _sent(value: Value) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


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


def text_array(values: Sequence[str]) -> bytes:
    return _array(_TEXT, [value.encode() for value in values])


def uuid_array(values: Sequence[UUID]) -> bytes:
    return _array(_UUID, [value.bytes for value in values])


def bytea_array(values: Sequence[bytes]) -> bytes:
    return _array(_BYTEA, values)


def _array(of: int, elements: Sequence[bytes]) -> bytes:
    """As array_recv reads it: of one dimension, or none, and without nulls."""
    head = struct.pack("!iiI", 1 if elements else 0, 0, of)
    bounds = struct.pack("!ii", len(elements), 1) if elements else b""
    return head + bounds + b"".join(struct.pack("!i", len(element)) + element for element in elements)
