"""The store and the payments at two sites of their own."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack

from pgmip.testing import Cluster

from workload.load import load, load_payment
from workload.plain import IDEMPOTENCY
from workload.population import Size

from ..rounds import METHODS, create_database
from .handlers import PAYMENT, STORE, TWO_SITES
from .store import CHECKS

__all__ = ["Dead", "Pair"]

# Its warnings are of connections that break because app servers stop here on purpose.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

ELSEWHERE = ("every order is paid for once, in full", "stock is refilled, and what has left it was ordered")


class Dead(BaseException):
    """Of an app server that goes no further."""


class Pair:
    def __init__(self, stack: ExitStack, size: Size, *, seed: int, quiet: bool) -> None:
        self.size = size
        settings = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
        self.clusters = {
            site: stack.enter_context(Cluster(site, settings=settings, fsync=True, max_prepared_transactions=200))
            for site in TWO_SITES
        }
        for name in METHODS:
            for cluster in self.clusters.values():
                create_database(cluster, name)
            store = self.clusters[STORE].conninfo(name)
            print(f"the database {name} of two sites", flush=True)
            load(store, size, seed=seed, quiet=quiet)
            load_payment(self.clusters[PAYMENT].conninfo(name), store)
            self.run(STORE, name, "DROP TABLE cc_xacts")
        self.run(STORE, "heap", IDEMPOTENCY)

    def run(self, site: str, database: str, sql: str) -> list[tuple[object, ...]]:
        return self.clusters[site].run_sql(sql, dbname=database)

    def sites(self, database: str) -> dict[str, str]:
        """The conninfos."""
        return {site: cluster.conninfo(database) for site, cluster in self.clusters.items()}

    def orders(self, database: str) -> int:
        ((count,),) = self.run(STORE, database, "SELECT count(*) FROM orders")
        return int(str(count))

    def check(self, database: str) -> None:
        """Exits where the sites do not agree, or the store's data are wrong."""
        wrong = [
            what for what, sql in CHECKS.items()
            if what not in ELSEWHERE and not self.run(STORE, database, sql)[0][0]
        ]  # fmt: skip
        orders = self.run(STORE, database, "SELECT o_id, o_total FROM orders")
        payments = self.run(PAYMENT, database, "SELECT cx_o_id, cx_xact_amt FROM cc_xacts")
        if sorted(orders) != sorted(payments):
            wrong.append("every order is paid for once, in full")
        if wrong:
            sys.exit(f"the data of {database} at two sites are wrong: {'; '.join(wrong)}")
