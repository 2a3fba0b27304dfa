"""Plain two-phase commit over two sites, done with care: what people build where pg_mip is not at hand.

An idempotency key at the left site, one round trip for BEGIN and what follows, PREPARE and COMMIT at both sites at
once, and between them a decision forced to a log, for as many transactions at a time as there are. Whoever of the same
name comes next reads that log, and finishes what was left prepared.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Self

import psycopg

Connection = psycopg.AsyncConnection[Any]
KEY = b"INSERT INTO request (key) VALUES (%s) ON CONFLICT DO NOTHING"
MOVE = b"UPDATE account SET balance = balance + %s WHERE a_id = %s"


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
                done.set_result(None)
        self._flushing = None


class Plain:
    def __init__(self, name: str, log: Log, idle: list[tuple[Connection, Connection]]) -> None:
        self._name = name
        self._log = log
        self._idle = idle

    @classmethod
    async def start(cls, name: str, sites: dict[str, str], sessions: int, folder: Path) -> Self:
        path = folder / f"{name}.decisions"
        await _recover(name, sites, path)
        pairs = [(await _connect(sites["left"]), await _connect(sites["right"])) for _ in range(sessions)]
        return cls(name, Log(path), pairs)

    async def submit(self, key: str, source: int, target: int) -> None:
        pair = self._idle.pop()
        try:
            await self._transfer(*pair, key, source, target)
        finally:
            self._idle.append(pair)

    async def _transfer(self, left: Connection, right: Connection, key: str, source: int, target: int) -> None:
        gid = f"{self._name}:{key}"
        try:
            async with left.pipeline():
                await left.execute(b"BEGIN")
                cursor = await left.execute(KEY, (key,), prepare=True)
            if cursor.rowcount == 0:  # carried out before
                await left.execute(b"ROLLBACK")
                return
            await left.execute(MOVE, (-1, source), prepare=True)
            async with right.pipeline():
                await right.execute(b"BEGIN")
                await right.execute(MOVE, (1, target), prepare=True)
            await _both(left, right, "PREPARE TRANSACTION", gid)
        except BaseException:
            await asyncio.gather(*(_take_back(conn, gid) for conn in (left, right)))
            raise
        await self._log.force(gid)
        await _both(left, right, "COMMIT PREPARED", gid)


async def _connect(conninfo: str) -> Connection:
    return await psycopg.AsyncConnection.connect(conninfo, autocommit=True)


async def _both(left: Connection, right: Connection, command: str, gid: str) -> None:
    cursors = await asyncio.gather(*(conn.execute(f"{command} '{gid}'".encode()) for conn in (left, right)))
    if any(cursor.statusmessage != command for cursor in cursors):  # a failed transaction is rolled back instead
        raise psycopg.OperationalError(f"{command} has failed")


async def _take_back(conn: Connection, gid: str) -> None:
    await conn.execute(b"ROLLBACK")
    if await (await conn.execute(b"SELECT FROM pg_prepared_xacts WHERE gid = %s", (gid,))).fetchone():
        await conn.execute(f"ROLLBACK PREPARED '{gid}'".encode())


async def _recover(name: str, sites: dict[str, str], path: Path) -> None:
    """What the log does not say was never decided: no site has committed it."""
    decided = set(path.read_text().split()) if path.exists() else set()  # noqa: ASYNC240
    for conninfo in sites.values():
        async with await _connect(conninfo) as conn:
            left = await conn.execute(b"SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"{name}:%",))
            for (gid,) in await left.fetchall():
                await conn.execute(f"{'COMMIT' if gid in decided else 'ROLLBACK'} PREPARED '{gid}'".encode())
