"""An app server of bench/coordinators.py: pgmip, or plain two-phase commit. threads.py is the same with pgmip.sync, and
Node.java with JDBC.

    python -m bench.nodes.node CONTENDER NAME LEFT RIGHT SESSIONS ACCOUNTS FOLDER JOURNAL [REQUESTS]

Connects, says "ready", and waits for a line on stdin. Then each session carries out one transfer after another, between
random accounts of the two sites, until stdin ends; or, with a file of requests, all of those at once, each until it is
answered. Whoever dies leaves its log of decisions in FOLDER to the next one of its name.

JOURNAL gets a line when a request begins, "b KEY FROM TO", one when it has been answered, "e KEY BEGAN ENDED" (in
nanoseconds of the monotonic clock), and one for each failure, "x KEY WHY".
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pgmip import App, Tx

import workload.tx
from workload.plain import Coordinator, recover

from ..places import EARLY, SITES
from .requests import DEADLINE, MOVE, PAUSE, Journal, random_request, read_requests

Submit = Callable[[str, int, int], Awaitable[Any]]
Close = Callable[[], Awaitable[None]]


async def pgmip_submit(sites: dict[str, str], sessions: int, *, early: bool) -> tuple[Submit, Close]:
    size = 2 * sessions if early else sessions  # one transaction begins while the one before is committed
    app = App(
        sites, pool_size=size, pool_min_size=size, deadline=DEADLINE, attempts=10**6, wait_for_commit=not early
    )

    @app.transaction(sites=SITES)
    async def transfer(tx: Tx, request: Any) -> Any:
        tx.left.finish_with(MOVE, (-1, request[0]))
        tx.right.finish_with(MOVE, (1, request[1]))
        return True

    await app.__aenter__()
    return lambda key, source, target: app.submit("transfer", [source, target], xid=key), app.close


async def plain_submit(name: str, sites: dict[str, str], sessions: int, folder: Path) -> tuple[Submit, Close]:
    log = folder / f"{name}.decisions"
    await recover(name, sites, log)
    coordinator = Coordinator(name, sites, log, lambda _: None, key_site="left")
    await coordinator.connect(sessions)

    async def transfer(tx: workload.tx.Tx, request: Any) -> None:
        await tx["left"].execute(MOVE, (-1, request[0]))
        await tx["right"].execute(MOVE, (1, request[1]))

    async def close() -> None:
        pass  # what it has answered is over

    return lambda key, source, target: coordinator.submit(transfer, [source, target], key), close


class Node:
    def __init__(self, submit: Submit, journal: Journal) -> None:
        self.submit = submit
        self.journal = journal
        self.over = False

    async def answer(self, key: str, source: int, target: int) -> None:
        began = self.journal.begins(key, source, target)
        while not self.over:
            try:
                await self.submit(key, source, target)
                self.journal.answered(key, began)
                return
            except Exception as error:
                self.journal.failed(key, error)
                await asyncio.sleep(PAUSE)

    async def loop(self, accounts: int) -> None:
        while not self.over:
            await self.answer(*random_request(accounts))


async def main(
    contender: str, name: str, left: str, right: str, sessions: str, accounts: str, folder: str, journal: str,
    requests: str = "",
) -> None:  # fmt: skip
    sites = dict(zip(SITES, (left, right), strict=True))
    if contender.startswith("pgmip"):
        submit, close = await pgmip_submit(sites, int(sessions), early=contender == EARLY)
    else:
        submit, close = await plain_submit(name, sites, int(sessions), Path(folder))
    node = Node(submit, Journal(Path(journal)))
    print("ready", flush=True)
    if not await asyncio.to_thread(sys.stdin.readline):
        os._exit(0)
    if requests:
        work = [node.answer(*request) for request in read_requests(Path(requests))]
    else:
        work = [node.loop(int(accounts)) for _ in range(int(sessions))]
    tasks = [asyncio.create_task(one) for one in work]
    await asyncio.to_thread(sys.stdin.read)
    node.over = True
    await asyncio.wait(tasks, timeout=2)
    await close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
