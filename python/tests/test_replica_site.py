"""A site of real replicas: whatever ends meanwhile, all have the same, and what clients have been told holds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
import pytest
from test_cli import OK, PROBLEMS, Cli
from test_cli_process import wait_until

from pgmip.replication.agent import Agent
from pgmip.replication.embedded import EmbeddedLog
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

DATABASE = "bookstore"
TABLES = ("item", "orders", "counter", "done")
ITEMS, COUNTERS, STOCK = 6, 3, 1000
SCHEMA = f"""
CREATE EXTENSION pg_mip;
CREATE TABLE item (id int PRIMARY KEY, stock int NOT NULL) USING mip;
CREATE TABLE orders (id uuid PRIMARY KEY, item int NOT NULL REFERENCES item, qty int NOT NULL) USING mip;
CREATE INDEX ON orders (item);
CREATE TABLE counter (id int PRIMARY KEY, n int NOT NULL) USING mip;
CREATE TABLE done (transaction uuid PRIMARY KEY, counted int) USING mip;
INSERT INTO item SELECT id, {STOCK} FROM generate_series(1, {ITEMS}) id;
INSERT INTO counter SELECT id, 0 FROM generate_series(1, {COUNTERS}) id;
"""
PATIENCE = 120  # seconds, for what is certain to come
# Whoever is told so at his COMMIT knows that nothing has happened. Not of 57P01: a client may see nothing else of a
# session that was ended when it had committed, also without replication.
NOT_HAPPENED = ("40001", "40P01", "53400", "57014")
EXPECTED = (*NOT_HAPPENED, "08007", "23503", "23505", "57P01", "57P02", "57P03", None)


# -- what runs -------------------------------------------------------------------------------------------------------


class AgentProcess:
    """`pgmip replica run`."""

    def __init__(self, replica: Cluster, log: Cluster) -> None:
        self.replica, self._log = replica, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        options = ("--database", self.replica.conninfo(DATABASE), "--log", self._log.conninfo(), "--timeout=5")
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pgmip.cli", "replica", "run", "--json", *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.replica.directory,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            )  # fmt: skip
        return self

    @property
    def output(self) -> Path:
        return self.replica.directory / "agent"

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE)


class Site:
    """Replicas, their log, and an agent of each."""

    def __init__(self) -> None:
        self.log = Cluster("log", preload=(), fsync=True)
        self.replicas: dict[str, Cluster] = {}
        self.agents: dict[str, AgentProcess] = {}

    def found(self, **options: Any) -> None:
        """Begin with one replica."""
        self.log.start()
        first = self.replicas["a"] = Cluster("a").start()
        first.create_database(DATABASE)
        first.run_sql(SCHEMA, dbname=DATABASE)
        first.configure(settings_of("a"))
        first.restart()
        words = [f"--{name}={value}" for name, value in options.items()]
        Cli({})("replica", "init", *words, *self.options("a"), code=OK)

    def join(self, member: str) -> None:
        """One more, a copy."""
        original = next(iter(self.replicas.values()))
        self.replicas[member] = Cluster(member, settings=settings_of(member), copy_of=original).start()

    def start_agent(self, member: str) -> None:
        self.agents[member] = AgentProcess(self.replicas[member], self.log).start()

    def options(self, member: str) -> tuple[str, ...]:
        return "--database", self.replicas[member].conninfo(DATABASE), "--log", self.log.conninfo()

    def sql(self, member: str, sql: str) -> list[tuple[Any, ...]]:
        return self.replicas[member].run_sql(sql, dbname=DATABASE)

    def remove(self) -> None:
        for agent in self.agents.values():
            agent.end(signal.SIGKILL)
        for cluster in (*self.replicas.values(), self.log):
            cluster.remove()

    # -- what holds --------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Wait until all replicas have all that is in the log by now."""
        ((end,),) = self.log.run_sql('SELECT max("position") FROM mip_log.message')
        for member in self.replicas:
            self.sql(member, f"SET statement_timeout = '{PATIENCE}s'; SELECT mip.wait_for({end})")

    def check(self) -> None:
        """All replicas have the same, and that is right."""
        self.catch_up()
        checksums = ", ".join(f"mip.relation_checksum('{table}')" for table in TABLES)
        same([self.sql(member, f"SELECT {checksums}") for member in self.replicas])
        # Each removes what it does not need any more when it comes to it.
        bounds = [
            self.sql(member, 'SELECT min("position"), max("position") FROM mip.applied') for member in self.replicas
        ]
        first, last = max(row[0][0] for row in bounds), min(row[0][1] for row in bounds)
        assert first < last
        query = f"""
            SELECT a.position, certified, history, bytes
            FROM mip.applied a WHERE a.position BETWEEN {first} AND {last} ORDER BY 1
        """
        same([self.sql(member, query) for member in self.replicas])
        for member in self.replicas:
            assert self.sql(member, COUNTED_OTHERWISE) == []
            assert self.sql(member, SOLD_OTHERWISE) == []
            assert self.sql(member, ORPHANS) == []


