"""Looks at both sites every 20 ms, as an outsider: what is prepared, and what the dead still hold.

Longest block: for a prepared transaction, how long it had existed when it was last seen; for a session of a dead
server that has written (its application_name tells whose it is), the time since the server's death. A living server's
prepared transactions exist for milliseconds, so the longest is one that a dead server left. Rows it wrote were blocked
for everybody all that time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from .fleet import Fleet

INTERVAL = 0.02

_QUERY = b"""
SELECT 'prepared', gid, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'session', application_name, 0
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND starts_with(application_name, 'shop-')
"""


class Monitor:
    def __init__(self, fleet: Fleet) -> None:
        self.longest_block = 0.0
        self.in_doubt = 0
        self._fleet = fleet
        self._prepared: dict[str, int] = {}

    async def run(self) -> None:
        await asyncio.gather(*(self._watch(site, conninfo) for site, conninfo in self._fleet.sites.items()))

    async def _watch(self, site: str, conninfo: str) -> None:
        conn = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, application_name="monitor")
        async with conn:
            while True:
                rows = await (await conn.execute(_QUERY)).fetchall()
                self._look(site, rows)
                await asyncio.sleep(INTERVAL)

    def _look(self, site: str, rows: list[Any]) -> None:
        now = time.monotonic()
        for kind, name, age in rows:
            if kind == "session":
                life = self._fleet.lives.get(name)
                age = now - life.died if life is not None and life.died is not None else 0.0
            self.longest_block = max(self.longest_block, age)
        self._prepared[site] = sum(kind == "prepared" for kind, _, _ in rows)
        self.in_doubt = sum(self._prepared.values())
