"""What a handler does to its session is not there for the next request: it ends with the attempt, or is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from shop import Shop, make_app

from pgmip import App, NothingHappened, Tx

pytestmark = pytest.mark.integration

Server = Callable[..., App]
SITES = {"one site": ("store",), "two sites": ("store", "bank")}
SETTINGS = """
    SELECT json_build_array(current_user, session_user, current_setting('search_path'), current_setting('lock_timeout'),
        current_setting('client_encoding'), current_setting('app.tenant', true),
        current_setting('default_transaction_read_only'),
        (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
        (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),
        (SELECT count(*) FROM pg_cursors WHERE is_holdable), pg_my_temp_schema() = 0) AS found
"""
LEAVES = {
    "SET": "SET lock_timeout = 4711",
    "search_path": "SET search_path = pg_catalog",
    "set_config": "SELECT set_config('app.tenant', 'mine', false)",
    "by a function": "DO $$ BEGIN PERFORM set_config('app.tenant', 'mine', false); END $$",
    "an encoding": "SET client_encoding = latin1",
    "characteristics": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "PREPARE": "PREPARE mine AS SELECT 1",
    "PREPARE, by a function": "DO $$ BEGIN EXECUTE 'PREPARE mine AS SELECT 1'; END $$",
    "an advisory lock": "SELECT pg_advisory_lock(4711)",
    "an attempt at one": "SELECT pg_try_advisory_lock_shared(4711, 1)",
    "one by a function": "DO $$ BEGIN PERFORM pg_advisory_lock(4711); END $$",
}
REFUSED = {
    "a role": "SET ROLE pg_monitor",
    "an authorization": "SET SESSION AUTHORIZATION pg_monitor",
    "a cursor": "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "a temporary table": "CREATE TEMP TABLE mine (i int)",
    "another one": "SELECT 1 AS i INTO TEMP mine",
    "LISTEN": "LISTEN mine",
    "DISCARD": "DISCARD PLANS",
}


async def look_and_do(server: Server, sites: tuple[str, ...], sql: str) -> tuple[Any, Any, list[int], Any]:
    """What a session's only connection shows before a request that runs this, and after it; its attempts, and how it
    has ended."""
    app = server(pool_size=1)
    attempts: list[int] = []
    pids: set[int] = set()

    @app.transaction(sites=sites)
    async def look(tx: Tx, request: Any) -> Any:
        row = await tx.store.fetch_one("SELECT pg_backend_pid() AS pid")
        pids.add(row.pid)
        return (await tx.store.fetch_one(SETTINGS)).found

    @app.transaction(sites=sites)
    async def do(tx: Tx, request: Any) -> str:
        attempts.append(tx.xinst)
        await tx.store.execute(request)
        return "done"

    before = await app.submit("look", None)
    try:
        how: Any = await app.submit("do", sql)
    except NothingHappened as error:
        how = error
    after = await app.submit("look", None)
    if how == "done":
        assert len(pids) == 1, "it was another session"
    return before, after, attempts, how


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("name", LEAVES)
async def test_ends_with_the_attempt(server: Server, shop: Shop, name: str, sites: str) -> None:
    before, after, attempts, how = await look_and_do(server, SITES[sites], LEAVES[name])
    if name in ("set_config", "by a function"):  # PostgreSQL remembers that there was one
        before[5] = before[5] or ""
    assert (how, len(attempts)) == ("done", 1)
    assert after == before


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("name", REFUSED)
async def test_is_refused_at_once(server: Server, shop: Shop, name: str, sites: str) -> None:
    before, after, attempts, how = await look_and_do(server, SITES[sites], REFUSED[name])
    assert isinstance(how, NothingHappened)
    assert isinstance(how.__cause__, psycopg.Error)
    assert how.__cause__.sqlstate == "MP006"
    assert len(attempts) == 1
    assert after == before


async def test_a_prepared_statement_of_each_request(server: Server, shop: Shop) -> None:
    """The same name every time; also where the attempt fails behind it."""
    app = server(pool_size=1)

    @app.transaction(sites=("store", "bank"))
    async def prepares(tx: Tx, fail: bool) -> int:
        await tx.store.execute("PREPARE mine AS SELECT 1 AS one")
        row = await tx.store.fetch_one("EXECUTE mine")
        if fail:
            raise KeyError("of the handler")
        return int(row.one)

    for fail in (False, True, False):
        if fail:
            with pytest.raises(NothingHappened):
                await app.submit("prepares", fail)
        else:
            assert await app.submit("prepares", fail) == 1


# -- tenants -------------------------------------------------------------------------------------------------------

TENANTS = """
    CREATE ROLE tenants LOGIN;
    CREATE TABLE note (tenant text NOT NULL, body text NOT NULL);
    SELECT mip.enable('note');
    ALTER TABLE note ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON note USING (tenant = current_setting('app.tenant', true));
    GRANT SELECT, INSERT ON note TO tenants;
"""


@pytest.fixture
def tenants(shop: Shop) -> Iterator[dict[str, str]]:
    """The sites, as a role whom row level security concerns."""
    for site in SITES["two sites"]:
        shop.sql(site, TENANTS)
    yield {site: f"{conninfo} user=tenants host={shop.clusters[site]._socket_directory}"
           for site, conninfo in shop.conninfos().items()}  # fmt: skip
    for site in SITES["two sites"]:
        shop.sql(site, "DROP TABLE note; DROP ROLE tenants")


@pytest.fixture
async def of_tenants(tenants: dict[str, str]) -> AsyncIterator[Callable[[], App]]:
    apps: list[App] = []

    def make() -> App:
        app = make_app(tenants, pool_size=1)
        apps.append(app)

        @app.transaction(sites=("store", "bank"))
        async def note(tx: Tx, request: Any) -> Any:
            if request["tenant"] is not None:
                for site in (tx.store, tx.bank):
                    await site.execute("SELECT set_config('app.tenant', %s, true)", (request["tenant"],))
            if request["write"]:
                for site in (tx.store, tx.bank):
                    await site.execute("INSERT INTO note VALUES (%s, %s)", (request["tenant"], request["write"]))
            found = [await site.fetch_all("SELECT body FROM note ORDER BY body") for site in (tx.store, tx.bank)]
            return [[row.body for row in rows] for rows in found]

        return app

    yield make
    for app in apps:
        await app.close()


async def test_tenants(of_tenants: Callable[[], App]) -> None:
    """SET LOCAL, by set_config, in the handler: each request sees its own tenant's rows, and none without one."""
    app = of_tenants()

    async def submit(tenant: str | None, write: str | None = None) -> Any:
        return await app.submit("note", {"tenant": tenant, "write": write})

    assert await submit("a", "of a") == [["of a"], ["of a"]]
    assert await submit("b", "of b") == [["of b"], ["of b"]]
    assert await submit("a") == [["of a"], ["of a"]]
    assert await submit(None) == [[], []]
    with pytest.raises(NothingHappened, match="row-level security"):
        await app.submit("note", {"tenant": None, "write": "of nobody"})


async def test_tenants_of_retries(of_tenants: Callable[[], App], tenants: dict[str, str], shop: Shop) -> None:
    """A sibling at another server, and whoever repeats it there, act for the same tenant, as it is in the request."""
    first, second = of_tenants(), of_tenants()
    await second.submit("note", {"tenant": "b", "write": "before"})

    def die(step: Any) -> None:
        if step.name == "prepared-first-site":
            raise KeyError("died")

    first.on_step(die)
    request = {"tenant": "a", "write": "once"}
    with pytest.raises(Exception, match="died"):
        await first.submit("note", request, xid="tenants")
    assert shop.sql("store", "SELECT xid FROM mip.in_doubt") or shop.sql("bank", "SELECT xid FROM mip.in_doubt")
    await second.settle("tenants")
    assert await second.submit("note", request, xid="tenants") == [["once"], ["once"]]
    for site in ("store", "bank"):
        assert shop.sql(site, "SELECT tenant, body FROM note ORDER BY 1") == [("a", "once"), ("b", "before")]
