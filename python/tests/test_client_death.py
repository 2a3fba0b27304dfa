"""The client's servers are killed while it has requests there, until only one is left."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from shop import SCHEMA, Shop, make_app
from web import serving

from pgmip import App, Client, Expired
from pgmip.http import asgi
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

BUY = {"item": 1, "qty": 1}
CALLERS, CALLS = 4, 15


def serve(descriptor: str, *conninfos: str) -> None:
    """The body of a server's process; it listens already."""
    app = make_app(dict(zip(("store", "bank"), conninfos, strict=True)))
    uvicorn.run(asgi(app), fd=int(descriptor), log_config=None)


class Fleet:
    def __init__(self) -> None:
        self.urls: list[str] = []
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, shop: Shop) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            self.processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, __file__, str(listener.fileno()), *shop.conninfos().values(),
                    pass_fds=[listener.fileno()],
                )
            )  # fmt: skip

    async def stop(self, how: signal.Signals, *processes: asyncio.subprocess.Process) -> None:
        for process in processes:
            if process.returncode is None:
                process.send_signal(how)
        await asyncio.gather(*(process.wait() for process in processes))


@pytest.fixture
async def fleet(shop: Shop) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    try:
        for _ in range(3):
            await fleet.start(shop)
        yield fleet
    finally:
        await fleet.stop(signal.SIGKILL, *fleet.processes)


@pytest.mark.parametrize("hedge_after", [None, 0.05])
async def test_until_one_is_left(shop: Shop, fleet: Fleet, hedge_after: float | None) -> None:
    results: dict[str, Any] = {}

    async with Client(fleet.urls, hedge_after=hedge_after, deadline=60) as client:

        async def caller(number: int) -> None:
            for call in range(CALLS):
                xid = f"fleet-{hedge_after}-{number}-{call}"
                results[xid] = await client.submit("buy", BUY, xid=xid)

        async def killer() -> None:
            for number, process in enumerate(fleet.processes[:-1], 1):
                while len(results) < number * CALLERS * CALLS // 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                await fleet.stop(signal.SIGKILL, process)

        async with asyncio.timeout(120):
            await asyncio.gather(killer(), *(caller(number) for number in range(CALLERS)))
        for xid, result in results.items():
            assert await client.submit("buy", BUY, xid=xid) == result
    await fleet.stop(signal.SIGTERM, *fleet.processes)
    assert len(results) == CALLERS * CALLS
    for xid, result in results.items():
        shop.assert_once(xid, result)
    shop.assert_clean()


async def test_acknowledged(server: Callable[..., App], shop: Shop) -> None:
    """The sites drop the texts, and the request is never run again."""
    xid = new_xid()
    async with serving(asgi(server())) as url, Client([url]) as client:
        result = await client.submit("buy", BUY, xid=xid)
        client.acknowledge(xid)
        async with asyncio.timeout(60):
            for site in SCHEMA:
                texts = f"SELECT request, result FROM mip.instances('{xid}') WHERE state = 'committed'"
                while shop.sql(site, texts) != [(None, None)]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        with pytest.raises(Expired):
            await client.submit("buy", BUY, xid=xid)
    shop.assert_once(xid, result)
    shop.assert_clean()


if __name__ == "__main__":
    serve(*sys.argv[1:])
