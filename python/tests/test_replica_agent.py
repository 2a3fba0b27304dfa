"""The agent of a replica: everything arrives, once and in order, whatever ends meanwhile."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest
from proxy import Fault, Mode, Proxy
from replicas import Replica

from pgmip.replication.agent import Agent, Event, EventName, Part, Stopped
from pgmip.replication.embedded import EmbeddedLog, create
from pgmip.replication.engine import Entry, Forked, Message, Place, Refused, Trimmed, Unavailable, WentBack
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

LARGE = 1 << 30
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("replica", preload=(), fsync=True) as cluster:
        yield cluster


@pytest.fixture
async def log(cluster: Cluster) -> str:
    """The connection string of a new one."""
    name = f"log_{next(_numbers)}"
    cluster.create_database(name)
    await create(cluster.conninfo(name), Message(UUID(int=1), b"settings"))
    return cluster.conninfo(name)


def begun(cluster: Cluster) -> Replica:
    """One that follows the log, as behind `pgmip replica init`."""
    replica = Replica(cluster, f"replica_{next(_numbers)}")
    replica.sql("INSERT INTO mip.applied VALUES (1, 'settings')")
    return replica


@pytest.fixture
def replica(cluster: Cluster) -> Replica:
    return begun(cluster)


@pytest.fixture
def other(cluster: Cluster) -> Replica:
    return begun(cluster)


class Told(list[Event]):
    """The events of an agent."""

    def of(self, name: EventName) -> list[Part | None]:
        return [event.part for event in self if event.name is name]


@asynccontextmanager
async def running(
    replica: Replica, log: str, *, trim_every: float = 60, **parameters: Any
) -> AsyncIterator[tuple[Agent, Told]]:
    """An agent that is stopped at the end."""
    told = Told()
    async with EmbeddedLog(log, **parameters) as engine:
        often: dict[str, float] = {"longest_pause": 0.2, "report_every": 0.1, "trim_every": trim_every}
        agent = Agent(replica.conninfo, engine, **often, on_event=told.append)
        task = asyncio.create_task(agent.run())
        try:
            yield agent, told
        finally:
            agent.stop()
            async with asyncio.timeout(30):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - in a database, mostly
            await asyncio.sleep(0.02)


def numbered(first: int, number: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + number)]


async def test_what_is_committed_at_one_is_applied_at_all(log: str, replica: Replica, other: Replica) -> None:
    written = numbered(0, 200)
    async with running(replica, log) as (agent, told), running(other, log) as (_, told_other):
        for first in range(0, 200, 20):
            (other if first == 100 else replica).commit(*written[first : first + 20])
            await asyncio.sleep(0.02)
        await until(lambda: len(replica.applied) == len(other.applied) == 200)
        assert replica.applied == other.applied
        assert sorted(replica.applied) == sorted(written)
        assert [each for each in replica.applied if each not in written[100:120]] == written[:100] + written[120:]
        await until(lambda: bool(told.of(EventName.PROGRESS)))
        state = await agent.state()
    assert (state.member, state.applied, state.end, state.behind, state.appended) == ("one", 201, 201, 0, 180)
    assert state.received == {"loaded": 1, "committed": 180, "applied": 20}
    assert replica.waiting == other.waiting == 0
    assert sorted(told.of(EventName.BEGUN)) == sorted(told_other.of(EventName.BEGUN)) == [Part.APPLIER, Part.TAKER]
    assert {event.name for event in told} == {EventName.BEGUN, EventName.PROGRESS}


async def test_what_is_set_for_a_database_ends_no_session(cluster: Cluster, log: str, replica: Replica) -> None:
    cluster.run_sql(f"ALTER DATABASE {replica.name} SET statement_timeout = '300ms'")
    async with running(replica, log) as (_, told):
        await until(lambda: len(told.of(EventName.BEGUN)) == 2)
        cluster.run_sql(f"ALTER DATABASE {replica.name} RESET statement_timeout")
        await asyncio.sleep(1.5)  # a taker waits for a second
        replica.commit(b"one")
        await until(lambda: replica.applied == [b"one"])
    assert told.of(EventName.LOST) == []


async def test_it_goes_on_where_it_was(log: str, replica: Replica) -> None:
    for number in range(3):
        replica.commit(b"%d" % number)
        async with running(replica, log) as (agent, _):
            await until(lambda: replica.waiting == 0)
            loaded = (await agent.state()).received.get("loaded", 0)
        assert loaded == min(number + 1, 2)
    assert replica.applied == numbered(0, 3)


async def test_it_stops_at_once(log: str, replica: Replica) -> None:
    """And leaves no session."""
    async with running(replica, log) as (_, told):
        await until(lambda: len(told) == 2)
        loop = asyncio.get_running_loop()
        begin = loop.time()
    assert loop.time() - begin < 10
    gc.collect()  # where psycopg leaves what it was about to connect when it was cancelled
    query = "SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgmip replica%'"
    await until(lambda: replica.sql(query) == [])


@pytest.mark.parametrize("where", ["pgmip replica %", "pgmip replica log", "pgmip replica taker"])
async def test_sessions_that_are_killed(
    cluster: Cluster, log: str, replica: Replica, other: Replica, where: str
) -> None:
    """Again and again, at any moment, at the database and at the log."""
    query = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s AND random() < 0.5"
    written = numbered(0, 100)
    async with running(replica, log), running(other, log):
        async with await psycopg.AsyncConnection.connect(cluster.conninfo(), autocommit=True) as conn:
            for first in range(0, 100, 4):
                (replica if random.random() < 0.5 else other).commit(*written[first : first + 4])
                await asyncio.sleep(random.uniform(0, 0.2))
                await conn.execute(query, (where,))
        await until(lambda: len(replica.applied) == len(other.applied) == 100)
        assert replica.applied == other.applied
        assert sorted(replica.applied) == sorted(written)


@pytest.mark.parametrize("mode", [Mode.CUT, Mode.STALL])
async def test_unknown_answers_of_the_log(cluster: Cluster, log: str, replica: Replica, mode: Mode) -> None:
    """What the log has taken, without saying so, is not there twice."""
    async with Proxy(cluster.port) as proxy:
        through = {"host": "127.0.0.1", "port": proxy.port, "sslmode": "disable"}
        through_proxy = cluster.conninfo(psycopg.conninfo.conninfo_to_dict(log)["dbname"], tcp=True, **through)
        async with running(replica, through_proxy, patience=1) as (_, told):
            for number in range(10):
                proxy.arm(Fault(mode, "reply", random.randint(0, 8)))
                replica.commit(b"%d" % number)
                await until(lambda: replica.waiting == 0)
            proxy.heal()
            assert replica.applied == numbered(0, 10)
        assert EventName.UNANSWERED in {event.name for event in told}
        assert EventName.ANSWERED in {event.name for event in told}


class Unsure(EmbeddedLog):
    """Does what it is asked, and does not say so."""

    unsure = 3

    async def append(self, messages: Sequence[Message], known: Place | None = None) -> Sequence[int]:
        positions = await super().append(messages, known)
        if self.unsure:
            self.unsure -= 1
            raise Unavailable("the log: no answer")
        return positions


async def test_the_same_is_appended_until_it_is_known(log: str, replica: Replica) -> None:
    told = Told()
    replica.commit(*numbered(0, 5))
    async with Unsure(log) as engine:
        agent = Agent(replica.conninfo, engine, longest_pause=0.01, on_event=told.append)
        task = asyncio.create_task(agent.run())
        await until(lambda: (EventName.ANSWERED in {event.name for event in told}) and replica.waiting == 0)
        agent.stop()
        await task
    assert replica.applied == numbered(0, 5)
    assert (told.of(EventName.UNANSWERED), told.of(EventName.ANSWERED)) == ([Part.TAKER], [Part.TAKER])
    assert told.of(EventName.LOST) == []


async def test_what_a_dead_taker_had_taken(log: str, replica: Replica) -> None:
    replica.commit(*numbered(0, 5))
    async with await psycopg.AsyncConnection.connect(replica.conninfo, autocommit=True) as conn:
        taken = await (await conn.execute(b"SELECT id, message FROM mip.replica_take(1000, 0)")).fetchall()
        async with EmbeddedLog(log) as engine:  # which had appended some of it
            await engine.append([Message(id, message) for id, message in taken[:2]])
        async with running(replica, log):
            replica.commit(*numbered(5, 5))
            await until(lambda: len(replica.applied) == 7)
            await conn.close()
            await until(lambda: replica.waiting == 0)
    assert sorted(replica.applied) == numbered(0, 10)


async def test_two_agents_of_one_replica(log: str, replica: Replica) -> None:
    """The other one waits, and does not take anything, until the first has ended."""
    async with AsyncExitStack() as stack:
        first, begun = await stack.enter_async_context(running(replica, log))
        await until(lambda: len(begun.of(EventName.BEGUN)) == 2)
        async with running(replica, log) as (second, told):
            await until(lambda: told.of(EventName.LOST) == [Part.APPLIER])
            replica.commit(*numbered(0, 5))
            await until(lambda: replica.waiting == 0)
            assert (await first.state()).appended == 5
            await stack.aclose()
            replica.commit(*numbered(5, 5))
            await until(lambda: replica.waiting == 0)
            assert (await second.state()).appended == 5
    assert [event.error.sqlstate for event in told if isinstance(event.error, psycopg.Error)] == ["55006"]


async def test_an_error_of_an_application(log: str, replica: Replica) -> None:
    """What is behind it is not applied before it."""
    replica.sql("INSERT INTO mip.failures VALUES (4, '40P01')")
    replica.commit(*numbered(0, 8))
    async with running(replica, log) as (_, told):
        await until(lambda: bool(told.of(EventName.LOST)))
        assert replica.applied == numbered(0, 2)
        replica.sql("DELETE FROM mip.failures")
        await until(lambda: replica.waiting == 0)
    assert replica.applied == numbered(0, 8)
    (error,) = (event.error for event in told if event.error)
    assert isinstance(error, psycopg.errors.DeadlockDetected)


async def test_another_log_stops_it(cluster: Cluster, log: str, replica: Replica) -> None:
    replica.sql("INSERT INTO mip.applied VALUES (2, 'something else')")
    async with EmbeddedLog(log) as engine:
        await engine.append([Message(UUID(int=2), b"something")])
        agent = Agent(replica.conninfo, engine)
        with pytest.raises(Stopped, match="another log") as raised:
            await agent.run()
    assert raised.value.hint == "Look at the logs."
    assert isinstance(raised.value.__cause__, psycopg.Error)


async def test_nothing_is_appended_to_another_log(log: str, replica: Replica) -> None:
    """Nor to one that has been trimmed: it would be kept for a member that cannot follow it."""
    replica.sql("INSERT INTO mip.applied VALUES (2, 'something else')")
    replica.commit(b"1", b"2")
    async with EmbeddedLog(log) as engine:
        await engine.append([Message(UUID(int=n), b"") for n in range(2, 12)])
        for _ in range(5):
            with pytest.raises(Stopped, match="another log"):
                await Agent(replica.conninfo, engine).run()
        await engine.trim(5)
        for _ in range(5):
            with pytest.raises(Stopped, match="away for too long"):
                await Agent(replica.conninfo, engine).run()
        assert await engine.end() == 11
    assert replica.waiting == 2


async def test_what_is_behind_a_fork_is_not_received(log: str, replica: Replica) -> None:
    replica.sql("INSERT INTO mip.failures VALUES (3, 'MP030')")
    replica.commit(*numbered(0, 8))
    async with EmbeddedLog(log) as engine:
        with pytest.raises(Stopped):
            await Agent(replica.conninfo, engine).run()
    assert replica.applied == numbered(0, 1)


async def test_a_log_that_is_trimmed_or_shorter_stops_it(cluster: Cluster, log: str, replica: Replica) -> None:
    async with EmbeddedLog(log) as engine:
        await engine.append([Message(UUID(int=n), b"") for n in range(2, 12)])
        await engine.trim(5)
        with pytest.raises(Stopped, match="away for too long") as raised:
            await Agent(replica.conninfo, engine).run()
        assert isinstance(raised.value.__cause__, Trimmed)
        replica.sql("INSERT INTO mip.applied SELECT n, '' FROM generate_series(2, 12) n")
        with pytest.raises(Stopped, match="ends at position 11, and 12 is applied: it has lost messages") as raised:
            await Agent(replica.conninfo, engine).run()
        assert isinstance(raised.value.__cause__, WentBack)


class Held(EmbeddedLog):
    """Nothing is read while it is held."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(conninfo)
        self.goes = asyncio.Event()
        self.goes.set()

    async def read(self, *args: Any, **options: Any) -> Sequence[Entry]:
        await self.goes.wait()
        return await super().read(*args, **options)


