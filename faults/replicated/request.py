"""A request of a client: attempts at any replicas, at times two at once, until it is known what has come of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psycopg
from pgmip.xinst import new_xinst

from .work import Connection, Detail, Nothing, rows

__all__ = ["CONNECT", "PATIENCE", "Answer", "carry"]

ATTEMPTS = 6
AT_ONCE = 0.3  # the share of requests that are sent to two replicas
PATIENCE = 8.0  # seconds for an attempt, or a transaction, or its COMMIT
CONNECT = 5

Work = Callable[[Connection], Awaitable[Detail]]
"""All that an attempt does behind its begin. Raises Nothing, too."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a request: committed, with its result; not; or unknown."""

    outcome: str
    result: Detail | None = None
    error: BaseException | None = None
    """The last one, of what is not committed."""


async def carry(
    xid: str, work: Work, replicas: Mapping[str, str], at: str, name: str, rng: random.Random
) -> list[Answer]:
    """From this replica on, and maybe from another one at the same time: what each of them comes to."""
    first = [at]
    if rng.random() < AT_ONCE:
        first.append(rng.choice([other for other in replicas if other != at]))
    return await asyncio.gather(*(_Attempts(xid, work, replicas, start, name, rng).run() for start in first))


@dataclass(slots=True)
class _Attempts:
    """One after another, as a server makes them."""

    xid: str
    work: Work
    replicas: Mapping[str, str]
    at: str
    name: str
    rng: random.Random

    async def run(self) -> Answer:
        """Whoever does not know asks, in the end: what is not there then will not come of these attempts."""
        error: BaseException | None = None
        for _ in range(ATTEMPTS):
            try:
                async with self._connection() as conn:
                    return Answer("committed", await self._attempt(conn))
            except (psycopg.Error, OSError, TimeoutError, Nothing) as failure:
                error = failure
                if isinstance(failure, Nothing):
                    break
                await self._wait()
        for _ in range(ATTEMPTS):
            with suppress(psycopg.Error, OSError, TimeoutError):
                async with self._connection() as conn:
                    answer = await self._ask(conn, error)
                if answer is not None:
                    return answer
            await self._wait()
        return Answer("unknown", error=error)

    async def _attempt(self, conn: Connection) -> Detail:
        """Its result, or that of one before it."""
        try:
            await rows(conn, f"BEGIN ISOLATION LEVEL {self.rng.choice(('READ COMMITTED', 'REPEATABLE READ'))}")
            await rows(conn, "SELECT mip.begin(%s, %s)", self.xid, new_xinst())
            result = await self.work(conn)
            await rows(conn, "SELECT * FROM mip.commit_one_phase(%s, %s)", self.xid, json.dumps(result))
        except psycopg.Error as error:
            if error.sqlstate != "MP001":
                raise
            return _result(json.loads(str(error.diag.message_detail))["result"])
        return result

    async def _ask(self, conn: Connection, error: BaseException | None) -> Answer | None:
        """None while one is under way, as one that waits for the log, whoever has given up waiting for it."""
        found = await rows(conn, "SELECT state, result FROM mip.instances(%s) WHERE state <> 'aborted'", self.xid)
        results = [result for state, result in found if state == "committed"]
        if results:
            return Answer("committed", _result(results[0]))
        return None if found else Answer("not", error=error)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with asyncio.timeout(PATIENCE):
            conn: Connection = await psycopg.AsyncConnection.connect(
                self.replicas[self.at], autocommit=True, connect_timeout=CONNECT, application_name=self.name
            )
            try:
                yield conn
            finally:
                await conn.close()

    async def _wait(self) -> None:
        if self.rng.random() < 0.5:
            self.at = self.rng.choice(list(self.replicas))
        await asyncio.sleep(self.rng.uniform(0, 0.3))


def _result(text: str) -> Detail:
    result: Detail = json.loads(text)
    return result
