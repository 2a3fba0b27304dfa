"""Clients of a replicated site: what they do, and the record of all that they are told.

A line is written before a transaction begins, before its COMMIT is sent, and when its client knows what has come of it;
and for each look at what has been committed, or at lists. That is all that the auditor knows of them. Whoever dies, or
hangs, leaves off in the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pgmip.xinst import new_xid

from ..clock import follow_clock
from ..process import begin
from .request import CONNECT, PATIENCE, carry
from .work import EFFECT, WORKS, Connection, Detail, Nothing, Work, read_lists, rows

__all__ = ["Config", "go_on", "hold", "outcome", "stop", "work"]

THINK = 0.01
ABROAD = 0.1  # the share of transactions for which a session goes to another replica first
UNDONE = 0.1  # of those that take something back
ROLLED_BACK = 0.04
CANCELLED = 0.03  # of those of which the client tries to cancel the COMMIT
LOOKS = 0.4
READS = 0.1
REQUESTS = 0.25  # of those that could be requests

NOT_HAPPENED = ("40001", "40P01", "57014", "25P04", "53400", "0A000", "54000")
"""What a COMMIT fails with that has not happened (docs/reference/sql.md). So do constraints that are violated."""


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    life: int
    home: str
    """The replica that its sessions begin at."""
    replicas: dict[str, str]
    sessions: int
    seed: int
    folder: Path


def stop(folder: Path) -> None:
    """Tell all clients to go, once they know what has come of their transactions."""
    (folder / "stop").touch()


def hold(folder: Path) -> None:
    """Let them begin nothing for a while."""
    (folder / "hold").touch()


def go_on(folder: Path) -> None:
    (folder / "hold").unlink(missing_ok=True)


def outcome(error: BaseException) -> str:
    """Of a transaction whose COMMIT has failed so."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return "not" if state is not None and (state in NOT_HAPPENED or state.startswith("23")) else "unknown"


