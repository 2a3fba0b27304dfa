"""Limits that cannot be are refused when they are said, before anything begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from shop import BUY, Shop, make_app

import pgmip
from pgmip import App, sync
from pgmip.sweeper import Sweeper

SITES = {"store": "", "bank": ""}
WRONG_TYPE: list[dict[str, Any]] = [
    *({name: value} for name in ("deadline", "step_timeout", "pool_max_idle") for value in ("3", None, True, 1j)),
    *({name: value} for name in ("attempts", "pool_size", "pool_min_size") for value in ("3", None, True, 1.5)),
]
WRONG_VALUE: list[dict[str, Any]] = [
    *({name: value} for name in ("deadline", "step_timeout", "pool_max_idle") for value in (math.nan, -1, 10**400)),
    {"attempts": 0}, {"attempts": -1}, {"pool_size": 0}, {"pool_min_size": -1}, {"step_timeout": 0},
]  # fmt: skip
WRONG: list[tuple[type[Exception], dict[str, Any]]] = [
    *((TypeError, options) for options in WRONG_TYPE),
    *((ValueError, options) for options in WRONG_VALUE),
]


@pytest.mark.parametrize(("error", "options"), WRONG, ids=str)
@pytest.mark.parametrize("kind", [App, sync.App])
def test_of_an_app(kind: Callable[..., Any], error: type[Exception], options: dict[str, Any]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        kind(SITES, **options)


def test_times_are_floats() -> None:
    """Whoever adds one of numpy's, of four bytes, to a clock gets no more digits than that has."""
    app = App(SITES, deadline=Fraction(3, 2), step_timeout=Fraction(1, 2))  # type: ignore[arg-type]
    assert [(type(value), value) for value in (app.deadline, app.step_timeout)] == [(float, 1.5), (float, 0.5)]


@pytest.mark.parametrize("threads", ["3", 1.5, 0])
def test_of_threads(threads: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="threads"):
        sync.App(SITES, threads=threads)


@pytest.mark.integration
async def test_of_a_call(shop: Shop) -> None:
    app = make_app(shop.conninfos())
    begun: list[str] = []
    app.on_step(lambda step: begun.append(step.name))
    for value, error in (("3", TypeError), (True, TypeError), (math.nan, ValueError), (10**400, ValueError)):
        with pytest.raises(error, match="deadline"):
            await app.submit("buy", BUY, deadline=value)  # type: ignore[arg-type]
        with pytest.raises(error, match="deadline"):
            await app.settle("x", deadline=value)  # type: ignore[arg-type]
        with pytest.raises(error, match="grace"):
            await app.close(grace=value)  # type: ignore[arg-type]
    for attempts, error in (("3", TypeError), (1.5, TypeError), (0, ValueError)):
        with pytest.raises(error, match="attempts"):
            await app.submit("buy", BUY, attempts=attempts)  # type: ignore[arg-type]
    assert begun == []
    await app.submit("buy", BUY, deadline=Fraction(9, 2))  # type: ignore[arg-type]  # nor has it been closed
    await app.close()


@pytest.mark.parametrize("name", ["deadline", "timeout", "connect_timeout", "hedge_after"])
@pytest.mark.parametrize("kind", [pgmip.Client, pgmip.SyncClient])
def test_of_a_client(kind: Callable[..., Any], name: str) -> None:
    for value, error in (("3", TypeError), (True, TypeError), (math.nan, ValueError), (10**400, ValueError)):
        with pytest.raises(error, match=name):
            kind(["http://127.0.0.1:9"], **{name: value})


@pytest.mark.parametrize("deadline", ["3", math.nan, 0, 10**400])
async def test_of_a_client_call(deadline: Any) -> None:
    async with pgmip.Client(["http://127.0.0.1:9"]) as client:
        with pytest.raises((TypeError, ValueError), match="deadline"):
            await client.submit("buy", None, deadline=deadline)


TIMES = ["interval", "older_than", "cancel_unknown_after", "jitter", "longest_pause", "acknowledge_every"]


@pytest.mark.parametrize("name", TIMES)
def test_of_a_sweeper(name: str) -> None:
    for value, error in (("3", TypeError), (True, TypeError), (math.nan, ValueError), (-1, ValueError)):
        with pytest.raises(error, match=name):
            Sweeper(App(SITES), **{name: value})
