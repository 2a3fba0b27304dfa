"""A connection to NATS, and JetStream's requests over it. What goes wrong is a LogError.

The client library reconnects by itself, and has what was asked meanwhile run into a time-out. Here a connection that is
lost is over, at once for all who wait for an answer, as an answer that was lost has to be noticed soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.client import RawCredentials
from nats.aio.msg import Msg

from .._cancellation import obeyed, uninterrupted
from .._extra import missing
from .._text import text
from .engine import LogError, NoLog, Refused, Unavailable
from .jetstream_address import Address

__all__ = ["ApiError", "Client", "Late", "Nobody", "answer_of", "connect", "status_of", "told"]

_NAME = "pgmip replica log"
_STREAM_NOT_FOUND = 10059
_CLOSE = 1.0  # seconds; there may be nobody to take what is still to be sent
_UNLIMITED = 0
_TO_BE_TRIED_AGAIN = (408, 429)
_PARTS_OF_CREDENTIALS = ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED")


class ApiError(Exception):
    """JetStream has said no. `number` is its own one, `code` that of HTTP."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("description", "JetStream has refused"))
        self.code = int(error.get("code", 500))
        self.number = int(error.get("err_code", 0))

    def meant(self) -> LogError:
        """As which it is told, unless somebody knows better."""
        if self.number == _STREAM_NOT_FOUND:
            return NoLog("there is no such stream", hint="make one: pgmip replica init")
        if self.code >= 500 or self.code in _TO_BE_TRIED_AGAIN:
            return Unavailable(f"JetStream: {text(self)}")
        return Refused(f"JetStream: {text(self)}")


class Nobody(Unavailable):
    """Nobody has heard the request: nothing comes of it."""


class Late(Unavailable):
    """There was no answer in time, or not the whole of it."""


class Client:
    """A connection."""

    def __init__(self, connection: _Connection, answer: float) -> None:
        """Use `connect`."""
        self._connection = connection
        self.answer = answer
        """For how many seconds to wait for one."""
        self._inbox = connection.new_inbox()
        self._waiting: dict[str, asyncio.Queue[Msg | None]] = {}
        self.lost = asyncio.Event()

    @property
    def max_payload(self) -> int:
        """What a message may have at most, with its headers, in bytes."""
        return self._connection.max_payload

    async def ask(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """The answer. Raises Unavailable where there is none, Nobody where there will not be."""
        async with self._asked(subject, payload, headers) as answers:
            msg = await self._next(answers)
        if status_of(msg) == 503:
            raise Nobody("nobody is there to answer: the stream has no leader just now")
        return msg

    async def ask_for_many(self, subject: str, payload: bytes) -> Sequence[Msg]:
        """All answers, the last of which has a status."""
        found: list[Msg] = []
        async with self._asked(subject, payload, None) as answers:
            while not found or status_of(found[-1]) is None:
                found.append(await self._next(answers))
        return found

    async def api(self, request: str, **parameters: Any) -> dict[str, Any]:
        """What JetStream answers. Raises ApiError, and Unavailable."""
        payload = json.dumps(parameters).encode() if parameters else b""
        return answer_of(await self.ask(f"$JS.API.{request}", payload))

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Without an answer."""
        with told():
            await self._connection.publish(subject, payload, headers=dict(headers))

    async def listen(self, subject: str, hear: Callable[[Msg], None]) -> None:
        """Have `hear` called for each message there."""

        async def callback(msg: Msg) -> None:
            hear(msg)

        with told():
            await self._connection.subscribe(
                subject, cb=callback, pending_msgs_limit=_UNLIMITED, pending_bytes_limit=_UNLIMITED
            )

    def check_connected(self) -> None:
        """Raise Unavailable where it is lost."""
        if self.lost.is_set():
            raise _lost()

    async def begin(self) -> None:
        await self.listen(f"{self._inbox}.*", self._hear)

    async def close(self) -> None:
        """Raises nothing but a cancellation, which has to wait for it."""
        self.end()
        await uninterrupted(self._connection.leave())

    def end(self) -> None:
        """Whoever waits for an answer waits no more."""
        self.lost.set()
        for answers in self._waiting.values():
            answers.put_nowait(None)

    @contextlib.asynccontextmanager
    async def _asked(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> AsyncIterator[asyncio.Queue[Msg | None]]:
        token = secrets.token_hex(8)
        answers = self._waiting[token] = asyncio.Queue()
        try:
            with told():
                await self._connection.publish(
                    subject, payload, reply=f"{self._inbox}.{token}", headers=dict(headers) if headers else None
                )
            yield answers
        finally:
            del self._waiting[token]

    async def _next(self, answers: asyncio.Queue[Msg | None]) -> Msg:
        if answers.empty():
            self.check_connected()
        try:
            async with asyncio.timeout(self.answer):
                msg = await answers.get()
        except TimeoutError:
            raise Late(f"no answer for {self.answer:g} seconds") from None
        if msg is None:
            raise _lost()
        return msg

    def _hear(self, msg: Msg) -> None:
        answers = self._waiting.get(msg.subject.rpartition(".")[2])
        if answers is not None:
            answers.put_nowait(msg)


class _Connection(Nats):
    """The library's, where it has to be told what to do."""

    async def leave(self) -> None:
        """Raises nothing, whatever it has come to."""
        try:
            async with asyncio.timeout(_CLOSE):
                await self.close()
        except Exception:  # where it was never connected the library asserts that it was
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]

    def _connect_command(self) -> bytes:
        """What it says of itself, with its password. Raises Refused where that would be in clear, and is not to be."""
        assert self._current_server is not None
        if self._current_server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise Refused("the NATS server does not ask for TLS, and --log does", hint="set tls there, or say nats://")
        return super()._connect_command()


