"""Whom a site's refusal, or its MIPT, has told of is met, too; and what a Client is told of its other transmissions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from psycopg.types.string import TextLoader
from shop import BUY, ORDER, PAYMENT, RIVAL, Shop
from test_sweeper import eager, in_doubt, prepare_at
from test_told import Gate, active, fail, nothing, serving, stall_at_prepare, until

from pgmip import App, Client, NothingHappened, SubmitError, Tx, Unknown, _call
from pgmip._asking import Asking
from pgmip._branch import Branch
from pgmip._connection import cut
from pgmip._family import Family
from pgmip._json import canonical
from pgmip.http import asgi
from pgmip.sweeper import EventName
from pgmip.xinst import new_xid, new_xinst

pytestmark = pytest.mark.integration

Server = Callable[..., App]
TAKEN = "INSERT INTO payment (p_id, amount) OVERRIDING SYSTEM VALUE VALUES (1000000, 0)"


async def told(submitted: Awaitable[Any]) -> Any:
    try:
        return await submitted
    except SubmitError as error:
        return error


@pytest.fixture
def taken(shop: Shop) -> Iterator[None]:
    """The bank has this payment already."""
    shop.sql("bank", TAKEN)
    yield
    shop.sql("bank", "DELETE FROM payment WHERE p_id = 1000000")


class TwoTurns:
    """A server whose first attempt fails, and which then pauses until it is told to go on."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Tx], Awaitable[Any]]) -> None:
        self.app = app
        self.turns = 0
        self.pauses = Gate()

        async def note(tx: Tx) -> None:
            self.turns += 1
            if self.turns == 1:
                await fails(tx)

        serving(app, note)
        insist = Family._insist_on_giving_up

        async def pause(family: Family) -> Any:
            if family._pools is app._pools and self.turns == 1:
                await self.pauses()
            return await insist(family)

        monkeypatch.setattr(Family, "_insist_on_giving_up", pause)


def hold_up_roll_back(monkeypatch: pytest.MonkeyPatch, app: App, gate: Gate) -> None:
    """What an attempt of this App takes back over its own connections."""
    roll_back = Asking.roll_back

    async def late(asking: Asking, site: str, xinst: int, conn: Any = None) -> Any:
        if conn is not None and asking.pools is app._pools:
            await gate()
        return await roll_back(asking, site, xinst, conn)

    monkeypatch.setattr(Asking, "roll_back", late)