@asynccontextmanager
async def held(replica: Replica, log: str) -> AsyncIterator[tuple[Held, asyncio.Task[None], Told]]:
    """A running agent that has applied "0" to "2", at positions 2 to 4, and reads nothing more."""
    told = Told()
    async with Held(log) as engine:
        agent = Agent(replica.conninfo, engine, longest_pause=0.1, on_event=told.append)
        task = asyncio.create_task(agent.run())
        try:
            replica.commit(*numbered(0, 3))
            await until(lambda: replica.waiting == 0)
            engine.goes.clear()
            await asyncio.sleep(1.2)  # what it waits for at the log has come to its end
            yield engine, task, told
        finally:
            agent.stop()
            await asyncio.gather(task, return_exceptions=True)


def change(cluster: Cluster, log: str, statements: str) -> None:
    """At once, as if the log were another one from then on."""
    name = psycopg.conninfo.conninfo_to_dict(log)["dbname"]
    cluster.run_sql(f"DO $$ BEGIN LOCK mip_log.message; {statements} END $$", dbname=str(name))


OTHERS = """
    INSERT INTO mip_log.message ("position", id, content)
    SELECT p, gen_random_uuid(), 'other' FROM generate_series(4, {last}) p;
"""


@pytest.mark.parametrize("last", [3, 4, 6])
async def test_a_log_goes_back_under_a_running_agent(cluster: Cluster, log: str, replica: Replica, last: int) -> None:
    """Also where others have gone on from there before it looks: it stops, and has appended nothing."""
    async with held(replica, log) as (engine, task, _):
        others = OTHERS.format(last=last) if last > 3 else ""
        change(cluster, log, f"DELETE FROM mip_log.message WHERE position > 3; {others}")
        replica.commit(b"mine")
        await asyncio.sleep(0.5)  # the taker is alone
        engine.goes.set()
        async with asyncio.timeout(20):
            with pytest.raises(Stopped, match="lost messages" if last == 3 else "another log"):
                await task
        assert await engine.end() == last
    assert replica.waiting == 1
    assert replica.applied == numbered(0, 3)


