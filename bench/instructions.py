"""How many instructions the end of a transaction costs the server, at one site.

    python -m bench.instructions [--transactions N] [--only CASE,CASE,...] [--out FOLDER]

The transactions of `commit`, one client, by the extended protocol with prepared statements, as drivers send them. They
are counted by callgrind in the backend that executes them: so the figures are the same on any machine and beside any
load, and a change of one per cent can be seen. Each case is counted twice, with so many transactions and without, so
that what a session costs does not count. Writes instructions.md, instructions.csv and instructions.png.

    a    COMMIT
    a+k  a and a row with an idempotency key and the result
    b    PREPARE TRANSACTION, COMMIT PREPARED
    c    b and the row
    d    mip.prepare, mip.commit
    db   mip.prepare_beside, mip.commit_beside
    f    mip.commit_one_phase
    fb   mip.commit_one_phase_beside
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from pgmip.testing import Cluster
from pgmip.xinst import new_xid

from .commit import REQUEST, STATEMENTS
from .counting import Counting
from .rounds import UNDISTURBED, create_database, machine, pgbench
from .rows import Row, markdown, plotted, write_csv
from .targets import Target, tell_targets

WARM_UP = 100
HEAP, MIP = ("a", "a+k", "b", "c"), ("d", "db", "f", "fb")
DATABASE = dict.fromkeys(HEAP, "heap") | dict.fromkeys(MIP, "mip")

Statement = tuple[str, Sequence[Any], bool]  # with its parameters, and whether it is prepared


def prepared(name: str, *parameters: Any) -> Statement:
    """One of `commit`'s statements."""
    text = STATEMENTS[name].partition(" AS ")[2]
    return re.sub(r"\$\d", "%s", text), parameters, True


def beside(name: str, *parameters: Any) -> Statement:
    """The same with the function that returns no rows of the MIPT."""
    text, values, is_prepared = prepared(name, *parameters)
    return re.sub(r"SELECT .* FROM (mip\.\w+)", r"SELECT \1_beside", text), values, is_prepared


BEGIN: Statement = ("BEGIN", (), True)
COMMIT: Statement = ("COMMIT", (), True)


def ends(case: str, xid: str) -> tuple[list[Statement], list[Statement], list[Statement]]:
    """Of each case: with the first statement, with the last one, and afterwards."""
    texts = '{"aid": 12345, "delta": 678}', '{"done": true}'
    key = prepared("key", xid, *texts)
    prepare: Statement = (f"PREPARE TRANSACTION '{xid}'", (), False)
    commit: Statement = (f"COMMIT PREPARED '{xid}'", (), False)
    begin = prepared("mip_begin", xid, 1)
    return {
        "a": ([], [COMMIT], []),
        "a+k": ([], [key, COMMIT], []),
        "b": ([], [prepare], [commit]),
        "c": ([], [key, prepare], [commit]),
        "d": ([begin], [prepared("mip_prepare", *texts)], [prepared("mip_commit", xid, 1)]),
        "db": ([begin], [beside("mip_prepare", *texts)], [beside("mip_commit", xid, 1)]),
        "f": ([begin], [prepared("mip_one_phase", *texts)], []),
        "fb": ([begin], [beside("mip_one_phase", *texts)], []),
    }[case]


def transaction(case: str) -> list[list[Statement]]:
    """Its messages."""
    aid, tid, delta = random.randint(1, 100_000), random.randint(1, 10), random.randint(-5000, 5000)
    before, after, then = ends(case, new_xid())
    messages = [
        [BEGIN, *before, prepared("account", delta, aid)],
        [prepared("read_account", aid)],
        [prepared("teller", delta, tid)],
        [prepared("branch", delta, 1), *after],
    ]
    return messages + ([then] if then else [])


def run(conn: psycopg.Connection[Any], case: str, number: int) -> None:
    for _ in range(number):
        for message in transaction(case):
            with conn.pipeline():
                for text, parameters, is_prepared in message:
                    conn.execute(text.encode(), parameters, prepare=is_prepared)


def measure(counting: Counting, case: str, transactions: int) -> float:
    """Thousands of instructions a transaction."""
    _first, without, with_them = (  # the first session of a database finds less prepared for it
        counting.count(DATABASE[case], lambda conn, number=number: run(conn, case, number))  # type: ignore[misc]
        for number in (1, WARM_UP, WARM_UP + transactions)
    )
    return (with_them - without) / transactions / 1000


def targets(counted: dict[str, float]) -> list[Target]:
    told = []
    if {"c", "db"} <= counted.keys():
        told.append(Target("db / c", counted["db"] / counted["c"], most=1.05))
    if {"a+k", "fb"} <= counted.keys():
        told.append(Target("fb / (a and a row with a key)", counted["fb"] / counted["a+k"], most=1.05))
    return told


def write(out: Path, rows: list[Row], transactions: int) -> None:
    counted = {row["case"]: row["thousands"] for row in rows}
    base = counted.get("a", math.nan)
    lines = [[case, f"{value:.0f}", f"{value / base:.2f}"] for case, value in counted.items()]
    text = [
        "# Instructions of a transaction",
        f"In the backend, counted by callgrind; {transactions} transactions a case, after {WARM_UP}. {machine()}.",
        markdown(["case", "thousands", "ratio to a"], lines),
        tell_targets(targets(counted)),
    ]
    (out / "instructions.md").write_text("\n\n".join(text) + "\n")
    write_csv(out / "instructions.csv", rows)
    with plotted(out / "instructions.png", ["One transaction"], "", "thousands of instructions") as (axis,):
        axis.bar(list(counted), list(counted.values()), label="backend")
    print("\n\n".join(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transactions", type=int, default=300)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(DATABASE))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with Cluster("instructions", settings=UNDISTURBED) as cluster:
        for method in set(DATABASE.values()):
            create_database(cluster, method)
            pgbench(cluster, method, "-i", "-q", "-s", "1")
            cluster.run_sql(REQUEST, dbname=method)
            cluster.run_sql("VACUUM FREEZE", dbname=method)
        counting = Counting(cluster)
        rows: list[Row] = []
        for case in args.only:
            rows.append({"case": case, "thousands": measure(counting, case, args.transactions)})
            print(f"{case}: {rows[-1]['thousands']:.1f} thousand instructions", flush=True)
    write(args.out, rows, args.transactions)


if __name__ == "__main__":
    main()
