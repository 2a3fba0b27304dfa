"""Two private clusters, `store` and `bank`, with a shop over them; and the shop's app servers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from shop import SCHEMA, Shop, make_app

from pgmip import App
from pgmip._attempt import Attempt
from pgmip.testing import Cluster, extension_installed

Clusters = dict[str, Cluster]

# The tree may be somebody else's, and the machine busy.
settings.register_profile("pgmip", database=None, deadline=None)
settings.load_profile("pgmip")


def _missing() -> str | None:
    if os.geteuid() == 0:
        return "PostgreSQL refuses to run as root: run the tests as an ordinary user"
    if not extension_installed():
        return "the extension pg_mip is not installed: make install"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing()
    # Where these tests have to run, as in CI, a reason to leave them out is a failure.
    if missing is None or os.environ.get("PGMIP_REQUIRE_INTEGRATION"):
        return
    for item in items:
        if item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    made = {site: Cluster(site, settings={"mip.site_name": site, "jit": False}, max_connections=300) for site in SCHEMA}
    try:
        for site, cluster in made.items():
            cluster.start()
            cluster.run_sql("CREATE EXTENSION pg_mip")
            cluster.run_sql(SCHEMA[site])
        yield made
    finally:
        for cluster in made.values():
            cluster.remove()


@pytest.fixture
def shop(clusters: Clusters) -> Shop:
    """The data of both sites, for assertions. Starts empty."""
    shop = Shop(clusters)
    shop.reset()
    return shop


@pytest.fixture
async def server(clusters: Clusters, shop: Shop) -> AsyncIterator[Callable[..., App]]:
    """Makes app servers, each with connections of its own; parameters go to App."""
    async with AsyncExitStack() as stack:

        def make(conninfos: dict[str, str] | None = None, **parameters: Any) -> App:
            app = make_app(conninfos or shop.conninfos(), **parameters)
            stack.push_async_callback(app.close)
            return app

        yield make


@pytest.fixture
def unlooking(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt finds out, while its handler runs, that a sibling is prepared at every site: it is chance who is first
    where the handler is quick.
    """

    async def look(attempt: Attempt) -> None:
        pass

    monkeypatch.setattr(Attempt, "_look", look)


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sockets that were closed while the event loop waited for them on somebody's behalf."""
    found: list[int] = []
    close = psycopg.AsyncConnection.close

    async def closing(conn: psycopg.AsyncConnection[Any]) -> None:
        if not conn.closed and asyncio.get_running_loop().remove_reader(conn.pgconn.socket):
            found.append(conn.pgconn.socket)
        await close(conn)

    monkeypatch.setattr(psycopg.AsyncConnection, "close", closing)
    for name in [name for name in sys.modules if name.endswith("._reader")]:  # also of what test_awaits makes of pgmip
        monkeypatch.setattr(sys.modules[name].Reader, "stop", _stopping(sys.modules[name].Reader.stop, found))
    return found


def _stopping(stop: Callable[[Any], None], found: list[int]) -> Callable[[Any], None]:
    def stopping(reader: Any) -> None:
        if reader._answer is not None and not reader._answer.done():
            found.append(reader._copy.fileno())
        stop(reader)

    return stopping
