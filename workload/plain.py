"""Plain two-phase commit, done with care: what people build today where pg_mip is not at hand.

Each app server is a coordinator with a name and a log of decisions of its own, forced to disk before the first COMMIT
PREPARED, for as many transactions at a time as wait for it. The idempotency key is a row at one of the sites, written
first, so that a retransmission to another server finds the stored answer, or waits while its predecessor is undecided.
BEGIN goes with a site's first statement, in one round trip; PREPARE and COMMIT go to all sites at once. Nobody but the
coordinator's own log can tell what to do with what it left prepared: `recover` reads it when the dead server is back.
No log entry means rollback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from .tx import Tx

__all__ = ["IDEMPOTENCY", "Coordinator", "Handler", "OnStep", "recover"]

Connection = psycopg.AsyncConnection[Any]
Connections = dict[str, Connection]  # by site
Handler = Callable[[Tx, Any], Awaitable[Any]]
OnStep = Callable[[str], object]

# At the site of keys. A handler that returns nothing leaves what is there by default.
IDEMPOTENCY = "CREATE TABLE idempotency (key text PRIMARY KEY, answer text NOT NULL DEFAULT 'null')"


class Branch:
    """The part of a transaction at one site."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.begun = False

    async def execute(self, statement: str, params: Any = None) -> int:
        return (await self._run(statement, params)).rowcount

    async def fetch_one(self, statement: str, params: Any = None) -> Any:
        return await (await self._run(statement, params)).fetchone()

    async def fetch_all(self, statement: str, params: Any = None) -> list[Any]:
        return await (await self._run(statement, params)).fetchall()

    async def _run(self, statement: str, params: Any) -> psycopg.AsyncCursor[Any]:
        if self.begun:
            return await self.conn.execute(statement.encode(), params, prepare=True)
        self.begun = True
        async with self.conn.pipeline():
            await self.conn.execute(b"BEGIN")
            return await self.conn.execute(statement.encode(), params, prepare=True)


class PlainTx:
    """What the handler sees."""

    def __init__(self, xid: str, connections: Connections) -> None:
        self._xid = xid
        self._branches = {site: Branch(conn) for site, conn in connections.items()}

    @property
    def xid(self) -> str:
        return self._xid

    def __getitem__(self, site: str) -> Branch:
        return self._branches[site]

    def begun(self) -> list[Connection]:
        """To the sites where anything has been done."""
        return [branch.conn for branch in self._branches.values() if branch.begun]


class Log:
    """Decisions to commit. One flush serves all who wait for one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def force(self, gid: str) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((gid, done))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        await done

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            os.write(self._file, "".join(f"{gid}\n" for gid, _ in batch).encode())
            await asyncio.to_thread(os.fdatasync, self._file)
            for _, done in batch:
                if not done.cancelled():
                    done.set_result(None)
        self._flushing = None

    def close(self) -> None:
        os.close(self._file)


class Coordinator:
    """`key_site` has the table of IDEMPOTENCY. `on_step` is called with the names that pgmip gives its steps."""

    def __init__(self, name: str, sites: dict[str, str], log: Path, on_step: OnStep, *, key_site: str) -> None:
        self._name = name
        self._sites = sites
        self._key_site = key_site
        self._idle: list[Connections] = []
        self._log = Log(log)
        self._numbers = itertools.count(1)
        self._on_step = on_step

    async def connect(self, sessions: int) -> None:
        """Have as many connections to each site, before they are needed."""
        self._idle += [await self._connect() for _ in range(sessions)]

    async def submit(self, handler: Handler, request: Any, key: str) -> str:
        """Run the handler once per key. The answer, the same for every retransmission."""
        connections = self._idle.pop() if self._idle else await self._connect()
        try:
            answer = await self._attempt(handler, request, PlainTx(key, connections))
        except BaseException:
            for conn in connections.values():
                await conn.close()
            raise
        self._idle.append(connections)
        return answer

    async def close(self) -> None:
        for connections in self._idle:
            for conn in connections.values():
                await conn.close()
        self._log.close()

    async def _connect(self) -> Connections:
        made = await asyncio.gather(*map(_connect, self._sites.values()))
        return dict(zip(self._sites, made, strict=True))

    async def _attempt(self, handler: Handler, request: Any, tx: PlainTx) -> str:
        keys = tx[self._key_site]
        new = await keys.execute("INSERT INTO idempotency (key) VALUES (%s) ON CONFLICT DO NOTHING", (tx.xid,))
        self._on_step("begun")
        if not new:
            known = await keys.fetch_one("SELECT answer FROM idempotency WHERE key = %s", (tx.xid,))
            await keys.conn.execute(b"ROLLBACK")
            return str(known.answer)
        result = await handler(tx, request)
        answer = json.dumps(result)
        if result is not None:
            await keys.execute("UPDATE idempotency SET answer = %s WHERE key = %s", (answer, tx.xid))
        # No two have the same, not even in two lives with the same name: the number is for this life's attempts.
        await self._finish(f"{self._name}:{tx.xid}:{next(self._numbers)}", tx.begun())
        return answer

    async def _finish(self, gid: str, connections: list[Connection]) -> None:
        try:
            await self._stepwise(connections, "PREPARE TRANSACTION", gid, "prepared-first-site")
        except psycopg.Error:
            for conn in connections:
                await _rollback_prepared(conn, gid)
            raise
        self._on_step("prepared-all")
        await self._log.force(gid)
        await self._stepwise(connections, "COMMIT PREPARED", gid, "committed-first-site")

    async def _stepwise(self, connections: Iterable[Connection], command: str, gid: str, first: str) -> None:
        """The command at all sites in parallel; a step when the first one has answered."""
        running = [asyncio.ensure_future(conn.execute(_finishing(command, gid))) for conn in connections]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self._on_step(first)
        await asyncio.wait(running)
        for task in running:
            status = task.result().statusmessage
            if status != command:  # a failed transaction turns PREPARE into ROLLBACK
                raise psycopg.OperationalError(f"{command} came back as {status}")


async def _connect(conninfo: str) -> Connection:
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True, row_factory=namedtuple_row)


def _finishing(command: str, gid: str) -> sql.Composed:
    return sql.SQL(command + " {}").format(gid)


async def _rollback_prepared(conn: Connection, gid: str) -> None:
    try:
        await conn.execute(b"ROLLBACK")
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
    return set(log.read_text().splitlines()) if log.exists() else set()
