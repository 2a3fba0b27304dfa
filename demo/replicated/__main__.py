"""`python -m demo.replicated`: the bookstore at three replicas, which are killed in turn, and what came of it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from ..progress import show
from .audit import audit
from .customers import SESSIONS, Customers
from .killer import INTERVAL, Killer
from .log import LOGS
from .monitor import Monitor
from .plot import plot
from .site import Site, site

_LOG = dict(zip(LOGS, ("the log's server", "the leader of the log's three NATS servers"), strict=True))


def main() -> int:
    options = _options()
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # connections that are lost are what this is about
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    console.print(
        f"A bookstore at three replicas, each a PostgreSQL of its own with all of it. {SESSIONS} customers order at "
        f"all three at once. Every {INTERVAL:.0f} seconds a server, an agent or {_LOG[options.log]} is killed with "
        "kill -9, and comes back a second later. Who gets no answer orders again under the same number, at the next "
        "replica."
    )
    with site(options.work, options.log) as made:
        return asyncio.run(_open(made, options, console))


async def _open(made: Site, options: argparse.Namespace, console: Console) -> int:
    customers, killer, monitor = Customers(made.replicas), Killer(made), Monitor(made)
    total = int(options.seconds)
    await made.all_apply()
    began = time.monotonic()

    def state() -> tuple[int, str]:
        return min(total, int(time.monotonic() - began)), (
            f"seconds; {len(customers.placed):,} orders, {len(killer.kills)} kills, {customers.refused} refused"
        )

    others = [asyncio.create_task(work) for work in (killer.run(), monitor.run(), show(console, total, state))]
    shopping = asyncio.create_task(customers.run())
    await asyncio.sleep(options.seconds)
    others[0].cancel()
    await made.all_up()
    customers.close()
    await asyncio.wait_for(shopping, 60)
    for task in others:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    plot(began, customers.placed, monitor.looks, killer.kills, options.work / "replicated.svg")
    return _tell(made, customers, killer, console)


def _tell(made: Site, customers: Customers, killer: Killer, console: Console) -> int:
    findings = audit(made, customers.placed)
    waits = sorted(one.ended - one.began for one in customers.placed)
    console.print(
        f"\n{len(customers.placed):,} orders placed while {len(killer.kills)} processes were killed; half of them "
        f"within {1000 * waits[len(waits) // 2]:.1f} ms, the slowest after {waits[-1]:.1f} s. {customers.refused:,} "
        f"times somebody at another replica was first, {customers.lost:,} times an answer was lost: ordered again.\n"
        "The audit, in SQL at each replica once all have applied the same position:"
    )
    for finding in findings:
        mark = "WRONG" if finding.wrong else "ok   "
        console.print(f"  {mark}  {finding.check}", style="bold red" if finding.wrong else None)
    return 1 if any(finding.wrong for finding in findings) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.replicated", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for logs and replicated.svg; emptied first")
    parser.add_argument("--log", choices=LOGS, default=LOGS[0], help="where it is kept")
    parser.add_argument("--seconds", type=float, default=60)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
