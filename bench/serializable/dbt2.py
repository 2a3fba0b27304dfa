"""DBT-2++ in memory, Figure 5a of the paper, and the anomaly that its credit check has."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pgmip.testing import Cluster

from ..rounds import METHODS
from ..rows import Row, markdown, plotted
from .client import Work
from .measured import LEVELS, SI, SSI, compare, run, shares, tell_compared

__all__ = [
    "CONTENDED", "CUSTOMERS", "MIXES", "Store", "choose_work", "contend", "count_anomalies", "measure",
    "measure_anomalies", "mix", "plot", "tell", "tell_anomalies", "wrong_anomalies",
]  # fmt: skip

HERE = Path(__file__).parent
CUSTOMERS = 3_000  # of a district
SEEDS = 9_000_000_000_000_000_000
READ_ONLY = ("show_order", "show_stock")
# Per cent of TPC-C++'s mix; those that only read are 8 of them.
STANDARD = {"enter_order": 41, "pay": 43, "check_credit": 4, "deliver": 4, "show_order": 4, "show_stock": 4}
MIXES = (8, 28, 48, 68, 88, 100)  # per cent that only read
# With one customer a district: where the credit check meets orders of the same customer
CONTENDED = {"enter_order": 0.6, "check_credit": 0.3, "deliver": 0.1}
PAPER = {8: "95 %", 100: "100 %"}
PAPER_FAILURES = "below 0.25 %"
# What is updated most. It would be measured otherwise what others have left behind.
VACUUM = "VACUUM district, customer, new_order, stock"
TRIES = 10  # until the anomaly has been seen
# Orders that were accepted by a credit which a check then replaced that had not seen them: each of the two has to be
# before the other.
ANOMALIES = """
    SELECT count(*) FROM credit_check
    JOIN orders ON o_w_id = k_w_id AND o_d_id = k_d_id AND o_c_id = k_c_id
    WHERE o_checks < k_number AND o_id > k_last_order
