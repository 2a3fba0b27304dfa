"""The embedded log: one order for everybody, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from proxy import Fault, Mode, Proxy

from pgmip.replication.embedded import EmbeddedLog, create
from pgmip.replication.engine import Engine, Entry, Forked, Message, Place, Refused, Trimmed, Unavailable, WentBack
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

BEGINNING = Message(UUID(int=1), b"settings")
NOW = 0.001  # seconds to wait for what is there
LARGE = 1 << 30
Open = Callable[..., EmbeddedLog]
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster("log", preload=(), fsync=True) as cluster:
        yield cluster


@pytest.fixture
async def database(cluster: Cluster) -> str:
    """With a new log."""
    name = f"log_{next(_numbers)}"
    cluster.create_database(name)
    assert await create(cluster.conninfo(name), BEGINNING)
    return name


@pytest.fixture
async def connect(cluster: Cluster, database: str) -> AsyncIterator[Open]:
    """Opens the log; parameters go to EmbeddedLog."""
    async with AsyncExitStack() as stack:

        def make(conninfo: str = cluster.conninfo(database), **parameters: Any) -> EmbeddedLog:
            log = EmbeddedLog(conninfo, **parameters)
            stack.push_async_callback(log.close)
            return log

        yield make


def message(content: bytes = b"") -> Message:
    return Message(uuid4(), content)


async def contents(log: Engine, after: int = 1) -> list[bytes]:
    """Of all entries behind that position, which have to follow each other."""
    found: list[Entry] = []
    while entries := await log.read(after, LARGE, wait=NOW):
        assert [entry.position for entry in entries] == list(range(after + 1, after + 1 + len(entries)))
        found += entries
        after = entries[-1].position
    return [entry.content for entry in found]


async def test_it_begins_with_what_it_was_made_with(cluster: Cluster, database: str, connect: Open) -> None:
    assert await connect().read(0, LARGE, wait=NOW) == [Entry(1, b"settings")]
    assert not await create(cluster.conninfo(database), BEGINNING), "again"
    with pytest.raises(Refused, match="another beginning"):
        await create(cluster.conninfo(database), message())
    assert await connect().end() == 1


async def test_many_who_make_it_at_once(cluster: Cluster) -> None:
    name = f"log_{next(_numbers)}"
    cluster.create_database(name)
    candidates = [message(bytes([n])) for n in range(4)] * 2
    made = await asyncio.gather(
        *(create(cluster.conninfo(name), candidate) for candidate in candidates), return_exceptions=True
    )
    assert made.count(True) == 1
    assert made.count(False) == 1
    assert all(isinstance(answer, Refused | bool) for answer in made)
    async with EmbeddedLog(cluster.conninfo(name)) as log:
        first = candidates[made.index(True)]
        assert await log.read(0, LARGE, wait=NOW) == [Entry(1, first.content)]


async def test_order_with_many_who_append(connect: Open) -> None:
    """Everybody reads the same, without a gap, while it is written."""
    total = 400

    async def write(writer: int) -> list[tuple[int, bytes]]:
        log, done = connect(), list[tuple[int, bytes]]()
        while len(done) < total // 8:
            batch = [message(b"%d.%d" % (writer, len(done) + n)) for n in range(random.randint(1, 5))]
            done += zip(await log.append(batch), [each.content for each in batch], strict=True)
        return done

    async def read(count: int) -> list[Entry]:
        log, found = connect(), list[Entry]()
        while len(found) < count:
            after = found[-1].position if found else 1
            entries = await log.read(after, random.choice([1, 100, LARGE]), wait=10)
            assert [entry.position for entry in entries] == list(range(after + 1, after + 1 + len(entries)))
            found += entries
        return found

    readers = [asyncio.create_task(read(total)) for _ in range(3)]
    written = await asyncio.gather(*map(write, range(8)))
    for reader in readers:
        await reader
    end = await connect().end()
    assert end == 1 + sum(map(len, written))
    log = [Entry(position, content) for position, content in sorted(each for done in written for each in done)]
    assert [entry.position for entry in log] == list(range(2, end + 1))
    assert [entry.content for entry in log] == await contents(connect())
    for reader in readers:
        assert reader.result() == log[: len(reader.result())]
    for done in written:
        assert done == sorted(done), "a writer's own order is kept"


async def test_again_is_once(connect: Open) -> None:
    log, other = connect(), connect()
    first, second, third = (message(bytes([n])) for n in range(3))
    assert await log.append([first, second]) == [2, 3]
    assert await other.append([second, third, first]) == [3, 4, 2]
    assert await log.append([]) == []
    assert sorted(await asyncio.gather(*(each.append([fourth]) for each in (log, other) for fourth in [first]))) == [
        [2],
        [2],
    ]
    assert await contents(log) == [b"\0", b"\1", b"\2"]


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("mode", [Mode.CUT, Mode.HALF, Mode.STALL])
async def test_a_connection_lost_in_an_append(
    cluster: Cluster, database: str, connect: Open, mode: Mode, direction: Any
) -> None:
    """The answer is unknown wherever that was, and the same again is exactly once."""
    async with Proxy(cluster.port) as proxy:
        log = connect(cluster.conninfo(database, tcp=True, port=proxy.port, sslmode="disable"), patience=2)
        await log.append([message(b"first")])
        written, unknown = [b"first"], 0
        for number in range(6):
            batch = [message(b"%d" % (2 * number)), message(b"%d" % (2 * number + 1))]
            proxy.arm(Fault(mode, direction, number))
            for _ in range(3):
                try:
                    await log.append(batch)
                    break
                except Unavailable:
                    unknown += 1
            written += [each.content for each in batch]
        assert unknown > 0
    assert await contents(connect()) == written


async def test_killed_at_any_moment(cluster: Cluster, database: str, connect: Open) -> None:
    """Sessions of the log are ended all the time."""
    done = asyncio.Event()

    async def kill() -> None:
        query = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND random() < 0.3"
        async with await psycopg.AsyncConnection.connect(cluster.conninfo(), autocommit=True) as conn:
            while not done.is_set():
                await asyncio.sleep(random.uniform(0, 0.1))
                await conn.execute(query, ("pgmip replica log",))

    async def write(writer: int) -> list[bytes]:
        log = connect()
        written = [b"%d.%d" % (writer, n) for n in range(40)]
        for content in written:
            mine = message(content)
            while True:
                with suppress(Unavailable):
                    await log.append([mine])
                    break
        return written

    killer = asyncio.create_task(kill())
    written = await asyncio.gather(*map(write, range(4)))
    done.set()
    await killer
    found = await contents(connect())
    assert sorted(found) == sorted(content for each in written for content in each)
    for each in written:
        assert [content for content in found if content in each] == each


async def test_a_cancelled_append_is_carried_out_or_not(connect: Open) -> None:
    log, written = connect(), list[bytes]()
    for number in range(30):
        mine = message(b"%d" % number)
        task = asyncio.create_task(log.append([mine]))
        await asyncio.sleep(random.uniform(0, 0.01))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await log.append([mine])
        written.append(mine.content)
    assert await contents(log) == written


async def test_what_a_synchronous_standby_has_not_got(cluster: Cluster, database: str, connect: Open) -> None:
    """Is not acknowledged, also where it can be seen, because the session that waited for the standby was ended."""
    log, mine = connect(patience=1), message(b"mine")
    await connect().append([message(b"first")])
    async with without_its_standby(cluster):
        for _ in range(2):
            with pytest.raises(Unavailable):
                await log.append([mine])
        await end_waits(cluster)
        with pytest.raises(Unavailable):
            await log.append([mine])
    assert await connect().append([mine]) == [3]


@asynccontextmanager
async def without_its_standby(cluster: Cluster) -> AsyncIterator[None]:
    cluster.configure({"synchronous_standby_names": "nobody"})
    await asyncio.sleep(0.5)
    cluster.run_sql("CHECKPOINT")  # whose process lets commits wait, once it has read the setting
    try:
        yield
    finally:
        cluster.configure({"synchronous_standby_names": ""})


async def end_waits(cluster: Cluster) -> None:
    """End the sessions that wait for a standby."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    assert cluster.run_sql(query)
    while cluster.run_sql(query):  # noqa: ASYNC110 - in a database
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["the end of the session", "a restart", "a crash"])
async def test_what_a_synchronous_standby_has_not_got_is_not_read(
    cluster: Cluster, database: str, connect: Open, how: str
) -> None:
    """Although it can be seen, as what interrupted the wait for the standby has made it visible. All else is read."""
    log, mine = connect(patience=1), message(b"mine")
    await connect().append([message(b"first")])
    async with without_its_standby(cluster):
        with pytest.raises(Unavailable):
            await log.append([mine])
        if how == "the end of the session":
            await end_waits(cluster)
        elif how == "a restart":
            cluster.restart()
        else:
            cluster.kill_postmaster()
            cluster.start()
        assert await connect().end() == 3
        if how != "a crash":  # behind which nobody knows how far the standby is
            assert await connect().read(1, LARGE, wait=NOW) == [Entry(2, b"first")]
        async with asyncio.timeout(10):
            for reader in (log, connect(patience=1)):
                with pytest.raises(Unavailable):
                    await reader.read(2, LARGE, wait=NOW)
        reading = asyncio.create_task(connect().read(2, LARGE, wait=NOW))
        await asyncio.sleep(0.2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(Unavailable):
            await log.read(2, LARGE, wait=NOW)
        assert await connect().read(3, LARGE, wait=NOW) == [], "who has nothing to read waits for nobody"
    assert await connect().read(1, LARGE, wait=NOW) == [Entry(2, b"first"), Entry(3, b"mine")]
    async with without_its_standby(cluster):
        assert await connect().read(1, LARGE, wait=NOW) == [Entry(2, b"first"), Entry(3, b"mine")]


async def test_a_crash_of_the_server(cluster: Cluster, database: str, connect: Open) -> None:
    log = connect()
    await log.append([message(b"1"), message(b"2")])
    cluster.kill_postmaster()
    with pytest.raises(Unavailable):
        await log.append([message()])
    cluster.start()
    assert await log.append([message(b"3")]) == [4]
    assert await contents(log) == [b"1", b"2", b"3"]


async def test_readers_are_woken(connect: Open) -> None:
    """At once, not at the next look."""
    log, reader = connect(), connect(poll=60)
    for number in range(20):
        reading = asyncio.create_task(reader.read(1 + number, LARGE, wait=60))
        await asyncio.sleep(random.uniform(0, 0.01))
        await log.append([message(b"%d" % number)])
        async with asyncio.timeout(10):
            assert await reading == [Entry(2 + number, b"%d" % number)]


async def test_readers_look_by_themselves(
    connect: Open, cluster: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no notification comes through, as with some poolers."""
    monkeypatch.setattr("pgmip.replication.schema.LISTEN", b"SELECT")
    reading = asyncio.create_task(connect(poll=0.1).read(1, LARGE, wait=60))
    await asyncio.sleep(0.2)
    await connect().append([message()])
    async with asyncio.timeout(10):
        assert len(await reading) == 1


async def test_nothing_comes(connect: Open) -> None:
    log = connect()
    assert await log.read(1, LARGE, wait=0.2) == []
    reading = asyncio.create_task(log.read(1, LARGE, wait=60))
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await log.append([message()])
    assert len(await log.read(1, LARGE, wait=60)) == 1


async def test_so_many_bytes(connect: Open) -> None:
    """As many entries as fit, but one in any case."""
    log = connect()
    await log.append([message(bytes(length)) for length in (10, 10, 10, 100, 5_000_000, 1)])

    async def lengths(after: int, max_bytes: int) -> list[int]:
        return [len(entry.content) for entry in await log.read(after, max_bytes, wait=NOW)]

    assert await lengths(1, 29) == [10, 10]
    assert await lengths(1, 30) == [10, 10, 10]
    assert await lengths(4, 1) == [100]
    assert await lengths(5, 1000) == [5_000_000]
    assert await lengths(4, LARGE) == [100, 5_000_000, 1]


async def test_too_long(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = connect()
    monkeypatch.setattr(EmbeddedLog, "max_message", 10)
    with pytest.raises(Refused, match="has 11 bytes, more than 10"):
        await log.append([message(), message(bytes(11))])
    assert await log.append([message(bytes(10))]) == [2]


async def test_trim(connect: Open) -> None:
    log = connect()
    written = [message(b"%d" % number) for number in range(10)]
    await log.append(written)
    await log.trim(5)
    for after in (0, 1, 4):
        with pytest.raises(Trimmed, match="begins at position 6"):
            await log.read(after, LARGE, wait=NOW)
    assert await contents(log, 5) == [each.content for each in written[4:]]
    await log.trim(5)
    await log.trim(3)
    assert await log.append([message(b"10"), written[9]]) == [12, 11]
    await log.trim(1000)
    assert await log.end() == 12, "the last one stays"
    assert await contents(log, 11) == [b"10"]
    assert await log.append([message()]) == [13]


async def test_trimming_much(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgmip.replication.embedded._TRIMMED_AT_ONCE", 3)
    log = connect()
    await log.append([message() for _ in range(20)])
    await log.trim(20)
    assert len(await contents(log, 20)) == 1


async def test_a_log_that_has_lost_messages(connect: Open, cluster: Cluster, database: str) -> None:
    log = connect()
    await log.append([message(), message()])
    assert await log.read(3, LARGE, wait=NOW) == []
    cluster.run_sql("DELETE FROM mip_log.message WHERE position > 2", dbname=database)
    with pytest.raises(WentBack, match="ends at position 2, before 3"):
        await log.read(3, LARGE, wait=NOW)


async def test_one_that_is_empty(connect: Open, cluster: Cluster, database: str) -> None:
    """As no log is that has begun: nothing is numbered from the beginning again."""
    cluster.run_sql("TRUNCATE mip_log.message", dbname=database)
    log = connect()
    reads = log.read(0, LARGE, wait=NOW), log.read(3, LARGE, wait=NOW)
    for verb in (*reads, log.end(), log.append([message()]), log.trim(1)):
        with pytest.raises(WentBack, match="the log is empty"):
            await verb
    assert cluster.run_sql("SELECT FROM mip_log.message", dbname=database) == []


async def places(log: EmbeddedLog) -> list[Place]:
    entries = await log.read(0, LARGE, wait=NOW)
    return [entry.place for entry in entries if entry.place is not None]


async def test_what_has_been_read_is_looked_for(connect: Open, cluster: Cluster, database: str) -> None:
    """By each verb, in what it does: nothing is done to a log that has not got it."""

    async def each(known: Place, error: type[Exception], match: str) -> None:
        last = await log.end() - 1
        before = await other.read(last, LARGE, wait=NOW)
        for verb in (
            log.append([message(b"no")], known),
            log.read(known.position, LARGE, wait=NOW, known=known),
            log.trim(known.position, known),
        ):
            with pytest.raises(error, match=match):
                await verb
        assert await other.read(last, LARGE, wait=NOW) == before

    log, other = connect(), connect()
    await log.append([message(b"1"), message(b"2")])
    await log.append([message(b"3"), message(b"4")])
    known = await places(log)
    assert len(set(known)) == 5
    for place in known:
        await log.append([], place)
        await other.trim(0, place)
        assert len(await log.read(place.position, LARGE, wait=NOW, known=place)) == 5 - place.position
    cluster.run_sql("DELETE FROM mip_log.message WHERE position > 3", dbname=database)
    await each(known[3], WentBack, "ends at position 3, before 4, which has been read")
    await other.append([message(b"3"), message(b"4")], known[2])
    await each(known[3], Forked, "position 4 has been read, and the log has another entry there")
    await other.trim(3, known[2])
    await each(known[2], Trimmed, "begins at position 4, behind 3")


async def test_others_append_behind_it_meanwhile(connect: Open) -> None:
    """That is no reason not to."""
    (place,) = await places(connect())

    async def write() -> list[int]:
        log = connect()
        return [position for _ in range(20) for position in await log.append([message()], place)]

    written = await asyncio.gather(*(write() for _ in range(4)))
    assert sorted(position for each in written for position in each) == list(range(2, 82))


@pytest.mark.parametrize("setting", ["fsync = off", "full_page_writes = off", "synchronous_commit = off"])
async def test_where_a_crash_would_lose_messages(connect: Open, cluster: Cluster, database: str, setting: str) -> None:
    """Whether it is so from the beginning, or later."""
    log = connect()
    await log.append([message()])
    name = setting.split()[0]
    other = f"log_{next(_numbers)}"
    cluster.create_database(other)
    cluster.configure({name: False})
    try:
        async with asyncio.timeout(10):
            with pytest.raises(Refused, match=f"may lose messages: {setting}"):
                await append_again_and_again(log)
        verbs = connect().end(), connect().read(0, LARGE, wait=NOW)
        for verb in (*verbs, create(cluster.conninfo(database), BEGINNING), create(cluster.conninfo(other), BEGINNING)):
            with pytest.raises(Refused, match=f"may lose messages: {setting}"):
                await verb
    finally:
        cluster.configure({name: True})


async def append_again_and_again(log: EmbeddedLog) -> None:
    while True:
        await log.append([message()])


async def test_a_standby_is_refused(cluster: Cluster, database: str) -> None:
    with Cluster("standby", preload=(), fsync=True, standby_of=cluster) as standby:
        async with EmbeddedLog(standby.conninfo(database)) as log:
            for verb in (log.end(), log.read(0, LARGE, wait=NOW), log.append([message()])):
                with pytest.raises(Refused, match="is a standby"):
                    await verb


@pytest.mark.parametrize("where", ["in the connection string", "in a service file"])
async def test_the_host_behind_one_that_says_nothing(
    cluster: Cluster, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As the standby that has been promoted is behind a primary that is lost."""
    silent = socket.create_server(("127.0.0.1", 0))
    ports = f"{silent.getsockname()[1]},{cluster.port}"
    hosts = cluster.conninfo(database, tcp=True, host="127.0.0.1,127.0.0.1", port=ports)
    if where == "in a service file":
        services = tmp_path / "services"
        services.write_text(hosts.replace(" ", "\n").join(("[log]\n", "\n")))
        monkeypatch.setenv("PGSERVICEFILE", str(services))
        hosts = "service=log"
    with silent:
        async with asyncio.timeout(60), EmbeddedLog(hosts, patience=1) as log:
            assert await log.end() == 1


async def test_no_log(cluster: Cluster) -> None:
    async with EmbeddedLog(cluster.conninfo("template1")) as log:
        with pytest.raises(Refused, match="no log in this database") as raised:
            await log.end()
    assert raised.value.hint == "make one: pgmip replica init"
    async with EmbeddedLog("host=127.0.0.1 port=1") as log:
        with pytest.raises(Unavailable):
            await log.end()


async def test_a_log_without_its_row(connect: Open, cluster: Cluster, database: str) -> None:
    """As where only the definitions have been restored."""
    cluster.run_sql("TRUNCATE mip_log.log, mip_log.message", dbname=database)
    verbs = connect().end(), connect().read(0, LARGE, wait=NOW), connect().append([message()])
    for verb in (*verbs, create(cluster.conninfo(database), BEGINNING)):
        with pytest.raises(WentBack, match=r"mip_log\.log is empty"):
            await verb


async def test_a_schema_that_is_no_log(cluster: Cluster) -> None:
    name = f"log_{next(_numbers)}"
    cluster.create_database(name)
    cluster.run_sql("CREATE SCHEMA mip_log", dbname=name)
    with pytest.raises(Refused, match="is not a log"):
        await create(cluster.conninfo(name), BEGINNING)


async def test_another_releases_log(connect: Open, cluster: Cluster, database: str) -> None:
    cluster.run_sql("UPDATE mip_log.log SET version = 3", dbname=database)
    with pytest.raises(Refused, match="version 3"):
        await connect().end()
