"""What cannot be meant is refused when it is said: sites, and handlers of the wrong kind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pgmip import App, sync

AnyApp = App | sync.App
HERE = {"store": "host=/nowhere"}


async def awaiting(tx: Any, request: Any) -> None: ...


def plain(tx: Any, request: Any) -> None: ...


def yielding(tx: Any, request: Any) -> Any:
    yield 1


async def yielding_async(tx: Any, request: Any) -> Any:
    yield 1


class Awaiting:
    async def __call__(self, tx: Any, request: Any) -> None: ...


class Plain:
    def __call__(self, tx: Any, request: Any) -> None: ...


def decorated(handler: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handler)
    def call(*args: Any) -> Any:
        return handler(*args)

    return call


@pytest.fixture
def twin() -> Iterator[sync.App]:
    with sync.App(HERE) as app:
        yield app


@pytest.mark.parametrize("handler", [plain, Plain(), yielding, yielding_async, functools.partial(plain)])
def test_what_no_app_awaits(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"async def.*pgmip\.sync\.App"):
        App(HERE).transaction(sites=("store",), name="it")(handler)


@pytest.mark.parametrize("handler", [awaiting, Awaiting(), yielding, yielding_async])
def test_what_is_no_plain_function(twin: sync.App, handler: Any) -> None:
    with pytest.raises(TypeError, match=r"`def` that returns.*pgmip\.App"):
        twin.transaction(sites=("store",), name="it")(handler)


@pytest.mark.parametrize("handler", [awaiting, Awaiting(), decorated(awaiting), functools.partial(awaiting)])
def test_what_an_app_awaits(handler: Any) -> None:
    app = App(HERE)
    assert app.transaction(sites=["store"], name="it")(handler) is handler
    assert app.transactions == ("it",)


@pytest.mark.parametrize("handler", [plain, Plain(), decorated(plain), functools.partial(plain)])
def test_what_is_a_plain_function(twin: sync.App, handler: Any) -> None:
    assert twin.transaction(sites=["store"], name="it")(handler) is handler
    assert twin.transactions == ("it",)


def test_one_name_is_no_sequence(twin: sync.App) -> None:
    for app in (App(HERE), twin):
        with pytest.raises(TypeError, match=r"\('store',\)"):
            app.transaction(sites="store")
        with pytest.raises(ValueError, match="stoer"):
            app.transaction(sites=("stoer",))
    for call in (twin.settle, twin.resolve, twin.acknowledge):
        with pytest.raises(TypeError, match=r"\('store',\)"):
            call("x", sites="store")


async def test_one_name_is_no_sequence_later_either() -> None:
    app = App(HERE)
    for call in (app.settle, app.resolve, app.acknowledge):
        with pytest.raises(TypeError, match=r"\('store',\)"):
            await call("x", sites="store")  # type: ignore[operator]


@pytest.mark.parametrize("sites", ["service=store", ["store"]])
@pytest.mark.parametrize("kind", [App, sync.App])
def test_sites_without_names(kind: Any, sites: Any) -> None:
    with pytest.raises(TypeError, match="mapping"):
        kind(sites)
