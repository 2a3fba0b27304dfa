"""How many instructions the end of a transaction costs the server, at one site.

    python -m bench.instructions [--transactions N] [--only CASE,CASE,...] [--out FOLDER]

The transactions of `cases`, one client, by the extended protocol with prepared statements, as drivers send them. They
are counted by callgrind in the backend that executes them: so the figures are the same on any machine and beside any
load, and a change of one per cent can be seen. Each case is counted twice, with so many transactions and without, so
that what a session costs does not count. Writes instructions.md, instructions.csv and instructions.png.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

import psycopg
from pgmip.testing import Cluster

from .cases import ENDS, REQUEST, SETTINGS, Statement, Values, draw, messages, method
from .counting import Counting
from .rounds import METHODS, UNDISTURBED, load, machine, names
from .rows import Row, markdown, plotted, write_csv
from .targets import Target, tell_targets

WARM_UP = 100
STATE = "600"
COUNTED = [case for case in ENDS if case not in SETTINGS]  # the others only differ in what is flushed


def run(conn: psycopg.Connection[Any], case: str, number: int) -> None:
    for _ in range(number):
        values = draw(scale=1)
        for message in messages(case, STATE):
            with conn.pipeline():
                for statement in message:
                    execute(conn, statement, values)


def execute(conn: psycopg.Connection[Any], statement: Statement, values: Values) -> None:
    text = re.sub(r"\$\d", "%s", statement.text).replace("{xid}", values["xid"])
    parameters = [values[name] for name in statement.parameters]
    conn.execute(text.encode(), parameters, prepare=not statement.names_xid)


def measure(counting: Counting, case: str, transactions: int) -> float:
    """Thousands of instructions a transaction."""
    _first, without, with_them = (  # the first session of a database finds less prepared for it
        counting.count(method(case), lambda conn, number=number: run(conn, case, number))  # type: ignore[misc]
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
    parser.add_argument("--only", type=names(ENDS), default=COUNTED)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with Cluster("instructions", settings=UNDISTURBED) as cluster:
        load(cluster, scale=1)
        for database in METHODS:
            cluster.run_sql(REQUEST, dbname=database)
            cluster.run_sql("VACUUM FREEZE", dbname=database)
        counting = Counting(cluster)
        rows: list[Row] = []
        for case in args.only:
            rows.append({"case": case, "thousands": measure(counting, case, args.transactions)})
            print(f"{case}: {rows[-1]['thousands']:.1f} thousand instructions", flush=True)
    write(args.out, rows, args.transactions)


if __name__ == "__main__":
    main()
