"""The log in JetStream: what NATS servers, and the way to them, can do to it. What any log does is in
test_replica_log.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from log_keepers import (
    BEGINNING,
    LARGE,
    NOW,
    JetStreamKeeper,
    Log,
    append_again_and_again,
    contents,
    made,
    message,
    places,
)
from relay import Relay, hang_up

from pgmip._nats_servers import NatsServer, NatsServers, find_nats_server
from pgmip.replication import jetstream, jetstream_session
from pgmip.replication.engine import Entry, Forked, Message, NoLog, Place, Refused, Unavailable, WentBack
from pgmip.replication.jetstream_address import parse_address
from pgmip.replication.jetstream_client import ApiError, Client
from pgmip.replication.logs import create

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_nats_server() is None, reason="there is no nats-server: ./run test jetstream"),
]

Open = Callable[..., Log]
PATIENCE = 60.0  # seconds


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsServers]:
    with NatsServers() as servers:
        yield servers


@pytest.fixture
def keeper(servers: NatsServers) -> Iterator[JetStreamKeeper]:
    yield JetStreamKeeper(servers)
    servers.start()


@pytest.fixture
async def place(keeper: JetStreamKeeper) -> str:
    """That of a new log."""
    return await made(keeper)


@pytest.fixture
async def connect(keeper: JetStreamKeeper, place: str) -> AsyncIterator[Open]:
    """Opens the log, or the one at another place; parameters go to JetStreamLog."""
    async with AsyncExitStack() as stack:

        def make(log: str = place, **parameters: Any) -> Log:
            opened: Log = keeper.open(log, **parameters)
            stack.push_async_callback(opened.close)
            return opened

        yield make


async def append(log: Log, messages: list[Message], known: Place | None = None) -> list[int]:
    """However often that has to be tried."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Unavailable):
                return list(await log.append(messages, known))
            await asyncio.sleep(0.1)


