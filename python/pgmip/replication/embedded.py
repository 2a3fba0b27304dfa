"""The log as a table in a PostgreSQL database of its own: nothing else to install.

It is as safe, and as available, as that server. With a synchronous standby, to which the connection string points as
well (`host=a,b target_session_attrs=read-write`), it survives the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import psycopg

from .._connection import Connection, ObedientConnection, cut_after
from .._direct import Value, ask, bytea_array, flag, maybe_number, number, numbers, uuid_array
from .._text import text
from . import schema
from .appended import Appended
from .engine import Entry, LogError, Message, NoLog, Place, Refused, Unavailable, WentBack
from .following import check_after, check_follows
from .session import readable, session, uncancelled

__all__ = ["EmbeddedLog", "create"]

_NAME = "pgmip replica log"
_NOT_THERE = ("3F000", "42P01", "42883")
# What will not be otherwise if it is tried again: settings, permissions, limits.
_REFUSING = ("22", "23", "25", "42", "54", "55000")
_MOST_ENTRIES = 1000  # read at once
_TRIMMED_AT_ONCE = 10_000


class EmbeddedLog:
    """An `Engine`. It connects where it has to, and again after an error; close it, or use it as a context manager.

    Refuses to work where a crash of the server could lose what has been committed (`fsync`, `full_page_writes` or
    `synchronous_commit` are off), and at a standby. Ids are unique over what has not been trimmed: `Engine.trim` tells
    why that is enough.
    """

    max_message = 256 << 20
    """In bytes. A server can have values of 1 GB, but has several copies of one at the same time."""

    def __init__(self, conninfo: str, *, patience: float = 30.0, poll: float = 1.0) -> None:
        """Times in seconds. `patience`: for how long to wait for the server, after which it is Unavailable. `poll`: how
        often to look for new entries without having been notified.
        """
        self._poll = poll
        # An append may wait for others, a read does, and to trim takes long: each verb has a connection.
        self._append, self._end, self._trim = (_Session(conninfo, patience) for _ in range(3))
        self._read = _Session(conninfo, patience, listens=True)
        self._appended = Appended()
        self._said = asyncio.Event()
        """Whether who reads has been told something, by the server or from here, since this was cleared."""

    async def append(self, messages: Sequence[Message], known: Place | None = None) -> Sequence[int]:
        """One round trip, and one flush. `known` is looked at in its transaction, behind whoever adds to the log."""
        for message in messages:
            if len(message.content) > self.max_message:
                raise Refused(f"message {message.id} has {len(message.content)} bytes, more than {self.max_message}")
        ids, contents = uuid_array([m.id for m in messages]), bytea_array([m.content for m in messages])
        async with self._append.use() as conn:
            # Not to be ended: at a synchronous server what has been committed would be seen before it is safe.
            with cut_after(conn, self._append.patience):
                asked = ask(conn, schema.APPEND, ids, contents, *_place(known))
                with self._unheard(conn):
                    ((positions, first, last, before, stamp),) = await uncancelled(conn, asked)
                    self._read.hear(maybe_number(last))
                    if before and stamp:
                        place = Place(number(last) - len(messages), UUID(bytes=before))
                        self._appended.put(place, UUID(bytes=stamp), messages)
        _check(first, last, positions is not None, known)
        return numbers(positions)

    async def read(
        self, after: int, max_bytes: int, *, wait: float, known: Place | None = None
    ) -> Sequence[Entry]:
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        async with self._read.use() as conn:
            while True:
                left = max(0.0, end - loop.time())
                await self._wait(conn, after, min(self._poll, left))
                if entries := self._appended.take(known, max_bytes):
                    return entries
                self._read.last = 0
                with cut_after(conn, self._read.patience):
                    entries, last = await _entries(conn, after, max_bytes, known)
                self._read.hear(last)
                if entries or not left:
                    return entries

    async def _wait(self, conn: ObedientConnection, after: int, seconds: float) -> None:
        """Until there may be something behind that position, or for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._read.knows_of_nothing(after) and (left := end - loop.time()) > 0:
            self._said.clear()
            await readable(conn, left, self._said)

    @contextlib.contextmanager
    def _unheard(self, conn: ObedientConnection) -> Iterator[None]:
        """Within this block something is appended over that connection. A notification of it may be faster than its
        end; who reads waits for that, as he need not ask the log then. If it fails he looks.
        """
        self._read.unheard = conn.info.backend_pid
        try:
            yield
        except BaseException:
            self._read.hear(None)
            raise
        finally:
            self._read.unheard = None
            self._said.set()

    async def end(self) -> int:
        async with self._end.use() as conn:
            with cut_after(conn, self._end.patience):
                (last,) = await _row(conn, schema.END)
        check_follows(last, last, True, None)
        return int(last)

    async def trim(self, upto: int, known: Place | None = None) -> None:
        async with self._trim.use() as conn:
            removed = -1
            while removed:
                with cut_after(conn, self._trim.patience):
                    asked = ask(conn, schema.TRIM, *_place(known), upto, _TRIMMED_AT_ONCE)
                    ((first, last, follows, count),) = await asked
                _check(first, last, flag(follows), known)
                removed = number(count)
                known = None  # may be among what is removed; over this connection it is the same log

    async def close(self) -> None:
        """End all connections."""
        for one in (self._append, self._read, self._end, self._trim):
            await one.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def create(conninfo: str, beginning: Message, *, new: bool = True, patience: float = 30.0) -> bool:
    """Make the log that begins with this message, in a database that has none; whether it was not there yet. With `new`
    false it has to be there.

    Raises Refused where there is a log that was made with another id, Unavailable where it is not known whether it has
    been made: then do it again, with the same message.
    """
    with _told():
        async with session(conninfo, _NAME, patience) as conn:
            with cut_after(conn, patience):
                return await uncancelled(conn, _create(conn, beginning, new, patience))


