"""The store at one site, with pgbench running its interactions against it, and what the rows have to look like then."""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from pgmip.testing import Cluster

from workload.load import load
from workload.population import Size

from ..rounds import METHODS, create_database, percentile, pgbench
from .scripts import MIX, VARIABLES, System, script

__all__ = ["Measured", "Store", "run_pgbench"]

WARM_UP = 1  # seconds that do not count: sessions connect, prepare, and plan for the first time
CARTS = 48_000  # of the pool, for sessions that only buy
REFILL = """
    INSERT INTO shopping_cart_line
    SELECT cart, 1 + abs(hashint8(cart * 3 + line)::bigint) % {items}, 1 + abs(hashint4(cart + line)::bigint) % 10
    FROM generate_series(1, {carts}) cart, generate_series(0, 2) line
    WHERE NOT EXISTS (SELECT FROM shopping_cart_line WHERE scl_sc_id = cart) ON CONFLICT DO NOTHING
"""
# The name of each check, and a query that is true where it holds.
CHECKS = {
    "an order's total is that of its parts": """
        SELECT NOT EXISTS (SELECT FROM orders
            JOIN (SELECT ol_o_id, count(*) AS lines FROM order_line GROUP BY 1) l ON ol_o_id = o_id
            WHERE abs(o_total - (o_sub_total + o_tax + 3 + lines)) > 0.005)""",
    "every order has lines": """
        SELECT NOT EXISTS (SELECT FROM orders WHERE NOT EXISTS (SELECT FROM order_line WHERE ol_o_id = o_id))""",
    "every order is paid for once, in full": """
        SELECT NOT EXISTS (SELECT FROM orders FULL JOIN cc_xacts ON cx_o_id = o_id
            WHERE (cx_xact_amt = o_total) IS NOT TRUE)""",
    "stock is refilled, and what has left it was ordered": """
        SELECT NOT EXISTS (SELECT FROM item JOIN initial_stock USING (i_id)
            LEFT JOIN (SELECT ol_i_id, sum(ol_qty) AS sold FROM order_line, counted WHERE ol_o_id > last_order
                GROUP BY 1) l ON ol_i_id = i_id
            WHERE i_stock NOT BETWEEN 10 AND 30 OR (stock - i_stock - coalesce(sold, 0)) % 21 <> 0)""",
    "related items are five others": """
        SELECT NOT EXISTS (SELECT FROM item WHERE (SELECT count(DISTINCT r) FROM unnest(ARRAY[i_related1, i_related2,
            i_related3, i_related4, i_related5]) r WHERE r <> i_id) <> 5)""",
    "nothing is in doubt": "SELECT NOT EXISTS (SELECT FROM pg_prepared_xacts)",
}


@dataclass(frozen=True)
class Measured:
    """Rates are transactions a second. Times are milliseconds; with an offered rate they begin when the transaction
    was due.
    """

    tps: float
    done: int
    mean: float
    p50: float
    p95: float
    p99: float
    messages: tuple[tuple[str, float], ...]
    """Each statement of the script, and how long it has taken on average."""