async def read(log: Log, after: int, known: Place | None = None) -> list[Entry]:
    """Likewise."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Unavailable):
                return list(await log.read(after, LARGE, wait=0.2, known=known))
            await asyncio.sleep(0.1)


async def leader(servers: NatsServers, place: str) -> NatsServer:
    stream = parse_address(place).stream
    async with asyncio.timeout(PATIENCE):
        while (found := await asyncio.to_thread(servers.leader, stream)) is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    return found


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_the_leader_is_lost_again_and_again(servers: NatsServers, place: str, connect: Open, how: str) -> None:
    """With SIGKILL while there are appends; or it stops for a while, and goes on not knowing that it is no leader."""
    done, all_written = asyncio.Event(), asyncio.Event()

    async def strike() -> None:
        for _ in range(3):
            await asyncio.sleep(random.uniform(0.5, 1.5))
            victim = await leader(servers, place)
            if how == "killed":
                victim.kill()
                await leader(servers, place)
                servers.start_one(victim)
            else:
                victim.pause()
                await asyncio.sleep(12)
                victim.resume()
            await asyncio.to_thread(servers.wait)
        done.set()

    async def write(writer: int) -> list[tuple[int, bytes]]:
        log, written, known = connect(), list[tuple[int, bytes]](), first
        while not done.is_set():
            batch = [message(b"%d.%d" % (writer, len(written) + n)) for n in range(random.randint(1, 3))]
            positions = await append(log, batch, known)
            written += zip(positions, (each.content for each in batch), strict=True)
            await asyncio.sleep(random.uniform(0, 0.01))
        return written

    async def follow() -> list[Entry]:
        log, found, known = connect(), list[Entry](), first
        while (entries := await read(log, known.position, known)) or not all_written.is_set():
            found += entries
            if entries and entries[-1].place is not None:
                known = entries[-1].place
        return found

    (first,) = await places(connect())
    tasks = [asyncio.create_task(write(writer)) for writer in range(3)]
    reading = asyncio.create_task(follow())
    await strike()
    written = sorted(each for mine in await asyncio.gather(*tasks) for each in mine)
    all_written.set()
    found = [(entry.position, entry.content) for entry in await reading]
    assert len(written) > 100
    assert found == written
    assert [position for position, _ in found] == list(range(2, 2 + len(found)))
    assert await contents(connect()) == [content for _, content in written]


async def test_all_are_lost_at_once(servers: NatsServers, place: str, connect: Open) -> None:
    log = connect()
    written = [b"%d" % number for number in range(50)]
    for content in written:
        await log.append([message(content)])
    known = (await places(log))[-1]
    for server in servers.servers:
        server.kill()
    with pytest.raises(Unavailable):
        await log.append([message()], known)
    with pytest.raises(Unavailable):
        await log.end()
    await asyncio.to_thread(servers.start)
    assert await append(log, [message(b"50")], known) == [52]
    assert await contents(connect()) == [*written, b"50"]


async def test_without_a_majority(servers: NatsServers, place: str, connect: Open) -> None:
    """Nothing is appended, and nobody is told that the log has gone back, though its leader may be asked."""
    log, mine = connect(patience=2), message(b"mine")
    await log.append([message(b"first")])
    known = (await places(log))[-1]
    its_leader = await leader(servers, place)
    others = [server for server in servers.servers if server is not its_leader]
    for server in others:
        server.pause()
    try:
        for _ in range(3):
            for verb in (log.append([mine], known), log.end(), log.read(7, LARGE, wait=NOW)):
                with pytest.raises(Unavailable):
                    await verb
    finally:
        for server in others:
            server.resume()
    assert await append(connect(), [mine], known) == [3]
    assert await contents(connect()) == [b"first", b"mine"]


async def test_all_servers_go_back(servers: NatsServers, place: str, connect: Open) -> None:
    """To what they had on their disks earlier."""
    await connect().append([message(b"kept"), message(b"kept as well")])
    for server in servers.servers:
        server.kill()
        await asyncio.to_thread(shutil.copytree, server.store, server.store.with_suffix(".earlier"))
    await asyncio.to_thread(servers.start)
    log = connect()
    await append(log, [message(b"lost"), message(b"lost as well")])
    known = await places(log)
    for server in servers.servers:
        server.kill()
        shutil.rmtree(server.store)
        server.store.with_suffix(".earlier").rename(server.store)
    await asyncio.to_thread(servers.start)
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(Unavailable):
                assert await log.end() == 3
                break
    for verb in (
        log.append([message()], known[3]),
        log.read(5, LARGE, wait=NOW, known=known[4]),
        log.read(5, LARGE, wait=NOW),
        log.trim(4, known[4]),
    ):
        with pytest.raises(WentBack, match="the log ends at position 3, before"):
            await verb
    assert await log.append([message(b"others")], known[2]) == [4]
    with pytest.raises(Forked):
        await log.append([message()], known[3])
    assert await contents(connect()) == [b"kept", b"kept as well", b"others"]


async def test_a_stream_that_is_made_anew(keeper: JetStreamKeeper, place: str, connect: Open) -> None:
    """Under that name, and for the same database."""
    log = connect()
    await log.append([message(b"1")])
    known = await places(log)
    async with keeper.api(place) as (client, stream):
        await client.api(f"STREAM.DELETE.{stream}")
    with pytest.raises(NoLog):
        await log.end()
    with pytest.raises(NoLog, match="no such stream"):
        await create(place, BEGINNING, new=False)
    assert await create(place, BEGINNING)
    with pytest.raises(Forked):
        await log.append([message()], known[0])
    with pytest.raises(WentBack):
        await log.read(2, LARGE, wait=NOW, known=known[1])
    with pytest.raises(Forked):
        await log.trim(1, known[0])
    assert await connect().append([message(b"2"), message(b"3")]) == [2, 3]
    with pytest.raises(Forked):
        await log.read(2, LARGE, wait=NOW, known=known[1])
    assert await contents(connect()) == [b"2", b"3"]


@pytest.mark.parametrize("position", [3, 5])
async def test_one_that_has_a_hole(keeper: JetStreamKeeper, place: str, connect: Open, position: int) -> None:
    """As where a block of it is damaged at all servers; the last message, too."""
    log = connect()
    await log.append([message(b"%d" % number) for number in range(4)])
    known = await places(log)
    async with keeper.api(place) as (client, stream):
        config = (await client.api(f"STREAM.INFO.{stream}"))["config"]
        subject = (await client.api(f"STREAM.MSG.GET.{stream}", seq=position))["message"]["subject"]
        await client.api(f"STREAM.PURGE.{stream}", filter=subject)
        assert config["deny_delete"]
        async with asyncio.timeout(PATIENCE):
            while await asyncio.to_thread(keeper.servers.counts, stream) != {4}:  # noqa: ASYNC110 - at servers
                await asyncio.sleep(0.1)
    before = known[position - 2]
    assert (await log.read(1, LARGE, wait=NOW))[-1].position == before.position
    for verb in (
        log.read(before.position, LARGE, wait=NOW),
        log.read(before.position, LARGE, wait=10, known=before),
        log.read(position, LARGE, wait=NOW, known=known[position - 1]),
        log.append([message()], known[position - 1]),
        log.trim(1, known[position - 1]),
    ):
        with pytest.raises(WentBack, match=f"has no entry at position {position}, and has had one"):
            await verb


class Stale:
    """What a server of the stream goes on answering that leads no more, and does not know that."""

    def __init__(self, info: dict[str, Any], every: int) -> None:
        """`every`: of so many answers one is this one's, the others are its successor's, of which it does not know."""
        self._info, self._since = info, time.monotonic()
        self._every, self._asked = every, 0
        self._api = Client.api

    async def __call__(self, client: Client, request: str, **parameters: Any) -> dict[str, Any]:
        answer = self._api(client, request, **parameters)
        self._asked += 1
        if self._asked % self._every or not request.startswith(("STREAM.INFO", "STREAM.MSG.GET")):
            return await answer
        answer.close()
        if "MSG" in request:
            raise ApiError({"code": 404, "err_code": 10037, "description": "no message found"})
        for peer in self._info["cluster"]["replicas"]:
            peer["active"] += int((time.monotonic() - self._since) * 10**9)
        self._since = time.monotonic()
        return self._info


@pytest.mark.parametrize("every", [1, 2, 3])
async def test_two_who_believe_that_they_lead(
    keeper: JetStreamKeeper, place: str, connect: Open, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Nobody is told that the log has gone back, or is another one, or that it ends before what was acknowledged."""
    await connect().append([message(b"1")])
    async with keeper.api(place) as (client, stream):
        info = await client.api(f"STREAM.INFO.{stream}")
    log = connect()
    assert await log.append([message(b"2")]) == [3]
    known = (await places(log))[-1]
    before = known.position - 1
    with monkeypatch.context() as patch:
        stale = Stale(info, every)
        patch.setattr(Client, "api", lambda client, request, **its: stale(client, request, **its))
        for verb in (
            lambda: log.end(),
            lambda: log.append([message(b"3")], known),
            lambda: log.read(known.position, LARGE, wait=NOW, known=known),
            lambda: log.read(known.position, LARGE, wait=NOW),
            lambda: log.trim(1, known),
        ) * (1 if every == 1 else 3):
            try:
                answer = await verb()
            except Unavailable:
                continue
            assert not isinstance(answer, int) or answer > before
            assert answer != [before]
    assert await log.end() >= known.position


