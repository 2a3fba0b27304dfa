"""Three replicas, their agents, and the log: private clusters, and processes that are started again when they end."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path

import psycopg
from pgmip.testing import Cluster

from workload.replicas import Replicas, start_agent

from .log import JetStreamLog, Log, PostgresLog

DATABASE = "bookstore"
MEMBERS = ("a", "b", "c")
RESTART_AFTER = 1.0  # seconds


class Replica:
    """A server, and the agent that connects it with the log."""

    def __init__(self, cluster: Cluster, log: str, folder: Path) -> None:
        self.cluster = cluster
        self.name = cluster.name
        self.conninfo = cluster.conninfo(DATABASE, connect_timeout=2)
        self._log = log
        self._output = folder / f"agent-{self.name}.log"
        self._agent: subprocess.Popen[bytes] | None = None

    def start_agent(self) -> None:
        with self._output.open("ab") as output:
            self._agent = start_agent(self.cluster.conninfo(DATABASE), self._log, output)

    def kill_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()

    def ask(self, sql: str, parameters: Mapping[str, object] | None = None) -> list[tuple[object, ...]]:
        with psycopg.connect(self.conninfo, autocommit=True) as conn:
            return conn.execute(sql.encode(), parameters).fetchall()

    def until_applied(self, position: int) -> None:
        self.ask("SELECT mip.wait_for(%(position)s)", {"position": position})


class Site:
    def __init__(self, replicas: list[Replica], log: Log) -> None:
        self.replicas = replicas
        self._log = log
        self._restarts: set[asyncio.Task[None]] = set()

    def end(self) -> int:
        """The position of the log's last entry."""
        return self._log.end()

    def kill(self, cluster: Cluster) -> None:
        """With SIGKILL; it comes back after a second."""
        cluster.kill_postmaster()
        self._later(cluster.start)

    def kill_log(self) -> None:
        self._later(self._log.kill())

    def kill_agent(self, replica: Replica) -> None:
        replica.kill_agent()
        self._later(replica.start_agent)

    def _later(self, start: Callable[[], object]) -> None:
        async def restart() -> None:
            await asyncio.sleep(RESTART_AFTER)
            await asyncio.to_thread(start)

        task = asyncio.create_task(restart())
        self._restarts.add(task)

    async def all_apply(self) -> None:
        """Wait until each replica's agent is at work."""
        for replica in self.replicas:
            while not replica.ask("SELECT FROM mip.replication WHERE applier_pid IS NOT NULL"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def all_up(self) -> None:
        """Wait until everything that was killed is there again. Raises what has kept it from that."""
        while self._restarts:
            await self._restarts.pop()


@contextmanager
def site(folder: Path, log: str) -> Iterator[Site]:
    """A bookstore, loaded at one replica, of which the others are copies. `log`: one of LOGS."""
    with ExitStack() as stack:
        in_nats = JetStreamLog(stack) if log == "jetstream" else None
        clusters = Replicas(DATABASE, MEMBERS, log=None if in_nats is None else in_nats.address)
        stack.callback(clusters.remove)
        clusters.start(resources.files(__package__).joinpath("schema.sql").read_text())
        where = clusters.where_log_is
        replicas = [Replica(cluster, where, folder) for cluster in clusters.replicas.values()]
        for replica in replicas:
            stack.callback(replica.kill_agent)
            replica.start_agent()
        yield Site(replicas, in_nats or PostgresLog(clusters.log))
