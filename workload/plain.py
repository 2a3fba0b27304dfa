"""Plain two-phase commit, done with care: what people build today where pg_mip is not at hand.

Each app server is a coordinator with a name and a log of decisions of its own, forced to disk before the first COMMIT
PREPARED. The idempotency key is a row at the store, written first, so that a retransmission to another server finds
the stored answer, or waits while its predecessor is undecided. Nobody but the coordinator's own log can tell what to
do with what it left prepared: `recover` reads it when the dead server is back. No log entry means rollback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

Connection = psycopg.AsyncConnection[Any]
Handler = Callable[["PlainTx", Any], Awaitable[Any]]
OnStep = Callable[[str], object]

IDEMPOTENCY = "CREATE TABLE idempotency (key text PRIMARY KEY, answer text)"
KEY_SITE = "store"


class Branch:
    """The part of a transaction at one site."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def execute(self, statement: str, params: Any = None) -> int:
        return (await self._conn.execute(statement.encode(), params)).rowcount

    async def fetch_one(self, statement: str, params: Any = None) -> Any:
        return await (await self._conn.execute(statement.encode(), params)).fetchone()

    async def fetch_all(self, statement: str, params: Any = None) -> list[Any]:
        return await (await self._conn.execute(statement.encode(), params)).fetchall()


class PlainTx:
    """What the handler sees."""

    def __init__(self, xid: str, connections: dict[str, Connection]) -> None:
        self.xid = xid
        self._branches = {site: Branch(conn) for site, conn in connections.items()}

    def __getitem__(self, site: str) -> Branch:
        return self._branches[site]


class Coordinator:
    """`on_step` is called with the names that pgmip gives its steps."""

    def __init__(self, name: str, sites: dict[str, str], log: Path, on_step: OnStep) -> None:
        self._name = name
        self._sites = sites
        self._idle: dict[str, list[Connection]] = {site: [] for site in sites}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)
        self._on_step = on_step

    async def submit(self, handler: Handler, request: Any, key: str) -> str:
        """Run the handler once per key. The answer, the same for every retransmission."""
        connections = dict(zip(self._sites, await asyncio.gather(*map(self._connect, self._sites)), strict=True))
        try:
            answer = await self._attempt(handler, request, key, connections)
        except BaseException:
            for conn in connections.values():
                await conn.close()
            raise
        for site, conn in connections.items():
            self._idle[site].append(conn)
        return answer

    async def close(self) -> None:
        for connections in self._idle.values():
            while connections:
                await connections.pop().close()
        os.close(self._log)

    async def _connect(self, site: str) -> Connection:
        if self._idle[site]:
            return self._idle[site].pop()
        return await psycopg.AsyncConnection.connect(
            self._sites[site], autocommit=True, row_factory=namedtuple_row, prepare_threshold=1
        )

    async def _attempt(self, handler: Handler, request: Any, key: str, connections: dict[str, Connection]) -> str:
        await _everywhere(connections, "BEGIN")
        self._on_step("begun")
        keys = Branch(connections[KEY_SITE])
        if not await keys.execute("INSERT INTO idempotency VALUES (%s) ON CONFLICT DO NOTHING", (key,)):
            known = await keys.fetch_one("SELECT answer FROM idempotency WHERE key = %s", (key,))
            await _everywhere(connections, "ROLLBACK")
            return str(known.answer)
        answer = json.dumps(await handler(PlainTx(key, connections), request))
        await keys.execute("UPDATE idempotency SET answer = %s WHERE key = %s", (answer, key))
        await self._finish(f"{self._name}:{next(self._numbers)}", connections)
        return answer

    async def _finish(self, gid: str, connections: dict[str, Connection]) -> None:
        try:
            await self._stepwise(connections, "PREPARE TRANSACTION", gid, "prepared-first-site")
        except psycopg.Error:
            for conn in connections.values():
                await _rollback_prepared(conn, gid)
            raise
        self._on_step("prepared-all")
        os.write(self._log, f"commit {gid}\n".encode())
        os.fsync(self._log)
        await self._stepwise(connections, "COMMIT PREPARED", gid, "committed-first-site")

    async def _stepwise(self, connections: dict[str, Connection], command: str, gid: str, first: str) -> None:
        """The command at all sites in parallel; a step when the first one has answered."""
        running = [
            asyncio.ensure_future(conn.execute(_finishing(command, gid))) for conn in connections.values()
        ]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self._on_step(first)
        await asyncio.wait(running)
        for task in running:
            status = task.result().statusmessage
            if status != command:  # a failed transaction turns PREPARE into ROLLBACK
                raise psycopg.OperationalError(f"{command} came back as {status}")


def _finishing(command: str, gid: str) -> sql.Composed:
    return sql.SQL(command + " {}").format(gid)


async def _everywhere(connections: dict[str, Connection], command: str) -> None:
    await asyncio.gather(*(conn.execute(command.encode()) for conn in connections.values()))


async def _rollback_prepared(conn: Connection, gid: str) -> None:
    try:
        await conn.execute("ROLLBACK")
        await conn.execute(_finishing("ROLLBACK PREPARED", gid))
    except psycopg.errors.UndefinedObject:
        pass  # was not prepared there


async def recover(name: str, sites: dict[str, str], log: Path) -> int:
    """The dead coordinator is back: finish what it left, as its log says. How many transactions that were."""
    decided = await asyncio.to_thread(_read_decisions, log)
    finished: set[str] = set()
    for conninfo in sites.values():
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            rows = await (
                await conn.execute(
                    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
                    (name + ":",),
                )
            ).fetchall()
            for (gid,) in rows:
                await conn.execute(_finishing("COMMIT PREPARED" if gid in decided else "ROLLBACK PREPARED", gid))
                finished.add(gid)
    return len(finished)


def _read_decisions(log: Path) -> set[str]:
    if not log.exists():
        return set()
    return {line.partition(" ")[2] for line in log.read_text().splitlines()}