async def test_more_than_a_batch_has(connect: Open) -> None:
    log = connect()
    known = (await places(log))[-1]
    written = [message(b"%d" % number) for number in range(2100)]
    await log.append(written[1500:1510])
    assert await log.append(written, known) == [*range(12, 1512), *range(2, 12), *range(1512, 2102)]
    assert await log.append(written) == [*range(12, 1512), *range(2, 12), *range(1512, 2102)]


class Cutting(Relay):
    """Ends, or holds up, a connection after so many bytes from the client, or to it."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = port
        self.left: dict[str, int] = {}
        self.stalls = False

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        ways = (("request", from_client, to_server), ("reply", from_server, to_client))
        tasks = [asyncio.create_task(self._forward(*way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.stalls:
                await asyncio.sleep(5)
        finally:
            for task in tasks:
                task.cancel()
            await hang_up(to_client, to_server)

    async def _forward(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            if way in self.left:
                part = data[: self.left[way]]
                self.left[way] -= len(part)
                if len(part) < len(data):
                    del self.left[way]
                    writer.write(part)
                    await writer.drain()
                    return
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("way", ["request", "reply"])
@pytest.mark.parametrize("stalls", [False, True])
async def test_a_connection_lost_in_an_append(
    servers: NatsServers, place: str, connect: Open, way: str, stalls: bool
) -> None:
    """The answer is unknown wherever that was, and the same again is exactly once."""
    async with Cutting(servers.servers[0].client) as relay:
        address = parse_address(place)
        hosts = f"127.0.0.1:{relay.port},127.0.0.1:1,127.0.0.1:1"
        log = connect(f"nats://{hosts}/{address.stream}?monitor={','.join(address.monitors)}", patience=1.5)
        await log.append([message(b"first")])
        known = (await places(log))[-1]
        relay.stalls = stalls
        written, unknown = [b"first"], 0
        number, least = 0, 8 if stalls else 30
        while number < least or unknown == 0:  # where it is cut is up to chance
            number += 1
            batch = [message(b"%d.%d" % (number, n)) for n in range(random.randint(1, 3))]
            relay.left[way] = random.randint(1, 2000)
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await log.append(batch, known)
                        break
                    except Unavailable:
                        unknown += 1
            written += [each.content for each in batch]
    assert await contents(connect()) == written


async def test_who_appends_need_not_look(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first, the end of the append or the leader's word of it."""
    looks, look = count(), jetstream_session.Session.entries

    async def counted(*parameters: Any) -> Any:
        next(looks)
        return await look(*parameters)

    (known,) = await places(connect())
    monkeypatch.setattr(jetstream_session.Session, "entries", counted)
    log = connect(poll=60)
    async with asyncio.timeout(PATIENCE):
        for number in range(50):
            reading = asyncio.create_task(log.read(known.position, LARGE, wait=60, known=known))
            await asyncio.sleep(0.01)
            await append(log, [message(b"%d" % number), message()], known)
            known = (await reading)[-1].place
        assert next(looks) <= 60  # one before each append
    assert [place.position for place in await places(connect())] == list(range(1, 102))


