"""Serializable snapshot isolation: the evaluation of its paper again, and what it costs requests that fail over.

    python -m bench.ssi [--rounds N] [--seconds N] [--clients N] [--warehouses N] [--samples N] [--only PART,...]
                        [--out FOLDER] [--quick]

Everything is in memory and without flushes, on heap tables and on opted-in ones. `--quick` runs a little of everything,
to see that it runs, that the data are right, and that SERIALIZABLE prevents what it should; its figures say nothing.
Writes ssi.md with plots, and a CSV file for each part.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import date

from pgmip.testing import Cluster

from .parts import Bench, Part, measure_parts, options
from .rounds import UNDISTURBED, create_database, machine
from .serializable import across, dbt2, deferrable, failures, families, sibench
from .serializable.dbt2 import Store
from .serializable.measured import SI, SSI
from .targets import Target, tell_targets

PARTS = ("sibench", "dbt2", "deferrable", "families", "across")
# Transactions that read a few hundred rows do not lock whole tables for that.
SETTINGS = UNDISTURBED | {"max_pred_locks_per_transaction": "1024", "deadlock_timeout": "100ms"}

HEAD = f"""# Serializable snapshot isolation

What section 8 of *Serializable Snapshot Isolation in PostgreSQL* measured of PostgreSQL 9.1, on this server, on heap
tables (in a database without the extension) and on opted-in ones; SERIALIZABLE where requests fail over; and across
sites.

{{what}}

Everything is in memory, without flushes (`fsync = off`), so that the processors are what everybody waits for. Rates are
of committed transactions: medians of the rounds, with least and most. Ratios are taken round by round: their median,
with quartiles. SI in the paper is {SI}, SSI is {SSI}. Its third line, strict two-phase locking, and its SSI without
optimizations for read-only transactions are not in PostgreSQL, and so not here."""

REPORT = {
    "sibench": Part(sibench.tell, sibench.plot, """## SIBENCH (Figure 4)

Half of the transactions update the row of a random key, half look through the whole table for the lowest value (READ
ONLY). Three messages each, from pgbench. Failures: of all attempts, those that are tried again."""),
    "dbt2": Part(dbt2.tell, dbt2.plot, """## DBT-2++ in memory (Figure 5a)

TPC-C's transactions with Cahill's credit check, without totals of warehouses and districts, and with what is only read
cached, as the paper has it. Each is a function of the server, in a transaction of three messages, from pgbench."""),
    "anomalies": Part(dbt2.tell_anomalies, None, f"""### The anomaly

The credit check writes what an order reads, and reads what an order writes. An anomaly here is an order that was
accepted by a credit which a check then replaced that had not seen the order: each of the two should have been before
the other. Where orders meet checks (one customer a district, and many checks) {SI} lets it happen, and {SSI} must
not: of plain transactions on tables of each kind, and of requests half of which fail over (families)."""),
    "deferrable": Part(deferrable.tell, deferrable.plot, """## READ ONLY DEFERRABLE (8.4)

How long such a transaction waits until its snapshot is safe, beside DBT-2++ at SERIALIZABLE. The paper's was beside
longer transactions, of 36 threads that waited for disks."""),
    "families": Part(families.tell, families.plot, """## Families

DBT-2++ with 8 % that only read. The others are requests with one or two instances, at one site: of those that fail over
the first attempt is left behind, prepared or still running, and a second one does the same work and is committed. (A
session that still runs is given 10 ms, and then lost; its client makes a new one.) Clients send libpq's messages one
after another: the work, prepare, commit. What fails is tried again as a new instance; but where the second attempt
fails, the first one is committed if it is prepared, and else given up."""),
    "failures": Part(failures.tell, failures.plot, """### Who fails by dependencies

8 clients with requests and 8 outsiders, plain transactions, at SERIALIZABLE. What they do between their statements
(nothing, for some milliseconds) takes most of the time, so that attempts take as long whether there are one or two,
side by side. *By key*: three rows are read by their keys, and another one is changed, of 500. DBT-2++: in one
warehouse; all requests write.

SSI locks what a scan of an index has read by leaf pages. An update on a page with room (HOT) has no index entries and
meets none of these locks; one that is not HOT does, and so does every second instance that writes a row which the first
one has written: its version has index entries of its own. So *by key* is told with all rows in two leaves, with a leaf
for each row, and with an index on what is updated, so that nobody's updates are HOT."""),
    "siblings": Part(failures.tell_siblings, None, """### Siblings alone

One client alone: each request has two instances, which do the same side by side, are both prepared, and one is
committed. Whatever fails here has been failed by its sibling."""),
    "across": Part(across.tell, across.plot, """## Across sites

Two servers, and requests over both, as instances at SERIALIZABLE: where `mip.serializable` is `site`, and where it is
`everywhere`. A counter has one half at each site. A request reads both halves of three counters by their keys, of
100,000 counters (low contention) or of 100 (high), and adds one to a half at each site. Clients ask one site after the
other for the work, and both at once to prepare and to commit. Of those that fail over the first attempt is left
prepared at both sites, and a second one does the same and is committed; if it fails, the first one is.

An anomaly is a request that has read of a counter, both halves together, what another one had read as well, which has
added to it, too: each of the two should have been before the other. Each site sees one of them read what the other one
replaces, and so takes both for serializable."""),
}