COUNTED_OTHERWISE = """
    SELECT id, n, counted FROM counter LEFT JOIN (
        SELECT counted AS id, count(*) AS counted FROM done WHERE counted IS NOT NULL GROUP BY 1
    ) d USING (id) WHERE n <> coalesce(counted, 0)
"""
SOLD_OTHERWISE = f"""
    SELECT i.id, i.stock, sum(o.qty) FROM item i LEFT JOIN orders o ON o.item = i.id
    GROUP BY i.id, i.stock HAVING i.stock + coalesce(sum(o.qty), 0) <> {STOCK}
"""
ORPHANS = "SELECT o.id FROM orders o LEFT JOIN item i ON i.id = o.item WHERE i.id IS NULL"


def settings_of(member: str) -> dict[str, str]:
    return {"mip.replicated_database": DATABASE, "mip.member": member}


def same(all_: list[Any]) -> None:
    for one in all_:
        assert one == all_[0]


# -- what is done ----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Transactions, by what their clients know of them."""

    committed: set[UUID] = field(default_factory=set)
    refused: set[UUID] = field(default_factory=set)
    unknown: set[UUID] = field(default_factory=set)
    prevented: set[UUID] = field(default_factory=set)
    told: dict[UUID, psycopg.Error] = field(default_factory=dict)

    def check(self, site: Site) -> None:
        """What clients have been told holds, at every replica; what is unknown is looked up."""
        for member in site.replicas:
            rows = site.sql(member, "SELECT transaction, counted IS NOT DISTINCT FROM 0 FROM done")
            done = {id for id, prevents in rows if not prevents}
            assert self.committed - done == set()
            assert [self.told[id] for id in self.refused & done] == []
            assert self.prevented - {id for id, prevents in rows if prevents} == set()
            assert self.prevented & {id for (id,) in site.sql(member, "SELECT id FROM orders")} == set()
        assert {error.sqlstate for error in self.told.values()} <= set(EXPECTED)


Connection = psycopg.AsyncConnection[Any]


async def count(conn: Connection, transaction: UUID) -> None:
    """Read, and write one more, in each of the ways in which nothing is lost."""
    number = random.randint(1, COUNTERS)
    way = random.randrange(3)
    if way == 0:
        await conn.execute(b"BEGIN")
        await conn.execute(b"UPDATE counter SET n = n + 1 WHERE id = %s", (number,))
    else:
        await conn.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ" if way == 1 else b"BEGIN")
        lock = b"" if way == 1 else b" FOR UPDATE"
        cursor = await conn.execute(b"SELECT n FROM counter WHERE id = %s" + lock, (number,))
        ((n,),) = await cursor.fetchall()
        await conn.execute(b"UPDATE counter SET n = %s WHERE id = %s", (n + 1, number))
    await conn.execute(b"INSERT INTO done VALUES (%s, %s)", (transaction, number))