async def test_who_does_not_know_what_he_has_appended_looks(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when somebody else has appended."""

    async def unanswered(client: Client, subject: str, *rest: Any) -> Any:
        answer = await ask(client, subject, *rest)
        if subject.startswith("$JS.API"):
            return answer
        await asyncio.sleep(0.2)
        raise asyncio.CancelledError

    log = connect(poll=60)
    (known,) = await places(log)
    ask = Client.ask
    async with asyncio.timeout(PATIENCE):
        reading = asyncio.create_task(log.read(1, LARGE, wait=60, known=known))
        await asyncio.sleep(0.2)
        with monkeypatch.context() as patched:
            patched.setattr(Client, "ask", unanswered)
            with pytest.raises(asyncio.CancelledError):
                await log.append([message(b"mine")], known)
        assert await reading == [Entry(2, b"mine")]


async def test_a_server_that_says_nothing(servers: NatsServers, place: str, connect: Open) -> None:
    """Is given up for the next one."""
    servers.servers[0].pause()
    try:
        async with asyncio.timeout(PATIENCE):
            assert await append(connect(), [message(b"1")]) == [2]
            assert await read(connect(), 1) == [Entry(2, b"1")]
    finally:
        servers.servers[0].resume()


class Slow(Cutting):
    """A way that takes as long as it takes."""

    async def _forward(self, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 14):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(len(data) / 2e6)


async def test_a_long_message_on_a_slow_way(
    servers: NatsServers, place: str, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comes to its end, though that takes longer than a single answer may, and reading goes on meanwhile."""
    monkeypatch.setattr(jetstream, "_LONGEST_ANSWER", 0.3)
    async with Slow(servers.servers[0].client) as relay:
        address = parse_address(place)
        hosts = f"127.0.0.1:{relay.port},127.0.0.1:1,127.0.0.1:1"
        log = connect(f"nats://{hosts}/{address.stream}?monitor={','.join(address.monitors)}")
        reading = asyncio.create_task(read_on(log))
        assert await append(log, [message(bytes(2_000_000))]) == [2]
        async with asyncio.timeout(PATIENCE):
            assert (await reading).position == 2


async def read_on(log: Log) -> Entry:
    while not (found := await read(log, 1)):
        pass
    return found[0]


async def test_no_log(keeper: JetStreamKeeper) -> None:
    async with keeper.open(keeper.nowhere()) as log:
        with pytest.raises(NoLog, match="no such stream") as raised:
            await log.end()
    assert raised.value.hint == "make one: pgmip replica init"
    async with keeper.open("nats://127.0.0.1:1/log") as log:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await log.end()


# -- what is refused ---------------------------------------------------------------------------------------------


async def append_until_refused(log: Log) -> None:
    while True:
        with suppress(Unavailable):
            await append_again_and_again(log)


async def test_servers_that_do_not_flush() -> None:
    refused = pytest.raises(Refused, match="may lose messages: it does not flush")
    with NatsServers(flush=False) as servers, refused as raised:
        await create(servers.address("log"), BEGINNING)
    assert raised.value.hint is not None
    assert "sync_interval: always" in raised.value.hint


async def test_one_server_that_flushes_no_more(servers: NatsServers, place: str, connect: Open) -> None:
    """It has been started again with another setting while the log was in use."""
    log, server = connect(check_every=0.2), servers.servers[1]
    await log.append([message()])
    server.kill()
    servers.start_one(server, flush=False)
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Refused, match="n2 may lose messages"):
                await append_until_refused(log)
        for verb in (connect().end(), connect().read(0, LARGE, wait=NOW), create(place, BEGINNING)):
            with pytest.raises(Refused, match="n2 may lose messages"):
                await verb
    finally:
        server.kill()
        await asyncio.to_thread(servers.start)
    assert await append(log, [message()]) != []


