"""`wait_for_commit=False`: who has submitted is answered when the request is decided, and it is committed then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest
from proxy import Proxy
from shop import BUY, ORDER, PAYMENT, Shop
from test_sweeper import in_doubt, prepare_at
from test_told import Gate, until

from pgmip import (
    App,
    Cancelled,
    Decided,
    Expired,
    KeyReused,
    ProtocolViolation,
    Refused,
    Step,
    Tx,
    Unknown,
    _family,
    sync,
)
from pgmip._asking import Asking
from pgmip._sessions import Sessions
from pgmip.http import Endpoint, IdempotencyMiddleware
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]
SOON = 0.3  # seconds, in which what is not held up is over


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where all commits wait."""
    gate, commit = Gate(), Asking.commit

    async def held(asking: Asking, *args: Any) -> Any:
        await gate()
        return await commit(asking, *args)

    monkeypatch.setattr(Asking, "commit", held)
    return gate


async def is_held_up(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait({task}, timeout=SOON)
    return not task.done()


async def test_the_answer_comes_first(server: Server, shop: Shop, commits: Gate) -> None:
    app, xid = server(wait_for_commit=False), new_xid()
    result = await app.submit("buy", BUY, xid=xid)
    assert in_doubt(shop) == [1, 1]
    shop.assert_never(xid)
    commits.open.set()
    await until(lambda: in_doubt(shop) == [0, 0])
    shop.assert_once(xid, result)
    assert await app.submit("buy", BUY, xid=xid) == result
    await app.close()
    shop.assert_clean()


async def test_it_comes_last_unless_asked_for(server: Server, shop: Shop, commits: Gate) -> None:
    early, late = server(wait_for_commit=False), server()
    waiting = [
        asyncio.create_task(early.submit("buy", BUY, wait_for_commit=True)),
        asyncio.create_task(late.submit("buy", BUY)),
    ]
    assert all([await is_held_up(task) for task in waiting])
    assert (await late.submit("buy", BUY | {"item": 2}, wait_for_commit=False))["refused"]
    commits.open.set()
    await asyncio.gather(*waiting)


async def test_what_is_serializable_comes_last(server: Server, commits: Gate) -> None:
    app = server(wait_for_commit=False)

    @app.transaction(sites=("store", "bank"), isolation="serializable")
    async def note(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute("SELECT")

    waiting = asyncio.create_task(app.submit("note", None))
    assert await is_held_up(waiting)
    await app.submit("note", None, wait_for_commit=False)
    commits.open.set()
    await waiting


async def test_a_refusal(server: Server, shop: Shop, commits: Gate) -> None:
    app, xid = server(wait_for_commit=False), new_xid()
    with pytest.raises(Refused) as refused:
        await app.submit("decline", BUY, xid=xid)
    assert in_doubt(shop) == [1, 1]
    commits.open.set()
    with pytest.raises(Refused) as again:
        await server().submit("decline", BUY, xid=xid)
    assert again.value.result == refused.value.result
    shop.assert_never(xid)


async def test_what_is_no_answer_comes_last(server: Server, shop: Shop) -> None:
    app, reused, cancelled, old = server(wait_for_commit=False), new_xid(), new_xid(), new_xid()
    await app.submit("buy", BUY, xid=reused)
    with pytest.raises(KeyReused):
        await app.submit("buy", BUY | {"qty": 3}, xid=reused)
    await app.resolve(cancelled, sites=("store", "bank"))
    with pytest.raises(Cancelled):
        await app.submit("buy", BUY, xid=cancelled)
    await app.submit("buy", BUY, xid=old)
    await app.acknowledge(old)
    with pytest.raises(Expired):
        await app.submit("buy", BUY, xid=old)


@pytest.mark.parametrize("lost", ["rolled back", "never there"])
async def test_a_site_has_lost_what_it_had_prepared(server: Server, shop: Shop, lost: str) -> None:
    """As by a fail-over to a standby that was behind, after the store has committed. That is told each time."""
    app, xid = server(wait_for_commit=False), new_xid()
    prepare_at(shop, xid, *(("store", "bank") if lost == "rolled back" else ("store",)))
    shop.sql("store", f"SELECT mip.commit('{xid}', 1)")
    if lost == "rolled back":
        shop.sql("bank", f"SELECT mip.rollback('{xid}', 1)")
    for _ in range(2):
        with pytest.raises(ProtocolViolation):
            await app.submit("buy", BUY, xid=xid)
    shop.sql("store", f"SELECT mip.forget('{xid}')")


async def test_a_site_that_cannot_say_whether_it_has_it(server: Server, shop: Shop) -> None:
    xid = new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), wait_for_commit=False, deadline=1.0, step_timeout=0.3)
        prepare_at(shop, xid, "store", "bank")
        shop.sql("store", f"SELECT mip.commit('{xid}', 1)")
        bank.down()
        with pytest.raises(Decided):
            await app.submit("buy", BUY, xid=xid)
        bank.heal()
        assert await server().submit("buy", BUY, xid=xid) == "of 1"


