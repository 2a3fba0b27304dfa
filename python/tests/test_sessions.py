"""What a session has been answered is there for its next request, and is in nobody's way otherwise."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from shop import BUY, ORDER, PAYMENT, Shop
from test_early_answers import is_held_up, looking
from test_sweeper import in_doubt
from test_timeless import expire
from test_told import Gate, until

from pgmip import App, Decided, EarlierLost, Resolution, Step, Tx, Unknown, _family
from pgmip._asking import Asking
from pgmip._sessions import Late, Sessions
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

Server = Callable[..., App]


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The sites where no commit gets through."""
    sites, commit = set[str](), Asking.commit

    async def losing(asking: Asking, site: str, *args: Any) -> Any:
        if site in sites:
            raise psycopg.OperationalError("lost")
        return await commit(asking, site, *args)

    monkeypatch.setattr(Asking, "commit", losing)
    monkeypatch.setattr(_family, "_COMMIT_TRIES", 1)
    return sites


def noting(app: App, *sites: str, name: str = "note") -> list[tuple[int, int]]:
    """Gives it a transaction that leaves something at these sites; and what its transaction `look` has seen of one."""

    @app.transaction(sites=sites, name=name)
    async def note(tx: Tx, request: Any) -> Any:
        for site in sites:
            await tx[site].execute(ORDER if site == "store" else PAYMENT, (tx.xid, tx.xinst))
        return {"xinst": tx.xinst}

    return looking(app)


async def leave(app: App, xid: str, session: str) -> Any:
    """Submit what is not committed everywhere, as some sites are lost."""
    result = await app.submit("note", None, xid=xid, session=session, wait_for_commit=False)
    await until(lambda: not app._running._tasks)
    return result


async def test_decided_over_other_sites(server: Server, lost: set[str]) -> None:
    """The transaction has others now, under its name."""
    old, new, xid = server(), server(), new_xid()
    noting(old, "store", "bank")
    seen = noting(new, "store")
    lost.add("bank")
    with pytest.raises(Decided):
        await old.submit("note", None, xid=xid)
    with pytest.raises(Decided):
        await new.submit("note", None, xid=xid, session="me")
    lost.clear()
    for _ in range(2):
        await new.submit("look", xid, session="me")
    assert seen == [(1, 1)] * 2


async def test_what_a_site_has_lost_is_told_once(server: Server, shop: Shop, lost: set[str]) -> None:
    """Then it is an operator's, and the session goes on."""
    app, xid = server(), new_xid()
    seen = noting(app, "store", "bank")
    lost.add("bank")
    result = await leave(app, xid, "me")
    lost.clear()
    shop.sql("bank", f"SELECT mip.rollback('{xid}', {result['xinst']})")
    with pytest.raises(EarlierLost, match=f"an earlier request of this session, {xid}, is not committed at bank"):
        await app.submit("look", xid, session="me")
    assert seen == []
    await app.submit("look", xid, session="me")
    assert seen == [(1, 0)]
    shop.sql("store", f"SELECT mip.forget('{xid}')")


async def test_all_that_is_lost_is_told(server: Server, shop: Shop, lost: set[str]) -> None:
    """Of several that had been answered; of none of them again."""
    app, xids = server(), [new_xid() for _ in range(3)]
    seen = noting(app, "store", "bank")
    lost.add("bank")
    answers = await asyncio.gather(
        *(app.submit("note", None, xid=xid, session="me", wait_for_commit=False) for xid in xids)
    )
    await until(lambda: not app._running._tasks)
    lost.clear()
    for xid, answer in zip(xids, answers, strict=True):
        shop.sql("bank", f"SELECT mip.rollback('{xid}', {answer['xinst']})")
    await app._tidy()
    with pytest.raises(EarlierLost) as raised:
        await app.submit("look", xids[0], session="me")
    for xid in xids:
        assert f"an earlier request of this session, {xid}, is not committed at bank: the site has lost it" in str(
            raised.value
        )
    await app.submit("look", xids[0], session="me")
    assert seen == [(1, 0)]
    for xid in xids:
        shop.sql("store", f"SELECT mip.forget('{xid}')")