async def order(conn: Connection, transaction: UUID) -> None:
    """What is not there cannot be ordered."""
    await conn.execute(b"BEGIN")
    item, qty = random.randint(1, ITEMS), random.randint(1, 3)
    first = random.random() < 0.5
    if first:
        await conn.execute(b"INSERT INTO orders VALUES (%s, %s, %s)", (transaction, item, qty))
    cursor = await conn.execute(b"UPDATE item SET stock = stock - %s WHERE id = %s", (qty, item))
    if cursor.rowcount == 0:  # or it has come back meanwhile
        raise psycopg.errors.ForeignKeyViolation
    if not first:
        await conn.execute(b"INSERT INTO orders VALUES (%s, %s, %s)", (transaction, item, qty))
    await conn.execute(b"INSERT INTO done VALUES (%s)", (transaction,))


async def give_back(conn: Connection, transaction: UUID) -> None:
    """Any order, or all of an item."""
    await conn.execute(b"BEGIN")
    which = b"id = (SELECT id FROM orders ORDER BY random() LIMIT 1)"
    if random.random() < 0.3:
        which = b"item = %d" % random.randint(1, ITEMS)
    await conn.execute(
        b"""
            WITH gone AS (DELETE FROM orders WHERE %b RETURNING item, qty)
            UPDATE item SET stock = stock + g.qty FROM (SELECT item, sum(qty) AS qty FROM gone GROUP BY 1) g
            WHERE id = g.item
        """
        % which
    )
    await conn.execute(b"INSERT INTO done VALUES (%s)", (transaction,))


async def replace(conn: Connection, transaction: UUID) -> None:
    """An item goes if nobody has ordered it, or comes back. The foreign key keeps it where its orders are."""
    await conn.execute(b"BEGIN")
    item = random.randint(1, ITEMS)
    deleted = await conn.execute(b"DELETE FROM item WHERE id = %s", (item,))
    if deleted.rowcount == 0 or random.random() < 0.3:
        await conn.execute(b"INSERT INTO item VALUES (%s, %s)", (item, STOCK))
    await conn.execute(b"INSERT INTO done VALUES (%s)", (transaction,))


WORKS = (count, count, order, order, order, give_back, replace)


async def transact(conn: Connection, transaction: UUID, tally: Tally) -> None:
    """Raises psycopg.OperationalError where the connection is lost."""
    known = tally.refused
    try:
        await random.choice(WORKS)(conn, transaction)
        known = tally.unknown
        await conn.execute(b"COMMIT")
        known = tally.committed
    except psycopg.Error as error:
        tally.told[transaction] = error
        if error.sqlstate in NOT_HAPPENED:
            known = tally.refused
        if conn.closed or conn.broken:
            raise psycopg.OperationalError(f"lost behind: {error}") from error
        await conn.execute(b"ROLLBACK")
    finally:
        known.add(transaction)


async def find_out(conn: Connection, transaction: UUID, tally: Tally) -> None:
    """Whether it has happened; if not, it will not any more."""
    with suppress(psycopg.errors.UniqueViolation):
        await conn.execute(b"INSERT INTO done VALUES (%s, 0)", (transaction,))
    cursor = await conn.execute(b"SELECT counted FROM done WHERE transaction = %s", (transaction,))
    ((counted,),) = await cursor.fetchall()
    tally.unknown.remove(transaction)
    (tally.prevented if counted == 0 else tally.committed).add(transaction)


async def client(conninfos: list[str], tally: Tally, stop: asyncio.Event) -> None:
    """At the first of them. Half of what is not known is left so; the rest is found out at once, anywhere."""
    transaction = uuid4()
    while not stop.is_set() or transaction in tally.unknown:
        with suppress(psycopg.OperationalError):
            conninfo = random.choice(conninfos) if transaction in tally.unknown else conninfos[0]
            conn = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=10)
            try:
                if transaction in tally.unknown:
                    await find_out(conn, transaction, tally)
                while not stop.is_set() and (transaction not in tally.unknown or random.random() < 0.5):
                    transaction = uuid4()
                    await transact(conn, transaction, tally)
            finally:
                await conn.close()
        await asyncio.sleep(random.uniform(0, 0.1))


