"""Clients: what they ask for, how, and the log of all that they send and receive.

A line is written before a request is sent, and after an answer has come; that is all that the auditor knows of them.
Four clients share a process. Some want every answer, some ask twice, and some go away and never come back.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pgmip
from pgmip.client import Client
from pgmip.xinst import new_xid

from .handlers import ACCOUNTS, ITEMS, LISTS, TRANSACTIONS
from .process import begin

__all__ = ["Config", "ask", "ask_again", "ask_for_orders", "call", "go_on", "some_lists", "some_request", "stop"]

DEADLINE = 30.0
TIMEOUT = 8.0
THINK = 0.15
WAVERS = 0.1  # the share of requests that may fail
CROWDS = 0.1  # the share of calls that are several, for the same lists
ACTIVE = 4  # lists of each site that are in use at a time
FOR = 5.0  # seconds
KEPT = 40  # answered requests per client that may be asked for again


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    life: int
    clients: int
    servers: list[str]
    seed: int
    folder: Path
    hedge_after: float | None = None
    seconds: float = 0.0


def stop(folder: Path) -> None:
    """Tell all clients to begin no more requests, and to go when they have their answers."""
    (folder / "stop").touch()


def go_on(folder: Path) -> None:
    """Take that back."""
    (folder / "stop").unlink()


class Log:
    """Append-only; every line is there as soon as `write` returns, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "time": time.monotonic(), "clock": time.time(), **facts})
        os.write(self._file, line.encode() + b"\n")


_call: ContextVar[str] = ContextVar("call", default="")  # to which a transmission belongs


class Recorder(httpx.AsyncBaseTransport):
    """Writes down every transmission and every answer."""

    def __init__(self, log: Log, name: str, http: httpx.AsyncBaseTransport | None = None) -> None:
        self._log = log
        self._name = name
        self._numbers = itertools.count(1)
        self._http = http or httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        number = f"{self._name}:{next(self._numbers)}"
        server = f"{request.url.scheme}://{request.url.host}:{request.url.port}"
        key = request.headers.get("Idempotency-Key", "").strip('"')
        body = (await request.aread()).decode()
        call = _call.get()
        self._log.write("send", number=number, call=call, key=key, server=server, path=request.url.path, body=body)
        try:
            response = await self._http.handle_async_request(request)
            answer = await response.aread()
            await response.aclose()
        except BaseException as error:
            self._log.write("lost", number=number, key=key, why=type(error).__name__)
            raise
        kind = response.headers.get("content-type", "")
        self._log.write(
            "answer", number=number, key=key, status=response.status_code, kind=kind, body=answer.decode("latin-1")
        )
        return httpx.Response(
            response.status_code, headers=response.headers, content=answer, extensions=response.extensions
        )

    async def aclose(self) -> None:
        await self._http.aclose()


def ask(config: Config) -> None:
    """The life of a process of clients."""
    begin(config.folder, config.name)
    asyncio.run(_with_client(config, _all))


def ask_again(config: Config) -> None:
    """Send once more what has been answered, to any server."""
    begin(config.folder, config.name)
    asyncio.run(_with_client(config, _again))


def ask_for_orders(config: Config) -> None:
    """A life with nothing in it but orders, every answer of which is wanted."""
    begin(config.folder, config.name)
    asyncio.run(_with_client(config, _orders))


async def _with_client(config: Config, work: Callable[[Config, Client, Log], Awaitable[None]]) -> None:
    name = f"{config.name}.{config.life}"
    log = Log(config.folder / f"{name}.requests")
    async with Client(
        config.servers, deadline=DEADLINE, timeout=TIMEOUT, hedge_after=config.hedge_after, trust_env=False,
        transport=Recorder(log, name),
    ) as client:  # fmt: skip
        await work(config, client, log)


async def _all(config: Config, client: Client, log: Log) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(config.clients):
            seed = f"client {config.seed} {config.name} {config.life} {number}"
            group.create_task(Customer(client, log, random.Random(seed), config.folder / "stop").run())


