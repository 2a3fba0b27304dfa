"""Connections to a database, and to a log in one."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn, TransactionStatus

from .._cancellation import ended
from .._connection import Connection, ObedientConnection, connected, cut, cut_after

__all__ = ["readable", "session", "uncancelled"]

T = TypeVar("T")

_GRACE = 1.0  # seconds for a server to end a statement that has been cancelled
# Whoever has gone without a word is noticed within half a minute: a server, for which we wait, and us by the server, of
# which we have a lock, or are the applier.
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
_OF_HOSTS = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts", "connect_timeout")
# Whatever is set for the database, or the role: who waits for a message, or for a place in the log, waits.
_TIMEOUTS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0"
_SERVERS_KEEPALIVES = b"""
    SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
           set_config('tcp_keepalives_count', '4', false), set_config('tcp_user_timeout', '30s', false),
           (SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout')
"""


class _SessionConnection(ObedientConnection):
    """One that is cut where the server does not end a cancelled statement at once: it may have stopped."""

    async def cancel_safe(self, **options: Any) -> None:
        asyncio.get_running_loop().call_later(_GRACE, self._cut)
        await super().cancel_safe(**options)

    def _cut(self) -> None:
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            cut(self)


@contextlib.asynccontextmanager
async def session(conninfo: str, name: str, patience: float) -> AsyncIterator[ObedientConnection]:
    """A connection outside any transaction (autocommit), called `name` where the operator looks for it. Raises
    psycopg.OperationalError where there is none. Each host, and each of its addresses, has `patience` seconds (two at
    least), or its connect_timeout: so the one behind it is come to where the first says nothing.
    """
    asked = {**_KEEPALIVES, "fallback_application_name": name, "connect_timeout": math.ceil(patience)}
    parameters: dict[str, Any] = {**asked, **conninfo_to_dict(conninfo), **_hosts(conninfo)}
    options = f"{parameters.pop('options', '')} {_TIMEOUTS}"
    whole = make_conninfo(**{**parameters, "client_encoding": "utf-8", "options": options})
    attempt = _SessionConnection.connect(whole, autocommit=True)
    conn = await connected(attempt, None)
    try:
        with cut_after(conn, patience):
            await conn.execute(_SERVERS_KEEPALIVES)
        yield conn
    finally:
        await conn.close()


def _hosts(conninfo: str) -> dict[str, str]:
    """What is said of hosts, wherever: psycopg, which tries them one after another, does not look into service files.
    libpq does, and tells; and as there is no such sslmode it connects to nothing.
    """
    asked = PGconn.connect_start(make_conninfo(conninfo, sslmode="none").encode())
    try:
        found = {option.keyword.decode(): option.val for option in asked.info}
    finally:
        asked.finish()
    return {name: value.decode() for name in _OF_HOSTS if (value := found.get(name))}


async def readable(conn: ObedientConnection, seconds: float, said: asyncio.Event) -> None:
    """Wait until the server has something to say to who has asked nothing: notifications, of which the connection's
    handlers are told, or a farewell, for which psycopg.OperationalError is raised, now or by the next statement. Or
    until `said` is set, which that sets as well.
    """
    loop = asyncio.get_running_loop()
    conn.reader.stop()
    loop.add_reader(conn.pgconn.socket, said.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await said.wait()
    finally:
        loop.remove_reader(conn.pgconn.socket)
    conn.pgconn.consume_input()
    while (notification := conn.pgconn.notifies()) and conn.pgconn.notify_handler:
        conn.pgconn.notify_handler(notification)


async def uncancelled(conn: Connection, work: Coroutine[Any, Any, T]) -> T:
    """What `work` on this connection returns. When cancelled, cut the connection: the server is not asked to end the
    statement, and carries it out.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        cut(conn)
        await ended([task])
        raise
