"""A small bookstore and bank on plain heap tables, with a day's orders in them, for the auditor to look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pgmip.testing import Cluster

from demo import load, plain
from demo.audit import Auditor
from demo.buy_confirm import buy_confirm
from demo.plain import Coordinator
from demo.requests import Request, requests

ORDERS = 60


@dataclass
class Sites:
    store: Cluster
    bank: Cluster

    @property
    def conninfos(self) -> dict[str, str]:
        return {"store": self.store.conninfo("store"), "bank": self.bank.conninfo("bank")}

    def auditor(self) -> Auditor:
        return Auditor(self.store.conninfo(), **self.conninfos)


@pytest.fixture(scope="session")
def templates() -> Iterator[Sites]:
    """Two clusters; the databases `store` and `bank` are made anew for every test from loaded ones."""
    with Cluster("store", preload=()) as store, Cluster("bank", preload=()) as bank:
        store.create_database("store_loaded")
        bank.create_database("bank_loaded")
        load.load_store(store.conninfo("store_loaded"), access_method="heap")
        load.load_bank(bank.conninfo("bank_loaded"), access_method="heap")
        store.run_sql(plain.IDEMPOTENCY, dbname="store_loaded")
        yield Sites(store, bank)


@pytest.fixture
def sites(templates: Sites) -> Iterator[Sites]:
    templates.store.run_sql("CREATE DATABASE store TEMPLATE store_loaded")
    templates.bank.run_sql("CREATE DATABASE bank TEMPLATE bank_loaded")
    yield templates
    for cluster, name in ((templates.store, "store"), (templates.bank, "bank")):
        for (gid,) in cluster.run_sql("SELECT gid FROM pg_prepared_xacts", dbname=name):
            cluster.run_sql(f"ROLLBACK PREPARED '{gid}'", dbname=name)
        cluster.run_sql(f"DROP DATABASE {name} WITH (FORCE)")
    templates.store.run_sql("DROP DATABASE IF EXISTS audit WITH (FORCE)")


@dataclass
class Day:
    """A day that went well; `auditor` has heard nothing yet."""

    sites: Sites
    auditor: Auditor
    requests: list[Request]
    answers: list[tuple[str, bytes]]

    def by_status(self, status: str) -> str:
        """The key of a request with that answer."""
        return next(key for key, body in self.answers if json.loads(body)["status"] == status)


@pytest.fixture
def day(sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    monkeypatch.setattr("demo.buy_confirm.GATEWAY_MEDIAN", 0.0)
    with sites.auditor() as auditor:
        asked = requests()[:ORDERS]
        yield Day(sites, auditor, asked, asyncio.run(_serve(sites.conninfos, asked, tmp_path)))


async def _serve(conninfos: dict[str, str], asked: list[Request], folder: Path) -> list[tuple[str, bytes]]:
    coordinator = Coordinator("test", conninfos, folder / "decisions", lambda point: None)

    async def ask(request: Request) -> tuple[str, bytes]:
        handler: Any = buy_confirm
        return request.key, (await coordinator.submit(handler, request.body, request.key)).encode()

    try:
        return [await ask(request) for request in asked]
    finally:
        await coordinator.close()
