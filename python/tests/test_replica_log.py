"""What any log does, whatever keeps it: one order for everybody, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from log_keepers import (
    BEGINNING,
    LARGE,
    NOW,
    EmbeddedKeeper,
    JetStreamKeeper,
    Keeper,
    Log,
    contents,
    made,
    message,
    places,
)

from pgmip._nats_servers import NatsServers, find_nats_server
from pgmip.replication.engine import Entry, Forked, Place, Refused, Trimmed, WentBack
from pgmip.replication.logs import create
from pgmip.testing import Cluster

pytestmark = pytest.mark.integration

Open = Callable[..., Log]
_NO_NATS = pytest.mark.skipif(find_nats_server() is None, reason="there is no nats-server: ./run test jetstream")


@pytest.fixture(scope="module", params=["embedded", pytest.param("jetstream", marks=_NO_NATS)])
def keeper(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    if request.param == "embedded":
        with Cluster("log", preload=(), fsync=True) as cluster:
            yield EmbeddedKeeper(cluster)
    else:
        with NatsServers() as servers:
            yield JetStreamKeeper(servers)


@pytest.fixture
async def place(keeper: Keeper) -> str:
    """That of a new log."""
    return await made(keeper)


@pytest.fixture
async def connect(keeper: Keeper, place: str) -> AsyncIterator[Open]:
    """Opens the log; parameters go to the engine."""
    async with AsyncExitStack() as stack:

        def make(**parameters: Any) -> Log:
            log: Log = keeper.open(place, **parameters)
            stack.push_async_callback(log.close)
            return log

        yield make


async def test_it_begins_with_what_it_was_made_with(place: str, connect: Open) -> None:
    assert await connect().read(0, LARGE, wait=NOW) == [Entry(1, b"settings")]
    assert not await create(place, BEGINNING), "again"
    with pytest.raises(Refused, match="another beginning"):
        await create(place, message())
    assert await connect().end() == 1


async def test_many_who_make_it_at_once(keeper: Keeper) -> None:
    place = keeper.nowhere()
    candidates = [message(bytes([n])) for n in range(4)] * 2
    answers = await asyncio.gather(*(create(place, candidate) for candidate in candidates), return_exceptions=True)
    assert answers.count(True) == 1
    assert answers.count(False) == 1, answers
    assert all(isinstance(answer, Refused | bool) for answer in answers)
    async with keeper.open(place) as log:
        first = candidates[answers.index(True)]
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


async def test_readers_are_woken(connect: Open) -> None:
    """At once, not at the next look."""
    log, reader = connect(), connect(poll=60)
    for number in range(20):
        reading = asyncio.create_task(reader.read(1 + number, LARGE, wait=60))
        await asyncio.sleep(random.uniform(0, 0.01))
        await log.append([message(b"%d" % number)])
        async with asyncio.timeout(10):
            assert await reading == [Entry(2 + number, b"%d" % number)]


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


async def test_too_long(keeper: Keeper, connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    log = connect()
    monkeypatch.setattr(keeper.engine, "max_message", 10)
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
    for upto in (5, 3, 0, -1, -1000):
        await log.trim(upto)
    assert await log.read(5, LARGE, wait=NOW), "nothing more"
    assert await log.append([message(b"10"), written[9]]) == [12, 11]
    await log.trim(1000)
    assert await log.end() == 12, "the last one stays"
    assert await contents(log, 11) == [b"10"]
    assert await log.append([message()]) == [13]


async def test_a_log_that_has_lost_messages(connect: Open, keeper: Keeper, place: str) -> None:
    log = connect()
    await log.append([message(), message()])
    assert await log.read(3, LARGE, wait=NOW) == []
    await keeper.forget(place, 2)
    with pytest.raises(WentBack, match="ends at position 2, before 3"):
        await log.read(3, LARGE, wait=NOW)


async def test_one_that_is_empty(connect: Open, keeper: Keeper, place: str) -> None:
    """As no log is that has begun: nothing is numbered from the beginning again."""
    await keeper.empty(place)
    log = connect()
    reads = log.read(0, LARGE, wait=NOW), log.read(3, LARGE, wait=NOW)
    for verb in (*reads, log.end(), log.append([message()]), log.trim(1)):
        with pytest.raises(WentBack, match="the log is empty"):
            await verb
    with pytest.raises(WentBack, match="the log is empty"):
        await connect().end()


async def test_what_has_been_read_is_looked_for(connect: Open, keeper: Keeper, place: str) -> None:
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
    for one in known:
        await log.append([], one)
        await other.trim(0, one)
        assert len(await log.read(one.position, LARGE, wait=NOW, known=one)) == 5 - one.position
    await keeper.forget(place, 3)
    await each(known[3], WentBack, "ends at position 3, before 4, which has been read")
    await other.append([message(b"3"), message(b"4")], known[2])
    await each(known[3], Forked, "position 4 has been read, and the log has another entry there")
    await other.trim(3, known[2])
    await each(known[2], Trimmed, "begins at position 4, behind 3")


async def test_who_appends_reads_what_everybody_does(connect: Open) -> None:
    """Though what he has appended himself need not come from the log."""
    (first,) = await places(connect())

    class Member:
        def __init__(self) -> None:
            self.log = connect()
            self.read = [first]
            self.contents = list[bytes]()

        async def write(self) -> None:
            for _ in range(40):
                batch = [message(bytes(random.randint(0, 9))) for _ in range(random.randint(0, 3))]
                await self.log.append(batch, random.choice([self.read[-1], self.read[-1], random.choice(self.read)]))

        async def follow(self, last: Place | None = None) -> None:
            while (known := self.read[-1]) != last:
                max_bytes = random.choice([1, 10, LARGE])
                for entry in await self.log.read(known.position, max_bytes, wait=0.05, known=known):
                    assert entry.place is not None
                    self.read.append(entry.place)
                    self.contents.append(entry.content)

    members = [Member() for _ in range(3)]
    followers = [asyncio.create_task(member.follow()) for member in members]
    await asyncio.gather(*(member.write() for member in members))
    for member in members:
        await member.write()  # alone
    expected = await places(connect())
    for follower in followers:
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower
    for member in members:
        await member.follow(expected[-1])
        assert member.read == expected
        assert member.contents == await contents(connect())


async def test_who_was_faster_is_read_first(connect: Open) -> None:
    (first,) = await places(connect())
    log, other = connect(), connect()
    await other.append([message(b"theirs")])
    await log.append([message(b"mine")], first)
    assert [each.content for each in await log.read(1, LARGE, wait=NOW, known=first)] == [b"theirs", b"mine"]


async def test_what_was_there_already_is_not_what_was_appended(connect: Open) -> None:
    log, (first,), again = connect(), await places(connect()), message(b"again")
    await log.append([again, message(b"others")], first)
    second, third = await log.read(1, LARGE, wait=NOW, known=first)
    assert await log.append([again, message(b"new")], third.place) == [2, 4]
    assert await log.read(2, LARGE, wait=NOW, known=second.place) == [Entry(3, b"others"), Entry(4, b"new")]
    assert await log.append([again], third.place) == [2]
    assert await log.read(3, LARGE, wait=NOW, known=third.place) == [Entry(4, b"new")]


async def test_others_append_behind_it_meanwhile(connect: Open) -> None:
    """That is no reason not to."""
    (known,) = await places(connect())

    async def write() -> list[int]:
        log = connect()
        return [position for _ in range(20) for position in await log.append([message()], known)]

    written = await asyncio.gather(*(write() for _ in range(4)))
    assert sorted(position for each in written for position in each) == list(range(2, 82))
