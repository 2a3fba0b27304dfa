"""What grows with the number of sessions, of families in doubt, and of entries in the MIPT."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
from pgmip.testing import Cluster

from .population import SIZES
from .results import Row, interleaved, markdown, median, plotted, ratio, spread
from .scripts import SYSTEMS, script
from .store import DATABASES, Measured, Store, run_pgbench

__all__ = ["measure_entries", "measure_in_doubt", "measure_sessions", "plot", "tell", "tell_sessions"]

COMPARED = ("2PC", "MIP")
SESSIONS = (1, 4, 16, 64)
IN_DOUBT = (10, 100, 1_000, 10_000)
ENTRIES = (10_000, 100_000, 1_000_000, 10_000_000)
CLIENTS = 4
# Committed requests of the last hour, as they come back from a dump.
FILL = """
    INSERT INTO mip.mipt (xid, xinst, request, result, sites, owner, since, aborted)
    SELECT format('%s-%s-7%s-8%s-%s', left(at, 8), right(at, 4), left(random, 3), substr(random, 4, 3),
            substr(random, 7, 12)),
        1, '{{"request": 1}}', '{{"done": true}}', '{{}}', current_user::regrole, made, false
    FROM (SELECT lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') AS at,
            md5(number::text) AS random, made
        FROM (SELECT number, now() - interval '1 hour' * (number % 3600) / 3600 AS made
            FROM generate_series({first}, {last}) number) n) m
"""


def memory(cluster: Cluster) -> dict[str, float]:
    """MB of the server's processes: their own, and what they share."""
    found = {"private_mb": 0.0, "shared_mb": 0.0}
    for pid in cluster.pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for metric, name in (("private_mb", "Pss_Anon"), ("shared_mb", "Pss_Shmem")):
            value = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
            found[metric] += int(value[1]) / 1024 if value else 0.0
    return found


# -- sessions ----------------------------------------------------------------------------------------------------


def measure_sessions(store: Store, *, rounds: int, seconds: float, sessions: Sequence[int] = SESSIONS) -> list[Row]:
    rows = []
    for number in range(rounds):
        for count in sessions:
            for system in interleaved(COMPARED, number):
                m = store.run("Buy Confirm", SYSTEMS[system], clients=count, seconds=seconds)
                rows.append(
                    {"sessions": count, "system": system, "round": number + 1, "tps": m.tps, "mean": m.mean,
                     "private_mb": _with_sessions(store.cluster, system, count)}
                )  # fmt: skip
        print(f"sessions: round {number + 1} of {rounds}", flush=True)
    return rows


def _with_sessions(cluster: Cluster, system: str, count: int) -> float:
    """Private memory of the server with so many sessions that have done the statements of one instance, or without."""
    database = SYSTEMS[system].database
    with ExitStack() as stack:
        for number in range(count):
            conn = stack.enter_context(psycopg.connect(cluster.conninfo(database), autocommit=True))
            conn.execute("BEGIN")
            if system == "MIP":
                conn.execute("SELECT mip.begin(%s, 1)", (f"memory {number}",))
            conn.execute("UPDATE item SET i_stock = i_stock WHERE i_id = %s", (1 + number,))
            conn.execute("SELECT count(*) FROM customer WHERE c_id < 10")
            conn.execute("ROLLBACK")
        return memory(cluster)["private_mb"]


def tell_sessions(rows: list[Row]) -> str:
    lines = []
    for count in sorted({row["sessions"] for row in rows}):
        where = {"sessions": count}
        lines.append(
            [count, *(spread(rows, "tps", system=system, **where) for system in COMPARED),
             ratio(rows, "tps", "MIP", "2PC", **where),
             *(f"{median(rows, 'private_mb', system=system, **where):.0f}" for system in COMPARED)]
        )  # fmt: skip
    return markdown(
        ["sessions", "2PC, tps", "MIP, tps", "MIP / 2PC", "server's private memory, 2PC, MB", "MIP, MB"], lines
    )


# -- families in doubt, and entries of the MIPT ------------------------------------------------------------------


