"""Requests over a site of replicas: any replica takes any attempt, and whatever ends meanwhile, one takes effect."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from test_replica_site import COUNTERS, DATABASE, PATIENCE, Site, killings, site

from pgmip import App, NothingHappened, Refuse, Refused, Tx, Unknown
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration
__all__ = ["site"]

Step = Callable[[], Awaitable[None]]


async def go_on() -> None:
    pass


def conninfo_of(site: Site, members: str) -> str:
    """Of whichever of them takes the connection first."""
    parts = [conninfo_to_dict(site.replicas[member].conninfo(DATABASE)) for member in members]
    hosts, ports = (",".join(str(part[name]) for part in parts) for name in ("host", "port"))
    return make_conninfo(**{**parts[0], "host": hosts, "port": ports})


@asynccontextmanager
async def server(
    site: Site, members: str, before: Step = go_on, behind: Step = go_on, conninfo: str = "", **options: Any
) -> AsyncIterator[App]:
    """An app server. `before` and `behind` what its handler does."""
    app = App({"shop": f"{conninfo_of(site, members)} {conninfo}"}, **{"step_timeout": 3, **options})

    @app.transaction(sites=("shop",))
    async def count(tx: Tx, request: Any) -> Any:
        """As unrepeatable as results get."""
        await before()
        row = await tx.shop.fetch_one("UPDATE counter SET n = n + 1 WHERE id = %s RETURNING n", (request["counter"],))
        await tx.shop.execute("INSERT INTO done VALUES (%s, %s)", (UUID(tx.xid), request["counter"]))
        await behind()
        return {"n": row.n, "xinst": tx.xinst}

    @app.transaction(sites=("shop",))
    async def refuse(tx: Tx, request: Any) -> Any:
        await tx.shop.execute("INSERT INTO done VALUES (%s)", (UUID(tx.xid),))
        raise Refuse({"xinst": tx.xinst})

    @app.transaction(sites=("shop",))
    async def look(tx: Tx, request: Any) -> Any:
        return {"n": (await tx.shop.fetch_one("SELECT n FROM counter WHERE id = 1")).n, "xinst": tx.xinst}

    try:
        yield app
    finally:
        await app.close()


def new_request() -> tuple[str, dict[str, int]]:
    return str(uuid4()), {"counter": random.randint(1, COUNTERS)}


def done(site: Site, member: str, xid: str) -> int:
    return int(site.sql(member, f"SELECT count(*) FROM done WHERE transaction = '{xid}'")[0][0])


def check(site: Site, xid: str, answer: Any) -> None:
    """It has taken effect once, by the instance whose answer this is, at all replicas."""
    for member in site.replicas:
        rows = site.sql(member, f"SELECT xinst FROM mip.mipt WHERE xid = '{xid}' AND NOT aborted")
        assert (done(site, member, xid), rows) == (1, [(answer["xinst"],)])


async def test_at_all_of_them_at_once(site: Site) -> None:
    async with server(site, "a") as a, server(site, "b") as b, server(site, "c") as c:
        for _ in range(10):
            xid, request = new_request()
            answers = await asyncio.gather(*(app.submit("count", request, xid=xid) for app in (a, b, c)))
            assert answers == [answers[0]] * 3
            await asyncio.to_thread(site.catch_up)
            check(site, xid, answers[0])
    site.check()


async def test_what_it_was_told_elsewhere(site: Site) -> None:
    async with server(site, "a") as a, server(site, "b") as b:
        for name in ("count", "look"):
            xid, request = new_request()
            answer = await a.submit(name, request, xid=xid)
            assert await b.submit(name, request, xid=xid) == answer
        xid, request = new_request()
        with pytest.raises(Refused) as refused:
            await a.submit("refuse", request, xid=xid)
        with pytest.raises(Refused) as again:
            await b.submit("refuse", request, xid=xid)
        assert again.value.result == refused.value.result
    await asyncio.to_thread(site.catch_up)
    assert [done(site, member, xid) for member in site.replicas] == [0, 0, 0]


async def test_nothing_has_happened(site: Site) -> None:
    """An attempt elsewhere that has begun before somebody is told so comes to nothing: its server begins anew."""
    runs, goes = asyncio.Event(), asyncio.Event()
    attempts = 0

    async def stay() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            runs.set()
            await goes.wait()

    async def fail() -> None:
        raise ValueError("no")

    xid, request = new_request()
    async with server(site, "a", behind=stay) as a, server(site, "b", before=fail) as b:
        slow = asyncio.create_task(a.submit("count", request, xid=xid))
        await runs.wait()
        with pytest.raises(NothingHappened):
            await b.submit("count", request, xid=xid)
        goes.set()
        answer = await slow
        assert attempts == 2
    await asyncio.to_thread(site.catch_up)
    check(site, xid, answer)


async def test_who_is_not_told(site: Site) -> None:
    """The log does not answer: it is not known. Once it does, any server knows, and it has happened once."""
    xid, request = new_request()
    async with server(site, "a", step_timeout=0.5, deadline=4) as a, server(site, "b") as b:
        await a.submit("count", request)  # so that it is connected
        await asyncio.to_thread(site.log.kill_postmaster)
        with pytest.raises(Unknown):
            await a.submit("count", request, xid=xid)
        await asyncio.to_thread(site.log.start)
        answer = await b.submit("count", request, xid=xid)
        assert await a.submit("count", request, xid=xid) == answer
    await asyncio.to_thread(site.catch_up)
    check(site, xid, answer)


async def test_it_has_expired_at_one_of_them(site: Site) -> None:
    """The replica that has forgotten it, and another one that has not, may answer in turn."""
    requests = [(new_xid(), new_request()[1]) for _ in range(8)]
    async with server(site, "b") as b:
        for xid, request in requests:
            await b.submit("count", request, xid=xid)
    await asyncio.to_thread(site.catch_up)
    await asyncio.sleep(1.2)  # for the retention
    with psycopg.connect(site.replicas["a"].conninfo(DATABASE), autocommit=True) as conn:
        conn.execute("SET mip.retention = '1s'")
        conn.execute("SELECT mip.expire()")

    async def fail() -> None:
        raise ValueError("no")

    async with server(site, "ab", before=fail, conninfo="load_balance_hosts=random") as either:
        told = await asyncio.gather(
            *(either.submit("count", request, xid=xid) for xid, request in requests * 10), return_exceptions=True
        )
    assert not any(isinstance(answer, NothingHappened) for answer in told)


async def test_who_waits_for_a_row(site: Site) -> None:
    """For so long that he looks whether a sibling is in doubt: he does not shut himself out."""
    attempts = 0

    async def count() -> None:
        nonlocal attempts
        attempts += 1

    async with server(site, "a", before=count) as a:
        with psycopg.connect(site.replicas["a"].conninfo(DATABASE)) as conn:
            conn.execute("SELECT FROM counter WHERE id = 1 FOR UPDATE")
            waits = asyncio.create_task(a.submit("count", {"counter": 1}))
            await asyncio.sleep(3.5)
            conn.rollback()
        await waits
    assert attempts == 1


async def test_its_replica_has_gone(site: Site) -> None:
    """In the middle of it. The next attempt of the same server goes to another replica."""
    killed = False

    async def kill() -> None:
        nonlocal killed
        if not killed:
            killed = True
            await asyncio.to_thread(site.replicas["a"].kill_postmaster)

    xid, request = new_request()
    async with server(site, "ab", behind=kill) as ab:
        answer = await ab.submit("count", request, xid=xid)
    await asyncio.to_thread(site.replicas["a"].start)
    await asyncio.to_thread(site.catch_up)
    check(site, xid, answer)


@dataclass
class Told:
    answers: dict[str, Any] = field(default_factory=dict)
    nothing: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)


async def client(apps: list[App], told: Told, stop: asyncio.Event) -> None:
    """Each request goes to one server after another, until one knows; some are left alone by all but a failure."""
    while not stop.is_set():
        xid, request = new_request()
        while True:
            try:
                answer = await random.choice(apps).submit("count", request, xid=xid, deadline=5)
            except NothingHappened:
                told.kinds["nothing"] += 1
                if random.random() < 0.5:
                    told.nothing.add(xid)
                    break
            except Unknown:
                told.kinds["unknown"] += 1
            else:
                told.kinds["answered"] += 1
                told.answers[xid] = answer
                break
            await asyncio.sleep(random.uniform(0, 0.2))


async def test_whatever_is_killed(site: Site) -> None:
    kinds = killings(site)
    told, stop = Told(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with (
        server(site, "abc") as a, server(site, "bca") as b, server(site, "cab") as c,
        asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group,
    ):  # fmt: skip
        for _ in range(6):
            group.create_task(client([a, b, c], told, stop))
        try:
            end = loop.time() + 15
            while loop.time() < end or len(told.answers) < 50:
                await asyncio.sleep(random.uniform(0.2, 1))
                await random.choice(kinds)()
        finally:
            stop.set()
    site.check()
    for xid, answer in told.answers.items():
        check(site, xid, answer)
    for xid in told.nothing:
        assert [done(site, member, xid) for member in site.replicas] == [0, 0, 0], xid


async def test_over_several_sites(site: Site) -> None:
    both = {"shop": conninfo_of(site, "a"), "other": conninfo_of(site, "b")}
    async with App(both) as app:

        @app.transaction(sites=("shop", "other"))
        async def move(tx: Tx, request: Any) -> Any:
            await tx.shop.execute("UPDATE counter SET n = n + 1 WHERE id = 1")

        with pytest.raises(NothingHappened) as raised:
            await app.submit("move", {})
    assert isinstance(raised.value.__cause__, psycopg.errors.FeatureNotSupported)