async def test_a_log_that_says_the_same_again(cluster: Cluster, log: str, replica: Replica) -> None:
    """As where what it had lost has been appended again: the database compares, and goes on."""
    async with held(replica, log) as (engine, _, told):
        change(cluster, log, "UPDATE mip_log.message SET stamp = gen_random_uuid() WHERE position > 2;")
        replica.commit(b"3")
        engine.goes.set()
        await until(lambda: replica.waiting == 0)
    assert replica.applied == numbered(0, 4)
    assert {type(event.error) for event in told if event.part is Part.APPLIER and event.error} == {Forked}


async def test_another_agent_has_come_to_apply(cluster: Cluster, log: str, replica: Replica) -> None:
    """What this one has read last tells nothing of messages that know of more."""
    async with held(replica, log) as (engine, _, _), running(replica, log) as (second, _):
        whose = "application_name = 'pgmip replica applier'"
        cluster.run_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {whose}")
        await engine.append([Message(UUID(int=2), b"theirs")])
        await until(lambda: len(replica.applied) == 4)
        await asyncio.sleep(1.2)  # a wait for messages that began before
        for content in numbered(4, 10):  # one of the two takes it
            replica.commit(content)
        await until(lambda: replica.waiting == 0)
        assert (await second.state()).appended == 10