class _Carts:
    """A cluster whose transactions add a shopping cart, and so never wait for one another."""

    def __init__(self, stack: ExitStack) -> None:
        settings = {"shared_buffers": "2GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
        self.cluster = stack.enter_context(
            Cluster("carts", settings=settings, fsync=True, max_prepared_transactions=max(IN_DOUBT) + 100)
        )
        for name in DATABASES:
            self.cluster.create_database(name)
            self.cluster.run_sql("CREATE EXTENSION pg_mip", dbname=name)
            self.cluster.run_sql(
                f"CREATE TABLE shopping_cart (sc_id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,"
                f" sc_time timestamp) USING {name}",
                dbname=name,
            )

    def run(self, system: str, seconds: float, *, clients: int = CLIENTS, transactions: int | None = None) -> Measured:
        made = SYSTEMS[system]
        file = self.cluster.directory / "script.sql"
        file.write_text(script("New Cart", made, SIZES["tiny"]))
        return run_pgbench(self.cluster, made.database, [(file, 1)], clients, seconds, transactions=transactions)

    def row(self, system: str, seconds: float) -> Row:
        m = self.run(system, seconds)
        prepare, commit = (latency for text, latency in m.messages if not text.startswith(("PREPARE ", "SET ")))
        return {"tps": m.tps, "prepare_ms": prepare, "commit_ms": commit, **memory(self.cluster)}


def measure_in_doubt(*, rounds: int, seconds: float, counts: Sequence[int] = IN_DOUBT) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        carts = _Carts(stack)
        there = 0
        for count in counts:
            there += carts.run("MIP in doubt", seconds, clients=2, transactions=(count - there) // 2).done
            for number in range(rounds):
                for system in interleaved(COMPARED, number):
                    rows.append({"size": count, "system": system, "round": number + 1, **carts.row(system, seconds)})
            ((in_doubt,),) = carts.cluster.run_sql("SELECT count(*) FROM mip.in_doubt", dbname="mip")
            if in_doubt != count:
                raise SystemExit(f"{in_doubt} families are in doubt instead of {count}")
            print(f"{count} families in doubt", flush=True)
        _settle(carts.cluster)
    return rows


def _settle(cluster: Cluster) -> None:
    """Whatever is in doubt can be committed."""
    with psycopg.connect(cluster.conninfo("mip"), autocommit=True) as conn:
        for xid, xinst in conn.execute("SELECT xid, xinst FROM mip.in_doubt").fetchall():
            conn.execute("SELECT mip.commit(%s, %s)", (xid, xinst))
        ((left,),) = conn.execute("SELECT count(*) FROM mip.in_doubt").fetchall()
    if left:
        raise SystemExit(f"{left} families are still in doubt")


def measure_entries(*, rounds: int, seconds: float, counts: Sequence[int] = ENTRIES) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        carts = _Carts(stack)
        there = 0
        for count in counts:
            carts.cluster.run_sql(FILL.format(first=there + 1, last=count), dbname="mip")
            carts.cluster.run_sql("VACUUM ANALYZE mip.mipt", dbname="mip")
            carts.cluster.run_sql("CHECKPOINT")
            there = count
            for number in range(rounds):
                for system in interleaved(COMPARED, number):
                    rows.append({"size": count, "system": system, "round": number + 1, **carts.row(system, seconds)})
            print(f"{count} entries", flush=True)
        ((found,),) = carts.cluster.run_sql("SELECT count(*) FROM mip.mipt", dbname="mip")
        if found < there:
            raise SystemExit(f"the MIPT has {found} entries, {there} were put into it")
    return rows


def tell(rows: list[Row], what: str) -> str:
    lines = []
    for size in sorted({row["size"] for row in rows}):
        lines.append(
            [f"{size:,}", *(spread(rows, "tps", system=system, size=size) for system in COMPARED),
             ratio(rows, "tps", "MIP", "2PC", size=size),
             *(spread(rows, metric, system="MIP", size=size) for metric in ("prepare_ms", "commit_ms")),
             *(f"{median(rows, metric, system='MIP', size=size):.0f}" for metric in ("private_mb", "shared_mb"))]
        )  # fmt: skip
    header = [what, "2PC, tps", "MIP, tps", "MIP / 2PC", "MIP: begin, insert, prepare, ms", "commit, ms",
              "server's private memory, MB", "shared memory in use, MB"]  # fmt: skip
    return markdown(header, lines)


def plot(sessions: list[Row], in_doubt: list[Row], entries: list[Row], file: Path) -> None:
    titles = ("Buy Confirm by sessions", "by families in doubt", "by entries of the MIPT")
    with plotted(file, titles, "", "transactions a second") as axes:
        for axis, rows, column in zip(axes, (sessions, in_doubt, entries), ("sessions", "size", "size"), strict=True):
            sizes = sorted({row[column] for row in rows})
            for system in COMPARED:
                axis.plot(
                    sizes, [median(rows, "tps", system=system, **{column: size}) for size in sizes],
                    marker=".", label=system,
                )  # fmt: skip
            axis.set_xscale("log")
            axis.set_ylim(bottom=0)
