"""TPC-W-derived: section 4 of the paper again, on stock PostgreSQL with the extension, and beyond it.

    python -m bench.tpcw [--size tiny|small|large] [--rounds N] [--seconds N] [--seed N] [--only PART,...]
                         [--out FOLDER] [--quick]

Loads the book store of workload/ into private clusters, measures, checks the data, and writes the report: README.md
with plots, and a CSV file for each part. `--quick` runs everything on little data, to see that it runs and that the
data are right; its times say nothing. TPC-W is retired, and no run of this is an audited one.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from datetime import date

from pgmip.testing import Cluster

from workload.population import SIZES, Size

from .bookstore import death, failover, growth, mixture, response, tuples
from .bookstore.pair import Pair
from .bookstore.store import WARM_UP, Store
from .parts import Bench, Part, measure_parts, options
from .rounds import UNDISTURBED, machine

AT_MOST = SIZES["small"]  # of what is at two sites

HEAD = """# TPC-W-derived: the paper's evaluation again

What section 4 of *Multi-Instance-Precommit in PostgreSQL* measured in a PostgreSQL 8.1.3 of its authors' own, with
pg_mip on stock PostgreSQL. Schema, population and interactions are TPC-W's, written anew; TPC-W is retired, and
this is no audited run.

{what}

Values are medians of the rounds, with least and most; ratios are taken round by round. Systems:

| | |
|---|---|
| COMMIT | stock PostgreSQL, one phase, heap tables |
| 2PC | stock PostgreSQL, `PREPARE TRANSACTION` and `COMMIT PREPARED`, heap tables |
| MIP | `mip.start`, `mip.prepare_beside`, `mip.commit_beside`; mip tables; request and result are kept |
| MIP unflushed | the same with `mip.synchronous_commit_prepared = off`: no flush for the second phase |
| MIP one-phase | `mip.start`, `mip.commit_one_phase_beside` |"""

REPORT = {
    "tuples": Part(tuples.tell, None, """## Table 1: the size of a tuple

pg_mip keeps what it knows of siblings outside the tuples, in the MIPT and in memory while a family is undecided. So
a table that has opted in takes exactly as much space as a heap table; the paper's prototype added two fields to
every tuple's header."""),
    "response": Part(response.tell, response.plot, """## Figure 1: response time

Open loop, 8 sessions: transactions fall due at random times at the offered rate, whether or not the server keeps up;
the response time begins when a transaction is due. Loads are shares (0.2 to 1.2) of what stock two-phase commit
achieves with 8 sessions as fast as it can. All systems end the first phase in the message of the last statement.
COMMIT and 2PC work on heap tables, and keep nothing by which a request could be sent again."""),
    "mix": Part(response.tell_mix, None, """## The ordering mix

All fourteen interactions by their weights, 8 sessions as fast as they can; those that write end as the system says,
the others only read."""),
    "failover": Part(failover.tell, failover.plot, """## Figure 2: every request fails over

The original is left prepared. In the paper's protocol a sibling does the same work again, and is committed. Ours is
told with its first statement that the original is prepared (`mip.start`), looks at the MIPT, and commits the
original, as `pgmip` does ("adopted"). The rate counts requests.

Where the work is done again: the paper's server waited for its disks, and for a sibling all that it read was in memory
by then; here all data are in memory from the beginning, and what a sibling does costs the processors as much as what
the original did: so where the processors are what everybody waits for, half of the throughput goes. Of flushes there
are three instead of two (a third is lost): the losers' end and the notes of it do not wait for one."""),
    "sessions": Part(growth.tell_sessions, None, "## Growth: sessions\n\nBuy Confirm, as fast as it goes."),
    "death": Part(death.tell, None, """## A coordinator dies

A process runs Buy Confirms over two sites (16 at a time) until both have prepared all of them, and is killed. At once
another one is sent the same requests; so are strangers' requests for the same items. Plain two-phase commit has an
idempotency key, and a log of decisions that comes back after 10 s. "Rolled back first" does not wait for that log: a
survivor rolls back whatever the dead process has prepared, which is wrong whenever that is alive or has decided."""),
    "two_sites": Part(mixture.tell, mixture.plot, """## Two sites, and requests that fail over

`pgmip`, the five interactions that write by their weights, 8 sessions; Buy Confirm pays at a second site. Of some
of the requests the app server stops at a random step (begun, prepared at the first site, prepared at all, committed
at the first site), and another one is sent the same request. Library, benchmark and both servers share the
machine's cores."""),
    "in_doubt": Part(lambda rows: growth.tell(rows, "in doubt"), None, """## Growth: families in doubt

4 sessions that each add a shopping cart, while so many families are prepared and undecided. Every prepared
transaction counts as running for PostgreSQL, whose snapshots, and whose search for the one to be committed, take
longer with them: hence the comparison with stock two-phase commit beside the same families."""),
    "entries": Part(lambda rows: growth.tell(rows, "entries"), None, """## Growth: entries of the MIPT

The same work with so many committed requests of the last hour in the MIPT."""),
}


