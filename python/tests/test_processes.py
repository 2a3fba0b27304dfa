"""App servers in processes of their own are given the same requests at once; some are killed, and sweepers look on.

Whatever any of them has told anybody is the one result that the request has in the end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from typing import Any

import pytest
from shop import BUY, SCHEMA, Shop, make_app

from pgmip import App, Decided, Refused, SubmitError
from pgmip.sweeper import Sweeper
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

SERVERS, REQUESTS = 3, 20


async def work(seed: int, xids: list[str], conninfos: list[str]) -> None:
    """The body of a server's process: submit them all, some at a time, in an order of its own, and say what is told."""
    chance, turn = random.Random(seed), asyncio.Semaphore(4)
    app = make_app(dict(zip(SCHEMA, conninfos, strict=True)))

    async def submit(xid: str) -> None:
        async with turn:
            print(json.dumps([xid, *await answer(app, name_of(xids, xid), xid)]), flush=True)

    async with app, Sweeper(app, older_than=0.1, interval=0.1):
        await asyncio.gather(*(submit(xid) for xid in chance.sample(xids, len(xids))))


def name_of(xids: list[str], xid: str) -> str:
    return "decline" if xid in xids[::4] else "buy"


async def answer(app: App, name: str, xid: str) -> list[Any]:
    """What is told of a request, and with which result."""
    try:
        return ["result", await app.submit(name, BUY, xid=xid)]
    except (Refused, Decided) as error:
        return ["refused" if isinstance(error, Refused) else "result", error.result]
    except SubmitError as error:
        return [type(error).__name__, None]


@pytest.mark.parametrize("seed", range(3))
async def test_the_same_requests_at_several(shop: Shop, seed: int) -> None:
    chance, xids = random.Random(seed), [new_xid() for _ in range(REQUESTS)]
    servers = [
        await asyncio.create_subprocess_exec(
            sys.executable, __file__, str(seed * SERVERS + number), json.dumps(xids), *shop.conninfos().values(),
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(SERVERS)
    ]  # fmt: skip
    told: list[list[Any]] = []

    async def listen(number: int, server: asyncio.subprocess.Process) -> None:
        assert server.stdout is not None
        left = chance.randrange(REQUESTS)
        async for line in server.stdout:
            told.append(json.loads(line))
            left -= 1
            if left < 0 and number:  # all but one of them
                server.send_signal(signal.SIGKILL)
                break
        await server.wait()

    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*(listen(number, server) for number, server in enumerate(servers)))
    finally:
        for server in servers:
            if server.returncode is None:
                server.kill()
    assert servers[0].returncode == 0
    async with make_app(shop.conninfos()) as app:
        final = {xid: await answer(app, name_of(xids, xid), xid) for xid in xids}
    for xid, how, result in told:
        assert how in ("Unknown", "NothingHappened") or [how, result] == final[xid], xid
    for xid, (how, result) in final.items():
        if name_of(xids, xid) == "decline":
            assert how == "refused"
            shop.assert_never(xid)
        else:
            assert how == "result"
            shop.assert_once(xid, result)
    shop.assert_clean()


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
