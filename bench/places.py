"""The two sites of bench/coordinators.py, and what can be seen of them from outside."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg
from pgmip.testing import Cluster, Setting

from workload.plain import IDEMPOTENCY

from .rounds import METHODS, create_database, flushes

UNFLUSHED = "pgmip unflushed"  # commits by mip.synchronous_commit_prepared = off
EARLY = "pgmip early"  # answers when a transaction is decided, and commits it then
THREADS = "pgmip threads"  # pgmip.sync
PYTHON = ("pgmip", UNFLUSHED, EARLY, THREADS, "plain")  # contenders; the others are Java's
SITES = ("left", "right")
ACCOUNTS = 10_000
POLL = 0.02
SCHEMA = f"""
    CREATE TABLE account (a_id int PRIMARY KEY, balance bigint NOT NULL);
    {IDEMPOTENCY};
    INSERT INTO account SELECT i, 0 FROM generate_series(1, {ACCOUNTS}) i;
    VACUUM ANALYZE account;
"""


def database(contender: str) -> str:
    return "mip" if contender.startswith("pgmip") else "heap"


class Places:
    """Both clusters, with a database for each access method."""

    def __init__(self, stack: ExitStack) -> None:
        settings: dict[str, Setting] = {
            "shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h",
            "max_prepared_transactions": 200,
        }  # fmt: skip
        self.clusters = {
            site: stack.enter_context(Cluster(site, settings=settings, fsync=True, max_connections=200))
            for site in SITES
        }
        for cluster in self.clusters.values():
            for method in METHODS:
                create_database(cluster, method)

    def load(self, contender: str) -> None:
        """Fresh tables; what somebody has left prepared goes."""
        name = database(contender)
        for cluster in self.clusters.values():
            for (gid,) in cluster.run_sql(
                f"SELECT gid FROM pg_prepared_xacts WHERE database = '{name}' AND gid NOT LIKE 'mip:%'"
            ):
                cluster.run_sql(f"ROLLBACK PREPARED '{gid}'", dbname=name)
            cluster.run_sql("DROP TABLE IF EXISTS account, idempotency", dbname=name)
            for statement in SCHEMA.split(";")[:-1]:
                cluster.run_sql(statement, dbname=name)

    def conninfos(self, contender: str, ports: Sequence[int] | None = None) -> list[str]:
        """How its nodes reach the sites, maybe through relays on these ports: libpq's way, or JDBC's."""
        made = []
        for i, cluster in enumerate(self.clusters.values()):
            port = ports[i] if ports else cluster.port
            conninfo = cluster.conninfo(
                database(contender), tcp=True, port=port, sslmode="disable", gssencmode="disable",
                **({"options": "-c mip.synchronous_commit_prepared=off"} if contender == UNFLUSHED else {}),
            )  # fmt: skip
            if contender not in PYTHON:
                known = psycopg.conninfo.conninfo_to_dict(conninfo)
                parameters = f"user={known['user']}&password={known['password']}&sslmode=disable&gssEncMode=disable"
                conninfo = f"jdbc:postgresql://{known['host']}:{known['port']}/{known['dbname']}?{parameters}"
            made.append(conninfo)
        return made

    def flushes(self) -> float:
        return sum(flushes(cluster) for cluster in self.clusters.values())

    def in_doubt(self, contender: str, since: str) -> int:
        """Prepared before that time, and not finished yet."""
        where = f"database = '{database(contender)}' AND prepared < '{since}'"
        sql = f"SELECT count(*) FROM pg_prepared_xacts WHERE {where}"
        return sum(int(cluster.run_sql(sql)[0][0]) for cluster in self.clusters.values())

    def check(self, contender: str) -> None:
        """What has left one site is at the other."""
        name = database(contender)
        sums = [
            int(cluster.run_sql("SELECT sum(balance) FROM account", dbname=name)[0][0])
            for cluster in self.clusters.values()
        ]
        if sum(sums) != 0:
            sys.exit(f"the sites do not agree after {contender}: {sums}")


class Trips:
    """Relays to a port, and counts how often the server there was ready for the next message."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.count = 0
        self.port = 0

    async def start(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._requests(from_client, to_server), self._replies(from_server, to_client))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1):
            length = await reader.readexactly(4)
            self.count += head == b"Z"
            writer.write(head + length + await reader.readexactly(int.from_bytes(length) - 4))
        writer.close()


@contextmanager
def relayed(places: Places) -> Iterator[list[Trips]]:
    """Relays to both sites, in a thread of their own."""
    relays = [Trips(cluster.port) for cluster in places.clusters.values()]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        for relay in relays:
            asyncio.run_coroutine_threadsafe(relay.start(), loop).result()
        yield relays
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Rows:
    """Looks when rows of one site can be locked for the first time, in a thread of its own."""

    def __init__(self, places: Places, contender: str, site: str, accounts: set[int], died: int) -> None:
        self.remaining = set(accounts)
        self.free: dict[int, float] = {}
        self._died = died
        self._over = False
        conninfo = places.clusters[site].conninfo(database(contender))
        self._thread = threading.Thread(target=self._look, args=(conninfo,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over = True
        self._thread.join()

    def _look(self, conninfo: str) -> None:
        lockable = b"SELECT a_id FROM account WHERE a_id = ANY(%s) FOR UPDATE SKIP LOCKED"
        with psycopg.connect(conninfo, autocommit=True) as conn:
            while self.remaining and not self._over:
                for (account,) in conn.execute(lockable, (list(self.remaining),)).fetchall():
                    self.free[account] = (time.monotonic_ns() - self._died) / 1e9
                    self.remaining.discard(account)
                time.sleep(POLL)
