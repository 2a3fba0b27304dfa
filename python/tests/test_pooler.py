"""Through PgBouncer, where it is installed (or named by the variable PGBOUNCER): in which modes the library works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from shop import BUY, Shop

from pgmip import App, Tx
from pgmip.testing import _free_port
from pgmip.xinst import new_xid

PGBOUNCER = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=os.defpath + ":/usr/local/sbin:/usr/sbin")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PGBOUNCER is None, reason="needs PgBouncer"),
]

Server = Callable[..., App]
Pooler = Callable[..., dict[str, str]]


def tracks_prepared_statements() -> bool:
    told = subprocess.run([str(PGBOUNCER), "--version"], check=True, capture_output=True, text=True).stdout
    major, minor = re.findall(r"\d+", told)[:2]
    return (int(major), int(minor)) >= (1, 21)


@pytest.fixture
def pooler(shop: Shop, tmp_path: Path) -> Iterator[Pooler]:
    """Starts PgBouncer with these settings before the sites; the connection strings through it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> dict[str, str]:
        port = _free_port()
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "any",
            "default_pool_size": 60, "max_client_conn": 500, **settings,
        }  # fmt: skip
        lines = ["[databases]"]
        for site, cluster in shop.clusters.items():
            target = conninfo_to_dict(cluster.conninfo())
            lines.append(f"{site} = host={target['host']} port={target['port']} user={target['user']} dbname=postgres")
        lines += ["[pgbouncer]", *(f"{name} = {value}" for name, value in settings.items())]
        (tmp_path / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        with (tmp_path / "log").open("wb") as log:
            started.append(subprocess.Popen([str(PGBOUNCER), tmp_path / "pgbouncer.ini"], stdout=log, stderr=log))
        return {
            site: f"host=127.0.0.1 port={port} user=postgres dbname={site} sslmode=disable gssencmode=disable"
            for site in shop.clusters
        }

    yield start
    for process in started:
        process.kill()  # asked to end, it would wait for its clients
        process.wait()


async def until_up(conninfo: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await (await psycopg.AsyncConnection.connect(conninfo)).close()
                return
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(("mode", "prepared"), [("session", True), ("transaction", False), ("transaction", True)])
async def test_modes(server: Server, shop: Shop, pooler: Pooler, mode: str, prepared: bool) -> None:
    settings: dict[str, object] = {"pool_mode": mode}
    if mode == "transaction" and prepared:
        if not tracks_prepared_statements():
            pytest.skip("this PgBouncer does not keep track of prepared statements")
        settings["max_prepared_statements"] = 200
    conninfos = pooler(**settings)
    await until_up(conninfos["bank"])
    apps = [server(conninfos, prepared_statements=prepared) for _ in range(2)]

    async def client() -> None:
        for _ in range(5):  # often enough for psycopg to prepare statements
            xid = new_xid()
            first, second = await asyncio.gather(*(app.submit("buy", BUY, xid=xid) for app in apps))
            assert first == second
            shop.assert_once(xid, first)

    await asyncio.gather(*(client() for _ in range(6)))
    shop.assert_clean()


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_the_pooler_ends_the_connection(server: Server, shop: Shop, pooler: Pooler, mode: str) -> None:
    """It says so in words of its own. That is about the way to the site, not about the request, which is repeated."""
    conninfos = pooler(pool_mode=mode, admin_users="postgres")
    await until_up(conninfos["bank"])
    app, attempts = server(conninfos, prepared_statements=False), 0
    console = conninfos["store"].replace("dbname=store", "dbname=pgbouncer")

    @app.transaction(sites=("store", "bank"))
    async def loses(tx: Tx, request: Any) -> int:
        nonlocal attempts
        attempts += 1
        await tx.store.execute("SELECT")
        if attempts == 1:
            statement = asyncio.create_task(tx.store.execute("SELECT pg_sleep(600)"))
            while not shop.sql("store", "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with await psycopg.AsyncConnection.connect(console, autocommit=True) as admin:
                await admin.execute("KILL store")
                await admin.execute("RESUME store")
            await statement
        return attempts

    assert await app.submit("loses", None) == 2
    shop.assert_clean()


@pytest.fixture
def everywhere(shop: Shop) -> Iterator[None]:
    """What is connected to from now on is told mip.serializable = everywhere; a table to swap at each site."""
    for site in shop.clusters:
        shop.sql(site, "CREATE TABLE swapped (n int); INSERT INTO swapped VALUES (0); SELECT mip.enable('swapped')")
        shop.sql(site, "ALTER DATABASE postgres SET mip.serializable = everywhere")
    yield
    for site in shop.clusters:
        shop.sql(site, "ALTER DATABASE postgres RESET mip.serializable")
        shop.sql(site, "DROP TABLE swapped")


@pytest.mark.usefixtures("everywhere")
async def test_serializable_everywhere(server: Server, shop: Shop, pooler: Pooler) -> None:
    """What a site says of mip.serializable gets through."""
    conninfos = pooler(pool_mode="transaction")
    await until_up(conninfos["bank"])
    both = asyncio.Barrier(2)

    async def meet() -> None:
        with contextlib.suppress(TimeoutError, asyncio.BrokenBarrierError):
            await asyncio.wait_for(both.wait(), 1)

    async def swap(tx: Tx, request: Any) -> int:
        here, there = (tx.store, tx.bank) if request else (tx.bank, tx.store)
        row = await here.fetch_one("SELECT n FROM swapped")
        await meet()
        await there.execute("UPDATE swapped SET n = n + 1")
        return int(row.n)

    app = server(conninfos, prepared_statements=False)
    app.transaction(sites=("store", "bank"), isolation="serializable")(swap)
    assert sorted(await asyncio.gather(app.submit("swap", True), app.submit("swap", False))) == [0, 1]
    shop.assert_clean()
