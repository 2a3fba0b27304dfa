"""Links strike where they are told to, and both ends see what they should."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from faults.proxy import Direction, Link, Mode, Strike, postgres

pytestmark = pytest.mark.asyncio


def message(text: str) -> bytes:
    return b"Q" + (len(text) + 4).to_bytes(4) + text.encode()


@dataclass
class Echo:
    """A server that sends back whatever follows the first message, and notes what that was and when it was over."""

    got: bytes = b""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await postgres(reader, True)
        with contextlib.suppress(ConnectionError):
            while got := await reader.read(1000):
                self.got += got
                writer.write(got)
        self.over.set()
        writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Echo, Link, asyncio.StreamReader, asyncio.StreamWriter]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link("test", lambda: port, postgres)
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(message("start")[1:])
    await ask(reader, writer, "zero")
    echo.got = b""
    try:
        yield echo, link, reader, writer
    finally:
        writer.close()
        await link.close()
        server.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str) -> bytes:
    writer.write(message(text))
    return await reader.readexactly(len(message(text)))


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def test_nothing_happens() -> None:
    async with linked() as (_, _link, reader, writer):
        for text in ("one", "two"):
            assert await ask(reader, writer, text) == message(text)


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("mode", [Mode.CUT, Mode.TEAR])
async def test_cut_at_a_message(mode: Mode, direction: Direction) -> None:
    async with linked() as (echo, link, reader, writer):
        strike = Strike(mode, direction, 1, 0)
        link.arm(strike)
        await ask(reader, writer, "one")
        assert not strike.struck
        writer.write(message("two"))
        if (mode, direction) == (Mode.TEAR, "reply"):
            assert await reader.readexactly(4) == message("two")[:4]
        await ended(reader)
        await echo.over.wait()
        assert strike.struck
        half = message("two")[:4] if mode is Mode.TEAR else b""
        assert echo.got == message("one") + (half if direction == "request" else message("two"))


async def test_deaf_and_mute() -> None:
    for mode in (Mode.DEAF, Mode.MUTE):
        async with linked() as (echo, link, reader, writer):
            link.arm(Strike(mode, "request", 0, 1000))
            writer.write(message("one"))
            answer = asyncio.create_task(ended(reader))
            over = asyncio.create_task(echo.over.wait())
            sees_the_end, waits = (answer, over) if mode is Mode.DEAF else (over, answer)
            await sees_the_end
            assert not waits.done()
            await link.close()
            await waits


async def test_stalled_until_healed() -> None:
    async with linked() as (echo, link, reader, writer):
        strike = Strike(Mode.STALL, "reply", 0, 1000)
        link.arm(strike)
        writer.write(message("one"))
        while not strike.struck:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        writer.write(message("two"))
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", link.port)
        other_writer.write(message("start")[1:])
        assert await ask(other_reader, other_writer, "three") == message("three")
        assert b"two" not in echo.got
        assert not echo.over.is_set()
        other_writer.close()
        link.heal()
        await ended(reader)


async def test_delay() -> None:
    async with linked() as (_, link, reader, writer):
        link.arm(Strike(Mode.DELAY, "reply", 0, 0.05))
        writer.write(message("one") + message("two"))
        both = message("one") + message("two")
        assert await reader.readexactly(len(both)) == both


async def test_down_and_up() -> None:
    async with linked() as (echo, link, reader, writer):
        await ask(reader, writer, "one")
        link.down()
        await ended(reader)
        await echo.over.wait()
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", link.port)
        await ended(other_reader)
        other_writer.close()
        link.up()
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", link.port)
        other_writer.write(message("start")[1:])
        assert await ask(other_reader, other_writer, "two") == message("two")
        other_writer.close()
