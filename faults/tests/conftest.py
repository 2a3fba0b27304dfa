"""Three sites on which a few requests have gone well, and the log of who asked for them; for the auditor to look at."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pgmip import App
from pgmip.testing import Cluster
from pgmip.xinst import new_xid

from faults import auditor
from faults.client import some_lists, some_request
from faults.handlers import SITES, TRANSACTIONS

LISTS, REQUESTS = 20, 40
EVERYWHERE = "ALTER DATABASE {} SET mip.serializable = everywhere"


@dataclass
class Day:
    """What a test may spoil, before the auditor looks."""

    cluster: Cluster
    folder: Path

    def audit(self) -> set[str]:
        """The checks that found something."""
        sites = {site: auditor.read_site(self.cluster.conninfo(site)) for site in SITES}
        return {
            finding.check for finding in auditor.audit(sites, auditor.read_logs(self.folder)) if finding.violations
        }

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "test.requests").read_text().splitlines()]

    def log(self, *events: dict[str, Any]) -> None:
        with (self.folder / "test.requests").open("a") as log:
            log.writelines(json.dumps(event) + "\n" for event in events)

    def answer(self, name: str) -> dict[str, Any]:
        """The last answer to a request of this name that was not a refusal, as it was logged."""
        names = {event["key"]: event["path"][1:] for event in self.events if event["event"] == "send"}
        return [
            event
            for event in self.events
            if event["event"] == "answer"
            and names[event["key"]] == name
            and json.loads(event["body"])["status"] == "done"
        ][-1]


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """The databases are kept as templates."""
    folder = tmp_path_factory.mktemp("good")
    schema = (resources.files("faults") / "schema.sql").read_text()
    with Cluster("sites") as cluster:
        for site in SITES:
            cluster.create_database(site)
            cluster.run_sql("CREATE EXTENSION pg_mip", dbname=site)
            cluster.run_sql(schema, dbname=site)
            cluster.run_sql(EVERYWHERE.format(site))
        day = Day(cluster, folder)
        asyncio.run(_serve(day))
        for site in SITES:
            cluster.run_sql(f"ALTER DATABASE {site} RENAME TO {site}_template")
        yield day


async def _serve(day: Day) -> None:
    rng, lists = random.Random(1), random.Random(2)
    async with App({site: day.cluster.conninfo(site) for site in SITES}) as app:
        for name, transaction in TRANSACTIONS.items():
            register = app.transaction(sites=transaction.sites, isolation=transaction.isolation, name=name)
            register(transaction.handler)
        asked = [*(some_lists(lists, 0) for _ in range(LISTS)), *(some_request(rng) for _ in range(REQUESTS))]
        for number, (name, request) in enumerate(asked):
            key = new_xid()
            now = {"clock": time.time(), "time": time.monotonic()}
            common = {"key": key, "number": f"{number}", "call": f"{number}", **now}
            result = await app.submit(name, request, xid=key)
            day.log(
                {"event": "call", **common},
                {"event": "send", "path": f"/{name}", "body": json.dumps(request), **common},
                {"event": "answer", "status": 200, "body": json.dumps(result), **common},
                {"event": "told", "result": result, **common},
            )


@pytest.fixture
def day(good: Day, tmp_path: Path) -> Iterator[Day]:
    """The day, in databases and with a log of the test's own."""
    shutil.copy(good.folder / "test.requests", tmp_path)
    for site in SITES:
        good.cluster.run_sql(f"CREATE DATABASE {site} TEMPLATE {site}_template STRATEGY file_copy")
        good.cluster.run_sql(EVERYWHERE.format(site))
    yield Day(good.cluster, tmp_path)
    for site in SITES:
        for xid, xinst in good.cluster.run_sql("SELECT xid, xinst FROM mip.in_doubt", dbname=site):
            good.cluster.run_sql(f"SELECT mip.rollback('{xid}', {xinst})", dbname=site)
        good.cluster.run_sql(f"DROP DATABASE {site} WITH (FORCE)")
