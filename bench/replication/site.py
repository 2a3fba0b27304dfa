"""A replicated site and its agents, and other ways to have a database twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from pgmip.testing import Cluster

from workload.replicas import LOG, Replicas, start_agent

from ..rounds import UNDISTURBED, create_database

__all__ = ["DATABASE", "TABLE", "Agents", "Site", "pair", "replicated", "server"]

DATABASE = "bench"
MEMBERS = ("a", "b", "c")
TABLE = "item"
SETTINGS = UNDISTURBED | {"shared_buffers": "128MB"}
SCHEMA = f"""
CREATE EXTENSION pg_mip;
CREATE TABLE {TABLE} (id int PRIMARY KEY, n int NOT NULL, t text NOT NULL) USING mip;
CREATE SEQUENCE number START 1000001 CACHE 1000;
"""


def fill(rows: int) -> str:
    return f"INSERT INTO {TABLE} SELECT i, 0, 'what an item is like' FROM generate_series(1, {rows}) i;"


class Agents:
    """The agents of a site's replicas, a process each."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, member: str) -> None:
        database, log = self._replicas.replicas[member].conninfo(DATABASE), self._replicas.log.conninfo(LOG)
        self._running[member] = start_agent(database, log, subprocess.DEVNULL)

    def stop(self, member: str) -> None:
        agent = self._running.pop(member, None)
        if agent is not None:
            agent.kill()
            agent.wait()


class Site:
    def __init__(self, replicas: Replicas, agents: Agents) -> None:
        self.clusters = replicas.replicas
        self.log = replicas.log
        self.agents = agents

    @property
    def conninfos(self) -> Sequence[str]:
        return [cluster.conninfo(DATABASE) for cluster in self.clusters.values()]

    def conninfo(self, member: str) -> str:
        return self.clusters[member].conninfo(DATABASE)

    def applied(self, member: str) -> int:
        ((position,),) = self.clusters[member].run_sql("SELECT applied FROM mip.replication", dbname=DATABASE)
        return int(position)

    def until_same(self) -> None:
        """All have applied what there is, and have the same rows. Clients are at rest."""
        position = max(map(self.applied, self.clusters))
        sums = set()
        for cluster in self.clusters.values():
            cluster.run_sql(f"SELECT mip.wait_for({position})", dbname=DATABASE)
            sums |= set(cluster.run_sql(f"SELECT mip.relation_checksum('{TABLE}')::text", dbname=DATABASE))
        if len(sums) != 1:
            sys.exit(f"the replicas are not the same: {sums}")


@contextmanager
def replicated(members: int, rows: int) -> Iterator[Site]:
    """A site of so many replicas, whose table has so many rows."""
    replicas = Replicas(DATABASE, MEMBERS[:members], settings=SETTINGS)
    agents = Agents(replicas)
    try:
        replicas.start(SCHEMA + fill(rows))
        for member in replicas.replicas:
            agents.start(member)
        site = Site(replicas, agents)
        _until_it_takes_writes(site)
        yield site
    finally:
        for member in replicas.replicas:
            agents.stop(member)
        replicas.remove()


def _until_it_takes_writes(site: Site) -> None:
    """Each of another row: what one has changed the next one may not know yet."""
    for number, conninfo in enumerate(site.conninfos, 1):
        with psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute(f"UPDATE {TABLE} SET n = n WHERE id = %s".encode(), (number,))
    site.until_same()


@contextmanager
def server(rows: int, **settings: str) -> Iterator[Cluster]:
    """One that is not replicated, and flushes what it commits."""
    with Cluster("alone", settings=SETTINGS | settings, fsync=True) as cluster:
        create_database(cluster, "mip", DATABASE)
        cluster.run_sql(SCHEMA.replace("CREATE EXTENSION pg_mip;", "") + fill(rows), dbname=DATABASE)
        yield cluster


@contextmanager
def pair(rows: int, *, synchronous: bool) -> Iterator[Cluster]:
    """A primary with a standby; the primary waits for the standby's flush, or not."""
    names = {"synchronous_standby_names": "standby"} if synchronous else {}
    with server(rows) as primary, Cluster("standby", settings=SETTINGS, fsync=True, standby_of=primary):
        primary.configure(names)
        primary.run_sql("SELECT pg_reload_conf()")
        time.sleep(0.5)
        yield primary
