"""The embedded log: what PostgreSQL, and the way to it, can do to it. What any log does is in test_replica_log.py."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from log_keepers import BEGINNING, LARGE, NOW, append_again_and_again, contents, message, places
from proxy import Fault, Mode, Proxy

from pgmip.replication import embedded
from pgmip.replication.embedded import EmbeddedLog, create
from pgmip.replication.engine import Entry, Refused, Unavailable, WentBack
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

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


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How often a log has been read, so far."""
    looks, look = count(), embedded._entries

    async def counted(*parameters: Any) -> Any:
        next(looks)
        return await look(*parameters)

    monkeypatch.setattr(embedded, "_entries", counted)
    return looks


async def test_who_appends_need_not_look(connect: Open, looked: Iterator[int]) -> None:
    """Whichever comes first, the end of the append or a notification of it."""
    (known,) = (entry.place for entry in await connect().read(0, LARGE, wait=NOW))
    log = connect(poll=60)
    async with asyncio.timeout(30):
        for number in range(50):
            assert known is not None
            reading = asyncio.create_task(log.read(known.position, LARGE, wait=60, known=known))
            await asyncio.sleep(random.choice([0, 0.01]))
            await log.append([message(b"%d" % number), message()], known)
            *_, known = (entry.place for entry in await reading)
    assert next(looked) <= 3
    assert [place.position for place in await places(log)] == list(range(1, 102))


async def test_who_does_not_know_what_he_has_appended_looks(
    connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not at the next notification: there was one."""

    async def unanswered(_conn: Any, work: Awaitable[Any]) -> None:
        await work
        await asyncio.sleep(0.2)
        raise psycopg.OperationalError("the connection is lost")

    log = connect(poll=60)
    (known,) = await places(log)
    async with asyncio.timeout(30):
        assert await log.read(1, LARGE, wait=NOW) == []
        reading = asyncio.create_task(log.read(1, LARGE, wait=60, known=known))
        await asyncio.sleep(0.1)
        monkeypatch.setattr(embedded, "uncancelled", unanswered)
        with pytest.raises(Unavailable):
            await log.append([message(b"mine")], known)
        assert await reading == [Entry(2, b"mine")]


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_what_is_appended_while_there_was_nothing_yet(
    connect: Open, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    look = embedded._entries

    async def late(conn: Any, *parameters: Any) -> Any:
        found = await look(conn, *parameters)
        looked.set()
        await appended.wait()
        await conn.execute("SELECT")  # with the notification
        return found

    monkeypatch.setattr(embedded, "_entries", late)
    looked, appended = asyncio.Event(), asyncio.Event()
    log = connect(poll=60)
    async with asyncio.timeout(30):
        reading = asyncio.create_task(log.read(1, LARGE, wait=60))
        await looked.wait()
        await (log if by == "itself" else connect()).append([message(b"1")])
        appended.set()
        assert await reading == [Entry(2, b"1")]


async def test_what_anybody_may_notify(connect: Open, cluster: Cluster, database: str, looked: Iterator[int]) -> None:
    log = connect(poll=60)
    async with asyncio.timeout(30):
        assert await log.read(1, LARGE, wait=NOW) == []
        reading = asyncio.create_task(log.read(1, LARGE, wait=60))
        for payload in ("", "much", "9" * 5000, "-1", "7"):
            cluster.run_sql(f"SELECT pg_notify('mip_log', '{payload}')", dbname=database)
        await connect().append([message()])
        assert [entry.position for entry in await reading] == [2]
    assert next(looked) <= 10


async def test_readers_do_not_look_in_vain(connect: Open, looked: Iterator[int]) -> None:
    """Where nothing is known to be there that they have not read."""
    log, other = connect(poll=60), connect()
    async with asyncio.timeout(30):
        for position in range(2, 12):
            reading = asyncio.create_task(log.read(position - 1, LARGE, wait=60))
            await asyncio.sleep(0.1)
            await other.append([message()])
            assert [entry.position for entry in await reading] == [position]
            await asyncio.sleep(0.1)
        assert next(looked) <= 12
        await other.append([message(b"12") for _ in range(2)])
        assert len(await log.read(11, 1, wait=60)) == 1
        assert len(await log.read(12, 1, wait=60)) == 1  # which no notification tells of
        assert await log.read(13, 1, wait=NOW) == []


async def test_trimming_much(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgmip.replication.embedded._TRIMMED_AT_ONCE", 3)
    log = connect()
    await log.append([message() for _ in range(20)])
    await log.trim(20)
    assert len(await contents(log, 20)) == 1


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
    cluster.run_sql("UPDATE mip_log.log SET version = 99", dbname=database)
    with pytest.raises(Refused, match="version 99"):
        await connect().end()
