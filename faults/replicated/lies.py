"""A log that does what no log may: it loses messages, has another one in their place, or has one twice.

Whoever is behind it, or has applied it already, stops, by MP030 or since its agent does, and has no more rows of it
than are right. Behind a lie that has stopped all the log gets back what it had, and they go on; but for the last one.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from workload.replicas import LOG

from ..auditor import Finding
from ..process import Process
from .plan import MEMBERS, agent
from .site import DATABASE, Site

__all__ = ["LIES", "Liar", "Lie", "not_a_beginning"]

PATIENCE = 30.0
STOPPED = 1
"""The exit code of an agent whose replica cannot go on."""
FIRST, *_, LAST = MEMBERS


@dataclass(frozen=True, slots=True)
class Lie:
    sql: str
    """At the log. `{at}` is the position of a transaction."""
    stop: tuple[str, ...] = MEMBERS
    """The replicas whose agents are to stop. The others may go on, where nothing is changed by it."""
    behind: int = 0
    """So many transactions come behind that one, each when the one before it is over, all at the first replica. The
    last replica has nothing of all these yet.
    """
    keyless: bool = False
    """They add rows without a key, and do nothing else."""


_AGAIN = """
    INSERT INTO mip_log.message SELECT {to}, gen_random_uuid(), content FROM mip_log.message WHERE position = {at}
"""
_AT_ITS_END = _AGAIN.replace("{to}", "(SELECT max(position) + 1 FROM mip_log.message)")
_LOST = """
    DELETE FROM mip_log.message WHERE position = {at};
    UPDATE mip_log.message SET position = -position WHERE position > {at};
    UPDATE mip_log.message SET position = -position - 1 WHERE position < 0
"""
_TWICE = f"""
    UPDATE mip_log.message SET position = -position WHERE position > {{at}};
    UPDATE mip_log.message SET position = -position + 1 WHERE position < 0;
    {_AGAIN.replace("{to}", "{at} + 1")}
"""
_OTHER = """
    UPDATE mip_log.message SET content = (SELECT content FROM mip_log.message WHERE position = {at} - 1)
    WHERE position = {at}
"""
LIES = {
    "has lost its end": Lie("DELETE FROM mip_log.message WHERE position >= {at}"),
    "has another message in the place of one": Lie(_OTHER),
    "has lost one in its middle": Lie(_LOST, behind=5),
    "has its last one twice": Lie(_AT_ITS_END, stop=()),
    "has its last one twice, which adds rows without a key": Lie(_AT_ITS_END, stop=(), keyless=True),
    "has one in its middle twice": Lie(_TWICE, behind=5),
}


class Liar:
    """All clients have gone; all agents are at work, and nobody minds when they end."""

    def __init__(self, site: Site, processes: Mapping[str, Process]) -> None:
        self._site = site
        self._agents = {member: processes[agent(member)] for member in MEMBERS}
        self._count = 0

    async def run(self, lies: Mapping[str, Lie]) -> list[Finding]:
        """Until one of them has not been noticed: behind that, replicas are no longer the same."""
        findings = []
        for words, lie in lies.items():
            try:
                wrong = await self._told(lie)
            except TimeoutError:
                wrong = ["the replicas do not go on"]
            findings.append(Finding(f"a log that {words} is noticed, and nothing of that applied", tuple(wrong)))
            if wrong:
                break
        return findings

    async def _told(self, lie: Lie) -> list[str]:
        """What is wrong."""
        await self._all_the_same()
        self._count += 1
        if lie.behind:
            await self._end(LAST)
        at, right = await self._transactions(lie)
        for member in MEMBERS:
            await self._end(member)
        self._log("DROP TABLE IF EXISTS saved; CREATE TABLE saved AS TABLE mip_log.message")
        self._log(lie.sql.format(at=at))
        wrong = await self._notice(lie)
        for member in MEMBERS:
            await self._end(member)
            wrong += [f"at {member}: {what}" for what in not_a_beginning(self._there(member), right)]
        if lie.stop:
            self._log("TRUNCATE mip_log.message; INSERT INTO mip_log.message TABLE saved")
        return wrong

    # -- what comes before it ------------------------------------------------------------------------------------

    async def _all_the_same(self) -> None:
        for process in self._agents.values():
            if not process.alive:
                await process.start()
                process.doomed = True
        end = self._site.log.end()
        async with asyncio.timeout(PATIENCE):
            for member in MEMBERS:
                await asyncio.to_thread(self._sql, member, f"SELECT mip.wait_for({end})")

    async def _transactions(self, lie: Lie) -> tuple[int, list[str]]:
        """The position of the one that the lie is about, and what all leave, in order. Nobody else's message is among
        them, nor behind that one.
        """
        told: list[str] = []
        positions: list[int] = []
        async with asyncio.timeout(PATIENCE):
            while len(positions) <= lie.behind or positions[-1] - positions[-1 - lie.behind] != lie.behind:
                told.append(f"lie {self._count} {len(told)}")
                positions.append(await asyncio.to_thread(self._transact, told[-1], lie.keyless))
            for member in MEMBERS if not lie.behind else MEMBERS[:-1]:
                await asyncio.to_thread(self._sql, member, f"SELECT mip.wait_for({positions[-1]})")
        return positions[-1 - lie.behind], told

    def _transact(self, tx: str, keyless: bool) -> int:
        with psycopg.connect(self._site.conninfo(FIRST)) as conn:
            conn.execute("INSERT INTO effect VALUES (%s, '{}')", (tx,))
            if not keyless:
                conn.execute("UPDATE counter SET n = n + 1 WHERE id = 1")
            conn.commit()
            return int(conn.execute("SELECT mip.last_position()").fetchall()[0][0])

    # -- what comes of it ----------------------------------------------------------------------------------------

    async def _notice(self, lie: Lie) -> list[str]:
        for process in self._agents.values():
            await process.start()
            process.doomed = True
        if not lie.stop:
            await asyncio.sleep(3)
        return [words for member in lie.stop if (words := await self._does_not_stop(member))]

    async def _does_not_stop(self, member: str) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                status = await self._agents[member].ended()
        except TimeoutError:
            return f"the agent of {member} goes on"
        return "" if status == STOPPED else f"the agent of {member} has ended with exit code {status}"

    def _there(self, member: str) -> list[str]:
        """What this replica has of these transactions."""
        found = self._sql(member, f"SELECT tx FROM effect WHERE tx LIKE 'lie {self._count} %'")
        return [str(tx) for (tx,) in found]

    async def _end(self, member: str) -> None:
        process = self._agents[member]
        process.send(signal.SIGTERM)
        await process.ended()

    def _sql(self, member: str, sql: str) -> list[tuple[object, ...]]:
        return self._site.servers[member].run_sql(sql, dbname=DATABASE)

    def _log(self, sql: str) -> None:
        self._site.servers[LOG].run_sql(sql, dbname=LOG)


def not_a_beginning(found: Iterable[str], right: Sequence[str]) -> list[str]:
    """What is wrong with a replica that has these transactions: they have to be the first ones, each once."""
    there = Counter(found)
    twice = [f"{tx} is there {number} times" for tx, number in there.items() if number > 1]
    gaps = [f"{tx} is not there" for tx in right[: len(there)] if tx not in there]
    return [*twice, *gaps]