class Monitoring(Relay):
    """That of a server, as long as it is said how that is set up."""

    def __init__(self, server: NatsServer) -> None:
        super().__init__()
        self._of = server
        self.how = "well"

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await from_client.readuntil(b"\r\n\r\n")
        told = await asyncio.to_thread(self._of.ask, "varz")
        answer = json.dumps([told] if self.how == "nonsense" else told).encode()
        to_client.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer))
        to_client.write(answer[:100] if self.how == "cut" else b"" if self.how == "silent" else answer)
        to_client.close()
        await to_client.wait_closed()


@pytest.mark.parametrize("how", ["cut", "silent", "nonsense"])
async def test_one_that_does_not_say_any_more(servers: NatsServers, place: str, connect: Open, how: str) -> None:
    """For too long: it works, and may not flush."""
    address = parse_address(place)
    async with Monitoring(servers.servers[1]) as monitoring:
        hosts = place.partition("?")[0]
        log = connect(f"{hosts}?monitor={address.monitors[0]},{monitoring.port},{address.monitors[2]}", check_every=0.1)
        await append(log, [message()])
        monitoring.how = how
        with pytest.raises(Unavailable, match="it is not seen whether the log is safe"):
            async with asyncio.timeout(PATIENCE):
                await append_again_and_again(log)
        with pytest.raises(Unavailable, match="n2 does not say whether"):
            await log.end()
        monitoring.how = "well"
        assert await append(log, [message()])


