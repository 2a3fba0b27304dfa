"""Asks all replicas, five times a second, how far they have applied the log."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import psycopg

from .site import Replica, Site

INTERVAL = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Look:
    when: float  # time.monotonic()
    applied: dict[str, int]  # of those that have answered


class Monitor:
    def __init__(self, site: Site) -> None:
        self.looks: list[Look] = []
        self._site = site

    async def run(self) -> None:
        while True:
            answers = await asyncio.gather(*(asyncio.to_thread(_applied, replica) for replica in self._site.replicas))
            known = zip(self._site.replicas, answers, strict=True)
            self.looks.append(
                Look(time.monotonic(), {replica.name: answer for replica, answer in known if answer is not None})
            )
            await asyncio.sleep(INTERVAL)


def _applied(replica: Replica) -> int | None:
    try:
        with psycopg.connect(replica.conninfo, autocommit=True, connect_timeout=1) as conn:
            row = conn.execute("SELECT applied FROM mip.replication").fetchone()
    except psycopg.Error:
        return None
    return None if row is None else int(row[0])
