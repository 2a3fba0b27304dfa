"""Requests that fail over: what SERIALIZABLE costs them, and that it prevents what it should."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pgmip.xinst import new_xid

from ..rounds import interleaved
from ..rows import Row, markdown, median, plotted, quartiles, ratios, spread
from ..targets import Target
from .client import COMMIT, INSTANCE, Attempt, Client, Failed, Session, Tally, Work, driving, pause, perform
from .dbt2 import CONTENDED, CUSTOMERS, Store, choose_work, contend, mix
from .measured import LEVELS, SI, SSI

__all__ = [
    "CASES", "PREPARED", "QUICK", "Request", "fail_over", "failing_over", "measure", "measure_anomalies", "plot",
    "targets", "tell",
]  # fmt: skip

PREPARED, RUNNING = "prepared", "running"  # how the first attempt is left
Case = tuple[float, str]  # the share of the requests that fail over, and that
CASES: tuple[Case, ...] = (
    (0.0, PREPARED), *((share, left) for left in (PREPARED, RUNNING) for share in (0.1, 0.5, 1.0))
)  # fmt: skip
QUICK = ((0.0, PREPARED), (1.0, PREPARED), (1.0, RUNNING))
LEAST = 0.93


class Request:
    """A request's attempts, one after another: instances of a family."""

    def __init__(self, level: str, work: Work, tally: Tally) -> None:
        self._level = level
        self._work = work
        self._tally = tally
        self._xid = new_xid()
        self._numbers = itertools.count(1)

    def attempt(self, session: Session, *, to_the_end: bool) -> Attempt | None:
        """One that does the work, and is prepared if it is to come to the end. None: it has failed."""
        made = Attempt(session, self._level, INSTANCE, self._work, self._xid, next(self._numbers))
        self._tally.attempts += 1
        try:
            made.work()
            if to_the_end:
                made.end()
        except Failed as error:
            self._tally.failed[error.kind] += 1
            return None
        return made

    def attempts(self, session: Session, *, to_the_end: bool) -> Attempt:
        """One after another, until one has not failed."""
        failures = 0
        while (made := self.attempt(session, to_the_end=to_the_end)) is None:
            pause(failures)
            failures += 1
        return made


def fail_over(first: Session, second: Session, request: Request, left: str) -> None:
    """The first attempt is left like that, and another app server's is committed. If that one fails, it may be because
    of a request whose second attempt fails because of our first one: so that comes to its end, as any coordinator would
    end it. What is prepared is committed, what still runs is given up.
    """
    abandoned = request.attempts(first, to_the_end=left == PREPARED)
    made = request.attempt(second, to_the_end=True)
    if made is not None:
        made.decide()
        first.give_up()
    elif left == PREPARED:
        abandoned.decide()
    else:
        first.roll_back()
        request.attempts(second, to_the_end=True).decide()


def failing_over(
    store: Store, level: str, share: float, left: Sequence[str], shares: Mapping[str, float], customers: int,
    tally: Tally, seed: int,
) -> Client:  # fmt: skip
    """A client whose requests are of this mix. Such a share of them fails over, their first attempts being left in one
    of these ways.
    """

    def client(over: Callable[[], bool]) -> None:
        generator = random.Random(seed)
        conninfo = store.cluster.conninfo("mip")
        with closing(Session(conninfo)) as first, closing(Session(conninfo)) as second:
            while not over():
                work = choose_work(generator, shares, store.warehouses, customers)
                if work.only_reads:
                    perform([first], level, COMMIT, work, tally)
                    continue
                request = Request(level, work, tally)
                if generator.random() < share:
                    fail_over(first, second, request, generator.choice(left))
                else:
                    request.attempts(first, to_the_end=True).decide()
                tally.committed[work.name] += 1

    return client


def _drive(
    store: Store, level: str, share: float, left: Sequence[str], shares: Mapping[str, float], customers: int,
    clients: int, seconds: float, seed: int,
) -> tuple[Tally, float]:  # fmt: skip
    """What they have been through, and requests a second. Every request has taken effect once, or it exits."""
    tallies = [Tally() for _ in range(clients)]
    before, began = _orders(store), time.monotonic()
    made = [
        failing_over(store, level, share, left, shares, customers, tally, 100 * seed + number)
        for number, tally in enumerate(tallies)
    ]
    with driving(made):
        time.sleep(seconds)
    took = time.monotonic() - began
    tally = sum(tallies, Tally())
    if _orders(store) - before != tally.committed["enter_order"]:
        raise SystemExit(f"{tally.committed['enter_order']} orders were entered, {_orders(store) - before} made")
    return tally, tally.requests / took


def _orders(store: Store) -> int:
    return int(store.cluster.run_sql("SELECT sum(d_next_o_id) FROM district", dbname="mip")[0][0])


def measure(
    store: Store, *, rounds: int, seconds: float, clients: int, cases: Sequence[Case] = CASES
) -> list[Row]:
    rows = []
    for number in range(rounds):
        for share, left in cases:
            for level in interleaved(LEVELS, number):
                store.vacuum("mip")
                tally, rate = _drive(store, level, share, [left], mix(8), CUSTOMERS, clients, seconds, seed=number)
                rows.append(
                    {"share": share, "left": left, "system": level, "round": number + 1, "rate": rate,
                     "failures": tally.failed.total() / tally.attempts, "by_dependencies": tally.by_dependencies}
                )  # fmt: skip
        print(f"families: round {number + 1} of {rounds}", flush=True)
    return rows


def measure_anomalies(store: Store, *, seconds: float, clients: int) -> list[Row]:
    """Half of the requests of the contended mix fail over."""
    def work(level: str) -> int:
        tally, _ = _drive(store, level, 0.5, (PREPARED, RUNNING), CONTENDED, 1, clients, seconds, seed=1)
        return tally.requests

    return contend(store, "families", "mip", work)


def _ratios(rows: list[Row]) -> Iterator[tuple[Case, list[float]]]:
    for share, left in sorted({(row["share"], row["left"]) for row in rows}, key=CASES.index):
        yield (share, left), ratios(rows, "rate", SSI, SI, share=share, left=left)


def _case(share: float, left: str) -> str:
    return f"{share:.0%}, {left}" if share else "none"


def tell(rows: list[Row]) -> str:
    lines = []
    for (share, left), values in _ratios(rows):
        where = {"share": share, "left": left}
        lines.append(
            [_case(share, left), *(spread(rows, "rate", system=level, **where) for level in LEVELS), quartiles(values),
             *(f"{median(rows, 'failures', system=level, **where):.2%}" for level in LEVELS)]
        )  # fmt: skip
    header = ["fail over", f"{SI}, requests a second", f"{SSI}, requests a second", "the ratio",
              f"failures, {SI}", f"failures, {SSI}"]  # fmt: skip
    return markdown(header, lines)


def targets(rows: list[Row]) -> list[Target]:
    return [
        Target(f"{SSI} / {SI}, fail over: {_case(*case)}", statistics.median(values), least=LEAST)
        for case, values in _ratios(rows)
    ]


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, ["families, DBT-2++"], "share of requests that fail over", f"{SSI} / {SI}") as (axis,):
        found = list(_ratios(rows))
        axis.boxplot([values for _, values in found])
        axis.set_xticks(range(1, len(found) + 1), [_case(*case).replace(", ", ",\n") for case, _ in found], fontsize=8)
        axis.axhline(LEAST, color="gray", linewidth=0.8, label="target")
        axis.set_ylim(bottom=0)
