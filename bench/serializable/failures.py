"""Who fails by dependencies: requests as one transaction, as one instance, and with two instances that are both
prepared; and outsiders beside them.

What the clients do between their statements (nothing, for some milliseconds) takes most of the time. So attempts take
as long whether there are one or two of them, and the failures of the systems can be compared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ..rounds import METHODS, interleaved
from ..rows import Row, markdown, pick, plotted
from ..targets import Target
from .client import (
    COMMIT,
    DEPENDENCIES,
    FAILURES,
    INSTANCE,
    TWO_PHASE,
    Client,
    Ending,
    Session,
    Tally,
    Work,
    driving,
    perform,
)  # fmt: skip
from .dbt2 import CUSTOMERS, Store, choose_work, mix
from .measured import SSI

__all__ = [
    "QUICK", "WORKLOADS", "between_siblings", "load", "measure", "measure_siblings", "plot", "targets", "tell",
    "tell_siblings",
]  # fmt: skip

HEAP, TWICE = "heap, COMMIT", "mip, both prepared"
# Of each the database, how a request ends, and how many attempts it has side by side
SYSTEMS: dict[str, tuple[str, Ending, int]] = {
    HEAP: ("heap", COMMIT, 1),
    "heap, two phases": ("heap", TWO_PHASE, 1),
    "mip, one instance": ("mip", INSTANCE, 1),
    TWICE: ("mip", INSTANCE, 2),
}
ROWS = 500  # that are read by their keys
# Of each its table, how far the keys are apart, and what its table has besides
BY_KEY = {
    "by key": ("account", 1, ""),
    "by key, a leaf each": ("account_apart", 400, ""),
    "by key, value indexed": ("account_indexed", 1, "; CREATE INDEX ON account_indexed (value)"),
}
WORKLOADS = (*BY_KEY, "DBT-2++")
QUICK = ("by key", "DBT-2++")
CLIENTS = 8  # with requests, and as many outsiders
THINK = 0.08  # seconds of an attempt, at most
WHO = REQUESTS, OUTSIDERS = ("requests", "outsiders")
MOST = 1.2
ENOUGH = 20  # failures, for a ratio to them to say something


def load(store: Store) -> None:
    for database in METHODS:
        for table, apart, indexes in BY_KEY.values():
            store.cluster.run_sql(
                f"CREATE TABLE {table} (key int PRIMARY KEY, value int NOT NULL) WITH (fillfactor = 50){indexes};"
                f" INSERT INTO {table} SELECT key, 0 FROM generate_series(1, {ROWS * apart}) key",
                dbname=database,
            )
            store.cluster.run_sql(f"VACUUM (FREEZE, ANALYZE) {table}", dbname=database)


def _choose(generator: random.Random, workload: str, *, outsider: bool) -> Work:
    """By key: reads three rows, and changes another one. DBT-2++: in one warehouse; outsiders read as well."""
    if workload not in BY_KEY:
        return choose_work(generator, mix(8 if outsider else 0), 1, CUSTOMERS)
    table, apart, _ = BY_KEY[workload]
    *read, changed = (apart * row for row in generator.sample(range(1, ROWS + 1), 4))
    return Work(
        workload,
        [*(f"SELECT value FROM {table} WHERE key = {key}" for key in read),
         f"UPDATE {table} SET value = value + 1 WHERE key = {changed}"],
    )  # fmt: skip


def _client(
    store: Store, workload: str, database: str, ending: Ending, attempts: int, tally: Tally, seed: int, think: float,
    *, outsider: bool = False,
) -> Client:  # fmt: skip
    def client(over: Callable[[], bool]) -> None:
        generator = random.Random(seed)
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(closing(Session(store.cluster.conninfo(database)))) for _ in range(attempts)
            ]
            while not over():
                perform(sessions, SSI, ending, _choose(generator, workload, outsider=outsider), tally, think)

    return client


def _run(
    store: Store, workload: str, system: str, seed: int, seconds: float, clients: int, outsiders: int, think: float
) -> tuple[Tally, Tally]:
    """What those with requests, and what the outsiders have been through."""
    database, ending, attempts = SYSTEMS[system]
    store.vacuum(database)
    if workload in BY_KEY:
        store.cluster.run_sql(f"VACUUM {BY_KEY[workload][0]}", dbname=database)
    before = _changes(store, workload, database)
    mine, theirs = [Tally() for _ in range(clients)], [Tally() for _ in range(outsiders)]
    made = [
        *(_client(store, workload, database, ending, attempts, tally, seed + number, think)
          for number, tally in enumerate(mine)),
        *(_client(store, workload, database, COMMIT, 1, tally, seed + clients + number, think, outsider=True)
          for number, tally in enumerate(theirs)),
    ]  # fmt: skip
    with driving(made):
        time.sleep(seconds)
    told = sum(mine, Tally()), sum(theirs, Tally())
    committed, changed = sum(tally.requests for tally in told), _changes(store, workload, database) - before
    if workload in BY_KEY and committed != changed:
        raise SystemExit(f"{committed} requests were committed, {changed} rows changed")
    return told


def _changes(store: Store, workload: str, database: str) -> int:
    """Of the rows that are read by key; DBT-2++ has checks of its own."""
    if workload not in BY_KEY:
        return 0
    return int(store.cluster.run_sql(f"SELECT sum(value) FROM {BY_KEY[workload][0]}", dbname=database)[0][0])


def measure(store: Store, *, rounds: int, seconds: float, workloads: Sequence[str] = WORKLOADS) -> list[Row]:
    rows = []
    for number in range(rounds):
        for workload in workloads:
            for system in interleaved(tuple(SYSTEMS), number):
                told = _run(store, workload, system, 1000 * number, seconds, CLIENTS, CLIENTS, THINK)
                rows += [
                    _row(tally, workload=workload, system=system, round=number + 1, who=who)
                    for who, tally in zip(WHO, told, strict=True)
                ]
        print(f"failures: round {number + 1} of {rounds}", flush=True)
    return rows


def measure_siblings(store: Store, *, seconds: float) -> list[Row]:
    """One client alone, whose requests all have two instances that are prepared: nobody else is there to fail them."""
    return [_row(_run(store, workload, TWICE, 0, seconds, 1, 0, 0)[0], workload=workload) for workload in WORKLOADS]


def _row(tally: Tally, **what: object) -> Row:
    return {
        **what, "committed": tally.requests, "attempts": tally.attempts, "both_prepared": tally.both_prepared,
        **{kind: tally.failed[kind] for kind in FAILURES},
    }  # fmt: skip


def between_siblings(rows: list[Row]) -> int:
    """Failures of any kind where nobody else was there."""
    return sum(row[kind] for row in rows for kind in FAILURES)


def _failures(rows: list[Row], **where: object) -> float:
    """By dependencies, of a hundred committed ones."""
    return 100 * sum(pick(rows, DEPENDENCIES, **where)) / max(1, sum(pick(rows, "committed", **where)))


def _workloads(rows: list[Row]) -> list[str]:
    return [workload for workload in WORKLOADS if any(row["workload"] == workload for row in rows)]


def tell(rows: list[Row]) -> str:
    lines = []
    for workload in _workloads(rows):
        base = _failures(rows, workload=workload, system=HEAP, who=OUTSIDERS)
        for system in SYSTEMS:
            where = {"workload": workload, "system": system}
            mine, theirs = (_failures(rows, who=who, **where) for who in WHO)
            attempts = sum(pick(rows, "attempts", who=REQUESTS, **where))
            by_attempt = sum(pick(rows, DEPENDENCIES, who=REQUESTS, **where)) / max(1, attempts)
            lines.append(
                [workload, system, f"{sum(pick(rows, 'committed', who=REQUESTS, **where)):,}", f"{mine:.2f}",
                 f"{by_attempt:.2%}", f"{theirs:.2f}", f"{theirs / base:.2f}" if base else ""]
            )  # fmt: skip
    header = ["workload", "requests", "committed", "failures of 100 committed", "of 100 attempts",
              "outsiders' failures of 100 committed", "of those beside heap"]  # fmt: skip
    return markdown(header, lines)


def tell_siblings(rows: list[Row]) -> str:
    lines = [
        [row["workload"], f"{row['committed']:,}", f"{row['both_prepared']:,}", between_siblings([row])] for row in rows
    ]
    return markdown(["one client", "requests", "of these with both prepared", "failures, of any kind"], lines)


def targets(rows: list[Row], siblings: list[Row]) -> list[Target]:
    wanted = [Target("failures of siblings by siblings", between_siblings(siblings), most=0)]
    for workload in _workloads(rows):
        beside = {system: {"workload": workload, "system": system, "who": OUTSIDERS} for system in (TWICE, HEAP)}
        if sum(pick(rows, DEPENDENCIES, **beside[HEAP])) >= ENOUGH:
            ratio = _failures(rows, **beside[TWICE]) / _failures(rows, **beside[HEAP])
            wanted.append(Target(f"outsiders' failures / heap's, {workload}", ratio, most=MOST))
    return wanted


def plot(rows: list[Row], file: Path) -> None:
    workloads = _workloads(rows)
    with plotted(file, workloads, "", "failures by dependencies, of 100 committed") as axes:
        for axis, workload in zip(axes, workloads, strict=True):
            for number, who in enumerate(WHO):
                values = [_failures(rows, workload=workload, system=system, who=who) for system in SYSTEMS]
                axis.bar([at + 0.4 * number - 0.2 for at in range(len(SYSTEMS))], values, width=0.4, label=who)
            axis.set_xticks(range(len(SYSTEMS)), [name.replace(", ", ",\n") for name in SYSTEMS], fontsize=8)