class Store:
    def __init__(self, cluster: Cluster, size: Size, *, seed: int = 1, quiet: bool = False) -> None:
        self.cluster = cluster
        self.size = size
        self.ordered = dict.fromkeys(METHODS, 0)
        for name in METHODS:
            create_database(cluster, name)
            print(f"the database {name}", flush=True)
            load(cluster.conninfo(name), size, seed=seed, quiet=quiet)
            for statement in (
                "CREATE TABLE initial_stock USING heap AS SELECT i_id, i_stock AS stock FROM item",
                "CREATE TABLE counted USING heap AS SELECT max(o_id) AS last_order, count(*) AS orders FROM orders",
                f"INSERT INTO shopping_cart SELECT cart, now() FROM generate_series(1, {CARTS}) cart",
                f"SELECT setval(pg_get_serial_sequence('shopping_cart', 'sc_id'), {CARTS})",
            ):
                cluster.run_sql(statement, dbname=name)
            self._refill(name)
            cluster.run_sql("VACUUM ANALYZE shopping_cart, shopping_cart_line", dbname=name)

    def run(
        self, interaction: str, system: System, *, clients: int, seconds: float, offered: float | None = None
    ) -> Measured:
        """Some seconds of one interaction: as fast as it goes, or as often a second as `offered`."""
        self._refill(system.database)
        self.cluster.run_sql("VACUUM item, shopping_cart_line", dbname=system.database)
        files = [(self._write("script", script(interaction, system, self.size)), 1)]
        measured = self._pgbench(system, files, clients, seconds, offered)
        if interaction == "Buy Confirm":
            self.ordered[system.database] += measured.done
        return measured

    def run_mix(self, system: System, *, clients: int, seconds: float) -> Measured:
        """The same of the ordering mix."""
        self.cluster.run_sql("VACUUM item, shopping_cart, shopping_cart_line, customer", dbname=system.database)
        before = self._orders(system.database)
        files = [
            (self._write(f"mix{number}", script(name, system, self.size, alone=False)), weight)
            for number, (name, weight) in enumerate(MIX.items())
        ]
        measured = self._pgbench(system, files, clients, seconds, None)
        self.ordered[system.database] += self._orders(system.database) - before
        return measured

    def check(self) -> None:
        """Exits where the data are wrong."""
        for name in METHODS:
            wrong = [what for what, sql in CHECKS.items() if not self._ask(name, sql)]
            made = self._orders(name) - self._ask(name, "SELECT orders FROM counted")
            if made != self.ordered[name]:
                wrong.append(f"{self.ordered[name]} orders have been confirmed, there are {made}")
            if wrong:
                sys.exit(f"the data of {name} are wrong: {'; '.join(wrong)}")

    def _ask(self, database: str, sql: str) -> int:
        return int(self.cluster.run_sql(sql, dbname=database)[0][0])

    def _orders(self, database: str) -> int:
        return self._ask(database, "SELECT count(*) FROM orders")

    def _refill(self, database: str) -> None:
        self.cluster.run_sql(REFILL.format(items=self.size.items, carts=CARTS), dbname=database)

    def _write(self, name: str, text: str) -> Path:
        file = self.cluster.directory / f"{name}.sql"
        file.write_text(text)
        return file

    def _pgbench(
        self, system: System, files: list[tuple[Path, int]], clients: int, seconds: float, offered: float | None
    ) -> Measured:
        return run_pgbench(
            self.cluster, system.database, files, clients, seconds, offered, carts=CARTS // clients
        )


def run_pgbench(
    cluster: Cluster, database: str, files: list[tuple[Path, int]], clients: int, seconds: float,
    offered: float | None = None, *, carts: int = 0, transactions: int | None = None,
) -> Measured:  # fmt: skip
    """pgbench with these scripts and their weights, for a time or, per client, for a number of transactions."""
    for old in cluster.directory.glob("pgbench_log.*"):
        old.unlink()
    variables = [f"-D{name}={value}" for name, value in {**VARIABLES, "carts": carts}.items()]
    output = pgbench(
        cluster, database, "-n", "-c", str(clients), "-j", str(min(2, clients)), *variables,
        *(["-r"] if len(files) == 1 else []),
        *(("-T", f"{WARM_UP + seconds:g}") if transactions is None else ("-t", str(transactions))),
        *(("-R", f"{offered:.2f}") if offered else ()),
        "-l", f"--log-prefix={cluster.directory}/pgbench_log",
        *(f"-f{file}@{weight}" for file, weight in files),
    )  # fmt: skip
    lines = [line.split() for log in cluster.directory.glob("pgbench_log.*") for line in log.read_text().splitlines()]
    ended = [(int(line[4]) + int(line[5]) / 1e6, float(line[2]) / 1000) for line in lines]
    began = min(when for when, _ in ended) + (WARM_UP if transactions is None else 0)
    took = sorted(milliseconds for when, milliseconds in ended if when >= began)
    if len(took) < 2:
        sys.exit(f"pgbench has done too little to say anything:\n{output}")
    tps = len(took) / (max(when for when, _ in ended) - began)
    p50, p95, p99 = (percentile(took, percent) for percent in (50, 95, 99))
    return Measured(tps, len(lines), statistics.mean(took), p50, p95, p99, _messages(output))


def _messages(output: str) -> tuple[tuple[str, float], ...]:
    found = re.findall(r"^\s+([\d.]+)\s+\d+\s+(\S.*)$", output, re.MULTILINE)
    return tuple((text, float(latency)) for latency, text in found if not text.startswith("\\"))