async def _orders(config: Config, client: Client, log: Log) -> None:
    async def run(rng: random.Random) -> None:
        customer = Customer(client, log, rng, config.folder / "never")
        end = time.monotonic() + config.seconds
        while time.monotonic() < end:
            request = {
                "item": rng.randint(1, ITEMS), "quantity": 1,
                "customer": rng.randint(1, ACCOUNTS // 2), "shop": rng.randint(ACCOUNTS // 2 + 1, ACCOUNTS),
            }  # fmt: skip
            await customer.want("order", request, new_xid())
            await asyncio.sleep(rng.expovariate(1 / THINK))

    async with asyncio.TaskGroup() as group:
        for number in range(config.clients):
            group.create_task(run(random.Random(f"orders {config.seed} {number}")))


async def _again(config: Config, client: Client, log: Log) -> None:
    kept = {}
    for path in sorted(config.folder.glob("clients-*.requests")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "kept":
                kept[event["key"]] = event
    rng = random.Random(f"again {config.seed}")
    chosen = rng.sample(sorted(kept), min(len(kept), 200))
    limit = asyncio.Semaphore(8)

    async def again(key: str) -> None:
        async with limit:
            customer = Customer(client, log, rng, config.folder / "never")
            await customer.want(kept[key]["name"], kept[key]["request"], key)

    await asyncio.gather(*map(again, chosen))


Way = Callable[[str, Any], Awaitable[None]]


class Customer:
    """One client: a request, its answer, and the next one."""

    def __init__(self, client: Client, log: Log, rng: random.Random, stop: Path) -> None:
        self._client = client
        self._log = log
        self._rng = rng
        self._stop = stop
        self._kept: list[tuple[str, Any, str]] = []

    async def run(self) -> None:
        ways = [(self.plain, 10), (self.keep, 6), (self.twice, 3), (self.leave, 3), (self.repeat, 3)]
        while not self._stop.exists():
            [way] = self._rng.choices([way for way, _ in ways], [often for _, often in ways])
            kind = self._rng.random()
            if kind < WAVERS:
                await way(self._rng.choice(("waver", "waver", "waver_birch")), {})
            elif kind < WAVERS + CROWDS:
                await self.crowd(way)
            else:
                await way(*some_request(self._rng))
            await asyncio.sleep(self._rng.expovariate(1 / THINK))

    async def plain(self, name: str, request: Any) -> None:
        """An XID of the client stub's making, which acknowledges the answer by itself."""
        await self.want(name, request, None)

    async def keep(self, name: str, request: Any) -> None:
        """An XID of the client's own, that may be asked for again."""
        key = new_xid()
        if await self.want(name, request, key):
            self._log.write("kept", key=key, name=name, request=request)
            self._kept = [*self._kept[-KEPT:], (name, request, key)]

    async def twice(self, name: str, request: Any) -> None:
        """Two calls of one request at the same time."""
        key = new_xid()
        await asyncio.gather(self.want(name, request, key), self.want(name, request, key))

    async def crowd(self, way: Way) -> None:
        """Some requests at the same time, for the lists of this moment."""
        first = int(time.time() / FOR) * ACTIVE % LISTS
        await asyncio.gather(*(way(*some_lists(self._rng, first)) for _ in range(self._rng.randint(2, 5))))

    async def repeat(self, name: str, request: Any) -> None:
        """What has been answered, once more."""
        if self._kept:
            await self.want(*self._rng.choice(self._kept))

    async def leave(self, name: str, request: Any) -> None:
        """Go away before the answer is there, and never come back."""
        key = new_xid()
        self._log.write("call", key=key, name=name, request=request)
        call = asyncio.create_task(self._client.submit(name, request, xid=key))
        await asyncio.wait([call], timeout=self._rng.choice((0.01, 0.05, 0.3)) * self._rng.random())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        self._log.write("left", key=key)

    async def want(self, name: str, request: Any, key: str | None) -> bool:
        """Ask until it is known what has happened; whether there is a result."""
        while isinstance(error := await call(self._client, self._log, name, request, key), pgmip.Unknown):
            key = error.xid
        return error is None


async def call(client: Client, log: Log, name: str, request: Any, key: str | None) -> pgmip.SubmitError | None:
    """One call, and what its caller is told, if it is no result."""
    number = new_xid()
    _call.set(number)
    log.write("call", call=number, key=key, name=name, request=request)
    try:
        result = await client.submit(name, request, xid=key)
    except pgmip.SubmitError as error:
        log.write("told", call=number, key=error.xid, error=type(error).__name__, why=str(error))
        return error
    log.write("told", call=number, key=key, result=result)
    return None


def some_request(rng: random.Random) -> tuple[str, Any]:
    """Hot rows: low numbers come up more often than high ones."""

    def account() -> int:
        return min(rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS))

    name = rng.choice(
        ["order"] * 6 + ["transfer_ash_birch", "transfer_birch_cedar", "transfer_ash_cedar"] * 3 + ["level"] * 2
        + ["shift_ash", "shift_birch", "shift_cedar"] * 2 + ["restock"] * 2
    )  # fmt: skip
    match name.partition("_")[::2]:
        case "order", _:
            return name, {
                "item": rng.randint(1, ITEMS), "quantity": rng.randint(1, 9), "customer": account(), "shop": 40,
            }  # fmt: skip
        case "restock", _:
            return name, {"item": rng.randint(1, ITEMS), "quantity": rng.randint(5, 30)}
        case "level", _:
            low = rng.choice((1, 11, 21, 31))
            return name, {"low": low, "high": low + 9}
        case "shift", _:
            source, target = rng.sample(range(1, ACCOUNTS + 1), 2)
            return name, {"from": source, "to": target, "amount": rng.randint(1, 400)}
        case _, sites:
            ends = sites.split("_")
            rng.shuffle(ends)
            return name, {
                "from": [ends[0], account()], "to": [ends[1], account()], "amount": rng.randint(1, 300),
            }  # fmt: skip
    raise AssertionError(name)


def some_lists(rng: random.Random, first: int) -> tuple[str, Any]:
    """Reads at random sites, from this list on, and appends at random ones, in the order in which all lock."""
    name = rng.choice(("lists", "lists_ash_birch", "lists_birch_cedar", "lists_cedar"))
    sites = TRANSACTIONS[name].sites
    read = []
    for site in rng.choices(sites, k=rng.randint(1, 3)):
        low, high = sorted(rng.choices(range(ACTIVE), k=2))
        read.append([site, first + low, first + rng.choice((low, high))])
    places = [[site, first + number] for site in sites for number in range(ACTIVE)]
    chosen = sorted(rng.sample(range(len(places)), rng.randint(1, 2)))
    return name, {"read": read, "append": [places[at] for at in chosen]}