async def test_a_look_that_fails_unforeseen(
    place: str, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is one that has seen nothing."""

    async def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    log = connect(check_every=0.1)
    await append(log, [message()])
    with monkeypatch.context() as patch:
        patch.setattr(jetstream_session, "check_servers", fail)
        with pytest.raises(Unavailable, match="it is not seen whether the log is safe: unforeseen"):
            async with asyncio.timeout(PATIENCE):
                await append_again_and_again(log)
    assert await append(log, [message()])


async def test_looks_that_fail_now_and_then(place: str, connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice in a row is not too long; nor is what nobody has noticed before it was well again."""
    looks = 0

    async def fail(*_: object) -> None:
        nonlocal looks
        looks += 1
        if (looks % 3 and looks < 20) or 30 < looks < 40:
            raise Unavailable("not now")

    log = connect(check_every=0.01)
    await append(log, [message()])
    monkeypatch.setattr(jetstream_session, "check_servers", fail)
    async with asyncio.timeout(PATIENCE):
        while looks < 20:
            assert await log.append([message()])
        while looks < 50:  # noqa: ASYNC110 - another task
            await asyncio.sleep(0.01)
    assert await log.append([message()])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"subjects": ["other.*"]}, "subjects = "),
        ({"deny_purge": True}, "deny_purge = true"),
        ({"max_msg_size": 10**6}, "max_msg_size = 1000000"),
        ({"num_replicas": 1}, "num_replicas = 1"),
        ({"max_age": 10**12}, "max_age = 1000000000000"),
        ({"max_msgs": 5}, "max_msgs = 5"),
        ({"discard": "old"}, 'discard = "old"'),
    ],
)
async def test_a_stream_that_may_lose_messages(
    keeper: JetStreamKeeper, place: str, connect: Open, setting: dict[str, Any], told: str
) -> None:
    log = connect(check_every=0.2)
    await log.append([message()])
    async with keeper.api(place) as (client, stream):
        config = (await client.api(f"STREAM.INFO.{stream}"))["config"]
        await client.api(f"STREAM.UPDATE.{stream}", **{**config, **setting})
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Refused, match=told):
            await append_until_refused(log)
    for verb in (connect().end(), connect().read(0, LARGE, wait=NOW), create(place, BEGINNING)):
        with pytest.raises(Refused, match=told):
            await verb


@pytest.mark.parametrize("count", [1, 2])
async def test_a_server_that_is_not_in_the_address(
    servers: NatsServers, place: str, connect: Open, count: int
) -> None:
    """Of which it is not known whether it flushes."""
    address = parse_address(place)
    hosts = ",".join(f"127.0.0.1:{server.client}" for server in servers.servers[:count])
    log = connect(f"nats://{hosts}/{address.stream}?monitor={','.join(address.monitors[:count])}")
    with pytest.raises(Refused, match=f"the address has only: {', '.join(['n1', 'n2'][:count])}$"):
        await log.end()


async def test_what_is_no_log(keeper: JetStreamKeeper, place: str, connect: Open) -> None:
    async with keeper.api(place) as (client, stream):
        config = (await client.api(f"STREAM.INFO.{stream}"))["config"]
        newer = {**config, "metadata": {**config["metadata"], "pgmip-version": "3"}}
        await client.api(f"STREAM.UPDATE.{stream}", **newer)
        await client.api("STREAM.CREATE.other", name="other", subjects=["other"], num_replicas=3)
    with pytest.raises(Refused, match="has version 3, and not 1"):
        await connect().end()
    with pytest.raises(Refused, match="stream other is not a log"):
        await create(keeper.servers.address("other"), BEGINNING)


# -- how it is connected to ----------------------------------------------------------------------------------------


