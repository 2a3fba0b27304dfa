"""Metrics: what is counted, under which labels, over several processes; and that labels stay few."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from shop import BUY, Shop, leave_at
from starlette.applications import Starlette
from starlette.routing import Route
from test_submit import prepare_by_hand

import pgmip.http
from pgmip import App, NothingHappened, Unknown
from pgmip.metrics import Metrics, exporter
from pgmip.xinst import new_xid, new_xinst

pytestmark = pytest.mark.integration

Server = Callable[..., App]


class Registry(CollectorRegistry):
    def value(self, name: str, **labels: str) -> float:
        return self.get_sample_value(f"pgmip_{name}", labels) or 0

    def series(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        for metric in self.collect():
            for sample in metric.samples:
                yield sample.name, tuple(sorted(sample.labels.items()))


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def metrics(registry: Registry) -> Metrics:
    return Metrics(registry)


async def test_a_request(server: Server, shop: Shop, registry: Registry, metrics: Metrics) -> None:
    app = server()
    app.observe(metrics)
    for _ in range(2):
        await app.submit("buy", BUY, xid="counted")
    value = registry.value
    assert value("operations_total", operation="submit", transaction="buy", outcome="ok") == 2
    assert value("decisions_total", transaction="buy", kind="own") == 1
    assert value("decisions_total", transaction="buy", kind="earlier") == 1
    assert value("attempts_total", transaction="buy", outcome="ok") == 1
    assert value("attempts_total", transaction="buy", outcome="family_committed") == 1
    assert value("siblings_total", transaction="buy") == 0
    assert value("operations_in_progress", operation="submit") == 0
    for site in ("store", "bank"):
        for phase in ("connect", "prepare", "commit"):
            assert value("phase_seconds_count", phase=phase, site=site, ok="true") >= 1
            assert value("phase_seconds_sum", phase=phase, site=site, ok="true") > 0
    assert value("phase_seconds_count", phase="submit", site="", ok="true") == 2
    # The retransmission was refused where its first statement came first.
    assert value("phase_seconds_count", phase="handler", site="", ok="false") == 1


async def test_siblings_retries_and_cancellations(
    server: Server, shop: Shop, registry: Registry, metrics: Metrics, unlooking: None
) -> None:
    app = server()
    app.observe(metrics)
    value = registry.value
    await leave_at(server(), "prepared-all", "counted-sibling")
    await app.submit("buy", BUY, xid="counted-sibling")
    assert value("decisions_total", transaction="buy", kind="sibling") == 1
    assert value("siblings_total", transaction="buy") == 1
    prepare_by_hand(shop, "counted-ahead", new_xinst() + 2**50)
    await app.submit("buy", BUY, xid="counted-ahead")
    assert value("retries_total", transaction="buy", reason="superseded") == 1
    await leave_at(server(), "prepared-first-site", "counted-cancel")
    await app.resolve("counted-cancel")
    assert value("decisions_total", transaction="", kind="cancelled") == 1
    assert value("operations_total", operation="resolve", transaction="", outcome="ok") == 1
    await leave_at(server(), "prepared-first-site", "counted-settle")
    await app.settle("counted-settle")
    assert value("operations_total", operation="settle", transaction="buy", outcome="ok") == 1


async def test_what_is_running(server: Server, shop: Shop, registry: Registry, metrics: Metrics) -> None:
    app = server()
    app.observe(metrics)
    reached, release = asyncio.Event(), asyncio.Event()

    async def wait(step: Any) -> None:
        reached.set()
        await release.wait()

    app.on_step(wait)
    running = asyncio.create_task(app.submit("buy", BUY))
    await reached.wait()
    assert registry.value("operations_in_progress", operation="submit") == 1
    release.set()
    await running
    assert registry.value("operations_in_progress", operation="submit") == 0


async def test_what_is_in_doubt(server: Server, shop: Shop, registry: Registry, metrics: Metrics) -> None:
    app = server()
    value = registry.value
    await metrics.look(app)
    assert {(value("in_doubt", site=site), value("site_up", site=site)) for site in ("store", "bank")} == {(0, 1)}
    prepare_by_hand(shop, "counted-doubt", new_xinst())
    await metrics.look(app)
    assert (value("in_doubt", site="store"), value("in_doubt", site="bank")) == (1, 0)
    assert value("in_doubt_oldest_seconds", site="store") > 0
    assert value("in_doubt_oldest_seconds", site="bank") == 0
    prepared = value("site_events", site="store", event="prepared")
    await app.submit("buy", BUY)
    await metrics.look(app)
    assert value("site_events", site="store", event="prepared") == prepared + 1
    await metrics.look(server(shop.conninfos(bank=1)))
    assert (value("site_up", site="store"), value("site_up", site="bank")) == (1, 0)
    watching = asyncio.create_task(metrics.watch(app, interval=0.01))
    await app.resolve("counted-doubt")
    async with asyncio.timeout(30):
        while value("in_doubt", site="store") or not value("site_up", site="bank"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watching.cancel()


async def test_labels_stay_few(server: Server, shop: Shop, registry: Registry, metrics: Metrics) -> None:
    app = server()
    app.observe(metrics)

    @app.transaction(sites=("store",))
    async def faulty(tx: object, request: object) -> None:
        raise ValueError(request)

    async def traffic() -> None:
        xid = new_xid()
        for qty in (1, 1, 2):
            with_errors = app.submit("buy", {"item": 1, "qty": qty}, xid=xid)
            await asyncio.gather(with_errors, return_exceptions=True)
        with pytest.raises(NothingHappened):
            await app.submit("faulty", xid)
        with pytest.raises(LookupError):
            await app.submit(xid, None)
        with pytest.raises(ValueError, match="XID"):
            await app.submit("buy", BUY, xid=xid * 4)
        with pytest.raises(Unknown):
            await server_down.submit("buy", BUY, xid=xid + "d", attempts=1)

    server_down = server(shop.conninfos(bank=1))
    server_down.observe(metrics)
    await traffic()
    assert registry.value("phase_failures_total", phase="connect", site="bank", reason="connection") == 1
    before = set(registry.series())
    for _ in range(5):
        await traffic()
    assert set(registry.series()) == before
    values = {value for _, labels in before for name, value in labels if name != "le"}
    assert not any(any(c.isdigit() for c in value) for value in values)


async def scrape() -> str:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(exporter()), base_url="http://app") as client:
        return (await client.get("/metrics")).text


def routed(app: App) -> Iterator[Any]:
    """Servers with metrics and transactions beside each other, as the guide makes them."""
    yield Starlette(routes=[Route("/metrics", exporter()), *pgmip.http.routes(app)])
    yield FastAPI(routes=[Route("/metrics", exporter()), *pgmip.http.routes(app)])
    server = FastAPI()
    server.add_route("/metrics", exporter())
    server.mount("/", pgmip.http.asgi(app))
    yield server


async def test_where_a_scraper_asks(server: Server, registry: Registry) -> None:
    for asgi in routed(server()):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://server") as scraper:
            answer = await scraper.get("/metrics")
            assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")
            assert (await scraper.post("/buy", json=None)).status_code == 400, "transactions are there, too"


def test_several_processes_and_their_exporter(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import asyncio, sys
from pgmip.metrics import Metrics
from shop import make_app
async def main():
    metrics = Metrics()
    async with make_app(dict(store=sys.argv[1], bank=sys.argv[2])) as app:
        app.observe(metrics)
        await app.submit("buy", {"item": 1, "qty": 1})
        await metrics.look(app)
asyncio.run(main())
"""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, *shop.conninfos().values()], check=True, env=environment)
    text = asyncio.run(scrape())
    assert 'pgmip_operations_total{operation="submit",outcome="ok",transaction="buy"} 2.0' in text
    assert 'pgmip_site_up{site="store"} 1.0' in text