class Ssi(Bench):
    parts = REPORT
    report = "ssi.md"
    prefix = "ssi-"

    def run(self) -> None:
        if self.wants("sibench", "dbt2", "deferrable", "families"):
            self._one_site()
        if self.wants("across"):
            with ExitStack() as stack:
                self._across(across.Sites(stack, SETTINGS))

    def _one_site(self) -> None:
        with Cluster("ssi", settings=SETTINGS) as cluster:
            cluster.create_database("heap")
            create_database(cluster, "mip")
            self._sibench(cluster)
            if self.wants("dbt2", "deferrable", "families"):
                self._dbt2(Store(cluster, self.args.warehouses))

    def _sibench(self, cluster: Cluster) -> None:
        args = self.args
        sizes = (10, 1_000) if args.quick else sibench.SIZES
        if self.wants("sibench"):
            sibench.load(cluster, sizes)
        self.measure("sibench", lambda: sibench.measure(
            cluster, rounds=args.rounds, seconds=args.seconds, clients=args.clients, sizes=sizes))

    def _dbt2(self, store: Store) -> None:
        args = self.args
        rounds, seconds, clients = args.rounds, args.seconds, args.clients
        store.load()
        mixes = (8, 100) if args.quick else dbt2.MIXES
        self.measure("dbt2", lambda: dbt2.measure(
            store, rounds=rounds, seconds=seconds, clients=clients, mixes=mixes))
        self.measure(
            "anomalies", lambda: dbt2.measure_anomalies(store, seconds=seconds, clients=clients), of="dbt2"
        )
        self.measure("deferrable", lambda: deferrable.measure(
            store, samples=args.samples, every=0.05 if args.quick else 0.5, clients=clients))
        if self.wants("families"):
            self._families(store)
        store.check()

    def _families(self, store: Store) -> None:
        args = self.args
        rounds, seconds, clients = args.rounds, args.seconds, args.clients
        cases = families.QUICK if args.quick else families.CASES
        self.measure("families", lambda: families.measure(
            store, rounds=rounds, seconds=seconds, clients=clients, cases=cases))
        self.measure(
            "anomalies", lambda: families.measure_anomalies(store, seconds=seconds, clients=clients), of="families"
        )
        failures.load(store)
        workloads = failures.QUICK if args.quick else failures.WORKLOADS
        self.measure("failures", lambda: failures.measure(
            store, rounds=rounds, seconds=seconds, workloads=workloads), of="families")
        self.measure("siblings", lambda: failures.measure_siblings(store, seconds=seconds), of="families")

    def _across(self, sites: across.Sites) -> None:
        args = self.args
        cases = across.QUICK if args.quick else across.CASES
        self.measure("across", lambda: across.measure(
            sites, rounds=args.rounds, seconds=args.seconds, clients=args.clients, cases=cases))

    def head(self) -> list[str]:
        targets = self._targets()
        return [HEAD.format(what=self._what()), *([tell_targets(targets)] if targets else [])]

    def _targets(self) -> list[Target]:
        found = []
        if "families" in self.rows:
            found += families.targets(self.rows["families"])
            found += failures.targets(self.rows["failures"], self.rows["siblings"])
        return found + across.targets(self.rows.get("across", []))

    def wrong(self) -> list[str]:
        """What contradicts SERIALIZABLE, or shows that the bench would not notice."""
        told = dbt2.wrong_anomalies(self.rows.get("anomalies", []))
        if failed := failures.between_siblings(self.rows.get("siblings", [])):
            told.append(f"siblings have failed each other {failed} times")
        return told + across.wrong(self.rows.get("across", []))

    def _what(self) -> str:
        args = self.args
        return (
            f"{date.today().isoformat()}, {machine()}. {args.rounds} interleaved rounds of {args.seconds:g} s a case, "
            f"{args.clients} clients, {args.warehouses} warehouses. Clients and server share the machine. "
            f"`./run bench ssi` writes this page; it took {self.minutes:.0f} minutes."
        )


def main() -> None:
    parser = options(__doc__ or "", PARTS, rounds=7, seconds=4.0, out="results")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--warehouses", type=int, default=5, help="of 120 MB each, twice")
    parser.add_argument("--samples", type=int, default=300, help="deferrable transactions of a case")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.warehouses, args.samples = 1, 1, 1, 10
    measure_parts(Ssi(args))


if __name__ == "__main__":
    main()
