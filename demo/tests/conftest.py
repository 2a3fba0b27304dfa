"""A small bookstore and bank on plain heap tables, with a day's orders in them, for the auditor to look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pgmip.testing import Cluster

from demo import load
from demo.audit import DATABASE, Auditor, take_notes
from demo.buy_confirm import buy_confirm
from demo.requests import Request, requests
from workload import plain

ORDERS = 60
Answers = list[tuple[str, bytes]]


@dataclass
class Sites:
    store: Cluster
    bank: Cluster

    def databases(self) -> list[tuple[Cluster, str]]:
        return [(self.store, "store"), (self.bank, "bank"), (self.store, DATABASE)]

    @property
    def conninfos(self) -> dict[str, str]:
        return {"store": self.store.conninfo("store"), "bank": self.bank.conninfo("bank")}


@pytest.fixture(scope="session")
def sites() -> Iterator[Sites]:
    with Cluster("store", preload=()) as store, Cluster("bank", preload=()) as bank:
        load.load_store(store, access_method="heap")
        load.load_bank(bank, access_method="heap")
        store.run_sql(plain.IDEMPOTENCY, dbname="store")
        yield Sites(store, bank)


@pytest.fixture(scope="session")
def served(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers of a day that went well. Its databases are kept as templates."""
    take_notes(sites.store.conninfo(), **sites.conninfos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("demo.buy_confirm.GATEWAY_MEDIAN", 0.0)
        answers = asyncio.run(_serve(sites.conninfos, tmp_path_factory.mktemp("log")))
    for cluster, name in sites.databases():
        cluster.run_sql(f"ALTER DATABASE {name} RENAME TO {name}_template")
    return answers


async def _serve(conninfos: dict[str, str], folder: Path) -> Answers:
    handler: Any = buy_confirm
    decisions = folder / "decisions"
    coordinator = plain.Coordinator("test", conninfos, decisions, lambda point: None, key_site="store")
    try:
        return [
            (request.key, (await coordinator.submit(handler, request.body, request.key)).encode())
            for request in requests(ORDERS)
        ]
    finally:
        await coordinator.close()


@dataclass
class Day:
    """What a test may spoil, before the auditor looks."""

    sites: Sites
    answers: Answers
    requests: list[Request] = field(default_factory=lambda: requests(ORDERS))

    def audit(self) -> set[str]:
        """The checks that found something."""
        with Auditor(self.sites.store.conninfo()) as auditor:
            auditor.hear(self.requests, self.answers)
            return {finding.check for finding in auditor.audit() if finding.wrong}

    def ordered(self) -> str:
        """The key of a request that went through."""
        return next(key for key, body in self.answers if json.loads(body)["status"] == "ordered")


@pytest.fixture
def day(sites: Sites, served: Answers) -> Iterator[Day]:
    """The day, in databases of the test's own."""
    for cluster, name in sites.databases():
        cluster.run_sql(f"CREATE DATABASE {name} TEMPLATE {name}_template STRATEGY file_copy")
    yield Day(sites, list(served))
    for cluster, name in sites.databases():
        for (gid,) in cluster.run_sql(f"SELECT gid FROM pg_prepared_xacts WHERE database = '{name}'"):
            cluster.run_sql(f"ROLLBACK PREPARED '{gid}'", dbname=name)
        cluster.run_sql(f"DROP DATABASE {name} WITH (FORCE)")