"""
# The name of each check, and a query that is true where it holds.
CHECKS = {
    "a district's orders are those that it has numbered": """
        SELECT NOT EXISTS (SELECT FROM district
            JOIN (SELECT o_w_id, o_d_id, max(o_id) AS last, count(*) AS orders FROM orders GROUP BY 1, 2) o
                ON o_w_id = d_w_id AND o_d_id = d_id
            WHERE d_next_o_id <> last + 1 OR orders <> last)""",
    "an order has all its lines": """
        SELECT NOT EXISTS (SELECT FROM orders
            LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS lines FROM order_line GROUP BY 1, 2, 3) l
                ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
            WHERE lines IS DISTINCT FROM o_ol_cnt)""",
    "what is not delivered is a new order": """
        SELECT NOT EXISTS (SELECT FROM orders FULL JOIN new_order
            ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
            WHERE o_id IS NULL OR (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL))""",
    "a customer has paid what the history says, and owes what was delivered": """
        SELECT NOT EXISTS (SELECT FROM customer
            LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid, count(*) AS payments
                FROM history GROUP BY 1, 2, 3) h
                ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id
            LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS delivered FROM orders
                JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
                WHERE o_carrier_id IS NOT NULL GROUP BY 1, 2, 3) o
                ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
            WHERE paid <> c_ytd_payment OR payments <> c_payment_cnt
                OR c_balance <> coalesce(delivered, 0) - c_ytd_payment)""",
    "nothing is in doubt": "SELECT NOT EXISTS (SELECT FROM pg_prepared_xacts)",
}


@dataclass(frozen=True)
class Store:
    """A copy of the data on tables of each access method, in a database of its name."""

    cluster: Cluster
    warehouses: int

    def load(self) -> None:
        print(f"loading {self.warehouses} warehouses, twice", flush=True)
        with ThreadPoolExecutor(len(METHODS)) as pool:
            list(pool.map(self._load, METHODS))

    def _load(self, database: str) -> None:
        run_sql = self.cluster.run_sql
        # Where all is in memory; and a scan of a small table would be in conflict with everybody.
        run_sql(
            f"ALTER DATABASE {database} SET enable_seqscan = off; ALTER DATABASE {database} SET random_page_cost = 1;"
            f" ALTER DATABASE {database} SET jit = off"
        )
        run_sql((HERE / "dbt2.sql").read_text(), dbname=database)
        for warehouse in range(1, self.warehouses + 1):
            run_sql(f"SELECT load_warehouse({warehouse})", dbname=database)
        run_sql((HERE / "dbt2_keys.sql").read_text(), dbname=database)
        run_sql("VACUUM (FREEZE, ANALYZE)", dbname=database)

    def vacuum(self, database: str) -> None:
        self.cluster.run_sql(VACUUM, dbname=database)

    def check(self) -> None:
        """Exits where the data are wrong."""
        for database in METHODS:
            wrong = [
                what for what, sql in CHECKS.items() if not self.cluster.run_sql(sql, dbname=database)[0][0]
            ]
            if wrong:
                sys.exit(f"the data of {database} are wrong: {'; '.join(wrong)}")


def mix(read_only: int) -> dict[str, float]:
    """The shares of the transactions where so many per cent only read, in otherwise the same proportions."""
    reading = sum(STANDARD[name] for name in READ_ONLY)
    shares = {
        name: share / reading * read_only if name in READ_ONLY else share / (100 - reading) * (100 - read_only)
        for name, share in STANDARD.items()
    }
    return {name: share / 100 for name, share in shares.items() if share}


def _script(name: str, level: str, warehouses: int, customers: int) -> str:
    only = " READ ONLY" if name in READ_ONLY else ""
    return (
        f"\\set seed random(1, {SEEDS})\nBEGIN ISOLATION LEVEL {level}{only};\n"
        f"SELECT {name}({warehouses}, {customers}, :seed);\nCOMMIT;\n"
    )


def choose_work(generator: random.Random, shares: Mapping[str, float], warehouses: int, customers: int) -> Work:
    """The same for clients of our own."""
    (name,) = generator.choices(list(shares), list(shares.values()))
    seed = generator.randint(1, SEEDS)
    return Work(name, [f"SELECT {name}({warehouses}, {customers}, {seed})"], only_reads=name in READ_ONLY)


# -- Figure 5a -----------------------------------------------------------------------------------------------------


def measure(store: Store, *, rounds: int, seconds: float, clients: int, mixes: tuple[int, ...]) -> list[Row]:
    rows = []
    for number in range(rounds):
        for read_only in mixes:
            rows += compare(
                store.cluster, number, partial(_scripts, store.warehouses, CUSTOMERS, mix(read_only)), VACUUM,
                clients=clients, seconds=seconds, read_only=read_only,
            )  # fmt: skip
        print(f"DBT-2++: round {number + 1} of {rounds}", flush=True)
    return rows


def _scripts(warehouses: int, customers: int, shares: Mapping[str, float], level: str) -> list[tuple[str, float]]:
    return [(_script(name, level, warehouses, customers), share) for name, share in shares.items()]


def tell(rows: list[Row]) -> str:
    return tell_compared(
        rows, "read_only", "only read", lambda mix: f"{mix} %", lambda mix: PAPER.get(mix, "95 to 100 %"),
        PAPER_FAILURES,
    )  # fmt: skip


def plot(rows: list[Row], file: Path) -> None:
    mixes = sorted({row["read_only"] for row in rows})
    with plotted(file, ["DBT-2++ in memory"], "per cent that only read", f"{SSI}, per cent of {SI}") as (axis,):
        for method in METHODS:
            medians = [statistics.median(shares(rows, read_only=read_only, method=method)) for read_only in mixes]
            axis.plot(mixes, medians, marker="o", label=method)
        axis.plot([8, 100], [95, 100], color="gray", linestyle="none", marker="x", label="paper")
        axis.set_ylim(bottom=0)


# -- the anomaly -----------------------------------------------------------------------------------------------------


def count_anomalies(cluster: Cluster, database: str) -> int:
    return int(cluster.run_sql(ANOMALIES, dbname=database)[0][0])


def measure_anomalies(store: Store, *, seconds: float, clients: int) -> list[Row]:
    def work(level: str, method: str) -> int:
        scripts = _scripts(store.warehouses, 1, CONTENDED, level)
        return run(store.cluster, method, scripts, clients=clients, seconds=seconds).done

    return [row for method in METHODS for row in contend(store, method, method, partial(work, method=method))]


def contend(store: Store, who: str, database: str, work: Callable[[str], int]) -> list[Row]:
    """Does some work at REPEATABLE READ until there is an anomaly, and then as often at SERIALIZABLE. `work` is given
    the level, and says how many transactions it has committed.
    """
    rows: list[Row] = []
    for level in LEVELS:
        before = count_anomalies(store.cluster, database)
        done = found = runs = 0
        while runs < (TRIES if level == SI else rows[0]["runs"]) and not (level == SI and found):
            done += work(level)
            found = count_anomalies(store.cluster, database) - before
            runs += 1
        rows.append({"who": who, "system": level, "runs": runs, "transactions": done, "anomalies": found})
    return rows


def tell_anomalies(rows: list[Row]) -> str:
    lines = [[row["who"], row["system"], f"{row['transactions']:,}", row["anomalies"]] for row in rows]
    return markdown(["who", "level", "transactions", "anomalies"], lines)


def wrong_anomalies(rows: Iterable[Row]) -> list[str]:
    """At SERIALIZABLE there are none; and where there are none at REPEATABLE READ, nothing is said by that."""
    return [
        f"{row['anomalies']} anomalies at {row['system']} of {row['who']} in {row['transactions']} transactions"
        for row in rows if (row["anomalies"] > 0) == (row["system"] == SSI)
    ]  # fmt: skip