class Record:
    """Append-only; every line is there as soon as `write` returns, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        os.write(self._file, json.dumps({"event": event, "time": time.time(), **facts}).encode() + b"\n")


def work(config: Config) -> None:
    """The life of a process of clients."""
    begin(config.folder, config.name)
    follow_clock(config.folder, config.name)
    asyncio.run(_work(config))


async def _work(config: Config) -> None:
    record = Record(config.folder / f"{config.name}.{config.life}.record")
    board: deque[_Committed] = deque(maxlen=20)
    async with asyncio.TaskGroup() as group:
        for number in range(config.sessions):
            group.create_task(_Session(config, record, board, number).run())


@dataclass(frozen=True, slots=True)
class _Committed:
    tx: str
    position: int


class _Session:
    """One session after another, of one who begins at home."""

    def __init__(self, config: Config, record: Record, board: deque[_Committed], number: int) -> None:
        self._config = config
        self._record = record
        self._board = board
        """What any session of this process has committed of late."""
        self._name = f"{config.name}.{config.life}.{number}"
        self._rng = random.Random(f"client {config.seed} {self._name}")
        self._at = config.home
        self._conn: Connection | None = None
        self._last: _Committed | None = None
        self._seen = False
        """Whether it is a matter of course that this connection sees the last one."""
        self._count = 0

    async def run(self) -> None:
        while not (self._config.folder / "stop").exists():
            if (self._config.folder / "hold").exists():
                await asyncio.sleep(0.1)
                continue
            try:
                await self._next()
            except (psycopg.Error, OSError, TimeoutError):
                await self._leave()
                if self._rng.random() < 0.5:
                    self._at = self._rng.choice(list(self._config.replicas))
                await asyncio.sleep(self._rng.uniform(0, 0.3))
            await asyncio.sleep(self._rng.expovariate(1 / THINK))
        await self._leave()

    async def _next(self) -> None:
        """Raises what has ended the connection."""
        if self._rng.random() < ABROAD:
            await self._leave()
            self._at = self._rng.choice(list(self._config.replicas))
        conn = await self._connected()
        if self._rng.random() < LOOKS:
            async with asyncio.timeout(PATIENCE):
                await self._look(conn)
        if self._rng.random() < READS:
            async with asyncio.timeout(PATIENCE):
                await self._read(conn)
        await self._transact(conn)

    async def _connected(self) -> Connection:
        if self._conn is None:
            conninfo, self._seen = self._config.replicas[self._at], False
            self._conn = await psycopg.AsyncConnection.connect(
                conninfo, autocommit=True, connect_timeout=CONNECT, application_name=self._name
            )
        return self._conn

    async def _leave(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()

    # -- a look --------------------------------------------------------------------------------------------------

    async def _look(self, conn: Connection) -> None:
        """At what it has committed itself, or a token of somebody else's tells of."""
        if self._last is not None and (not self._board or self._rng.random() < 0.5):
            whose, it, waits = "own", self._last, not self._seen
        elif self._board:
            whose, it, waits = "told", self._rng.choice(self._board), True
        else:
            return
        if waits:
            await rows(conn, "SELECT mip.wait_for(%s)", it.position)
        if self._rng.random() < 0.3:
            await rows(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((found,),) = await rows(conn, "SELECT count(*) FROM effect WHERE tx = %s", it.tx)
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            await rows(conn, "COMMIT")
        self._seen = self._seen or whose == "own"
        self._record.write("look", tx=it.tx, whose=whose, waited=waits, found=found, at=self._at)

    async def _read(self, conn: Connection) -> None:
        """Lists: as of one snapshot, and nobody is told."""
        self._count += 1
        await rows(conn, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        detail = await read_lists(conn, self._rng)
        await rows(conn, "COMMIT")
        self._record.write("read", tx=f"{self._name}.{self._count}", detail=detail)

    # -- a transaction -------------------------------------------------------------------------------------------

    async def _transact(self, conn: Connection) -> None:
        [(name, work)] = self._rng.choices(list(WORKS.items()), [work.often for work in WORKS.values()])
        self._count += 1
        tx = f"{self._name}.{self._count}"
        self._record.write("begin", tx=tx, work=name, at=self._at)
        if work.alone:
            await self._commit(conn, tx, None, lambda: work.do(conn, tx, self._rng))
            return
        if self._rng.random() < REQUESTS and not work.truncates:
            await self._request(tx, work)
            return
        try:
            async with asyncio.timeout(PATIENCE):
                detail = await self._prepare(conn, tx, work)
        except BaseException as error:
            self._tell(tx, "not", error)
            if isinstance(error, Nothing) or (isinstance(error, psycopg.Error) and not conn.closed):
                async with asyncio.timeout(PATIENCE):
                    await rows(conn, "ROLLBACK")
                return
            raise
        await self._commit(conn, tx, detail, lambda: rows(conn, "COMMIT"))

    async def _request(self, tx: str, work: Work) -> None:
        """Whose attempts have connections of their own. Every other XID has its time."""
        self._record.write("commit", tx=tx, detail=None)
        xid = new_xid() if self._rng.random() < 0.5 else tx
        answers = await carry(
            xid, lambda conn: self._do(conn, tx, work), self._config.replicas, self._at, self._name, self._rng
        )
        for answer in sorted(answers, key=lambda answer: ("not", "unknown", "committed").index(answer.outcome)):
            self._tell(tx, answer.outcome, answer.error, answer.result)

    async def _prepare(self, conn: Connection, tx: str, work: Work) -> Detail:
        """All but its COMMIT. Raises Nothing, too."""
        await rows(conn, f"BEGIN ISOLATION LEVEL {self._rng.choice(work.isolations)}")
        return await self._do(conn, tx, work)

    async def _do(self, conn: Connection, tx: str, work: Work) -> Detail:
        rng = self._rng
        if rng.random() < UNDONE:
            await rows(conn, "SAVEPOINT s")
            await rows(conn, EFFECT, f"{tx} undone", "{}")
            await rows(conn, "UPDATE account SET balance = balance + 1 WHERE id = %s", rng.randint(1, 30))
            await rows(conn, "ROLLBACK TO s")
            await rows(conn, "RELEASE s")
        detail = await work.do(conn, tx, rng)
        await rows(conn, EFFECT, tx, json.dumps(detail))
        if rng.random() < ROLLED_BACK:
            raise Nothing
        return detail

    async def _commit(self, conn: Connection, tx: str, detail: Detail | None, commit: Any) -> None:
        """From here on it may happen."""
        self._record.write("commit", tx=tx, detail=detail)
        canceller = self._maybe_cancel(conn)
        try:
            async with asyncio.timeout(PATIENCE):
                await commit()
        except BaseException as error:
            self._tell(tx, outcome(error), error)
            if isinstance(error, psycopg.Error) and not conn.closed:
                await self._end_block(conn)
                return
            raise
        finally:
            canceller.cancel()
            await asyncio.gather(canceller, return_exceptions=True)
        self._tell(tx, "committed", None)
        await self._note_position(conn, tx)

    async def _end_block(self, conn: Connection) -> None:
        """Where COMMIT has been cancelled before it has begun to."""
        if conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
            async with asyncio.timeout(PATIENCE):
                await rows(conn, "ROLLBACK")

    def _maybe_cancel(self, conn: Connection) -> asyncio.Task[None]:
        after = self._rng.uniform(0, 0.02) if self._rng.random() < CANCELLED else PATIENCE

        async def cancel() -> None:
            await asyncio.sleep(after)
            await conn.cancel_safe(timeout=1)

        return asyncio.create_task(cancel())

    async def _note_position(self, conn: Connection, tx: str) -> None:
        async with asyncio.timeout(PATIENCE):
            ((position,),) = await rows(conn, "SELECT mip.last_position()")
        self._record.write("position", tx=tx, position=position)
        if position is not None:
            self._last, self._seen = _Committed(tx, position), True
            self._board.append(self._last)

    def _tell(self, tx: str, outcome: str, error: BaseException | None, result: Detail | None = None) -> None:
        state = error.sqlstate if isinstance(error, psycopg.Error) else None
        why = None if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        self._record.write("told", tx=tx, outcome=outcome, sqlstate=state, why=why, result=result)