@asynccontextmanager
async def written_to(site: Site, members: str, clients: int = 3) -> AsyncIterator[Tally]:
    """Clients at these replicas, until the block ends."""
    tally, stop = Tally(), asyncio.Event()
    at = [site.replicas[member].conninfo(DATABASE) for member in members]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(len(members) * clients):
            first = number % len(members)
            group.create_task(client(at[first:] + at[:first], tally, stop))
        try:
            yield tally
        finally:
            stop.set()


def killings(site: Site) -> list[Callable[[], Awaitable[None]]]:
    """Of an agent, a replica, the log's server: each is there again afterwards."""

    async def kill_agent(member: str) -> None:
        site.agents[member].end(signal.SIGKILL)
        site.start_agent(member)

    async def kill_server(cluster: Cluster) -> None:
        await asyncio.to_thread(cluster.kill_postmaster, alone=random.random() < 0.3)
        await asyncio.sleep(random.uniform(0, 0.5))
        await asyncio.to_thread(cluster.start)

    return [
        lambda: kill_agent(random.choice("abc")),
        lambda: kill_server(site.replicas[random.choice("abc")]),
        lambda: kill_server(site.log),
    ]


async def until_committed(tally: Tally, number: int) -> None:
    while len(tally.committed) < number:  # noqa: ASYNC110 - anywhere
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    try:
        site.found()
        for member in "bc":
            site.join(member)
        for member in site.replicas:
            site.start_agent(member)
        for member in site.replicas:
            site.sql(member, "INSERT INTO done VALUES (gen_random_uuid())")
        yield site
    finally:
        site.remove()


# -- the tests -------------------------------------------------------------------------------------------------------


async def test_all_write_at_once(site: Site) -> None:
    async with written_to(site, "abc") as tally:
        await asyncio.sleep(5)
        await until_committed(tally, 50)
    site.check()
    tally.check(site)


async def test_whatever_is_killed(site: Site) -> None:
    """Servers, agents, the log's server: again and again, at any moment."""
    kinds = killings(site)
    killed = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + 15
    async with written_to(site, "abc") as tally:
        while loop.time() < end or len(tally.committed) < 50:
            await asyncio.sleep(random.uniform(0.2, 1))
            await kinds[killed % 3]()
            killed += 1
    site.check()
    tally.check(site)
    assert killed > 3


async def test_one_that_was_away_comes_back(site: Site) -> None:
    assert site.agents["c"].end() == OK
    site.replicas["c"].stop()
    async with written_to(site, "ab") as tally:
        await asyncio.sleep(1)
        await until_committed(tally, 20)
        await asyncio.to_thread(site.replicas["c"].start)
        site.start_agent("c")
        await until_committed(tally, 40)
    site.check()
    tally.check(site)


async def test_one_joins_and_leaves(site: Site) -> None:
    """While all write."""
    async with written_to(site, "abc") as tally:
        await asyncio.to_thread(site.join, "d")
        site.start_agent("d")
        async with written_to(site, "d", 1) as its_own:
            await asyncio.to_thread(wait_until, lambda: members_of(site, "d") == ["a", "b", "c", "d"])
    site.check()
    for each in (tally, its_own):
        each.check(site)
    assert site.agents.pop("d").end() == OK
    site.replicas.pop("d").remove()
    await asyncio.to_thread(Cli({}), "replica", "leave", "d", *site.options("b")[:2], code=OK)
    site.catch_up()
    assert [members_of(site, member) for member in "abc"] == [["a", "b", "c"]] * 3


def members_of(site: Site, member: str) -> list[str]:
    return [name for (name,) in site.sql(member, "SELECT member FROM mip.members ORDER BY 1")]


