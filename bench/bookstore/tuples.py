"""Table 1 of the paper: how large rows are, and what of that is pg_mip's."""

from __future__ import annotations

from workload.population import TABLES

from ..rounds import METHODS
from ..rows import Row, markdown
from .store import Store

__all__ = ["measure", "tell"]

# Of each table: the average size of a tuple, and what the paper's extension added to it (8 bytes), in per cent.
PAPER = {
    "address": (154.1, 5.2), "author": (410.9, 1.9), "cc_xacts": (126.6, 6.3), "country": (63.2, 12.6),
    "customer": (491.3, 1.6), "item": (593.9, 1.3), "orders": (96.8, 8.3), "order_line": (115.8, 6.9),
}  # fmt: skip
PAPER_WEIGHTED = "163.8 (its smallest data set), 429.3 (its largest)", "4.9 %, 1.9 %"


def measure(store: Store) -> list[Row]:
    """Right after loading: the same rows in both databases."""
    rows = []
    for table in TABLES:
        row: Row = {"table": table}
        for name in METHODS:
            # As a row of its own type, a tuple has the header that it has in its page.
            sql = f"SELECT count(*), avg(pg_column_size(t.*)), pg_relation_size('{table}') FROM {table} t"
            ((count, average, size),) = store.cluster.run_sql(sql, dbname=name)
            row |= {"tuples": count, f"{name}_bytes": float(average), f"{name}_file": int(size)}
        rows.append(row)
    return rows


def tell(rows: list[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda row: str(row["table"])):
        size, more = PAPER[row["table"]]
        added = row["mip_bytes"] - row["heap_bytes"]
        lines.append(
            [row["table"], row["tuples"], f"{row['heap_bytes']:.1f}", f"{added:.1f}",
             f"{100 * added / row['heap_bytes']:.1f} %", row["mip_file"] - row["heap_file"], f"{size:.1f}", f"{more} %"]
        )  # fmt: skip
    count = sum(row["tuples"] for row in rows)
    average, mip = (sum(row["tuples"] * row[f"{name}_bytes"] for row in rows) / count for name in METHODS)
    lines.append(
        ["**weighted**", count, f"{average:.1f}", f"{mip - average:.1f}", f"{100 * (mip - average) / average:.1f} %",
         sum(row["mip_file"] - row["heap_file"] for row in rows), *PAPER_WEIGHTED]
    )  # fmt: skip
    header = ["table", "tuples", "bytes a tuple, heap", "more on mip", "overhead", "file on mip, bytes more",
              "paper: bytes a tuple", "paper: overhead"]  # fmt: skip
    return markdown(header, lines)
