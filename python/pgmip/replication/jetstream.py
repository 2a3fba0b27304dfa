"""The log as a stream of NATS JetStream: three servers or more, of which any may be lost.

A position is a sequence number of the stream. The stream gives one to what a majority of its servers has flushed, and
to nothing else: what it refuses, by any of the conditions below, it refuses before it numbers it. It discards nothing,
and has nothing deleted but by `trim`, from the beginning.

**Ids.** The subject of an entry ends with its message's id, and each is published on the condition that its subject has
none yet (`Nats-Expected-Last-Subject-Sequence: 0`). So the stream itself takes a message once, for as long as it has
it: not for as long as a window of its deduplication lasts, which is not used.

**All or none.** Several messages are one atomic batch. It is numbered as one, without anybody's in between, and the
servers carry it out as a whole. A batch has a thousand messages at most. Of more, the first ones may be there while it
is not known whether the others will come: that is Unavailable, and to append them again adds the others.

**Known.** What `known` says is looked at, at the leader, before. Then what is appended has to come behind the position
that was the last one (`Nats-Expected-Last-Sequence`): if somebody was faster JetStream says which it is by now, and it
is tried behind that. If the stream has gone back meanwhile that is a lower one, and `known` is looked at again. A
stream of that name that was made anew has other subjects. So a message can come behind another log only if the stream
goes back, and on to just that position, within the milliseconds in between. Where the last position is that of `known`
it counts as read, too (`Appended`).

**Durable.** Any server of the stream is read from (`allow_direct`): each has carried out a beginning of what a majority
has flushed, and nothing else. It may be late, and may for a while not have noticed that it has no part in the majority.
So what is *not* there is asked of the leader. A leader, too, may be one that has a successor; what would end a replica,
as that the log ends before what was read, is said only by what one says that is followed by a majority
(`Session.settled`). A new leader answers nothing before it has carried out all that was acknowledged by the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

from .._extra import needed_for
from .appended import Appended, that_fit
from .engine import Entry, LogError, Message, NoLog, Place, Refused, Unavailable
from .following import check_follows
from .jetstream_address import Address, parse_address
from .jetstream_stream import BEGINNING, check_servers, check_stream, settings

with needed_for("a log in JetStream", "jetstream"):
    from .jetstream_client import ApiError, Client, Late, Nobody, connect, told
    from .jetstream_session import Session, open_session

__all__ = ["JetStreamLog", "create"]

_STREAM_NAME_IN_USE = 10058
_WRONG_LAST_SEQUENCE = 10071
_IN_PROCESS = 10164
# What passes by itself, and means that nothing has been added: another message of that subject is being numbered just
# now, the leader has changed within a batch, or there are too many of these.
_PASSING = (_IN_PROCESS, 10176, 10210)

_OVERHEAD = 1024  # bytes of headers, those that JetStream adds for whoever reads it among them
_DEFAULT_MAX_PAYLOAD = 1 << 20
_MAX_PAYLOAD = 31 << 20  # JetStream stores nothing that has 32 MB, whatever its setting
_MOST_APPENDED = 1000  # at once: what a batch of JetStream may have
_MOST_BYTES = 16 << 20
_LONGEST_ANSWER = 3.0  # seconds. A leader that is lost has a successor after four to nine.
_LATE = 3  # answers in a row: with less it is rather the leader that is lost than the way to it that is slow
_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds


class JetStreamLog:
    """An `Engine`. It connects where it has to, and again after an error; close it, or use it as a context manager.

    Refuses to work where a crash could lose what was acknowledged: where the stream has less than three replicas, or
    settings by which it may discard entries, or where a server of it does not flush always.
    """

    def __init__(self, log: str, *, patience: float = 30.0, poll: float = 1.0, check_every: float = 10.0) -> None:
        """`log`: see `parse_address`. Times in seconds. `patience`: for how long to wait for the servers, after which
        they are Unavailable; a single answer is not waited for for as long. `poll`: how often to look for new entries
        without having been told. `check_every`: how often to look whether they still lose nothing.
        """
        self._address = parse_address(log)
        self._patience = patience
        self._poll = poll
        self._check_every = check_every
        self._opening = asyncio.Lock()
        self._session: Session | None = None
        self._server = random.randrange(len(self._address.servers))
        self._late: Counter[str] = Counter()  # answers in a row, by verb
        self._max_payload = _DEFAULT_MAX_PAYLOAD
        self._size_of: dict[Place, int] = {}  # of the entry that was read last
        self._appended = Appended()

    @property
    def max_message(self) -> int:
        """In bytes, by the servers' `max_payload`: what it is by default until they have been connected to."""
        return min(self._max_payload, _MAX_PAYLOAD) - _OVERHEAD

    async def append(self, messages: Sequence[Message], known: Place | None = None) -> Sequence[int]:
        """A look at `known`, and one more round trip, with two flushes in a row. More if others append meanwhile."""
        async with self._use("append") as session, self._in_time():
            self._check_size(messages)
            return await _append(session, messages, known, self._appended)

    async def read(
        self, after: int, max_bytes: int, *, wait: float, known: Place | None = None
    ) -> Sequence[Entry]:
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        pause = _PAUSE
        while True:
            async with self._use("read") as session:
                session.woken.clear()
                entries = self._appended.take(known, max_bytes) or await self._read(session, after, max_bytes, known)
                if entries:
                    return entries
                left = end - loop.time()
                if session.seen > after:  # the server that was asked is late
                    if left < -self._patience:
                        raise Unavailable(f"the servers have position {session.seen}, and none can be read from")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, self._poll)
                elif left <= 0:
                    return []
                else:
                    await session.sleep(min(self._poll, left))

    async def end(self) -> int:
        async with self._use("end") as session, self._in_time():
            bounds = await session.settled()
            check_follows(bounds.first, bounds.last, True, None)
            return bounds.ever

    async def trim(self, upto: int, known: Place | None = None) -> None:
        async with self._use("trim") as session, self._in_time():
            bounds = await session.begun()
            if known is not None:
                await session.check_known(known)
            await session.purge(max(0, min(upto, bounds.ever - 1)) + 1)  # before 0 would be all there is

    async def close(self) -> None:
        """End the connection."""
        if self._session is not None:
            await self._give_up(self._session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_size(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if len(message.content) > self.max_message:
                raise Refused(
                    f"message {message.id} has {len(message.content)} bytes, more than {self.max_message}",
                    hint="set a larger max_payload at all NATS servers, or end its session: all wait behind it",
                )

    async def _read(self, session: Session, after: int, max_bytes: int, known: Place | None) -> list[Entry]:
        """What is behind that position by now, as far as it comes at once. Raises Trimmed, WentBack and Forked.

        Usually `known` is the entry at that position, and then it is read as well: from the same server, at the same
        moment.
        """
        if known is not None and known.position != after:
            await session.check_known(known)
            known = None
        size = 0 if known is None else self._size_of.get(known, self._max_payload)
        limit = min(max_bytes, _MOST_BYTES) + size
        found = await session.entries(after + 1 if known is None else after, limit)
        if known is not None:
            if not found or found[0].place != known:
                await session.check_known(known)
                return []  # it is the server that is late
            del found[0]
        if not found or found[0].position != after + 1:
            await session.check_after(after)
            return []
        entries = that_fit(found, max_bytes)
        (*_, last) = entries
        self._size_of = {} if last.place is None else {last.place: len(last.content)}
        return entries

    @contextlib.asynccontextmanager
    async def _use(self, verb: str) -> AsyncIterator[Session]:
        """The session. It is given up where a LogError is raised within the block, as is what the libraries raise."""
        session = await self._opened()
        try:
            with told():
                session.check_safe()
                yield session
        except LogError as error:
            if isinstance(error, Late):
                self._late[verb] += 1
            await self._give_up(session)
            raise
        self._late[verb] = 0

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        async with asyncio.timeout(self._patience):
            yield

    async def _opened(self) -> Session:
        async with self._opening:
            if self._session is None or self._session.client.lost.is_set():
                if self._session is not None:
                    await self._give_up(self._session)
                with told():
                    async with self._in_time():
                        client, self._server = await _connected(self._address, self._server, self._patience)
                        client.answer = self._answer
                        self._session = await open_session(client, self._address, self._check_every)
                self._max_payload = client.max_payload
            return self._session

    @property
    def _answer(self) -> float:
        """For how long a new connection waits for one, in seconds. A long message takes its time on its way: where all
        of a verb's are late it is twice as long each time.
        """
        doubled = max(0, max(self._late.values(), default=0) + 1 - _LATE)
        return min(self._patience, _LONGEST_ANSWER * 2.0 ** min(doubled, 10))

    async def _give_up(self, session: Session) -> None:
        """The next one who needs one has another; whoever is using it is told that it is lost."""
        if self._session is session:
            self._session = None
            self._server = (self._server + 1) % len(self._address.servers)
        await session.close()


async def _append(
    session: Session, messages: Sequence[Message], known: Place | None, here: Appended
) -> Sequence[int]:
    """The positions."""
    found: dict[UUID, int] = {}
    expected = await _last(session, known)
    appended, pause = False, _PAUSE
    while missing := [message for message in messages if message.id not in found][:_MOST_APPENDED]:
        try:
            last = await session.publish(missing, expected)
        except ApiError as error:
            if error.number in _PASSING:
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif error.number != _WRONG_LAST_SEQUENCE:
                raise _but_some_are(error) if appended else error.meant() from error
            elif (by_now := _sequence_in(error)) > expected:
                expected = by_now  # others were faster
            else:
                # It has one of these ids already; or it has gone back.
                found |= await session.positions(missing)
                await session.bounds()
                expected = await _last(session, known)
        else:
            found |= {message.id: last.position - behind for behind, message in enumerate(reversed(missing))}
            if known is not None and known.position == expected:
                here.put(known, last.stamp, missing)
            expected = last.position
            appended = True
    return [found[message.id] for message in messages]


async def _last(session: Session, known: Place | None) -> int:
    """A position that is the last one as far as is known here; of a log that has that entry, and any at all."""
    if known is None:
        return (await session.begun()).ever
    await session.check_known(known)
    return max(known.position, session.seen)


def _sequence_in(error: ApiError) -> int:
    """What the last sequence number is, by an error that says that it is not the expected one."""
    number = str(error).rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


def _but_some_are(error: ApiError) -> LogError:
    return Unavailable(f"some messages have been appended; for the others: {error.meant()}")


async def create(log: str, beginning: Message, *, new: bool = True, patience: float = 30.0) -> bool:
    """Make the log that begins with this message, where no stream has that name; whether it was not there yet. With
    `new` false it has to be there.

    Raises Refused where there is a log that was made with another id, Unavailable where it is not known whether it has
    been made: then do it again, with the same message.
    """
    address = parse_address(log)
    with told():
        async with asyncio.timeout(patience):
            client, _ = await _connected(address, 0, patience)
            try:
                return await _create(client, address, beginning, new)
            finally:
                await client.close()


async def _create(client: Client, address: Address, beginning: Message, new: bool) -> bool:
    info = await _info(client, address.stream)
    if info is None:
        if not new:
            raise NoLog("there is no such stream", hint="make one: pgmip replica init")
        await check_servers(address, None)
        info = await _made(client, address.stream, beginning.id)
    check_stream(info)
    if info["config"]["metadata"][BEGINNING] != str(beginning.id):
        raise Refused("there is a log already, and it has another beginning")
    await check_servers(address, info)
    session = Session(client, address, info)
    if session.seen == 0 and new:
        return await _begun(session, beginning)
    await session.begun()
    return False


async def _info(client: Client, stream: str) -> dict[str, Any] | None:
    """A stream that somebody is making has nobody yet to answer."""
    while True:
        with contextlib.suppress(Unavailable):
            try:
                return await client.api(f"STREAM.INFO.{stream}")
            except ApiError as error:
                if isinstance(error.meant(), NoLog):
                    return None
                raise
        client.check_connected()


async def _made(client: Client, stream: str, beginning: UUID) -> dict[str, Any]:
    """The stream, which may be somebody else's by now; then it may still be in the making."""
    try:
        return await client.api(f"STREAM.CREATE.{stream}", **settings(stream, uuid4(), beginning))
    except ApiError as error:
        if error.number != _STREAM_NAME_IN_USE:
            raise
    while (info := await _info(client, stream)) is None:  # noqa: ASYNC110 - at a server
        await asyncio.sleep(_LONGEST_PAUSE)
    return info


async def _begun(session: Session, beginning: Message) -> bool:
    """Let it begin, if nobody else has meanwhile; whether it was this one."""
    while True:
        try:
            await session.publish([beginning], 0)
            return True
        except ApiError as error:
            if error.number == _WRONG_LAST_SEQUENCE:
                return False
            if error.number != _IN_PROCESS:
                raise
        except Nobody:
            pass  # the stream has been made just now
        await asyncio.sleep(_PAUSE)


async def _connected(address: Address, first: int, patience: float) -> tuple[Client, int]:
    """To the first server that answers, beginning with that one; and which it is."""
    servers = address.servers
    answer = _answer(patience)
    failure: LogError = Unavailable("there is no server")
    for number in [*range(first, len(servers)), *range(first)]:
        try:
            client = await connect(address, servers[number], answer / len(servers))
        except Unavailable as error:
            failure = error
        else:
            client.answer = answer
            return client, number
    raise failure


def _answer(patience: float) -> float:
    return min(patience, _LONGEST_ANSWER)