async def test_a_session_sees_what_it_has_done(server: Server, shop: Shop, commits: Gate) -> None:
    app = server(wait_for_commit=False)
    seen: list[int] = []

    @app.transaction(sites=("store", "bank"))
    async def look(tx: Tx, request: Any) -> None:
        row = await tx.store.fetch_one("SELECT count(*) FROM orders")
        await tx.bank.execute("SELECT")
        seen.append(row.count)

    await app.submit("buy", BUY, session="me")
    mine = asyncio.create_task(app.submit("look", None, session="me"))
    assert await is_held_up(mine)
    await app.submit("look", None, session="you")
    await app.submit("look", None)
    assert seen == [0, 0]
    commits.open.set()
    await mine
    assert seen == [0, 0, 1]
    await app.close()
    assert list(app._sessions.of("me")) == list(app._sessions.of("you")) == []


async def test_a_session_whose_commit_has_failed(server: Server, shop: Shop) -> None:
    """Its next request has that committed first; while it cannot be, the caller is told, and nothing is done."""
    xid, further = new_xid(), new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), wait_for_commit=False, deadline=1.0, step_timeout=0.3)
        bank.forbidden = (b"mip.commit",)
        result = await app.submit("buy", BUY, xid=xid, session="me")
        await until(lambda: in_doubt(shop) == [0, 1])
        with pytest.raises(Unknown, match=f"an earlier request of this session, {xid}, is not committed") as unknown:
            await app.submit("buy", BUY, xid=further, session="me")
        assert unknown.value.xid == further
        shop.assert_never(further)
        bank.forbidden = ()
        await app.submit("buy", BUY, xid=further, session="me", wait_for_commit=True)
        shop.assert_once(xid, result)
    shop.assert_clean()


def looking(app: App) -> list[tuple[int, int]]:
    """What its transaction `look` has seen of a request."""
    seen: list[tuple[int, int]] = []

    @app.transaction(sites=("store", "bank"))
    async def look(tx: Tx, xid: str) -> None:
        orders = await tx.store.fetch_one("SELECT count(*) FROM orders WHERE xid = %s", (xid,))
        payments = await tx.bank.fetch_one("SELECT count(*) FROM payment WHERE xid = %s", (xid,))
        seen.append((orders.count, payments.count))

    return seen


