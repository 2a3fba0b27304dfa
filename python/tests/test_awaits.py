"""Every await of the library fails in turn, before it does anything and after it has: what the caller is told is true,
nothing is left that `settle` does not end, and no connection is lost or goes back in a bad state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from awaits import ERRORS, CallerCancelled, Fatal, Moment, Strike, injector
from awaits_scenarios import SCENARIOS, Scenario, World, broken, make_broken_app, pools_of, until
from shop import SCHEMA, Shop, make_app

from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

MOMENTS: tuple[Moment, ...] = ("before", "after")
PATIENCE = 20  # seconds, for what happens soon or never


# What runs in the caller's own task: what is thrown there is thrown at him, not at the library.
THE_CALLERS = (
    "_call.py:_call_off", "_call.py:_wait", "_call.py:run", "client.py:submit",
    "app.py:submit", "app.py:_answer", "app.py:_answer_behind",
    "app.py:settle", "app.py:resolve", "app.py:acknowledge", "_running.py:run",
)  # fmt: skip
# What runs in workers of psycopg_pool. Nor does that catch what nobody has any business to catch: the worker ends with
# it, and so does the place of the connection that it makes.
IN_WORKERS = ("_connection.py:connect", "_connection.py:connected")


@pytest.fixture
async def world(shop: Shop, waited_for: list[int], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        sessions = {}
        for site, conninfo in shop.conninfos().items():
            sessions[site] = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
            stack.push_async_callback(sessions[site].close)
        healer = await stack.enter_async_context(make_app(shop.conninfos()))
        world = World(shop, sessions, healer, None, waited_for)
        listen(world, monkeypatch, stack)
        monkeypatch.setattr(broken._family, "_FIRST_TURN", 0.3)
        monkeypatch.setattr(broken._acknowledger, "_LAZINESS", 0.02)
        gc.freeze()  # so that it is quick, as often as it is done
        stack.callback(gc.unfreeze)
        yield world


def listen(world: World, monkeypatch: pytest.MonkeyPatch, stack: AsyncExitStack) -> None:
    """Take down what is said of errors that reach nobody."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            world.noise.append((record.getMessage(), record.exc_info[1] if record.exc_info else None))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: world.noise.append((repr(context), context.get("exception"))))
    monkeypatch.setattr(sys, "unraisablehook", lambda it: world.noise.append((f"{it.object!r}: {it}", it.exc_value)))
    monkeypatch.setattr(logging.getLogger("asyncio"), "handlers", [Ear(logging.WARNING)])
    for name in ("psycopg", "pgmip"):  # which speak of every connection that is closed, and of every failure
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)


# -- what has to be true -------------------------------------------------------------------------------------------


async def check_outcome(world: World, xid: str, outcome: Any, transaction: str = "buy") -> None:
    """That the caller was told the truth, whatever comes later."""
    first = await world.effects(xid)
    await asyncio.wait_for(world.healer.settle(xid), PATIENCE)
    for site in SCHEMA:
        left = await world.rows(site, "SELECT xinst FROM mip.in_doubt WHERE xid = %s", xid)
        assert left == [], f"settle has left something in doubt at {site}"
        assert await world.rows(site, "SELECT gid FROM pg_prepared_xacts") == []
    orders, payments = await world.effects(xid)
    assert len(orders) < 2, "twice"
    if transaction == "buy":
        assert orders == payments, "by halves"
    if isinstance(outcome, broken.Decided):
        outcome = outcome.result
    if isinstance(outcome, broken.NothingHappened):
        assert (orders, payments) == ([], []), f"{outcome!r} was a lie"
    elif isinstance(outcome, dict) and "xinst" in outcome:
        assert orders == [outcome["xinst"]], f"{outcome!r} was a lie; before settle: {first}"


def check_kind(xids: set[str], outcome: Any, error: BaseException, name: str) -> None:
    """That the caller was told in a way that he knows of."""
    if isinstance(outcome, broken.SubmitError):
        assert outcome.xid in xids
        return
    if not isinstance(outcome, BaseException):
        return
    at_the_caller = isinstance(error, CallerCancelled) or (outcome is error and name in callers_awaits())
    assert at_the_caller or isinstance(outcome, Fatal), f"undocumented: {outcome!r}"


def callers_awaits() -> set[str]:
    return {name for name in injector.names if injector.functions[name] in THE_CALLERS}


async def check_app(world: World, before: set[asyncio.Task[Any]]) -> None:
    """That the app is as good as ever: nothing runs, nothing is open, and all connections are where they belong."""

    async def running() -> list[str]:
        tasks = asyncio.all_tasks() - before - {asyncio.current_task()}
        return [repr(task) for task in tasks if _is_ours(task)]

    async def lost() -> list[str]:
        return [
            f"{pool.name}: {stats}"
            for site in world.app._pools.values()
            for pool in pools_of(site)
            if not pool.closed
            and ((stats := pool.get_stats())["pool_available"] != stats["pool_size"] or stats["requests_waiting"])
        ]

    async def open_transactions() -> list[Any]:
        sql = """
            SELECT state, query FROM pg_stat_activity
            WHERE application_name = 'broken' AND (xact_start IS NOT NULL OR state LIKE 'idle in%%')
        """
        return [row for site in SCHEMA for row in await world.rows(site, sql)]

    await until(running, "still running")
    await until(lost, "connections are not back")
    await until(open_transactions, "transactions are open")
    for site in world.app._pools.values():
        for pool in pools_of(site):
            bad = [conn for conn in pool._pool if not broken._connection.is_usable(conn)]
            assert all(conn.closed for conn in bad), f"went back in a bad state: {bad}"
    waited_for = [*world.waited_for]
    world.waited_for.clear()
    assert waited_for == [], "closed while somebody waited for it"


