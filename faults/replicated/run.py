"""One run at a replicated site: everything is started, the plan carried out, and all replicas compared in the end."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pgmip.testing import Cluster

from workload.replicas import LOG

from ..auditor import Finding
from ..plan import Fault
from ..process import Process, preload
from ..proxy import Link, Read, arrived, postgres
from ..world import Stuck, Tell, World, through
from . import agent, client, look, plan
from .auditor import Record, audit, read_record, read_replica
from .injector import Injector
from .lies import LIES, Liar, Lie
from .log import PostgresLog
from .plan import MEMBERS
from .site import DATABASE, Site

__all__ = ["Outcome", "run"]

SESSIONS = 6  # of each process of clients
LOOK_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Outcome:
    findings: list[Finding]
    looks: list[look.Seen]
    record: Record
    kinds: Collection[str]
    """Of faults"""
    done: Counter[str]
    left_out: Counter[str]
    positions: int
    """How long the log has become."""


async def run(folder: Path, seed: int, seconds: float, tell: Tell, log: str = "postgresql") -> Outcome:
    """`folder` is empty and stays: logs of everybody. `log`: what it is kept in. Raises Stuck."""
    world = Replicated(folder, seed, log)
    return await through(world, lambda: _story(world, plan.make(seed, seconds, log), tell), seconds, tell)


async def _story(world: Replicated, faults: list[Fault], tell: Tell) -> Outcome:
    injector = Injector(world.folder, world.site, world.processes, world.links)
    looking = asyncio.create_task(world.look_now_and_then())
    await injector.run(faults, tell)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    tell("the last fault is over; clients see what has become of their transactions")
    for link in world.links.values():
        link.heal()
    await world.until_clients_are_gone()
    positions = await asyncio.to_thread(world.site.until_quiet)
    tell(f"nothing is under way, at position {positions:,}; the auditor looks")
    findings, record = await asyncio.to_thread(world.audit)
    if isinstance(world.site.log, PostgresLog):
        tell(f"{len(LIES)} times the log does what no log may")
        findings += await world.lie(LIES)
    return Outcome(
        findings, look.seen(world.folder), record, plan.kinds(world.log), injector.done, injector.left_out, positions
    )


class Replicated(World):
    """Three replicas, their log and agents, and clients at all of them."""

    def __init__(self, folder: Path, seed: int, log: str = "postgresql") -> None:
        super().__init__(folder)
        self.seed = seed
        self.log = log
        self.site = Site(log)
        self.links = {name: Link(name, self._port_of(name), self._messages_of(name)) for name in plan.links(log)}
        for member in MEMBERS:
            name = plan.agent(member)
            self.processes[name] = Process(name, agent.carry, self._agent(member))
        for member, name in zip(MEMBERS, plan.clients(), strict=True):
            self.processes[name] = Process(name, client.work, self._client(name, member))
        self.looks = itertools.count(1)

    async def start(self) -> None:
        preload("faults.replicated.client", "faults.replicated.agent", "faults.replicated.look", "pgmip.cli.commands")
        await asyncio.to_thread(self.site.start)
        for link in self.links.values():
            await link.open()
        for process in self.processes.values():
            await process.start()

    async def look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            config = look.Config(
                next(self.looks), {member: self.site.conninfo(member) for member in MEMBERS}, self.folder
            )  # fmt: skip
            looking = Process(look.NAME, look.look, _always(config))
            await looking.start()
            if await looking.ended() != 0:
                raise Stuck(f"the auditor has failed:\n{self.log_of(look.NAME)}")

    async def until_clients_are_gone(self) -> None:
        client.go_on(self.folder)
        await self.until_gone(plan.clients(), lambda: client.stop(self.folder))

    def audit(self) -> tuple[list[Finding], Record]:
        record = read_record(self.folder)
        return audit({member: read_replica(self.site.conninfo(member)) for member in MEMBERS}, record), record

    async def lie(self, lies: Mapping[str, Lie]) -> list[Finding]:
        """When all clients have gone."""
        for name in plan.agents():
            self.processes[name].doomed = True
        return await Liar(self.site, self.processes).run(lies)

    def where_all_are(self) -> list[str]:
        return [_diagnose(name, cluster) for name, cluster in self.site.servers.items()]

    async def remove_servers(self) -> None:
        for name, cluster in self.site.servers.items():
            self.keep_log(name, cluster)
        await asyncio.to_thread(self.site.remove, self.folder)

    def _port_of(self, link: str) -> Callable[[], int | None]:
        return lambda: self.site.port(link.partition(">")[2])

    def _messages_of(self, link: str) -> Read:
        return postgres if link.partition(">")[2] in self.site.servers else arrived

    def _agent(self, member: str) -> Callable[[int], agent.Config]:
        def config(life: int) -> agent.Config:
            name = plan.agent(member)
            database = self.site.conninfo(member, self.links[f"{name}>{member}"].port)
            log = self.site.log.address({part: self.links[f"{name}>{part}"].port for part in self.site.parts})
            return agent.Config(name, database, log, self.folder)

        return config

    def _client(self, name: str, home: str) -> Callable[[int], client.Config]:
        def config(life: int) -> client.Config:
            replicas = {to: self.site.conninfo(to, self.links[f"clients>{to}"].port) for to in MEMBERS}
            return client.Config(name, life, home, replicas, SESSIONS, self.seed, self.folder)

        return config


def _always(config: look.Config) -> Callable[[int], look.Config]:
    return lambda life: config


def _diagnose(name: str, cluster: Cluster) -> str:
    lines = [f"---- {name}"]
    queries = [
        "SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start,"
        " left(query, 120) FROM pg_stat_activity WHERE backend_type = 'client backend'",
        "SELECT max(position) FROM mip_log.message" if name == LOG else "SELECT * FROM mip.replication",
    ]
    try:
        with psycopg.connect(cluster.conninfo(LOG if name == LOG else DATABASE), autocommit=True) as conn:
            for query in queries:
                lines += [f"  {row}" for row in conn.execute(query.encode()).fetchall()]
    except psycopg.Error as error:
        lines.append(f"  {error}")
    return "\n".join([*lines, cluster.log_tail(20)])