async def test_one_request_twice_in_a_session(server: Server, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit fails while the second one is under way: it is late all the same."""
    app, xid = server(wait_for_commit=False, deadline=6), new_xid()
    seen, commit, commits = looking(app), Asking.commit, 0
    first, second, running = Gate(), Gate(), Gate()

    async def held(asking: Asking, site: str, *args: Any) -> Any:
        nonlocal commits
        if asking.phase.xid == xid and site == "bank":
            commits += 1
            if commits == 1:
                await first()
            elif commits == 2:
                await second()
            if commits == 1 or not second.open.is_set():
                raise psycopg.OperationalError("lost")
        return await commit(asking, site, *args)

    monkeypatch.setattr(Asking, "commit", held)
    monkeypatch.setattr(_family, "_COMMIT_TRIES", 1)

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> Any:
        if not running.reached.is_set():
            await running()
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    a = asyncio.create_task(app.submit("note", None, xid=xid, session="me"))
    await running.reached.wait()
    result = await app.submit("note", None, xid=xid, session="me")
    await first.reached.wait()
    c = asyncio.create_task(app.submit("look", xid, session="me"))
    assert await is_held_up(c)
    running.open.set()
    assert await a == result
    await second.reached.wait()
    first.open.set()
    with pytest.raises(Unknown):
        await c
    assert seen == []
    second.open.set()


async def test_a_session_is_told_decided(server: Server, shop: Shop) -> None:
    """Not everywhere committed: its next request has to see that, too."""
    xid = new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), deadline=1.0, step_timeout=0.3)
        seen = looking(app)
        bank.forbidden = (b"mip.commit",)
        with pytest.raises(Decided):
            await app.submit("buy", BUY, xid=xid, session="me")
        bank.forbidden = ()
        await app.submit("look", xid, session="me")
    assert seen == [(1, 1)]


async def test_where_there_are_too_many_sessions(server: Server, commits: Gate) -> None:
    app = server(wait_for_commit=False)
    app._sessions = Sessions(1)
    looking(app)
    await app.submit("look", "", session="me")
    others = asyncio.create_task(app.submit("look", "", session="you"))
    assert await is_held_up(others)
    await app.submit("look", "")
    commits.open.set()
    await others


async def test_what_has_expired_is_not_late(server: Server, shop: Shop) -> None:
    xid = new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), wait_for_commit=False, deadline=1.0, step_timeout=0.3)
        seen = looking(app)
        bank.forbidden = (b"mip.commit",)
        await app.submit("buy", BUY, xid=xid, session="me")
        await until(lambda: not app._running._tasks)
        bank.forbidden = ()
        await server().acknowledge(xid)
        for site in shop.clusters:
            with psycopg.connect(shop.conninfos()[site], autocommit=True) as conn:
                conn.execute("SELECT set_config('mip.debug_clock_offset', '40d', false)")
                while conn.execute("SELECT mip.expire()").fetchall() != [(0,)]:
                    pass
        await app.submit("look", xid, session="me")
    assert seen == [(1, 1)]


@pytest.mark.parametrize("when", ["committed-first-site", "committed-all"])
async def test_a_hook_that_fails_holds_nobody_up(server: Server, shop: Shop, when: str) -> None:
    app, xid = server(wait_for_commit=False), new_xid()
    seen = looking(app)

    def fail(step: Step) -> None:
        if step.name == when and step.xid == xid:
            raise ArithmeticError("a bug")

    app.on_step(fail)
    await app.submit("buy", BUY, xid=xid, session="me")
    await until(lambda: in_doubt(shop) == [0, 0])
    await app.submit("look", xid, session="me")
    assert seen == [(1, 1)]


async def test_a_hook_that_submits(server: Server) -> None:
    app, told = server(wait_for_commit=False), list[Any]()
    seen = looking(app)

    async def hook(step: Step) -> None:
        if step.name == "committed-all" and not told:
            told.append("begun")
            told.append(await app.submit("look", step.xid, session="me"))

    app.on_step(hook)
    await app.submit("buy", BUY, session="me")
    await until(lambda: len(told) == 2)
    assert seen == [(1, 1)]


async def test_catching_up_keeps_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    app, commit, lost = server(wait_for_commit=False), Asking.commit, True
    looking(app)

    @app.transaction(sites=("store", "bank"))
    async def note(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute(PAYMENT, (tx.xid, tx.xinst))
        await asyncio.sleep(0.3)  # so that none is late when another one begins

    async def slow(asking: Asking, *args: Any) -> Any:
        if lost:
            raise psycopg.OperationalError("lost")
        await asyncio.sleep(1.0)
        return await commit(asking, *args)

    monkeypatch.setattr(Asking, "commit", slow)
    monkeypatch.setattr(_family, "_COMMIT_TRIES", 1)
    await asyncio.gather(*[app.submit("note", None, session="me") for _ in range(8)])
    await until(lambda: not app._running._tasks)
    lost = False
    with pytest.raises(Unknown):
        async with asyncio.timeout(1.0 + 2.5):
            await app.submit("look", None, session="me", deadline=1.0)


async def test_a_retransmission_is_told_what_was(server: Server, shop: Shop) -> None:
    xid = new_xid()
    async with Proxy(shop.clusters["bank"].port) as bank:
        app = server(shop.conninfos(bank=bank.port), wait_for_commit=False, deadline=1.0, step_timeout=0.3)
        bank.forbidden = (b"mip.commit",)
        result = await app.submit("buy", BUY, xid=xid, session="me")
        await until(lambda: in_doubt(shop) == [0, 1])
        assert await app.submit("buy", BUY, xid=xid, session="me") == result
        assert await app.submit("buy", BUY, xid=xid, session="you") == result


async def test_closing_waits_for_it(server: Server, shop: Shop, commits: Gate) -> None:
    app, xid = server(wait_for_commit=False), new_xid()
    result = await app.submit("buy", BUY, xid=xid)
    closing = asyncio.create_task(app.close())
    assert await is_held_up(closing)
    commits.open.set()
    await closing
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_who_dies_leaves_it_to_others(server: Server, shop: Shop, commits: Gate) -> None:
    app, xid = server(wait_for_commit=False), new_xid()
    result = await app.submit("buy", BUY, xid=xid)
    await app.close(grace=0)
    assert in_doubt(shop) == [1, 1]
    commits.open.set()
    assert await server().submit("buy", BUY, xid=xid) == result
    shop.assert_once(xid, result)
    shop.assert_clean()


async def test_what_fails_then_is_not_told(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    app, xid = server(wait_for_commit=False), new_xid()

    async def fail(step: Any) -> None:
        if step.name == "committed-all":
            raise ArithmeticError("a bug")

    app.on_step(fail)
    result = await app.submit("buy", BUY, xid=xid)
    await until(lambda: "submit buy: unknown" in caplog.text)
    await app.close()
    shop.assert_once(xid, result)
    assert "never retrieved" not in caplog.text
    assert not recwarn


async def test_what_is_no_exception_is_told_to_the_loop(server: Server, shop: Shop) -> None:
    app, xid, told = server(wait_for_commit=False), new_xid(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    class Fatal(BaseException):
        pass

    def fail(step: Step) -> None:
        if step.name == "committed-all":
            raise Fatal

    app.on_step(fail)
    result = await app.submit("buy", BUY, xid=xid)
    await until(lambda: not app._running._tasks)
    await until(lambda: [type(error) for error in told] == [Fatal])
    shop.assert_once(xid, result)


async def test_a_caller_who_goes_away(server: Server, shop: Shop, commits: Gate) -> None:
    """Before the answer his request is cancelled, as ever; afterwards there is nothing to cancel."""
    app, xid, gate = server(wait_for_commit=False), new_xid(), Gate()

    @app.transaction(sites=("store", "bank"))
    async def slow(tx: Tx, request: Any) -> None:
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await gate()

    task = asyncio.create_task(app.submit("slow", None, xid=xid))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shop.assert_clean()
    task = asyncio.create_task(app.submit("buy", BUY, xid=(bought := new_xid())))
    result = await task
    assert not task.cancel()
    commits.open.set()
    await app.close()
    shop.assert_once(bought, result)


async def test_tasks_of_a_handler_go_on_when_it_is_answered(server: Server, shop: Shop, commits: Gate) -> None:
    """As those of one that has ended: no attempt comes again."""
    app, answered = server(wait_for_commit=False), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    @app.transaction(sites=("store", "bank"))
    async def spawn(tx: Tx, request: Any) -> None:
        async def further() -> Any:
            await answered.wait()
            return await app.submit("buy", BUY)

        await tx.store.execute("SELECT")
        await tx.bank.execute("SELECT")
        tasks.append(asyncio.create_task(further()))

    await app.submit("spawn", None)
    answered.set()
    assert (await tasks[0])["order"]
    commits.open.set()


def test_sync(shop: Shop) -> None:
    with sync.App(shop.conninfos(), wait_for_commit=False) as app:

        @app.transaction(sites=("store", "bank"))
        def note(tx: sync.Tx, request: Any) -> Any:
            tx.store.execute(ORDER, (tx.xid, tx.xinst))
            tx.bank.execute("SELECT")
            return tx.store.fetch_one("SELECT count(*) FROM orders").count

        assert [app.submit("note", None, session=7) for _ in range(20)] == list(range(1, 21))
    shop.assert_clean()


async def test_http_sessions_are_identities(shop: Shop, commits: Gate) -> None:
    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        tx = scope["pgmip.tx"]
        await tx.store.execute(ORDER, (tx.xid, tx.xinst))
        await tx.bank.execute("SELECT")
        count = (await tx.store.fetch_one("SELECT count(*) FROM orders")).count
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(count).encode()})

    async with App(shop.conninfos(), wait_for_commit=False) as app:
        asgi: Any = IdempotencyMiddleware(
            endpoint, app, [Endpoint("/orders", ("store", "bank"))],
            scope=lambda scope: dict(scope["headers"]).get(b"user", b"").decode(),
        )  # fmt: skip

        async def post(user: str) -> str:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://test") as client:
                headers = {"idempotency-key": f'"{new_xid()}"', "user": user}
                return (await client.post("/orders", headers=headers)).text

        assert await post("me") == "1"
        again = asyncio.create_task(post("me"))
        assert await is_held_up(again)
        assert await post("") == await post("") == await post("you") == "1"
        commits.open.set()
        assert int(await again) >= 2


async def test_a_session_is_hashable(server: Server) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        await server().submit("buy", BUY, session=["me"])