@pytest.mark.parametrize(
    ("where", "again"), [(("bank",), True), (("store", "bank"), False), (("store", "bank"), True)]
)
async def test_what_is_lost_before_any_commit_is_told_once(
    server: Server, shop: Shop, lost: set[str], where: tuple[str, ...], again: bool
) -> None:
    """Though no site has it in doubt any more, as if it were over: another instance may be the committed one."""
    app, other, xid = server(), server(), new_xid()
    seen = noting(app, "store", "bank")
    noting(other, "store", "bank")
    lost.update(("store", "bank"))
    told = await leave(app, xid, "me")
    lost.clear()
    for site in where:
        shop.sql(site, f"SELECT mip.rollback('{xid}', {told['xinst']})")
    if again:
        assert await other.submit("note", None, xid=xid) != told
    with pytest.raises(EarlierLost, match=f"an earlier request of this session, {xid}, is not committed"):
        await app.submit("look", xid, session="me")
    await app.submit("look", xid, session="me")
    assert seen == [(1, 1) if again else (0, 0)]
    assert not app._sessions.of("me")


@pytest.mark.parametrize("by", ["bank", "both", "both, and reused"])
async def test_what_is_forgotten_without_a_time(server: Server, shop: Shop, lost: set[str], by: str) -> None:
    """What a site still shows to be over, is; what no site shows may as well be lost."""
    app, xid = server(), f"forgotten by {by}"
    seen = noting(app, "store", "bank")
    lost.add("bank")
    await leave(app, xid, "me")
    lost.clear()
    await server().acknowledge(xid)
    for site in shop.clusters if by != "bank" else ("bank",):
        expire(shop, site, 40)
    if by == "both, and reused":
        await server().submit("restock", BUY, xid=xid)
    if by != "bank":
        with pytest.raises(EarlierLost, match="is not committed at bank"):
            await app.submit("look", xid, session="me")
    await app.submit("look", xid, session="me")
    assert seen == [(1 + (by == "both, and reused"), 1)]
    assert not app._sessions.of("me")


async def test_other_sites_are_not_waited_for(server: Server, shop: Shop, lost: set[str]) -> None:
    app, xid = server(), new_xid()
    noting(app, "store", "bank")
    lost.update(("store", "bank"))
    await leave(app, xid, "me")
    lost.remove("store")
    await app.submit("restock", BUY, session="me")
    assert in_doubt(shop) == [0, 1]
    with pytest.raises(Unknown, match="is not committed at bank") as caught:
        await app.submit("look", xid, session="me")
    assert type(caught.value) is Unknown
    lost.clear()
    await app.submit("look", xid, session="me")
    assert not app._sessions.of("me")


async def test_what_is_decided_already_waits_for_nothing(server: Server, lost: set[str]) -> None:
    app, xid = server(), new_xid()
    noting(app, "store", "bank")
    result = await app.submit("note", None, xid=xid, session="me")
    lost.add("bank")
    await leave(app, new_xid(), "me")
    for early in (False, True):
        assert await app.submit("note", None, xid=xid, session="me", wait_for_commit=not early) == result


async def test_room_is_made(server: Server, shop: Shop, lost: set[str]) -> None:
    """Of what somebody else has committed meanwhile, of what can be committed now, and of what is lost, which its
    session is told all the same.
    """
    app, gone, settled = server(), new_xid(), new_xid()
    noting(app, "store", "bank")
    app._sessions = Sessions(3)
    lost.add("bank")
    results = {xid: await leave(app, xid, f"left {xid}") for xid in (gone, settled, new_xid())}
    lost.clear()
    shop.sql("bank", f"SELECT mip.rollback('{gone}', {results[gone]['xinst']})")
    await server().resolve(settled)
    await app.submit("note", None, session="you", wait_for_commit=False)
    await until(lambda: not app._running._tasks)
    assert app._sessions.left_behind() == []
    lost.add("bank")
    for number in range(3):
        await leave(app, new_xid(), f"you {number}")
        assert app._sessions.of(f"you {number}")
    lost.clear()
    with pytest.raises(Unknown, match=f"{gone}, is not committed at bank: the site has lost it"):
        await app.submit("look", gone, session=f"left {gone}")
    await app.submit("look", gone, session=f"left {gone}")
    shop.sql("store", f"SELECT mip.forget('{gone}')")


def test_room_for_what_is_lost() -> None:
    """Only those of late are told, and at the sites where it is lost."""
    sessions = Sessions(4)
    for number in range(3):
        late = Late(f"xid {number}", 1, ("store", "bank"), ("store", "bank"))
        assert sessions.add(number, late)
        sessions.lose(number, late, "bank")
        assert [one.left.keys() for one in sessions.of(number)] == [{"store"}]
        sessions.lose(number, late, "store")
    assert [sessions.has_lost(number, ("bank",)) for number in range(4)] == [False, True, True, False]
    assert sessions.tell(1, ("bank",)) == [("xid 1", "bank")]
    assert sessions.tell(1, ("bank",)) == []
    assert sessions.has_lost(1, ("store",))
    assert sessions.tell(2, ("store", "bank")) == [("xid 2", "bank"), ("xid 2", "store")]
    assert not sessions.has_lost(2, ("store", "bank"))
    assert [sessions.tell(number, ("store", "bank")) for number in (1, 3)] == [[("xid 1", "store")], []]