async def test_nothing_stays_of_what_was_cancelled(servers: NatsServers, connect: Open) -> None:
    """At whatever moment, and while it cleans up as well."""

    def connections() -> int:
        return sum(int(server.ask("varz")["connections"]) for server in servers.servers)

    before = await asyncio.to_thread(connections)
    for number in range(150):
        log = connect()
        for verb in (log.append([message()]), log.close()):
            task = asyncio.ensure_future(verb)
            for _ in range(number // 2):
                await asyncio.sleep(0)
            for _ in range(1 + number % 2):
                await asyncio.sleep(0)
                task.cancel()
            with suppress(asyncio.CancelledError, Unavailable):
                await task
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(connections) > before:  # noqa: ASYNC110 - at servers
            await asyncio.sleep(0.1)


class Greeter(Relay):
    """Says what a server says first, and hears what it is told of who connects."""

    def __init__(self, **info: Any) -> None:
        super().__init__()
        self._info = {"server_id": "x", "version": "2.15.2", "max_payload": 1000, "headers": True, **info}
        self.heard: list[bytes] = []

    async def _relay(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_client.write(b"INFO %s\r\n" % json.dumps(self._info).encode())
        self.heard.append(await from_client.readline())
        await hang_up(to_client)

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.heard[0].removeprefix(b"CONNECT "))
        return told


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ("u:p%40%2F%25", {"user": "u", "pass": "p@/%"}),
        ("u:[:#", {"user": "u", "pass": "[:#"}),
        ("t%3A", {"auth_token": "t:"}),
    ],
)
async def test_passwords(connect: Open, known: str, told: dict[str, str]) -> None:
    async with Greeter(auth_required=True) as greeter:
        with pytest.raises(Unavailable) as raised:
            await connect(f"nats://{known}@127.0.0.1:{greeter.port}/log").end()
        assert told.items() <= greeter.told().items()
        for one in (*told.values(), known):
            assert len(one) == 1 or one not in str(raised.value)


@pytest.mark.parametrize("known", ["u:secret", "secret"])
async def test_no_password_is_sent_in_clear(connect: Open, known: str) -> None:
    """Nor anything else, where TLS is asked for, and the server, or who stands in between, has none."""
    async with Greeter(auth_required=True) as greeter:
        with pytest.raises(Refused, match="does not ask for TLS"):
            await connect(f"tls://{known}@127.0.0.1:{greeter.port}/log").end()
        async with asyncio.timeout(PATIENCE):
            while not greeter.heard:  # noqa: ASYNC110 - another task
                await asyncio.sleep(0.01)
        assert greeter.heard == [b""]


_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"
_CREDENTIALS = """-----BEGIN NATS USER JWT-----
a.b.c
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


async def test_credentials(connect: Open, tmp_path: Path) -> None:
    pytest.importorskip("nkeys")
    file = tmp_path / "its.creds"
    async with Greeter(auth_required=True, nonce="once") as greeter:
        for seed, error in ((_SEED, Unavailable), ("SUA", Refused)):
            file.write_text(_CREDENTIALS.format(seed))
            with pytest.raises(error):
                await connect(f"nats://127.0.0.1:{greeter.port}/log?credentials={file}").end()
        assert greeter.told()["jwt"] == "a.b.c"
        assert greeter.told()["sig"]


async def test_credentials_that_are_none(connect: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "its.creds"
    log = connect(f"nats://127.0.0.1:1/log?credentials={file}")
    with pytest.raises(Refused, match=r"credentials cannot be read: .*No such file"):
        await log.end()
    file.write_bytes(b"\xff")
    with pytest.raises(Refused, match="credentials cannot be read"):
        await log.end()
    file.write_text("garbage")
    with pytest.raises(Refused, match="there are no credentials in"):
        await create(f"nats://127.0.0.1:1/log?credentials={file}", BEGINNING)
    file.write_text(_CREDENTIALS.format(_SEED))
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(Refused, match="credentials=FILE needs nkeys"):
        await log.end()