async def test_an_emptied_log_stops_it(cluster: Cluster, log: str, replica: Replica) -> None:
    async with held(replica, log) as (engine, task, _):
        change(cluster, log, "DELETE FROM mip_log.message;")
        engine.goes.set()
        with pytest.raises(Stopped, match="the log is empty"):
            await task
        with pytest.raises(Stopped, match="the log is empty"):
            await Agent(replica.conninfo, engine).run()


@pytest.mark.parametrize("frozen", ["the log", "the database", "both"])
async def test_it_stops_beside_a_server_that_does_not_answer(
    cluster: Cluster, log: str, replica: Replica, frozen: str
) -> None:
    async with Proxy(cluster.port) as at_log, Proxy(cluster.port) as at_database:

        def through(proxy: Proxy, conninfo: str) -> str:
            name = str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])
            return cluster.conninfo(name, tcp=True, port=proxy.port, sslmode="disable")

        async with EmbeddedLog(through(at_log, log)) as engine:
            agent = Agent(through(at_database, replica.conninfo), engine, trim_every=0.05)
            task = asyncio.create_task(agent.run())
            replica.commit(b"0")
            await until(lambda: replica.waiting == 0)
            for proxy in (at_log, at_database):
                if frozen in ("both", "the log" if proxy is at_log else "the database"):
                    proxy.freeze()
            replica.commit(b"1")
            await asyncio.sleep(0.5)
            agent.stop()
            async with asyncio.timeout(4):
                await task