def test_room_for_what_one_session_has_lost() -> None:
    sessions = Sessions(3)
    for number in (0, 1, 1, 2, 3):
        late = Late(f"xid {number}", 1, ("bank",), ("bank",))
        assert sessions.add("me", late)
        sessions.lose("me", late, "bank")
    assert sessions.tell("me", ("bank",)) == [(f"xid {number}", "bank") for number in (1, 2, 3)]
    assert not sessions.has_lost("me", ("bank",))


def test_a_request_that_is_late_twice() -> None:
    """The end of what it was is not that of what it is now."""
    sessions = Sessions(2)
    before, now = (Late("xid", xinst, ("bank",), ("bank",)) for xinst in (1, 2))
    for late in (before, now):
        assert sessions.add("me", late)
    sessions.lose("me", before, "bank")
    assert sessions.of("me") == (now,)
    sessions.done("me", now, "bank")
    assert (sessions.of("me"), sessions._count) == ((), 0)


async def test_decided_is_unknown_where_there_is_no_room(server: Server, lost: set[str]) -> None:
    app, xid = server(), new_xid()
    noting(app, "store", "bank")
    app._sessions = Sessions(1)
    lost.add("bank")
    await leave(app, new_xid(), "me")
    with pytest.raises(Unknown, match="no room"):
        await app.submit("note", None, xid=xid, session="you")
    with pytest.raises(Decided) as decided:
        await app.submit("note", None, xid=xid)
    lost.clear()
    assert await app.submit("note", None, xid=xid, session="you") == decided.value.result


async def test_making_room_ends_with_the_app(server: Server, lost: set[str]) -> None:
    app, gate = server(), Gate()
    noting(app, "store", "bank")
    app._sessions = Sessions(1)
    lost.add("bank")
    await leave(app, new_xid(), "me")
    app._finish_late = gate  # type: ignore[method-assign, assignment]
    with pytest.raises(Unknown, match="no room"):
        await app.submit("note", None, session="you")
    await gate.reached.wait()
    async with asyncio.timeout(1):
        await app.close()


async def test_what_is_late_keeps_nothing_else(server: Server, lost: set[str]) -> None:
    """A task would keep its exception, and so all that it has had."""
    app = server()
    noting(app, "store", "bank")
    lost.add("bank")
    await leave(app, new_xid(), "me")
    (late,) = app._sessions.of("me")
    waiting, known = [late], list[Any]()
    while waiting:
        known.append(one := waiting.pop())
        waiting += [it for it in gc.get_referents(one) if not isinstance(it, type) and it not in known]
    assert len(known) < 30


@pytest.mark.parametrize("when", ["committed-first-site", "committed-all"])
async def test_a_slow_hook_holds_nobody_up(server: Server, when: str) -> None:
    app, xid, gate = server(), new_xid(), Gate()
    seen = noting(app, "store", "bank")

    async def hook(step: Step) -> None:
        if step.name == when and step.xid == xid:
            await gate()

    app.on_step(hook)
    await app.submit("note", None, xid=xid, session="me", wait_for_commit=False)
    await gate.reached.wait()
    assert not await is_held_up(asyncio.create_task(app.submit("look", xid, session="me")))
    gate.open.set()
    assert seen == [(1, 1)]


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_hook_between_the_commits_submits(server: Server, parallel: bool) -> None:
    """What is committed behind it, one after the other, it commits itself."""
    app, told = server(wait_for_commit=False, parallel=parallel), list[Any]()
    seen = noting(app, "store", "bank")

    async def hook(step: Step) -> None:
        if step.name == "committed-first-site" and not told:
            told.append("begun")
            told.append(await app.submit("look", step.xid, session="me", deadline=1))

    app.on_step(hook)
    await app.submit("note", None, session="me")
    await until(lambda: not app._running._tasks)
    assert seen == [(1, 1)]
    assert told == ["begun", None]


async def test_a_late_request_is_settled_by_others(server: Server, shop: Shop, lost: set[str]) -> None:
    app, xid = server(), new_xid()
    seen = noting(app, "store", "bank")
    lost.add("bank")
    result = await leave(app, xid, "me")
    lost.clear()
    assert await server().resolve(xid) == Resolution(False, result)
    await app.submit("look", xid, session="me")
    assert seen == [(1, 1)]
    shop.assert_clean()