async def _create(conn: Connection, beginning: Message, new: bool, patience: float) -> bool:
    there = await _exists(conn)
    if not there and not new:
        raise _no_log()
    made = not there and await _made(conn, beginning)
    try:
        await _check_safe(conn, patience)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction) as error:
        raise Refused("schema mip_log of this database is not a log", hint="give another database") from error
    if (await _row(conn, schema.BEGINNING))[0] != beginning.id:
        raise Refused("there is a log already, and it has another beginning")
    return made


async def _exists(conn: Connection) -> bool:
    return bool((await _row(conn, schema.EXISTS))[0])


async def _made(conn: Connection, beginning: Message) -> bool:
    """Make it, if nobody else has done so meanwhile. It is durable then, or refused by what looks at it next."""
    async with conn.transaction():
        await conn.execute(schema.LOCK)
        if await _exists(conn):
            return False
        await conn.execute(schema.SCHEMA)
        await conn.execute(schema.BEGIN, (schema.VERSION, beginning.id, beginning.content))
    return True


class _Session:
    """A connection to the log, made when it is needed, and given up after an error. Of one user at a time."""

    def __init__(self, conninfo: str, patience: float, *, listens: bool = False) -> None:
        self._conninfo = conninfo
        self.patience = patience
        self._listens = listens
        self.last: int | None = None
        """The log's last position, as far as is known since it was read last; None where it has to be read first."""
        self.unheard: int | None = None
        """The process ID of a server's whose notifications do not count."""
        self._free = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._conn: ObedientConnection | None = None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[ObedientConnection]:
        """The connection. Raises LogError, also for what psycopg raises within the block."""
        async with self._free:
            with _told():
                try:
                    if self._conn is None:
                        self._conn = await self._opened()
                    yield self._conn
                except BaseException:
                    await self.end()
                    raise

    def knows_of_nothing(self, after: int) -> bool:
        """Whether nothing is known to be behind that position."""
        return self.last is not None and self.last <= after

    async def end(self) -> None:
        """Close it; the next user has another one."""
        self._conn = self.last = None
        await self._stack.aclose()

    async def _opened(self) -> ObedientConnection:
        conn = await self._stack.enter_async_context(session(self._conninfo, _NAME, self.patience))
        with cut_after(conn, self.patience):
            await _check_safe(conn, self.patience)
            if self._listens:
                conn.add_notify_handler(self._on_notify)
                await conn.execute(schema.LISTEN)
        return conn

    def hear(self, position: int | None) -> None:
        """That the log has come to this position; or to one that is to be found out."""
        self.last = None if position is None or self.last is None else max(position, self.last)

    def _on_notify(self, notification: psycopg.Notify) -> None:
        if notification.pid != self.unheard:
            self.hear(_position_in(notification.payload))


async def _check_safe(conn: Connection, patience: float) -> None:
    """Raise an error where there is no log, where it is not safe, or is another release's. From then on no statement
    waits for a lock for longer than `patience`: what has been given up must not wait on, and its successors behind it.
    """
    row = await _row(conn, schema.OPEN, (f"{math.ceil(patience)}s",))
    if row is None:
        raise WentBack("mip_log.log is empty, which that of no log is that has begun: it has lost what it was")
    version, *_ = row
    if version != schema.VERSION:
        raise Refused(f"the log has version {version}, and not {schema.VERSION}: it is another release's")


async def _row(conn: Connection, statement: bytes, parameters: Sequence[Any] = ()) -> Any:
    return await (await conn.execute(statement, parameters)).fetchone()


async def _entries(
    conn: ObedientConnection, after: int, max_bytes: int, known: Place | None
) -> tuple[list[Entry], int]:
    """What is behind that position by now, and durable; and the log's last position. Raises Trimmed, WentBack and
    Forked.
    """
    rows = await ask(conn, schema.READ, *_place(known), after, _MOST_ENTRIES, max_bytes)
    first, last, follows, confirmed, *_ = rows[0]
    _check(first, last, flag(follows), known)
    check_after(number(first), number(last), after)
    entries = [_entry(number(position), stamp, content) for *_, position, stamp, content in rows if position]
    durable = [entry for entry in entries if entry.position <= number(confirmed)]
    if entries and not durable:
        # A cancelled wait for a standby would count as one that has come to its end.
        await uncancelled(conn, conn.execute(schema.CONFIRM))
        return entries, number(last)
    return durable, number(last)


def _entry(position: int, stamp: bytes | None, content: bytes | None) -> Entry:
    assert content is not None
    return Entry(position, content, Place(position, UUID(bytes=stamp)))


def _position_in(payload: str) -> int | None:
    """Anybody may notify, and say anything."""
    try:
        return int(payload)
    except ValueError:
        return None


def _place(known: Place | None) -> tuple[Value, Value]:
    return (None, None) if known is None else (known.position, known.stamp)


def _check(first: bytes | None, last: bytes | None, follows: bool, known: Place | None) -> None:
    """By what the server has sent."""
    check_follows(maybe_number(first), maybe_number(last), follows, known)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What psycopg raises is told as a LogError."""
    try:
        yield
    except psycopg.Error as error:
        raise _meant(error) from error


def _no_log() -> NoLog:
    return NoLog("there is no log in this database", hint="make one: pgmip replica init")


def _meant(error: psycopg.Error) -> LogError:
    if error.sqlstate in _NOT_THERE:
        return _no_log()
    message, hint = error.diag.message_primary or text(error), error.diag.message_hint
    if error.sqlstate in _REFUSING or (error.sqlstate or "")[:2] in _REFUSING:
        return Refused(message, hint=hint)
    return Unavailable(message, hint=hint)
