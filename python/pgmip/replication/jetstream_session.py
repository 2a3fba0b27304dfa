"""What is asked of a log's stream, over one connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from nats.aio.msg import Msg

from .._text import text
from .engine import Entry, LogError, Message, Place, Refused, Unavailable, WentBack
from .following import check_after, check_follows
from .jetstream_address import Address
from .jetstream_client import ApiError, Client, answer_of, status_of, told
from .jetstream_stream import Bounds, bounds_of, check_servers, check_stream, is_followed, subjects_of, wake_subject

__all__ = ["Session", "open_session"]

_STAMP = "Pgmip-Stamp"
_ID_IS_NEW = {"Nats-Expected-Last-Subject-Sequence": "0"}

_NO_MESSAGE = 10037
_ENDS = (204, 404, 503)  # of a batch, of the stream, and that no server can be read from yet
_MOST_READ = 256  # at once
_ITS_HEADERS = 1024  # bytes, with the subject, which JetStream counts as well
_SETTLING = 2.0  # seconds for a leader to hear a majority, which it does every second
_PAUSE = 0.01  # seconds
_MOST_FAILURES = 3  # in a row, of looks whether it still loses nothing


async def open_session(client: Client, address: Address, check_every: float) -> Session:
    """Raises NoLog and Refused."""
    try:
        info = await client.api(f"STREAM.INFO.{address.stream}")
        check_stream(info)
        await check_servers(address, info)
        session = Session(client, address, info)
        await session.begin(check_every)
    except BaseException:
        await client.close()
        raise
    return session


class Session:
    """A connection to the log, and the stream as it was when it was opened."""

    def __init__(self, client: Client, address: Address, info: Mapping[str, Any]) -> None:
        self.client = client
        self._address = address
        self._stream = address.stream
        self._subjects = subjects_of(info["config"])
        self.woken = asyncio.Event()
        """Whether there was an entry, or the connection was lost, since this was cleared."""
        self.seen = bounds_of(info).ever
        """A position that the log has come to, or had before it went back."""
        self._unheard: str | None = None
        """The stamp of what is being published: whoever reads need not hear of that before it is answered."""
        self._unsafe: LogError | None = None
        self._watch: asyncio.Task[None] | None = None

    async def begin(self, check_every: float) -> None:
        await self.client.listen(wake_subject(self._stream), self._wake)
        self._watch = asyncio.create_task(self._look_again(check_every))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.woken.set()
        await self.client.close()

    async def sleep(self, longest: float) -> None:
        """Until there may be something."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self.woken.wait()

    def check_safe(self) -> None:
        """Raise Refused where it has been seen that messages may be lost, Unavailable where that has not been seen for
        too long.
        """
        if self._unsafe is not None:
            raise self._unsafe

    # -- what is asked of the stream's leader --------------------------------------------------------------------

    async def bounds(self) -> Bounds:
        """As a leader knows them, be it one that has a successor already. Raises Unavailable where the stream has been
        made anew: then open it again.
        """
        return self._bounds(await self._info())

    async def begun(self) -> Bounds:
        """Likewise. Raises WentBack where it is empty."""
        bounds = await self.bounds()
        if bounds.last is None:
            bounds = await self.settled()
            check_follows(bounds.first, bounds.last, True, None)
        return bounds

    async def settled(self) -> Bounds:
        """With all that was acknowledged before: by these a log may be said to have lost something. Raises Unavailable
        where servers disagree on who leads.

        A leader that has a successor may go on answering. It cannot know what that one has acknowledged, and it hears
        no majority from when that one was elected. So who answers counts if it has heard one since that one, if there
        is one, has answered. (How long ago alone does not tell: a server may elect another leader at any moment after
        it was heard, as only one that has not heard the leader asks for that.)
        """
        time = asyncio.get_running_loop().time
        await self.agree()
        agreed = time()
        while True:
            await self.agree()  # it hears the others now, and not only at the next heartbeat
            within = time() - agreed
            info = await self._info(deleted_details=True)
            if is_followed(info, within):
                return self._bounds(info)
            if within > _SETTLING:
                raise Unavailable("the stream's leader is not followed by a majority of its servers")
            await asyncio.sleep(_PAUSE)

    async def _info(self, **parameters: Any) -> dict[str, Any]:
        return await self.client.api(f"STREAM.INFO.{self._stream}", **parameters)

    def _bounds(self, info: Mapping[str, Any]) -> Bounds:
        if subjects_of(info["config"]) != self._subjects:
            raise _made_anew()
        bounds = bounds_of(info)
        self.seen = bounds.ever
        return bounds

    async def agree(self) -> None:
        """Behind this the leader knows all that was acknowledged before: a majority of the servers has followed it. It
        has them remove the entries before the first position, of which there are none.
        """
        await self.purge(1)

    async def purge(self, before: int) -> None:
        """Of this stream only: one that was made anew has other subjects."""
        await self.client.api(f"STREAM.PURGE.{self._stream}", seq=before, filter=f"{self._subjects}*")

    async def check_known(self, known: Place) -> None:
        """Raise WentBack, Forked or Trimmed where the log has not got that entry; Unavailable."""
        if _is_at(known, await self._at(known.position)):
            return
        bounds = await self.settled()
        entry = await self._at(known.position)
        if entry is None:
            _check_hole(bounds, known.position)
            if _is_within(bounds, known.position):
                raise Unavailable(f"the stream's servers disagree on whether there is position {known.position}")
        check_follows(bounds.first, bounds.last, _is_at(known, entry), known)

    async def check_after(self, after: int) -> None:
        """Raise WentBack or Trimmed where it cannot be read on behind that position, from which nothing has come."""
        bounds = await self.bounds()
        if not _goes_on(bounds, after):
            bounds = await self.settled()
        check_follows(bounds.first, bounds.last, True, None)
        assert bounds.first is not None and bounds.last is not None  # noqa: PT018
        check_after(bounds.first, bounds.last, after)
        _check_hole(bounds, after + 1)

    async def positions(self, messages: Iterable[Message]) -> dict[UUID, int]:
        """Of those that it has, by their ids."""
        found = {message.id: await self._get(last_by_subj=self._subject(message.id)) for message in messages}
        return {id: int(entry["seq"]) for id, entry in found.items() if entry is not None}

    async def _at(self, position: int) -> dict[str, Any] | None:
        return await self._get(seq=position)

    async def _get(self, **which: Any) -> dict[str, Any] | None:
        try:
            answer = await self.client.api(f"STREAM.MSG.GET.{self._stream}", **which)
        except ApiError as error:
            if error.number == _NO_MESSAGE:
                return None
            raise
        found: dict[str, Any] = answer["message"]
        return found

    # -- messages ------------------------------------------------------------------------------------------------

    async def publish(self, messages: Sequence[Message], expected: int) -> Place:
        """The place of the last one; they are at those before it. `expected`: behind which they have to come. Raises
        ApiError where they have not been added; Unavailable.
        """
        stamp = uuid4()
        headers = {_STAMP: str(stamp), **_ID_IS_NEW}
        first = {**headers, "Nats-Expected-Last-Sequence": str(expected)}
        *others, last = messages
        if others:
            batch = {"Nats-Batch-Id": uuid4().hex}
            for number, message in enumerate(others, 1):
                its = {**(first if number == 1 else headers), **batch, "Nats-Batch-Sequence": str(number)}
                await self.client.send(self._subject(message.id), message.content, its)
            first = {**headers, **batch, "Nats-Batch-Sequence": str(len(messages)), "Nats-Batch-Commit": "1"}
        self._unheard = str(stamp)
        try:
            answer = await self.client.ask(self._subject(last.id), last.content, first)
        finally:
            self._unheard = None
            self.woken.set()
        position = int(answer_of(answer)["seq"])
        self.seen = max(self.seen, position)
        return Place(position, stamp)

    async def entries(self, first: int, max_bytes: int) -> list[Entry]:
        """Those from that position on, without a gap among them, as far as a server of the stream has them, and up to
        some hundred. There may be more than so many bytes.
        """
        wanted = {"seq": first, "batch": _MOST_READ, "max_bytes": max_bytes + _MOST_READ * _ITS_HEADERS}
        subject = f"$JS.API.DIRECT.GET.{self._stream}"
        *found, end = await self.client.ask_for_many(subject, json.dumps(wanted).encode())
        if status_of(end) not in _ENDS:
            raise Unavailable(f"the stream cannot be read: {(end.headers or {}).get('Description')}")
        entries = [self._entry(msg) for msg in found]
        return [entry for number, entry in enumerate(entries) if entry.position == entries[0].position + number]

    def _entry(self, msg: Msg) -> Entry:
        headers = msg.headers or {}
        if not headers["Nats-Subject"].startswith(self._subjects):
            raise _made_anew()
        position = int(headers["Nats-Sequence"])
        if _STAMP not in headers:
            raise Refused(f"position {position} of the log has not been written by pgmip")
        return Entry(position, msg.data, Place(position, UUID(headers[_STAMP])))

    def _subject(self, id: UUID) -> str:
        return f"{self._subjects}{id.hex}"

    # -- what comes by itself ------------------------------------------------------------------------------------

    def _wake(self, msg: Msg) -> None:
        headers = msg.headers or {}
        self.seen = max(self.seen, int(headers.get("Nats-Sequence", 0)))
        if headers.get(_STAMP, "") != self._unheard:
            self.woken.set()

    async def _look_again(self, every: float) -> None:
        """Whether it still loses nothing, all the time: its servers may have been started again with other settings."""
        failures = 0
        while True:
            await asyncio.sleep(every)
            try:
                with told():
                    info = await self._info()
                    check_stream(info)
                    await check_servers(self._address, info)
            except Refused as error:
                self._unsafe = error
            except Exception as error:  # whatever it is, this goes on
                failures += 1
                if failures >= _MOST_FAILURES and self._unsafe is None:
                    self._unsafe = Unavailable(f"it is not seen whether the log is safe: {text(error)}")
            else:
                failures = 0
                if isinstance(self._unsafe, Unavailable):
                    self._unsafe = None


def _made_anew() -> Unavailable:
    return Unavailable("the stream has been made anew")


def _goes_on(bounds: Bounds, after: int) -> bool:
    """Whether there surely is an entry behind that position, or one may come."""
    if bounds.first is None or bounds.last is None:
        return False
    return bounds.first <= after + 1 <= bounds.last + 1 and not (bounds.holes and after < bounds.last)


def _is_within(bounds: Bounds, position: int) -> bool:
    return bounds.first is not None and bounds.first <= position <= bounds.ever


def _check_hole(bounds: Bounds, position: int) -> None:
    if position in bounds.deleted:
        raise WentBack(f"the log has no entry at position {position}, and has had one there: it has lost messages")


def _is_at(known: Place, entry: Mapping[str, Any] | None) -> bool:
    """Whether it is that one, as the stream has it."""
    return entry is not None and _stamp_in(base64.b64decode(entry.get("hdrs", ""))) == str(known.stamp)


def _stamp_in(headers: bytes) -> str | None:
    """Of an entry, as it is stored."""
    for line in headers.decode().splitlines():
        name, _, value = line.partition(":")
        if name == _STAMP:
            return value.strip()
    return None
