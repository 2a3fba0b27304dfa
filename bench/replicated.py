"""A replicated site: what a COMMIT costs, response time and aborts by load, how fast replicas apply, and lose one.

    python -m bench.replicated [--rounds N] [--seconds S] [--only PART,...] [--out FOLDER] [--quick]

Repeats Figure 3 of the paper on writeset extraction, and goes on to streaming replication, to a replica that was away,
and to one that is killed. `--quick` runs a little of everything, to see that it runs and that the replicas are the
same; its figures say nothing. Writes replicated.md with plots, and a CSV file for each part.
"""

from __future__ import annotations

from datetime import date

from .parts import Bench, Part, measure_parts, options
from .replication import catching_up, latency, load, loss
from .rounds import machine
from .targets import Target, tell_targets

PARTS = ("commit", "load", "application", "loss")
HEAD = """# A replicated site

{ran} `./run bench replicated` writes this page; it took {minutes} minutes.

Servers, agents and clients share the machine; the log, and servers that are not replicated, flush, to the same disk.
Medians of the rounds, with least and most."""
REPORT = {
    "commit": Part(latency.tell, latency.plot, """## COMMIT

One client, an update of one row by its key as a transaction of its own. *With a synchronous standby*: the primary
waits for its flush. *An append*: to the log, by the library, of a message as long."""),
    "load": Part(load.tell, load.plot, """## Response time and aborts by load (Figure 3)

Transactions update 20 rows of one table at REPEATABLE READ, one by one, and come at random times, at random replicas;
none is repeated. The paper's took 1041 ms at 2 a second with writesets by triggers, and could not go beyond 5; with its
own way it reached 50 on four PCs, with 1 to 10 % aborted."""),
    "application": Part(catching_up.tell, catching_up.plot, """## A replica that was away

Its agent is stopped while rows are inserted at the other replica, and started again; from the first that it applies
to the last."""),
    "loss": Part(loss.tell, loss.plot, """## A replica is killed

Of three, with `kill -9`, and started again; four clients at each of the others commit updates of a row meanwhile."""),
}
TARGETS = {"commit": latency.targets, "load": load.targets, "application": catching_up.targets, "loss": loss.targets}


class Replicated(Bench):
    parts = REPORT
    report = "replicated.md"
    prefix = "replicated-"

    def run(self) -> None:
        rounds, seconds, quick = self.args.rounds, self.args.seconds, self.args.quick
        loads = (10, 50) if quick else load.LOADS
        missed = ((2_000, 1), (2_000, 100)) if quick else ((20_000, 1), (200_000, 100), (400_000, 1_000))
        self.measure("commit", lambda: latency.measure(rounds=rounds, seconds=seconds))
        self.measure("load", lambda: load.measure(rounds=rounds, seconds=seconds, loads=loads))
        self.measure("application", lambda: catching_up.measure(rounds=rounds, rows=missed))
        self.measure("loss", lambda: loss.measure(rounds=rounds, seconds=seconds))

    def head(self) -> list[str]:
        ran = f"{date.today().isoformat()}, {machine()}. {self.args.rounds} rounds."
        targets: list[Target] = [one for name in PARTS if name in self.rows for one in TARGETS[name](self.rows[name])]
        return [HEAD.format(ran=ran, minutes=f"{self.minutes:.0f}"), tell_targets(targets)]


def main() -> None:
    args = options(__doc__ or "", PARTS, rounds=3, seconds=3.0, out="results").parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 0.5
    measure_parts(Replicated(args))


if __name__ == "__main__":
    main()