def check_noise(world: World, told: bool) -> None:
    """That everything has been closed, and that every error has reached somebody: but for what nobody has any business
    to catch, and, where nobody is told, for what has been thrown.
    """
    gc.collect()  # asyncio speaks of a task when it goes
    noise = [what for what, of in world.noise if not (isinstance(of, Fatal) or (not told and str(of) == "injected"))]
    world.noise.clear()
    assert not noise, noise


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and "/pgmip/" in code.co_filename


struck: set[str] = set()
ended: set[str] = set()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_await(world: World, name: str) -> None:
    scenario = SCENARIOS[name]
    await renew_app(world, scenario)
    await run(world, scenario, new_xid())
    with injector.armed(None, None):
        await run(world, scenario, new_xid())
        ran = {await_: times for await_, times in injector.ran.items() if not (scenario.rest and await_ in struck)}
    failures: list[str] = []
    for strike, error in thrown_at(ran):
        try:
            await fail_at(world, scenario, strike, error)
        except AssertionError as failure:
            failures.append(f"{strike}, {error!r}: {failure}")
            await renew_app(world, scenario)
    await world.app.close()
    ended.add(name)
    if failures:
        pytest.fail("\n".join(failures))


def thrown_at(ran: Mapping[str, int]) -> Iterator[tuple[Strike, BaseException]]:
    """Where to strike what has run so often, and with which error."""
    for await_, times in ran.items():
        cleans = await_ in injector.cleaning
        if cleans and await_.endswith(" enter"):
            continue
        for number in range(1, times + 1):
            for moment in MOMENTS[cleans:]:
                strike = Strike(await_, number, moment)
                for error in errors_for(strike):
                    yield strike, error


def errors_for(strike: Strike) -> list[BaseException]:
    """One of them, another one each time; all of them where that is asked for."""
    errors = [make() for make in ERRORS]
    if injector.functions[strike.name] in IN_WORKERS:
        errors = [error for error in errors if not isinstance(error, Fatal)]
    if os.environ.get("AWAITS"):
        return errors if strike.name.startswith(os.environ["AWAITS"]) else []
    return [errors[zlib.crc32(repr(strike).encode()) % len(errors)]]


async def renew_app(world: World, scenario: Scenario) -> None:
    if world.app is not None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(world.app.close(grace=0), PATIENCE)
    world.app = make_broken_app(world, **scenario.parameters)
    world.noise.clear()


async def run(world: World, scenario: Scenario, xid: str) -> None:
    if scenario.fresh:
        await renew_app(world, scenario)
    if scenario.setup is not None:
        await scenario.setup(world, xid)
    with contextlib.suppress(broken.SubmitError):
        await scenario.act(world, xid)
    await world.healer.settle(scenario.known_as(xid))


async def fail_at(world: World, scenario: Scenario, strike: Strike, error: BaseException) -> None:
    xid = new_xid()
    if scenario.fresh:
        await renew_app(world, scenario)
    if scenario.setup is not None:
        await scenario.setup(world, xid)
    before = asyncio.all_tasks()
    outcome = await outcome_of(scenario.act(world, xid), strike, error)
    try:
        await check_app(world, before)
        check_noise(world, scenario.told)
        if scenario.told:
            check_kind({xid, scenario.known_as(xid)}, outcome, error, strike.name)
    finally:
        await check_outcome(world, scenario.known_as(xid), outcome, scenario.transaction)


async def outcome_of(act: Coroutine[Any, Any, Any], strike: Strike, error: BaseException) -> Any:
    """What a caller is told, be it an exception, who is struck so."""
    caller = asyncio.create_task(act)
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        if threading.current_thread() is threading.main_thread():
            caller.cancel()
        else:  # a twin's
            loop.call_soon_threadsafe(caller.cancel)

    with injector.armed(strike, error, cancel if isinstance(error, CallerCancelled) else None):
        await asyncio.wait({caller}, timeout=PATIENCE)
        if not caller.done():
            caller.cancel()
            raise AssertionError("hangs")
        if injector.struck:
            struck.add(strike.name)
    if caller.cancelled():
        return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
    return caller.exception() or caller.result()


def test_no_await_is_left_out() -> None:
    """Whoever adds one adds a scenario, too."""
    if ended != set(SCENARIOS) or os.environ.get("AWAITS"):
        pytest.skip("not all of the others have run")
    left = injector.names - injector.cleaning - struck
    assert {name: injector.functions[name] for name in left} == {}