async def test_it_trims_the_log(log: str, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again after an error."""
    trim = EmbeddedLog.trim
    raised: list[Exception] = [Unavailable("busy"), Refused("no"), Unavailable("busy")]

    async def failing(engine: EmbeddedLog, upto: int, known: Place | None) -> None:
        if raised:
            raise raised.pop()
        await trim(engine, upto, known)

    monkeypatch.setattr(EmbeddedLog, "trim", failing)
    replica.commit(*numbered(0, 8))
    async with running(replica, log, trim_every=0.05) as (_, told), EmbeddedLog(log) as engine:
        await until(lambda: replica.waiting == 0)
        await asyncio.sleep(0.2)
        assert len(await engine.read(0, LARGE, wait=0)) == 9
        replica.sql("INSERT INTO mip.trim VALUES (4)")
        await until(lambda: raised == [])
        async with asyncio.timeout(10):
            while await first_position(engine) != 5:  # noqa: ASYNC110 - in a database
                await asyncio.sleep(0.02)
    assert told.of(EventName.UNANSWERED) == [*told.of(EventName.ANSWERED), Part.TRIMMER]
    assert told.of(EventName.LOST) == [Part.TRIMMER]


async def first_position(engine: EmbeddedLog) -> int:
    """Of what has not been trimmed."""
    for after in range(20):
        with suppress(Trimmed):
            return (await engine.read(after, 1, wait=0))[0].position
    raise AssertionError


async def test_a_refusal_of_the_log(log: str, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier goes on beside it."""
    monkeypatch.setattr(EmbeddedLog, "max_message", 3)
    replica.commit(b"1234")
    async with running(replica, log) as (_, told), EmbeddedLog(log) as engine:
        await until(lambda: told.of(EventName.LOST) == [Part.TAKER])
        await engine.append([Message(UUID(int=2), b"1")])
        await until(lambda: replica.applied == [b"1"])
        replica.sql("DELETE FROM mip.waiting")
        replica.commit(b"2")
        await until(lambda: replica.applied == [b"1", b"2"])
    assert [type(event.error) for event in told if event.error] == [Refused]


async def test_a_restart_of_the_server(cluster: Cluster, log: str, replica: Replica) -> None:
    """Noticed at once, also by who only waits."""
    async with running(replica, log) as (_, told):
        replica.commit(*numbered(0, 5))
        await until(lambda: replica.waiting == 0)
        cluster.kill_postmaster()
        await asyncio.to_thread(cluster.start)
        await until(lambda: told.of(EventName.BEGUN).count(Part.APPLIER) == 2)
        replica.commit(*numbered(5, 5))
        await until(lambda: replica.waiting == 0)
    assert replica.applied == numbered(0, 10)


async def test_one_of_many_entries_is_handed_over_alone(log: str, replica: Replica) -> None:
    """Each in a transaction of its own, however many are read at once."""
    async with EmbeddedLog(log) as engine:
        await engine.append([Message(UUID(int=n), b"%d" % n) for n in range(2, 302)])
        assert len(await engine.read(1, LARGE, wait=0)) == 300
    async with running(replica, log):
        await until(lambda: len(replica.applied) == 300)
    transactions = replica.sql("SELECT count(DISTINCT xmin::text) FROM mip.applied")
    assert transactions == [(301,)]
