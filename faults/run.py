"""One run: everything is started, the plan carried out, and what is left over finished by the sweepers alone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import psycopg

from . import auditor, client, plain, plan, server
from .handlers import SITES
from .injector import Injector
from .process import Process, preload
from .proxy import Link, arrived, postgres
from .sites import DATABASE, Site
from .world import Stuck, Tell, World, through

__all__ = ["Outcome", "run"]

SERVICE = 3.0
"""Seconds of good service before the last blow."""


@dataclass(frozen=True)
class Outcome:
    findings: list[auditor.Finding]
    over_sites: list[str]
    """What keeps the requests at SERIALIZABLE from having a serial order over all sites, whatever was promised."""
    log: auditor.Log
    done: Counter[str]
    left_out: Counter[str]
    deaths: dict[str, list[float]]
    """Of app servers, by URL."""
    swept: float
    """Seconds until the sweepers had finished what was left."""
    compared_since: float | None
    """When, by time.monotonic(), the comparison with plain two-phase commit began, if there was one."""


async def run(folder: Path, seed: int, seconds: float, compare: float, serializable: str, tell: Tell) -> Outcome:
    """`folder` is empty and stays: logs of everybody. `compare`: for how many seconds, at the end, plain two-phase
    commit is compared with, if at all. `serializable`: the sites' mip.serializable. Raises Stuck.
    """
    world = Sites(folder, seed, compare, serializable)
    return await through(world, lambda: _story(world, plan.make(seed, seconds), tell), seconds + compare, tell)


async def _story(world: Sites, faults: list[plan.Fault], tell: Tell) -> Outcome:
    injector = Injector(world.folder, world.sites, world.processes, world.links)
    await injector.run(faults, tell)
    tell("the last fault is over; clients get their answers")
    for link in world.links.values():
        link.heal()
    await world.until_clients_are_gone()
    tell("the clients have gone; others come, and then they and all app servers die at once: only sweepers are left")
    await world.blow()
    began = time.monotonic()
    await world.until_nothing_in_doubt()
    swept = time.monotonic() - began
    tell(f"nothing is in doubt, after {swept:.1f} s; what was answered is asked for again")
    for name in plan.servers():
        await world.processes[name].start()
    await world.ask_again()
    await world.until_nothing_in_doubt()
    compared_since = time.monotonic() if world.compare else None
    if world.compare:
        tell(f"pg_mip and plain two-phase commit serve orders side by side for {world.compare:.0f} s")
        await asyncio.gather(
            Injector(world.folder, world.sites, world.processes, world.links).run(
                plan.compare(world.seed, world.compare), tell
            ),
            world.ask_for_orders(),
        )
        await world.until_nothing_in_doubt()
    await world.leave()
    tell("servers and sweepers are gone; the auditor looks")
    findings, over_sites, log = await asyncio.to_thread(world.audit)
    deaths = {f"http://127.0.0.1:{world.links[f'clients>{name}'].port}": world.processes[name].deaths
              for name in plan.servers()}  # fmt: skip
    return Outcome(findings, over_sites, log, injector.done, injector.left_out, deaths, swept, compared_since)


class Sites(World):
    """Three sites with a standby each, and who is at work over them."""

    def __init__(self, folder: Path, seed: int, compare: float, serializable: str) -> None:
        super().__init__(folder)
        self.seed = seed
        self.compare = compare
        schema = (resources.files(__package__) / "schema.sql").read_text()
        schema += f"ALTER DATABASE {DATABASE} SET mip.serializable = {serializable};\n"
        if compare:
            schema += plain.schema(schema)
        self.sites = {name: Site(name, schema) for name in SITES}
        self.ports = {name: _free_port() for name in plan.servers()}
        for name in plan.links():
            whom = name.partition(">")[2]
            self.links[name] = Link(name, self._port_of(whom), postgres if whom in self.sites else arrived)
        self.processes |= {name: Process(name, server.serve, self._server(name)) for name in plan.servers()}
        self.processes |= {name: Process(name, server.sweep, self._server(name)) for name in plan.sweepers()}
        self.processes |= {name: Process(name, client.ask, self._client(name)) for name in plan.clients()}

    async def start(self) -> None:
        preload("faults.server", "faults.client")
        await asyncio.gather(*(asyncio.to_thread(site.start) for site in self.sites.values()))
        for link in self.links.values():
            await link.open()
        for process in self.processes.values():
            await process.start()

    async def until_clients_are_gone(self) -> None:
        """They begin nothing new, and wait for the answers that they want."""
        await self.until_gone(plan.clients(), lambda: client.stop(self.folder))

    async def blow(self) -> None:
        """After a while of good service nobody is there any more to retransmit, or to be asked."""
        client.go_on(self.folder)
        for name in plan.clients():
            await self.processes[name].start()
        await asyncio.sleep(SERVICE)
        for name in plan.servers():
            self.processes[name].doomed = True
            server.arm(self.folder, name, "prepared-all", 0)
        # The last one leaves something behind; where nobody comes by any more, they are killed all the same.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10 * SERVICE):
                while any(self.processes[name].alive for name in plan.servers()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        for name in plan.servers():
            server.disarm(self.folder, name)
        victims = [self.processes[name] for name in (*plan.clients(), *plan.servers())]
        for process in victims:
            process.doomed = True
        await asyncio.gather(*(process.kill() for process in victims))

    async def until_nothing_in_doubt(self) -> None:
        while await asyncio.to_thread(lambda: any(map(in_doubt, self.sites.values()))):  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def ask_again(self) -> None:
        """Every server answers as it did, whoever is asked."""
        again = Process("again", client.ask_again, self._client("again"))
        await again.start()
        if await again.ended() != 0:
            raise Stuck(f"asking again has failed:\n{self.log_of('again')}")

    async def ask_for_orders(self) -> None:
        """Of both, at the same servers; plain two-phase commit has a log of its own, which is not audited."""
        beside = self.folder / "plain"
        beside.mkdir()
        common = replace(self._client("orders")(1), clients=plan.CLIENTS // 2, seconds=self.compare, hedge_after=1.0)
        configs = (
            common,
            replace(common, name="plain", folder=beside, servers=[url + plain.PATH for url in common.servers]),
        )
        asking = [Process(config.name, client.ask_for_orders, _always(config)) for config in configs]
        for process in asking:
            await process.start()
        for process in asking:
            if await process.ended() != 0:
                raise Stuck(f"asking for orders has failed:\n{self.log_of(process.name)}")

    async def leave(self) -> None:
        """Servers and sweepers end in good order."""
        for name in (*plan.servers(), *plan.sweepers()):
            self.processes[name].doomed = True
            self.processes[name].send(signal.SIGTERM)
        for name in (*plan.servers(), *plan.sweepers()):
            await self.processes[name].ended()

    def audit(self) -> tuple[list[auditor.Finding], list[str], auditor.Log]:
        facts = {}
        for name, site in self.sites.items():
            assert site.standby is not None
            repeat_commits(site)
            site.until_in_step()
            facts[name] = auditor.read_site(site.conninfo(), site.standby.conninfo(DATABASE))
        log = auditor.read_logs(self.folder)
        return auditor.audit(facts, log), auditor.over_sites(facts, log), log

    def where_all_are(self) -> list[str]:
        return [*map(_diagnose, self.sites.values())]

    async def remove_servers(self) -> None:
        for site in self.sites.values():
            for number, cluster in enumerate(site.clusters()):
                self.keep_log(f"{site.name}.{number}", cluster)
            await asyncio.to_thread(site.remove)

    def _port_of(self, name: str) -> Callable[[], int | None]:
        return lambda: self.sites[name].port if name in self.sites else self.ports[name]

    def _server(self, name: str) -> Callable[[int], server.Config]:
        def config(life: int) -> server.Config:
            sites = {site: self.sites[site].conninfo(self.links[f"{name}>{site}"].port) for site in self.sites}
            return server.Config(name, life, self.ports.get(name, 0), sites, self.folder, self.compare > 0)

        return config

    def _client(self, name: str) -> Callable[[int], client.Config]:
        def config(life: int) -> client.Config:
            urls = [f"http://127.0.0.1:{self.links[f'clients>{server}'].port}" for server in plan.servers()]
            impatient = name in plan.clients()[::2]
            number = plan.CLIENTS // len(plan.clients())
            return client.Config(name, life, number, urls, self.seed, self.folder, 0.3 if impatient else None)

        return config


def _always(config: client.Config) -> Callable[[int], client.Config]:
    return lambda life: config


def in_doubt(site: Site) -> int:
    with psycopg.connect(site.conninfo()) as conn:
        return int(conn.execute("SELECT count(*) FROM pg_prepared_xacts").fetchall()[0][0])


def repeat_commits(site: Site) -> None:
    """A commit that a crash has interrupted after all but its book-keeping: nobody needs that, and it goes with a retry
    of the request. Here is one.
    """
    with psycopg.connect(site.conninfo(), autocommit=True) as conn:
        for row in conn.execute("SELECT xid, xinst FROM mip.mipt WHERE links IS NOT NULL").fetchall():
            conn.execute("SELECT FROM mip.commit(%s, %s)", row)


def _diagnose(site: Site) -> str:
    lines = [f"---- {site.name}"]
    queries = (
        "SELECT * FROM pg_prepared_xacts",
        "SELECT xid, xinst, since, sites FROM mip.in_doubt",
        "SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start,"
        " left(query, 120) FROM pg_stat_activity WHERE backend_type = 'client backend'",
        "SELECT application_name, state, sync_state FROM pg_stat_replication",
    )
    try:
        with psycopg.connect(site.conninfo(), autocommit=True, connect_timeout=10) as conn:
            for query in queries:
                lines += [f"  {row}" for row in conn.execute(query.encode()).fetchall()]
    except psycopg.Error as error:
        lines.append(f"  {error}")
    return "\n".join([*lines, site.primary.log_tail(20)])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
