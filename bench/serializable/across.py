"""Requests over two sites at SERIALIZABLE: what it costs that they are serializable everywhere, and not at each site
only, and what each of the two prevents.

A counter has one half at each site. A request reads both halves of some counters, and adds one to the half of the
first counter at one site, and to that of the second at the other. What it has read of these, both halves together, no
other request may have read as well: of two that have, each would have to be before the other. Neither site sees more
than a half of that.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from pgmip.testing import Cluster
from pgmip.xinst import new_xid

from ..rounds import create_database, interleaved
from ..rows import Row, markdown, pick, plotted, quartiles, ratios, spread
from ..targets import Target
from .client import ACROSS_SITES, DEPENDENCIES, FAILURES, Client, Failed, Session, Tally, driving, pause
from .measured import SSI

__all__ = ["CASES", "QUICK", "Sites", "measure", "plot", "targets", "tell", "wrong"]

SITE, EVERYWHERE = MODES = ("site", "everywhere")  # of mip.serializable; a database of this name has it
COUNTERS = 100_000
CHOSEN = {"low": COUNTERS, "high": 100}  # from so many requests choose, which are as far apart as can be
READ = 3
Case = tuple[str, float]  # contention, and the share of the requests that fail over
CASES: tuple[Case, ...] = (("low", 0.0), ("low", 0.5), ("high", 0.0), ("high", 0.5))
QUICK = CASES[:3]
TRIES = 10  # until an anomaly has been seen
LEAST = 0.85  # of the rate at "site", at low contention


class Sites:
    """Two servers, with a database for each setting."""

    NAMES = ("one", "other")

    def __init__(self, stack: ExitStack, settings: dict[str, str]) -> None:
        self._clusters = [
            stack.enter_context(Cluster(name, settings=settings | {"shared_buffers": "256MB"})) for name in self.NAMES
        ]
        for cluster in self._clusters:
            for mode in MODES:
                create_database(cluster, "mip", mode)
                self._load(cluster, mode)

    def _load(self, cluster: Cluster, mode: str) -> None:
        cluster.run_sql(
            # A scan of all would be in conflict with everybody.
            f"ALTER DATABASE {mode} SET enable_seqscan = off; ALTER DATABASE {mode} SET enable_bitmapscan = off;"
            f" ALTER DATABASE {mode} SET mip.serializable = {mode}"
        )
        cluster.run_sql(
            "CREATE TABLE counter (key int PRIMARY KEY, half int NOT NULL) WITH (fillfactor = 50);"
            f" INSERT INTO counter SELECT key, 0 FROM generate_series(0, {COUNTERS - 1}) key",
            dbname=mode,
        )
        cluster.run_sql("VACUUM (FREEZE, ANALYZE) counter", dbname=mode)

    def vacuum(self, mode: str) -> None:
        for cluster in self._clusters:
            cluster.run_sql("VACUUM counter", dbname=mode)

    def conninfos(self, mode: str) -> list[str]:
        return [cluster.conninfo(mode) for cluster in self._clusters]

    def added(self, mode: str) -> list[int]:
        """So far, at each site."""
        sql = "SELECT sum(half) FROM counter"
        return [int(cluster.run_sql(sql, dbname=mode)[0][0]) for cluster in self._clusters]


@dataclass
class Told:
    """What a client has been through, and how often it has read what of which counter."""

    tally: Tally = field(default_factory=Tally)
    read: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __add__(self, other: Told) -> Told:
        return Told(self.tally + other.tally, self.read + other.read)

    @property
    def anomalies(self) -> int:
        """Requests that have read what another one has."""
        return sum(times - 1 for times in self.read.values())


class Attempt:
    """An instance: a session at each site."""

    def __init__(self, sessions: Sequence[Session], mode: str, xid: str, xinst: int) -> None:
        self._sessions = sessions
        self._mode = mode
        self._names = f"'{xid}', {xinst}"

    def work(self, counters: Sequence[int]) -> list[tuple[int, int]]:
        """What it has read of the first two counters. Raises Failed, as the following does.

        One site after the other, so that nobody waits in a circle over both.
        """
        sums: Counter[int] = Counter()
        keys = ", ".join(map(str, counters))
        for session, changed in zip(self._sessions, counters, strict=False):
            read = session.send(
                f"BEGIN ISOLATION LEVEL {SSI}",
                f"SELECT mip.begin({self._names}, '{{{','.join(Sites.NAMES)}}}', serializable => '{self._mode}')",
                f"UPDATE counter SET half = half + 1 WHERE key = {changed}"
                f" RETURNING (SELECT string_agg(key || ' ' || half, ',') FROM counter WHERE key IN ({keys}))",
            )
            for pair in read.decode().split(","):
                key, half = map(int, pair.split())
                sums[key] += half
        return [(key, sums[key]) for key in counters[:2]]

    def prepare(self) -> None:
        """At both sites, or at none."""
        failed = self._both("SELECT mip.prepare('{}', '{}')")
        if failed:
            for session in self._sessions:
                if session not in failed:
                    session.send(f"SELECT mip.rollback({self._names})")
            raise next(iter(failed.values()))

    def commit(self) -> None:
        if failed := self._both(f"SELECT mip.commit({self._names})"):
            raise RuntimeError(f"a commit has failed: {failed}")

    def roll_back(self) -> None:
        for session in self._sessions:
            session.roll_back()

    def _both(self, statement: str) -> dict[Session, Failed]:
        """At both sites at once; where it failed."""
        for session in self._sessions:
            session.ask(statement)
        failed = {}
        for session in self._sessions:
            try:
                session.answer()
            except Failed as error:
                failed[session] = error
        return failed


class Request:
    """Instances of a family, one after another."""

    def __init__(self, sessions: Sequence[Session], mode: str, counters: Sequence[int], told: Told) -> None:
        self._counters = counters
        self._told = told
        xid = new_xid()
        self._attempts = (Attempt(sessions, mode, xid, number) for number in itertools.count(1))

    def perform(self, *, fails_over: bool) -> None:
        """The first attempt is left prepared if it is to fail over, and another one committed: if that fails, the
        first one is after all. It may have failed for somebody else's who fails for the first one.
        """
        first = self._prepared()
        last = self._attempt() if fails_over else None
        (attempt, read) = last or first
        attempt.commit()
        self._told.tally.both_prepared += last is not None
        self._told.tally.committed["request"] += 1
        self._told.read.update(read)

    def _prepared(self) -> tuple[Attempt, list[tuple[int, int]]]:
        for failures in itertools.count():
            if made := self._attempt():
                return made
            pause(failures)
        raise AssertionError

    def _attempt(self) -> tuple[Attempt, list[tuple[int, int]]] | None:
        attempt, tally = next(self._attempts), self._told.tally
        tally.attempts += 1
        try:
            read = attempt.work(self._counters)
            attempt.prepare()
        except Failed as error:
            attempt.roll_back()
            tally.failed[error.kind] += 1
            return None
        return attempt, read


def _client(sites: Sites, mode: str, case: Case, told: Told, seed: int) -> Client:
    contention, share = case

    def client(over: Callable[[], bool]) -> None:
        generator = random.Random(seed)
        with ExitStack() as stack:
            sessions = [stack.enter_context(closing(Session(conninfo))) for conninfo in sites.conninfos(mode)]
            while not over():
                counters = generator.sample(range(0, COUNTERS, COUNTERS // CHOSEN[contention]), READ)
                Request(sessions, mode, counters, told).perform(fails_over=generator.random() < share)

    return client


def _drive(sites: Sites, mode: str, case: Case, clients: int, seconds: float, seed: int) -> tuple[Told, float]:
    """What they have been through, and requests a second. Every request has taken effect once, or it exits."""
    sites.vacuum(mode)
    before = sites.added(mode)
    each = [Told() for _ in range(clients)]
    began = time.monotonic()
    with driving([_client(sites, mode, case, told, 100 * seed + number) for number, told in enumerate(each)]):
        time.sleep(seconds)
    took = time.monotonic() - began
    told = sum(each, Told())
    requests = told.tally.requests
    added = [after - halves for after, halves in zip(sites.added(mode), before, strict=True)]
    if added != [requests, requests]:
        raise SystemExit(f"{requests} requests were committed, {added} halves added to")
    return told, requests / took


def measure(
    sites: Sites, *, rounds: int, seconds: float, clients: int, cases: Sequence[Case] = CASES
) -> list[Row]:
    def run(mode: str, case: Case, number: int) -> Row:
        told, rate = _drive(sites, mode, case, clients, seconds, seed=number)
        contention, share = case
        return {
            "contention": contention, "share": share, "system": mode, "round": number + 1, "rate": rate,
            "committed": told.tally.requests, "attempts": told.tally.attempts,
            **{kind: told.tally.failed[kind] for kind in FAILURES}, "anomalies": told.anomalies,
        }  # fmt: skip

    rows = []
    for number in range(rounds):
        for case in cases:
            rows += [run(mode, case, number) for mode in interleaved(MODES, number)]
        print(f"across: round {number + 1} of {rounds}", flush=True)
    for number in range(rounds, rounds + TRIES):
        if any(pick(rows, "anomalies", system=SITE)):
            break
        rows.append(run(SITE, ("high", 0.0), number))
    return rows


def wrong(rows: Sequence[Row]) -> list[str]:
    """There is none where it must not be; and at "site" there are, or nothing is said by that."""
    told = []
    if found := sum(pick(rows, "anomalies", system=EVERYWHERE)):
        told.append(f"{found} anomalies of requests that are serializable everywhere")
    if rows and not sum(pick(rows, "anomalies", system=SITE)):
        told.append("no anomaly of requests that are serializable at each site")
    return told


def _ratios(rows: Sequence[Row]) -> Iterator[tuple[Case, list[float]]]:
    for contention, share in sorted({(row["contention"], row["share"]) for row in rows}, key=CASES.index):
        yield (contention, share), ratios(rows, "rate", EVERYWHERE, SITE, contention=contention, share=share)


def _share(rows: Sequence[Row], kinds: Sequence[str], **where: object) -> str:
    """Of the attempts, those that failed for these reasons."""
    failed = sum(sum(pick(rows, kind, **where)) for kind in kinds)
    return f"{failed / max(1, sum(pick(rows, 'attempts', **where))):.2%}"


def tell(rows: Sequence[Row]) -> str:
    lines = []
    for (contention, share), values in _ratios(rows):
        for mode in MODES:
            where = {"contention": contention, "share": share, "system": mode}
            lines.append(
                [contention, f"{share:.0%}", mode, spread(rows, "rate", **where),
                 quartiles(values) if mode == EVERYWHERE else "", _share(rows, FAILURES, **where),
                 _share(rows, [DEPENDENCIES], **where), _share(rows, [ACROSS_SITES], **where),
                 f"{sum(pick(rows, 'anomalies', **where)):,} of {sum(pick(rows, 'committed', **where)):,}"]
            )  # fmt: skip
    header = ["contention", "fail over", "mip.serializable", "requests a second", "the ratio",
              "failed, of all attempts", "by dependencies", "by dependencies across sites",
              "anomalies, of all requests"]  # fmt: skip
    return markdown(header, lines)


def targets(rows: Sequence[Row]) -> list[Target]:
    return [
        Target(f"everywhere / site, low contention, fail over: {share:.0%}", statistics.median(values), least=LEAST)
        for (contention, share), values in _ratios(rows) if contention == "low"
    ]  # fmt: skip


def plot(rows: Sequence[Row], file: Path) -> None:
    with plotted(file, ["two sites"], "contention, share that fails over", "everywhere / site") as (axis,):
        found = list(_ratios(rows))
        axis.boxplot([values for _, values in found])
        axis.set_xticks(range(1, len(found) + 1), [f"{contention},\n{share:.0%}" for (contention, share), _ in found])
        axis.axhline(LEAST, color="gray", linewidth=0.8, label="target, low contention")
        axis.set_ylim(bottom=0)
