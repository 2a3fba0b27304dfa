"""What the guide says of a site that comes back as it was earlier, done with real clusters."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pgmip import App, ProtocolViolation, Step, Unknown
from pgmip.testing import Cluster, extension_installed
from pgmip.xinst import new_xid

SITES = ("store", "bank")
Clusters = dict[str, Cluster]


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    """Of their own: they are stopped and put back."""
    if not os.environ.get("PGMIP_REQUIRE_INTEGRATION") and (os.geteuid() == 0 or not extension_installed()):
        pytest.skip("needs an ordinary user and the extension pg_mip")
    made = {site: Cluster(site, settings={"mip.site_name": site}) for site in SITES}
    try:
        for cluster in made.values():
            cluster.start()
            cluster.run_sql("CREATE EXTENSION pg_mip; CREATE TABLE t (xid text) USING mip")
        yield made
    finally:
        for cluster in made.values():
            cluster.remove()


def make_app(clusters: Clusters) -> App:
    app = App({site: cluster.conninfo() for site, cluster in clusters.items()})

    @app.transaction(sites=SITES)
    async def write(tx: Any, request: Any) -> str:
        for site in SITES:
            await tx[site].execute("INSERT INTO t VALUES (%s)", (tx.xid,))
        return "written"

    return app


@contextmanager
def put_back(cluster: Cluster, backup: Path) -> Iterator[None]:
    """Back the cluster up, and put it back at the end."""
    cluster.stop()
    shutil.copytree(cluster.data_directory, backup)
    cluster.start()
    yield
    cluster.stop()
    shutil.rmtree(cluster.data_directory)
    shutil.copytree(backup, cluster.data_directory)
    cluster.data_directory.chmod(0o700)
    cluster.start()


def written(clusters: Clusters) -> list[int]:
    return [cluster.run_sql("SELECT count(*) FROM t")[0][0] for cluster in clusters.values()]


async def leave_in_doubt(clusters: Clusters, xid: str) -> None:
    """As a server does that is killed when everything is prepared."""

    def die(step: Step) -> None:
        if step.name == "prepared-all":
            raise RuntimeError("as if it were killed")

    async with make_app(clusters) as app:
        app.on_step(die)
        with pytest.raises(Unknown):
            await app.submit("write", None, xid=xid)


def test_what_was_in_doubt_then_is_finished_as_it_was_decided(clusters: Clusters, tmp_path: Path) -> None:
    xid = new_xid()

    async def story() -> None:
        await leave_in_doubt(clusters, xid)
        async with make_app(clusters) as app:
            with put_back(clusters["bank"], tmp_path / "backup"):
                assert await app.submit("write", None, xid=xid) == "written"
                assert written(clusters) == [1, 1]
            assert written(clusters) == [1, 0]
            resolution = await app.settle(xid)
            assert resolution is not None
            assert not resolution.cancelled
            assert written(clusters) == [1, 1]

    asyncio.run(story())


def test_what_was_unknown_then_is_a_contradiction(clusters: Clusters, tmp_path: Path) -> None:
    xid = new_xid()

    async def story() -> None:
        async with make_app(clusters) as app:
            with put_back(clusters["bank"], tmp_path / "backup"):
                assert await app.submit("write", None, xid=xid) == "written"
            for _ in range(2):
                with pytest.raises(ProtocolViolation):
                    await app.submit("write", None, xid=xid)
            assert written(clusters) == [1, 0]  # and nothing is made up

    asyncio.run(story())