# -- siblings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["other sites", "another role"])
async def test_who_has_it_refused(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """By his being there: over other sites, as of another release, or as another role."""
    xid, met, conninfos = new_xid(), asyncio.Event(), shop.conninfos()
    begun = asyncio.Event()

    async def fails(tx: Tx) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        begun.set()
        await met.wait()
        await tx.store.execute(RIVAL)

    old = TwoTurns(server(), monkeypatch, fails)
    if why == "another role":
        for site in shop.clusters:
            shop.sql(site, "CREATE ROLE app2 LOGIN PASSWORD 'app2'; GRANT ALL ON ALL TABLES IN SCHEMA public TO app2")
        of_app2 = {"user": "app2", "password": "app2"}
        conninfos = {site: make_conninfo(conninfo, **of_app2) for site, conninfo in conninfos.items()}
    new = server(conninfos)

    @new.transaction(sites=("store",) if why == "other sites" else ("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        try:
            await tx.store.execute("SELECT")
        finally:
            met.set()
            await until(lambda: active(shop, xid) == [0, 0])

    try:
        first = asyncio.create_task(old.app.submit("note", BUY, xid=xid))
        await begun.wait()
        answer = await told(new.submit("note", BUY, xid=xid))
        old.pauses.open.set()
        await first
        assert type(answer) is Unknown
        assert shop.effects(xid)[0]
    finally:
        if why == "another role":
            await new.close()
            for site in shop.clusters:
                shop.sql(site, "DROP OWNED BY app2; DROP ROLE app2")


async def test_who_merely_lacks_a_privilege(server: Server, shop: Shop) -> None:
    """Which functions of the extension say with the same SQLSTATE: that is nobody's being there."""
    for site in shop.clusters:
        shop.sql(site, "CREATE ROLE app3 LOGIN PASSWORD 'app3'")
    shop.sql("store", "CREATE TABLE kept (i int) USING mip; ALTER TABLE kept ENABLE ROW LEVEL SECURITY")
    shop.sql("store", "GRANT SELECT ON kept TO app3")
    of_app3 = {"user": "app3", "password": "app3"}
    app = server({site: make_conninfo(conninfo, **of_app3) for site, conninfo in shop.conninfos().items()})

    @app.transaction(sites=("store",))
    async def note(tx: Tx, request: Any) -> None:
        await tx.store.execute("SELECT mip.relation_checksum('kept')")

    try:
        assert type(await told(app.submit("note", None, xid=new_xid()))) is NothingHappened
    finally:
        await app.close()
        shop.sql("store", "DROP TABLE kept")
        for site in shop.clusters:
            shop.sql(site, "DROP ROLE app3")


async def held_up(tx: Tx) -> None:
    await tx.store.execute("DO $$ BEGIN RAISE lock_not_available; END $$")


async def test_who_has_given_up_what_we_take_back(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, taken: None
) -> None:
    xid, slow = new_xid(), Gate()
    first, second = server(), TwoTurns(server(), monkeypatch, held_up)

    @first.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        tx.bank.finish_with(TAKEN)

    hold_up_roll_back(monkeypatch, first, slow)
    ours = asyncio.create_task(told(first.submit("note", BUY, xid=xid)))
    await slow.reached.wait()
    theirs = asyncio.create_task(second.app.submit("note", BUY, xid=xid))
    await second.pauses.reached.wait()
    assert in_doubt(shop) == [0, 0]
    slow.open.set()
    answer = await ours
    second.pauses.open.set()
    await theirs
    assert type(answer) is Unknown, answer
    assert shop.effects(xid)[0]


@pytest.mark.parametrize("earlier", [False, True], ids=["", "behind an earlier error"])
async def test_who_has_given_up_what_still_runs(server: Server, shop: Shop, earlier: bool) -> None:
    xid, app, here = new_xid(), server(), Gate()
    mine: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        mine.append(tx.xinst)
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute("SELECT 1")
        if earlier:
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                await tx.store.execute("INSERT INTO item VALUES (1, 1)")
        if len(mine) == 1:
            await here()
        raise ArithmeticError("a bug")

    answer = asyncio.create_task(told(app.submit("note", BUY, xid=xid)))
    await here.reached.wait()
    sites = "'{bank,store}'"
    await asyncio.to_thread(shop.sql, "store", f"SELECT mip.refuse('{xid}', {mine[0]}, {sites})")
    await until(lambda: active(shop, xid)[0] == 0)
    here.open.set()
    assert type(await answer) is Unknown
    # the attempt of whoever has given it up
    further, text = new_xinst(mine[-1]), canonical({"transaction": "note", "request": BUY})
    for site, table in (("store", "orders (xid, xinst, qty)"), ("bank", "payment (xid, xinst, amount)")):
        shop.sql(
            site,
            f"BEGIN; SELECT mip.begin('{xid}', {further}, {sites}); INSERT INTO {table} VALUES ('{xid}', {further}, 0);"
            f" SELECT * FROM mip.prepare('{text}', '1')",
        )
    for site in shop.clusters:
        shop.sql(site, f"SELECT mip.commit('{xid}', {further})")


async def test_who_has_given_up_what_is_lost(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its prepare at the bank went with the connection."""
    xid, slow = new_xid(), Gate()
    first, turns = server(), 0
    prepare, read = Branch.prepare, Family._read

    async def bug_later(tx: Tx) -> None:
        nonlocal turns
        turns += 1
        if turns > 1:
            await fail(tx)

    serving(first, bug_later)

    async def cut_off(branch: Branch, *args: Any) -> Any:
        if branch.site == "bank" and turns == 1 and not slow.reached.is_set():
            cut(branch.conn)
        return await prepare(branch, *args)

    async def read_late(family: Family) -> Any:
        if family._pools is first._pools and not slow.open.is_set():
            await slow()
        return await read(family)

    monkeypatch.setattr(Branch, "prepare", cut_off)
    monkeypatch.setattr(Family, "_read", read_late)
    ours = asyncio.create_task(told(first.submit("note", BUY, xid=xid)))
    await slow.reached.wait()
    ((mine,),) = shop.sql("store", f"SELECT xinst FROM mip.instances('{xid}')")
    for sql in ("SELECT mip.refuse('{}', {}, '{{bank,store}}')", "SELECT FROM mip.rollback('{}', {})"):
        shop.sql("bank" if "refuse" in sql else "store", sql.format(xid, mine))
    slow.open.set()
    assert type(await ours) is Unknown
    await serving(server(), nothing).submit("note", BUY, xid=xid)


# -- settling ----------------------------------------------------------------------------------------------------


async def test_nothing_is_cancelled_that_is_not_in_doubt(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch, taken: None
) -> None:
    """A sweeper without the handler has found it before it was taken back."""
    xid, slow, held = new_xid(), Gate(), Gate()
    first, sweeping = server(), App(shop.conninfos())
    attempt = Family._try

    @first.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        tx.bank.finish_with(TAKEN)
        return {"xinst": tx.xinst}

    async def try_late(family: Family, *args: Any, **options: Any) -> Any:
        if family._pools is sweeping._pools:
            await held()
        return await attempt(family, *args, **options)

    hold_up_roll_back(monkeypatch, first, slow)
    monkeypatch.setattr(Family, "_try", try_late)
    try:
        ours = asyncio.create_task(told(first.submit("note", BUY, xid=xid)))
        await slow.reached.wait()
        sweep = asyncio.create_task(eager(sweeping, cancel_unknown_after=0).sweep())
        await held.reached.wait()
        slow.open.set()
        assert type(await ours) is NothingHappened
        held.open.set()
        assert [event for event in await sweep if event.name is EventName.CANCELLED] == []
    finally:
        await sweeping.close()
    shop.sql("bank", "DELETE FROM payment WHERE p_id = 1000000")
    await first.submit("note", BUY, xid=xid)


async def test_sites_that_only_an_aborted_instance_names(server: Server, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "bank")
    shop.sql("store", f"SELECT mip.refuse('{xid}', 1, '{{bank,store}}')")
    only = App({"store": shop.conninfos()["store"]})
    try:
        for call in (only.settle, only.resolve, only.acknowledge):
            with pytest.raises(ValueError, match="bank"):
                await call(xid)
    finally:
        await only.close()
    assert in_doubt(shop) == [0, 1]
    shop.sql("bank", f"SELECT FROM mip.rollback('{xid}', 1)")


async def test_nothing_to_acknowledge(server: Server) -> None:
    """Where no site knows the XID, whoever names its sites."""
    app = serving(server(), nothing)
    await app.acknowledge(new_xid())
    await app.acknowledge(new_xid(), sites=("store", "bank"))


async def test_not_undone_what_nobody_knows_any_more(
    server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sweeper has prepared a client commits and acknowledges, and it expires, before the sweeper hears of it."""
    for site in shop.clusters:
        shop.sql(site, "ALTER DATABASE postgres SET mip.retention = '3s'")
    try:
        async with Proxy(shop.clusters["bank"].port) as bank, Proxy(shop.clusters["store"].port) as store:
            ports = {"bank": bank.port, "store": store.port}
            app = serving(server(shop.conninfos(**ports), step_timeout=6, deadline=5), nothing)
            await app.submit("note", None)
            xid = new_xid()
            prepare_at(shop, xid, "store", name="note")
            stall_at_prepare(monkeypatch, {"bank": bank, "store": store})
            sweeping = asyncio.create_task(eager(app).sweep())
            await until(lambda: in_doubt(shop)[1] == 1)
            monkeypatch.undo()
            other = serving(server(), nothing)
            await other.submit("note", BUY, xid=xid)
            await other.acknowledge(xid)
            for site in shop.clusters:
                known = f"SELECT FROM mip.expire() AS n, mip.instances('{xid}')"
                await until(lambda site=site, known=known: not shop.sql(site, known))  # type: ignore[misc]
            assert [event.name for event in await sweeping] == [EventName.FAILED]
    finally:
        for site in shop.clusters:
            shop.sql(site, "ALTER DATABASE postgres RESET mip.retention")


# -- answers that are none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bool", "text[]"])
async def test_loaders_for_all_connections(server: Server, shop: Shop, kind: str) -> None:
    """Such as let everything be text."""
    adapters, xid = psycopg.adapters, new_xid()
    oid = adapters.types["bool"].oid if kind == "bool" else adapters.types["text"].array_oid
    kept = adapters.get_loader(oid, psycopg.pq.Format.TEXT)
    assert kept is not None
    adapters.register_loader(oid, TextLoader)
    try:
        result, again = [await told(serving(server(), nothing).submit("note", BUY, xid=xid)) for _ in range(2)]
    finally:
        adapters.register_loader(oid, kept)
    assert type(again) is Unknown
    assert await serving(server(), nothing).submit("note", BUY, xid=xid) == result


# -- a client's other transmissions ------------------------------------------------------------------------------


class Net(httpx.AsyncBaseTransport):
    """To Apps in this process, which go on when their client has gone; a host's `on_the_way` is awaited before."""

    def __init__(self, **apps: Any) -> None:
        self._to = {host: httpx.ASGITransport(app=app) for host, app in apps.items()}
        self._tasks: set[asyncio.Task[httpx.Response]] = set()
        self.on_the_way: dict[str, Callable[[], Awaitable[Any]]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host in self.on_the_way:
            await self.on_the_way[host]()
        task = asyncio.create_task(self._to[host].handle_async_request(request))
        self._tasks.add(task)
        return await asyncio.shield(task)

    async def over(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are asked in their order."""
    monkeypatch.setattr(_call.random, "sample", lambda servers, n: list(servers))


class Busy:
    """A server whose only connection is in use until it is `free`."""

    def __init__(self, app: App) -> None:
        self.app = serving(app, nothing)
        self._long = Gate()

        @app.transaction(sites=("store", "bank"))
        async def long(tx: Tx, request: Any) -> None:
            await tx.store.execute("SELECT")
            await tx.bank.execute("SELECT")
            await self._long()

    async def __aenter__(self) -> Busy:
        self._task = asyncio.create_task(self.app.submit("long", None))
        await self._long.reached.wait()
        return self

    async def free(self) -> None:
        self._long.open.set()
        await self._task

    async def __aexit__(self, *_: Any) -> None:
        await self.free()


@pytest.mark.usefixtures("in_order")
async def test_what_a_call_beside_has_sent(server: Server, shop: Shop) -> None:
    xid, buggy = new_xid(), serving(server(), fail)
    async with Busy(server(pool_size=1)) as busy:
        net = Net(busy=asgi(busy.app), buggy=asgi(buggy))
        async with Client(["http://busy", "http://buggy"], transport=net, timeout=0.3, deadline=20) as client:
            first = asyncio.create_task(client.submit("note", None, xid=xid))
            await until(lambda: client._servers[0].failed_at > 0)
            second = asyncio.create_task(told(client.submit("note", None, xid=xid, deadline=2)))
            assert type(await second) is Unknown
            await busy.free()
            await first
        await net.over()
    assert shop.effects(xid)[0]


@pytest.mark.usefixtures("in_order")
async def test_what_another_call_has_heard(server: Server, shop: Shop) -> None:
    """An earlier call's transmission takes effect, which a later one hears; not the one that waits for it."""
    xid, buggy, connecting = new_xid(), serving(server(), fail), Gate()

    async def refused() -> None:
        await connecting()
        raise httpx.ConnectError("refused")

    async with Busy(server(pool_size=1)) as busy:
        net = Net(busy=asgi(busy.app), buggy=asgi(buggy))
        async with Client(["http://busy", "http://buggy"], transport=net, timeout=5, deadline=20) as client:
            assert type(await told(client.submit("note", None, xid=xid, deadline=0.3))) is Unknown
            client._servers.reverse()
            net.on_the_way["busy"] = refused
            second = asyncio.create_task(client.submit("note", None, xid=xid))
            await connecting.reached.wait()
            del net.on_the_way["busy"]
            await busy.free()
            await until(lambda: shop.effects(xid)[0])
            client._servers.reverse()
            result = await client.submit("note", None, xid=xid)
            connecting.open.set()
            assert await second == result
        assert not client._open
        assert not client._sent
        await net.over()


async def test_calls_that_fail_beside_each_other() -> None:
    """None keeps another one going by repeating what has failed."""
    sent, transmitted = _call.Sent(), 0
    failed = _call.Failure(NothingHappened("failed", xid="k"), open=False, again=False)

    async def send(server: _call.Server, patience: float) -> _call.Verdict:
        nonlocal transmitted
        transmitted += 1
        await asyncio.sleep(0.1 * transmitted)
        return failed

    def call() -> _call.Call:
        servers = [_call.Server("http://one"), _call.Server("http://two")]
        deadline = asyncio.get_running_loop().time() + 30
        return _call.Call(servers, send, xid="k", deadline=deadline, timeout=10, hedge_after=None, sent=sent)

    answers = await asyncio.gather(*(told(call().run()) for _ in range(3)))
    assert [type(answer) for answer in answers] == [NothingHappened] * 3
    assert transmitted == 3
    assert not sent.is_open


class LosesFirst(httpx.AsyncHTTPTransport):
    """The first answer is lost, `after` something else has happened."""

    def __init__(self, after: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._after: Callable[[], Awaitable[Any]] | None = after

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if self._after is not None:
            await response.aread()
            after, self._after = self._after, None
            await after()
            raise httpx.ReadError("connection reset")
        return response


async def test_expired_is_what_it_has_done_itself(server: Server, shop: Shop) -> None:
    """Somebody else with the same XID has had the answer that it has lost, and acknowledged it."""
    from web import serving as at

    xid, other = new_xid(), server()

    async def acknowledged() -> None:
        await other.submit("buy", BUY, xid=xid)
        await other.acknowledge(xid)

    async with at(asgi(server())) as url, Client([url], transport=LosesFirst(acknowledged)) as client:
        assert type(await told(client.submit("buy", BUY, xid=xid, deadline=10))) is Unknown
        # and so it stays for this client, though there it is a call of its own
        assert type(await told(client.submit("buy", BUY, xid=xid, deadline=10))) is Unknown
    assert shop.effects(xid)[0]


