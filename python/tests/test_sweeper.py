"""Requests that nobody retransmits are finished by sweepers, whatever else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.string import TextLoader
from shop import BUY, Shop, kill_server_at, leave_at, make_app

from pgmip import App, Cancelled, Expired, Step, Tx, sweeper
from pgmip._json import canonical
from pgmip.sweeper import Event, EventName, Sweeper
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
TEXT = psycopg.adapters.types["text"].oid
PATIENCE = 60  # seconds, for what happens soon or never


class Log(list[Event]):
    """The events of a sweeper, to be waited for."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def add(self, event: Event) -> None:
        self.append(event)
        self._news.set()

    async def until(self, condition: Callable[[Log], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    async def has(self, name: EventName, xid: str | None = None, *, times: int = 1) -> None:
        await self.until(lambda log: log.count_of(name, xid) >= times)

    def count_of(self, name: EventName, xid: str | None = None) -> int:
        return sum(event.name is name and xid in (None, event.xid) for event in self)


@pytest.fixture
async def log() -> Log:
    return Log()


def in_doubt(shop: Shop) -> list[int]:
    return [len(shop.sql(site, "SELECT FROM mip.in_doubt")) for site in shop.clusters]


async def nothing_in_doubt(shop: Shop) -> None:
    async with asyncio.timeout(PATIENCE):
        while any(in_doubt(shop)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def prepare_at(shop: Shop, xid: str, *sites: str, name: str = "buy", xinst: int = 1) -> None:
    """Leave an instance that has written nothing, so that many of them are not in each other's way."""
    request = canonical({"transaction": name, "request": BUY})
    for site in sites:
        shop.sql(
            site,
            f"BEGIN; SELECT mip.begin('{xid}', {xinst}, '{{bank,store}}');"
            f"SELECT * FROM mip.prepare('{request}', '\"of {xinst}\"')",
        )


def eager(app: App, log: Log | None = None, **parameters: Any) -> Sweeper:
    """A sweeper that takes everything for old, and does not wait."""
    known = {"older_than": 0, "interval": 0.1, "jitter": 0, "acknowledge_every": None}
    return Sweeper(app, on_event=log.add if log is not None else None, **{**known, **parameters})


@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_a_killed_server_and_no_retry(server: Server, shop: Shop, log: Log, step_name: str) -> None:
    xid = f"swept-{step_name}"
    await kill_server_at(shop, step_name, xid)
    assert any(in_doubt(shop))
    async with eager(server(), log):
        await nothing_in_doubt(shop)
        await log.has(EventName.COMMITTED, xid)
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


@pytest.mark.parametrize("step_name", ["prepared-first-site", "prepared-all", "committed-first-site"])
async def test_without_handlers(shop: Shop, log: Log, step_name: str) -> None:
    """What is decided is completed; what is not, is cancelled, if that is what is asked for."""
    xid = f"unknown-{step_name}"
    await kill_server_at(shop, step_name, xid)
    decided = step_name != "prepared-first-site"
    async with App(shop.conninfos()) as app:
        before = in_doubt(shop)
        for never in (None, 3600.0):
            (event,) = await eager(app, cancel_unknown_after=never).sweep()
            if decided:
                break
            assert event.name is EventName.FAILED
            assert in_doubt(shop) == before
        (event,) = await eager(app, log, cancel_unknown_after=0).sweep() or [event]
        assert list(log) == ([] if decided else [event])
        assert event.name is (EventName.COMMITTED if decided else EventName.CANCELLED)
    async with make_app(shop.conninfos()) as other:
        if decided:
            shop.assert_once(xid, await other.submit("buy", BUY, xid=xid))
        else:
            with pytest.raises(Cancelled):
                await other.submit("buy", BUY, xid=xid)
            shop.assert_never(xid)
    shop.assert_clean()


async def test_two_sweepers_at_once(server: Server, shop: Shop) -> None:
    undecided, decided, told = ([new_xid() for _ in range(6)] for _ in range(3))
    for xid in undecided:
        prepare_at(shop, xid, "store")
    for xid in decided + told:
        prepare_at(shop, xid, "store", "bank")
    for xid in told:
        shop.sql("bank", f"SELECT mip.commit('{xid}', 1)")
    with_locks = new_xid()
    await leave_at(server(), "prepared-first-site", with_locks)
    logs = [Log(), Log()]
    async with eager(server(), logs[0]), eager(server(), logs[1], interval=0.13):
        await nothing_in_doubt(shop)
    for xid in [*undecided, with_locks]:
        shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    for xid in decided + told:
        assert await server().submit("buy", BUY, xid=xid) == "of 1"
        shop.assert_never(xid)  # it had not written anything
    shop.assert_clean()


@pytest.mark.parametrize("step_name", ["begun", "prepared-first-site", "prepared-all", "committed-first-site"])
async def test_a_sweeper_is_killed(server: Server, shop: Shop, step_name: str) -> None:
    """The next one finds an instance more, and goes on from there."""
    xid = f"swept in vain {step_name}"
    await kill_server_at(shop, "prepared-first-site", xid)
    await kill_server_at(shop, step_name, xid, "sweep")
    async with eager(server()):
        await nothing_in_doubt(shop)
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_what_is_young_is_left_alone(server: Server, shop: Shop, log: Log) -> None:
    xid = new_xid()
    await leave_at(server(), "prepared-first-site", xid)
    assert await eager(server(), log, older_than=3600).sweep() == []
    assert await eager(server(), log, older_than=None).sweep() == [], "mip.push_after"
    assert in_doubt(shop) == [1, 0]
    assert log == []
    await eager(server(), log).sweep()
    assert in_doubt(shop) == [0, 0]


async def test_what_is_being_retried_is_left_alone(server: Server, shop: Shop) -> None:
    """The first attempt is old, but a sibling has just begun, and it has begun at the other site only."""
    app = server()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(step: Step) -> None:
        if step.name == "begun" and step.site == "bank":
            begun.set()
            await go_on.wait()

    @app.transaction(sites=("store", "bank"), name="buy later")
    async def buy(tx: Tx, request: Any) -> str:
        await tx.bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")
        return "done"

    async def age(site: str, state: str) -> float:
        (row,) = shop.sql(
            site,
            "SELECT coalesce(min(extract(epoch FROM clock_timestamp() - since)), 0)::float8 "
            f"FROM mip.instances('{xid}') WHERE state = '{state}'",
        )
        return float(row[0])

    while True:
        xid = new_xid()
        prepare_at(shop, xid, "store", name="buy later")
        while (old := await age("store", "prepared")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        app.on_step(wait)
        retry = asyncio.create_task(app.submit("buy later", BUY, xid=xid))
        await begun.wait()
        events = await eager(server(), older_than=old, cancel_unknown_after=0).sweep()
        young = await age("bank", "active") < old
        go_on.set()
        if young:
            break
        with suppress(Cancelled):
            await retry
        begun.clear()
        go_on.clear()
    assert events == []
    assert await retry == "done"
    shop.assert_clean()


async def test_the_normal_run_is_not_disturbed(server: Server, shop: Shop) -> None:
    """Sweepers with the sites' own threshold look on while requests are served, and do nothing."""
    app, logs = server(), [Log(), Log()]
    attempts: list[int] = []
    app.on_step(lambda step: attempts.append(step.xinst) if step.name == "begun" and step.site == "bank" else None)
    async with eager(server(), logs[0], older_than=None), eager(server(), logs[1], older_than=None):
        await asyncio.gather(*(log.has(EventName.LISTENING, times=2) for log in logs))
        for _ in range(30):
            await app.submit("buy", BUY)
    assert len(attempts) == 30
    assert {event.name for log in logs for event in log} == {EventName.LISTENING}
    shop.assert_clean()


async def test_a_notification_is_enough(server: Server, shop: Shop, log: Log) -> None:
    async with eager(server(), log, interval=3600):
        await log.has(EventName.LISTENING, times=2)
        xid = new_xid()
        await leave_at(server(), "prepared-first-site", xid)
        shop.sql("store", "NOTIFY mip_in_doubt")
        await log.has(EventName.COMMITTED, xid)
    shop.assert_clean()


async def test_the_database_notifies(server: Server, shop: Shop, log: Log) -> None:
    """An app server is killed, nobody asks again, and the sweeper does not look by itself."""
    xid = new_xid()
    async with eager(server(), log, older_than=None, interval=3600):
        await log.has(EventName.LISTENING, times=2)
        shop.sql("store", "ALTER SYSTEM SET mip.push_after = '100ms'")
        try:
            await kill_server_at(shop, "prepared-first-site", xid)
            shop.sql("store", "SELECT pg_reload_conf()")
            await log.has(EventName.COMMITTED, xid)
        finally:
            shop.sql("store", "ALTER SYSTEM RESET mip.push_after")
            shop.sql("store", "SELECT pg_reload_conf()")
    shop.assert_once(xid, await server().submit("buy", BUY, xid=xid))
    shop.assert_clean()


async def test_without_notifications_it_looks_by_itself(server: Server, shop: Shop, log: Log) -> None:
    async with eager(server(), log, interval=0.1):
        await log.has(EventName.LISTENING, times=2)
        xid = new_xid()
        await leave_at(server(), "prepared-first-site", xid)
        await log.has(EventName.COMMITTED, xid)
    shop.assert_clean()


async def test_a_site_is_lost_and_comes_back(
    server: Server, shop: Shop, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "_FIRST_PAUSE", 3600.0)
    bank = shop.clusters["bank"]
    async with eager(server(deadline=1), log, longest_pause=3600):
        await log.has(EventName.LISTENING, times=2)
        bank.kill_postmaster()
        try:
            await log.has(EventName.LOST)
            xid = new_xid()
            with suppress(Exception):
                await server().submit("buy", BUY, xid=xid, deadline=0.2)
            undecided = new_xid()
            prepare_at(shop, undecided, "store")
            await log.has(EventName.FAILED, undecided)
        finally:
            monkeypatch.undo()
            bank.start()
        # And without a pause as long as that: the site was why it had failed.
        await log.has(EventName.COMMITTED, undecided)
        await nothing_in_doubt(shop)
        assert log.count_of(EventName.LOST) == 1
        assert log.count_of(EventName.LISTENING) == 3
    shop.assert_once(undecided, await server().submit("buy", BUY, xid=undecided))
    shop.assert_clean()


def in_doubt_at(shop: Shop, site: str, xid: str) -> bool:
    return bool(shop.sql(site, f"SELECT FROM mip.in_doubt WHERE xid = '{xid}'"))


async def test_a_request_that_fails_is_tried_again_later(
    server: Server, shop: Shop, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweeper, "_FIRST_PAUSE", 3600.0)
    app = server()
    tried = 0

    @app.transaction(sites=("store", "bank"), name="moody")
    async def moody(tx: Tx, request: Any) -> None:
        nonlocal tried
        tried += 1
        raise ValueError("not today")

    looks: list[str] = []
    sweeping = eager(app, log, interval=0.05)
    look = sweeping._old

    async def counted(conn: Any) -> list[str]:
        found = await look(conn)
        looks.extend(found)
        return found

    monkeypatch.setattr(sweeping, "_old", counted)
    xid, other = new_xid(), new_xid()
    prepare_at(shop, xid, "store", name="moody")
    async with sweeping:
        await log.has(EventName.FAILED, xid)
        await leave_at(server(), "prepared-first-site", other)
        await log.has(EventName.COMMITTED, other)  # one in trouble is in nobody's way
        before = len(looks)
        async with asyncio.timeout(PATIENCE):
            while len(looks) < before + 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert tried == 1
    (event,) = [event for event in log if event.name is EventName.FAILED]
    assert "not today" in str(event.error)
    (record,) = [record for record in caplog.records if record.message.startswith(f"request {xid!r}: failed")]
    assert "not today" not in repr(record.__dict__)  # nor anything else that it may quote
    await app.resolve(xid)
    shop.assert_clean()


def test_pauses_grow_and_differ() -> None:
    assert 1 <= sweeper._pause(1, 300) <= 2
    assert 4 <= sweeper._pause(3, 300) <= 8
    assert 150 <= sweeper._pause(10**6, 300) <= 300
    assert len({sweeper._pause(3, 300) for _ in range(10)}) > 1


async def test_no_more_than_so_many_at_a_time(server: Server, shop: Shop, log: Log) -> None:
    app = server()
    now, most = 0, 0
    full = asyncio.Event()

    @app.transaction(sites=("store", "bank"), name="slow")
    async def slow(tx: Tx, request: Any) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0.05)  # long enough for a third
        now -= 1
        return 1

    xids = [new_xid() for _ in range(6)]
    for xid in xids:
        prepare_at(shop, xid, "store", name="slow")
    async with eager(app, log, concurrency=2):
        await log.has(EventName.COMMITTED, times=6)
    assert most == 2
    shop.assert_clean()


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_stopping(server: Server, shop: Shop, log: Log, how: str) -> None:
    """Stopped, it finishes what it is at, and takes nothing up; cancelled, it leaves nothing open."""
    app = server()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.transaction(sites=("store", "bank"), name="slow")
    async def slow(tx: Tx, request: Any) -> int:
        await tx.bank.execute("UPDATE account SET balance = balance WHERE a_id = 1")
        begun.set()
        await go_on.wait()
        return 1

    xids = [new_xid() for _ in range(3)]
    for xid in xids:
        prepare_at(shop, xid, "store", name="slow")
    sweeping = eager(app, log, concurrency=1)
    run = asyncio.create_task(sweeping.run())
    await begun.wait()
    if how == "stop":
        sweeping.stop()
        await asyncio.sleep(0)
        assert not run.done()
        go_on.set()
        await run
        assert log.count_of(EventName.COMMITTED) == 1
    else:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert log.count_of(EventName.COMMITTED) == 0
    for site in shop.clusters:
        shop.assert_no_open_transaction(site)
    assert in_doubt(shop)[0] == (2 if how == "stop" else 3)
    for xid in xids:
        await app.resolve(xid)
    shop.assert_clean()


async def test_what_is_old_and_finished_is_acknowledged(server: Server, shop: Shop, log: Log) -> None:
    """Also where a site has not been told yet; what is young keeps its result."""
    brief = {site: make_conninfo(conninfo, options="-c mip.retention=1") for site, conninfo in shop.conninfos().items()}
    app = server()
    unique = new_xid()
    old, untold, young = (f"{name} {unique}" for name in ("old", "untold", "young"))  # XIDs that do not expire
    result = await app.submit("buy", BUY, xid=old)
    prepare_at(shop, untold, "store", "bank")
    shop.sql("store", f"SELECT mip.commit('{untold}', 1)")
    async with eager(server(brief), log, older_than=3600, acknowledge_every=0.1):
        await log.has(EventName.ACKNOWLEDGED, old)
        await log.has(EventName.ACKNOWLEDGED, untold)
    assert await app.submit("buy", BUY, xid=young) is not None
    for site in shop.clusters:
        for xid in (old, untold):
            assert shop.sql(site, f"SELECT result, acknowledged FROM mip.instances('{xid}')") == [(None, True)]
        assert shop.sql(site, f"SELECT acknowledged FROM mip.instances('{young}')") == [(False,)]
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=old)
    shop.assert_once(old, result)
    shop.assert_clean()


async def test_sites_that_the_app_does_not_know(shop: Shop, log: Log) -> None:
    """Somebody else's request is reported, and does no harm."""
    xid = new_xid()
    prepare_at(shop, xid, "store")
    async with App({"store": shop.conninfos()["store"]}) as app:
        (event,) = await eager(app, log, cancel_unknown_after=0).sweep()
    assert event.name is EventName.FAILED
    assert "bank" in str(event.error)
    assert in_doubt_at(shop, "store", xid)


async def test_stopping_before_it_has_begun(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):  # and then it can be used again
            async with sweeper.Sweeper(server()):
                pass


class _Odd(TextLoader):
    def load(self, data: Any) -> Any:
        raise ValueError("odd")


@contextmanager
def odd_texts() -> Iterator[None]:
    """Somebody has registered a loader for all connections which fails."""
    usual = psycopg.adapters.get_loader(TEXT, psycopg.pq.Format.TEXT)
    assert usual is not None
    psycopg.adapters.register_loader(TEXT, _Odd)
    try:
        yield
    finally:
        psycopg.adapters.register_loader(TEXT, usual)


@pytest.mark.parametrize("how", ["sweep", "run"])
async def test_a_loader_that_raises(server: Server, shop: Shop, log: Log, how: str) -> None:
    """What a site says cannot be read, then: that ends no sweeper, and is over when it is."""
    xid = new_xid()
    await leave_at(server(), "prepared-first-site", xid)
    if how == "sweep":
        with odd_texts():
            events = await Sweeper(server(), older_than=0).sweep()
        assert {event.name for event in events} == {EventName.LOST}
        assert all("odd" in str(event.error) for event in events)
        await Sweeper(server(), older_than=0).sweep()
    else:
        with odd_texts():
            sweeping = eager(server(), log)
            await sweeping.__aenter__()
            await log.has(EventName.LOST)
        await log.has(EventName.COMMITTED, xid)
        await sweeping.__aexit__(None, None, None)
    shop.assert_clean()


def test_parameters_that_cannot_be(shop: Shop) -> None:
    app = App(shop.conninfos())
    with pytest.raises(ValueError, match="interval"):
        Sweeper(app, interval=0)
    with pytest.raises(ValueError, match="concurrency"):
        Sweeper(app, concurrency=0)