def test_one_reads_elsewhere_what_one_has_written(site: Site) -> None:
    with ExitStack() as stack:
        at = {
            member: stack.enter_context(psycopg.connect(replica.conninfo(DATABASE), autocommit=True))
            for member, replica in site.replicas.items()
        }
        for member in at:
            at[member].execute("SELECT set_config('statement_timeout', %s, false)", (f"{PATIENCE}s",))
        for _ in range(20):
            writer, reader = random.sample(sorted(at), 2)
            transaction = uuid4()
            at[writer].execute("INSERT INTO done VALUES (%s)", (transaction,))
            ((position,),) = at[writer].execute("SELECT mip.last_position()").fetchall()
            at[reader].execute("SELECT mip.wait_for(%s)", (position,))
            found = at[reader].execute("SELECT FROM done WHERE transaction = %s", (transaction,))
            assert found.rowcount == 1


def test_status(site: Site) -> None:
    document = Cli({}).json("replica", "status", *site.options("b"))
    assert document["replication"]["member"] == "b"
    assert 0 < document["replication"]["applied"] <= document["end"]
    assert [member["member"] for member in document["members"]] == ["a", "b", "c"]
    assert all(member["applied"] > 0 for member in document["members"])
    assert "heard" in Cli({})("replica", "status", *site.options("b"), code=OK).stdout


def set_apart(site: Site, member: str) -> None:
    """What is done there from now on is not replicated."""
    site.replicas[member].configure({"mip.replicated_database": ""})
    site.replicas[member].restart()


def put_back(site: Site, member: str) -> None:
    site.replicas[member].configure(settings_of(member))
    site.replicas[member].restart()


def test_definitions_are_changed(site: Site) -> None:
    """At each replica, when all have the same and nobody writes."""
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        site.sql("a", "ALTER TABLE item ADD note text")
    site.catch_up()
    for member in site.replicas:
        assert site.agents[member].end() == OK
        set_apart(site, member)
        site.sql(member, "ALTER TABLE item ADD note text; CREATE TABLE more (n int) USING mip")
        put_back(site, member)
        site.start_agent(member)
    site.sql("b", "UPDATE item SET note = 'at b'; INSERT INTO more VALUES (1)")
    site.check()
    for member in site.replicas:
        assert site.sql(member, "SELECT note, n FROM item, more GROUP BY 1, 2") == [("at b", 1)]


def test_definitions_are_replicated(site: Site) -> None:
    """And what comes behind one in its pipeline, as part of the same transaction, is, too."""
    with psycopg.connect(site.replicas["a"].conninfo(DATABASE), autocommit=True) as conn:
        with conn.pipeline():
            conn.execute("SELECT mip.replicate_ddl('CREATE TABLE piped (n int PRIMARY KEY) USING mip')")
            conn.execute("INSERT INTO counter VALUES (1000, 7)")
        conn.execute("DELETE FROM counter WHERE id = 1000")
        conn.execute("INSERT INTO piped VALUES (1)")
    site.check()
    for member in site.replicas:
        assert site.sql(member, "SELECT n FROM piped") == [(1,)]


def test_an_error_behind_a_definition_does_not_undo_it(site: Site) -> None:
    def pipe(conn: psycopg.Connection[Any]) -> None:
        with conn.pipeline():
            conn.execute("SELECT mip.replicate_ddl('CREATE TABLE stays (n int)')")
            conn.execute("SELECT 1 / 0")

    with psycopg.connect(site.replicas["a"].conninfo(DATABASE), autocommit=True) as conn:
        with pytest.raises(psycopg.OperationalError) as caught:
            pipe(conn)
        assert caught.value.sqlstate == "08007"
    site.catch_up()
    for member in site.replicas:
        assert site.sql(member, "SELECT FROM stays") == []