class Tpcw(Bench):
    parts = REPORT
    report = "README.md"

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.size: Size = SIZES[args.size]
        self.loaded = ""

    def run(self) -> None:
        args = self.args
        quick = args.quick
        if self.wants("tuples", "response", "mix", "failover", "sessions"):
            self._one_site()
        if self.wants("death", "two_sites"):
            with ExitStack() as stack:
                small = min(self.size, AT_MOST, key=lambda size: size.items)
                pair = Pair(stack, small, seed=args.seed, quiet=quick)
                self.measure("death", lambda: death.measure(
                    pair, rounds=args.rounds, requests=4 if quick else 16, recovery=1 if quick else death.RECOVERY))
                self.measure("two_sites", lambda: mixture.measure(pair, rounds=args.rounds, seconds=2 * args.seconds))
        few, many = ((10, 100), (1_000, 10_000)) if quick else (growth.IN_DOUBT, growth.ENTRIES)
        rounds, seconds = args.rounds, args.seconds
        self.measure("in_doubt", lambda: growth.measure_in_doubt(rounds=rounds, seconds=seconds, counts=few))
        self.measure("entries", lambda: growth.measure_entries(rounds=rounds, seconds=seconds, counts=many))

    def _one_site(self) -> None:
        args = self.args
        with Cluster("tpcw", settings=UNDISTURBED, fsync=True, max_prepared_transactions=200) as cluster:
            began = time.monotonic()
            store = Store(cluster, self.size, seed=args.seed, quiet=args.quick)
            self.loaded = f"; two copies were loaded in {time.monotonic() - began:.0f} s"
            rounds, seconds = args.rounds, args.seconds
            loads = (0.4, 1.2) if args.quick else response.LOADS
            sessions = (1, 8) if args.quick else growth.SESSIONS
            self.measure("tuples", lambda: tuples.measure(store))
            self.measure("response", lambda: response.measure(store, rounds=rounds, seconds=seconds, loads=loads))
            self.measure("mix", lambda: response.measure_mix(store, rounds=rounds, seconds=seconds))
            self.measure("failover", lambda: failover.measure(store, rounds=rounds, seconds=seconds))
            self.measure("sessions", lambda: growth.measure_sessions(
                store, rounds=rounds, seconds=seconds, sessions=sessions))
            store.check()

    def head(self) -> list[str]:
        return [HEAD.format(what=self._what())]

    def tail(self) -> list[str]:
        grown = [self.rows[name] for name in ("sessions", "in_doubt", "entries") if name in self.rows]
        if len(grown) < 3:
            return []
        growth.plot(grown[0], grown[1], grown[2], self.file("growth.png"))
        return ["![growth](growth.png)"]

    def _what(self) -> str:
        size, args = self.size, self.args
        return (
            f"{date.today().isoformat()}, {machine()}. Size `{size.name}`: {size.items:,} items, {size.browsers} "
            f"emulated browsers, {size.customers:,} customers, {size.orders:,} orders{self.loaded}. "
            f"{args.rounds} interleaved rounds of {args.seconds:g} s a case, after {WARM_UP} s that do not count. "
            f"Everything, clients and servers, shares the machine. `./run bench tpcw --size {size.name}` writes this "
            f"page; it took {self.minutes:.0f} minutes."
        )


def main() -> None:
    parser = options(__doc__ or "", tuple(REPORT), rounds=5, seconds=1, out="report")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seed", type=int, default=1, help="of the population")
    args = parser.parse_args()
    if args.quick:
        args.size, args.rounds, args.seconds = "tiny", 1, 1
    measure_parts(Tpcw(args))


if __name__ == "__main__":
    main()
