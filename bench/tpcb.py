"""pgbench's TPC-B script on heap and on mip tables, in interleaved rounds.

    python -m bench.tpcb [--rounds N] [--seconds N] [--clients N] [--scale N] [--out FOLDER]

Two cases: PREPARE TRANSACTION + COMMIT PREPARED on heap, and mip.begin + mip.prepare + mip.commit on mip tables
(what one instance per family pays; it also remembers the request's result).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pgmip.testing import Cluster

from .rounds import arguments, load, machine, pgbench, rate, run_rounds, write

WORK = """\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\set n random(1, 4000000000000000000)
BEGIN;
{begin}
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
{end}
"""
TWO_PHASE = WORK.format(begin="", end="PREPARE TRANSACTION 'b-:n';\nCOMMIT PREPARED 'b-:n';")
INSTANCE = WORK.format(
    begin="SELECT mip.begin('b-:n', 1);",
    end="SELECT * FROM mip.prepare('request', 'result');\nSELECT * FROM mip.commit('b-:n', 1);",
)
CASES = {"two-phase, heap": ("heap", TWO_PHASE), "instance, mip": ("mip", INSTANCE)}
BASES = {"instance, mip": "two-phase, heap"}


def measure(cluster: Cluster, case: str, args: argparse.Namespace, folder: Path) -> float:
    method, script = CASES[case]
    file = folder / "script.sql"
    file.write_text(script)
    cluster.run_sql("CHECKPOINT")
    output = pgbench(
        cluster, method, "-n", "-c", str(args.clients), "-j", "2", "-T", str(args.seconds),
        "-D", f"scale={args.scale}", "-f", str(file),
    )  # fmt: skip
    file.unlink()
    return rate(output)


def main() -> None:
    args = arguments(__doc__, rounds=5, seconds=5)
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "autovacuum": "off"}
    with Cluster("bench", settings=settings, fsync=True) as cluster:
        load(cluster, args.scale)
        rates = run_rounds(CASES, args.rounds, lambda case: measure(cluster, case, args, args.out), "tps")
        what = (
            f"{args.rounds} interleaved rounds of {args.seconds} s, {args.clients} clients, scale {args.scale}; "
            f"{machine()}"
        )
    write(args.out, "tpcb", "TPC-B as instances", what, rates, BASES, "tps")


if __name__ == "__main__":
    main()