def test_another_database_is_no_replica(site: Site) -> None:
    """It has the same tables, but is not a copy."""
    with Cluster("stranger") as stranger:
        stranger.create_database(DATABASE)
        stranger.run_sql(SCHEMA, dbname=DATABASE)
        stranger.configure(settings_of("stranger"))
        stranger.restart()
        options = ("--database", stranger.conninfo(DATABASE), *site.options("a")[2:])
        assert "another beginning" in Cli({})("replica", "init", *options, code=PROBLEMS).stderr
        with closing(psycopg.connect(stranger.conninfo(DATABASE), autocommit=True)) as conn:
            foreign = uuid4()
            conn.pgconn.send_query(f"INSERT INTO done VALUES ('{foreign}')".encode())  # which waits
            agent = AgentProcess(stranger, site.log).start()
            wait_until(lambda: "this replica follows no log yet" in agent.output.read_text())
            assert agent.end() == OK
        assert stranger.run_sql("SELECT applied FROM mip.replication", dbname=DATABASE) == [(0,)]
    site.check()
    assert site.sql("a", f"SELECT FROM done WHERE transaction = '{foreign}'") == []


# -- a log that keeps little -----------------------------------------------------------------------------------------


@asynccontextmanager
async def trimming_agent(site: Site, member: str) -> AsyncIterator[None]:
    async with EmbeddedLog(site.log.conninfo()) as engine:
        agent = Agent(site.replicas[member].conninfo(DATABASE), engine, trim_every=0.2)
        task = asyncio.create_task(agent.run())
        try:
            yield
        finally:
            agent.stop()
            await task


def write_much(site: Site) -> None:
    with psycopg.connect(site.replicas["a"].conninfo(DATABASE), autocommit=True) as conn:
        for _ in range(60):
            conn.execute("INSERT INTO done VALUES (gen_random_uuid())")


def be_away_for_too_long(site: Site) -> None:
    site.join("b")
    site.start_agent("b")

    def first() -> int:
        return int(site.log.run_sql('SELECT min("position") FROM mip_log.message')[0][0])

    site.sql("a", "INSERT INTO done VALUES (gen_random_uuid())")
    wait_until(lambda: members_of(site, "a") == ["a", "b"])
    site.agents["b"].end()
    write_much(site)
    assert first() < 10  # it is kept for b
    Cli({})("replica", "leave", "b", *site.options("a")[:2], code=OK)
    write_much(site)
    wait_until(lambda: first() > 50)
    site.start_agent("b")
    assert site.agents["b"].wait() == PROBLEMS
    assert "this replica has been away for too long" in site.agents["b"].output.read_text()
    site.replicas.pop("b").remove()
    del site.agents["b"]
    site.join("c")
    site.start_agent("c")
    wait_until(lambda: site.sql("c", "SELECT applier_pid IS NOT NULL FROM mip.replication") == [(True,)])
    site.sql("a", "INSERT INTO done VALUES (gen_random_uuid())")
    wait_until(lambda: members_of(site, "a") == ["a", "c"])  # from now on the log is kept for it
    write_much(site)
    site.check()


def begin_a_new_log(site: Site) -> None:
    site.agents.pop("c").end(signal.SIGKILL)
    site.replicas.pop("c").remove()
    site.log.remove()
    site.log.start()
    set_apart(site, "a")
    site.sql("a", "TRUNCATE mip.applied, mip.log, mip.replicas")
    put_back(site, "a")
    Cli({})("replica", "init", *site.options("a"), code=OK)
    site.join("d")
    for member in "ad":
        site.start_agent(member)
    write_much(site)
    site.check()


async def test_one_that_was_away_for_too_long() -> None:
    """It cannot follow a log that has been trimmed, and a new copy can. And what is to be done where a log is lost."""
    site = Site()
    try:
        await asyncio.to_thread(site.found, window=20)
        async with trimming_agent(site, "a"):
            await asyncio.to_thread(be_away_for_too_long, site)
        await asyncio.to_thread(begin_a_new_log, site)
    finally:
        site.remove()
