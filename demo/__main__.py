"""`python -m demo`: the bookstore under pg_mip, then under plain two-phase commit, and what came of it."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from . import shop
from .client import SESSIONS
from .fleet import SERVERS
from .killer import INTERVAL
from .outcome import Outcome, duration, table
from .plot import plot
from .requests import requests


def main() -> int:
    options = _options()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    began = time.monotonic()
    shutil.rmtree(options.work, ignore_errors=True)
    asked = requests(options.requests)
    console.print(
        f"A bookstore and a bank: two PostgreSQL clusters of their own. {SESSIONS} customers at a time send "
        f"{len(asked):,} orders to {SERVERS} app servers; one of these is killed with kill -9 about every "
        f"{INTERVAL} seconds. A customer without an answer after 150 ms, or cut off, sends the same order to another "
        "server."
    )
    outcomes = []
    for plan, words in (
        (
            shop.Plan("mip", "pg_mip", asked, None, options.work / "mip"),
            "pg_mip: whoever gets the order next runs it again, at once",
        ),
        (
            shop.Plan("plain", "plain two-phase commit", asked, options.plain_seconds, options.work / "plain"),
            f"plain two-phase commit: what a dead server left stays locked until its log is back, after "
            f"{shop.RECOVERY_AFTER:.0f} s (a replacement serves at once; the shop closes after "
            f"{options.plain_seconds:.0f} s, whoever still waits)",
        ),
    )[: 1 if options.only_mip else None]:
        console.print(f"\n[bold]{words}[/]")
        outcome = shop.run(plan, console)
        outcomes.append(outcome)
        _tell(console, outcome)
    if len(outcomes) == 2:
        plot(outcomes, options.work / "demo.svg")
    console.print()
    console.print(table(outcomes))
    console.print(f"{duration(time.monotonic() - began)} in all")
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


def _tell(console: Console, outcome: Outcome) -> None:
    """What the auditor says, and what the customers saw."""
    console.print(f"  the auditor, who knows nothing of {outcome.title}:")
    for finding in outcome.findings:
        if finding in outcome.wrong:
            console.print(f"    WRONG  {finding}", style="bold red")
        elif finding.wrong:
            console.print(f"    open   {finding.check}: not {len(finding.wrong)} of them when the shop closed")
        else:
            console.print(f"    ok     {finding}")
    console.print(
        f"  To the customers: {outcome.answered:,} of {len(outcome.asked):,} orders answered while "
        f"{len(outcome.kills)} servers died;\n  half of them within {outcome.percentile(50)}, "
        f"the slowest after {outcome.percentile(100).replace('>', 'more than')}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for logs and demo.svg; emptied first")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--plain-seconds", type=float, default=40, help="when plain two-phase commit has to stop")
    parser.add_argument("--only-mip", action="store_true", help="without plain two-phase commit")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