async def connect(address: Address, server: str, answer: float) -> Client:
    """To one of the servers, within so many seconds. Raises Unavailable and Refused."""
    credentials = None if address.credentials is None else _credentials(address.credentials)
    connection = _Connection()
    client = Client(connection, answer)

    async def on_closed() -> None:
        client.end()

    async def on_error(error: Exception) -> None:
        failures.append(error)

    failures: list[Exception] = []
    try:
        with told():
            async with asyncio.timeout(answer):
                connecting = connection.connect(
                    [server],
                    name=_NAME,
                    allow_reconnect=False,
                    # It tries all the same, more often than that. 0 would be without an end.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    closed_cb=on_closed,
                    error_cb=on_error,
                    user=address.user,
                    password=address.password,
                    token=address.token,
                    user_credentials=credentials,
                )
                await obeyed(connecting)
                await client.begin()
    except Unavailable as error:
        await client.close()
        told_first = text(failures[0]) if failures else text(error)
        raise Unavailable(f"NATS cannot be reached: {told_first or 'no answer in time'}") from error
    except ModuleNotFoundError as error:
        await client.close()
        raise Refused(missing("credentials=FILE", error.name, "jetstream")) from error
    except BaseException as error:
        await client.close()
        if credentials is not None and isinstance(error, Exception) and not isinstance(error, LogError):
            raise Refused(f"the credentials are none: {text(error) or type(error).__name__}") from error
        raise
    return client


def _credentials(file: str) -> RawCredentials:
    """What is in that file. Raises Refused."""
    try:
        found = Path(file).read_text()
    except (OSError, ValueError) as error:
        raise Refused(f"the credentials cannot be read: {text(error)}") from error
    # The library looks for these, and for the first one without an end.
    if not all(part in found for part in _PARTS_OF_CREDENTIALS):
        raise Refused(f"there are no credentials in {file}", hint="give the file that nsc makes for a user")
    return RawCredentials(found)


def answer_of(msg: Msg) -> dict[str, Any]:
    """What JetStream has answered. Raises ApiError."""
    answer: dict[str, Any] = json.loads(msg.data)
    if "error" in answer:
        raise ApiError(answer["error"])
    return answer


def status_of(msg: Msg) -> int | None:
    """What the server says in place of a message."""
    status = (msg.headers or {}).get("Status")
    return None if status is None else int(status)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What the client library raises, and what JetStream refuses, is told as a LogError."""
    try:
        yield
    except ApiError as error:
        raise error.meant() from error
    except TimeoutError as error:
        raise Unavailable("no answer in time") from error
    except (nats.errors.Error, OSError, ValueError) as error:
        raise Unavailable(text(error) or type(error).__name__) from error


def _lost() -> Unavailable:
    return Unavailable("the connection to NATS is lost")
