"""`python -m faults`: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from . import plan, replicated, run
from .auditor import Finding
from .report import report
from .world import Stuck, Tell

Came = tuple[list[str], list[Finding]]
"""What a run has come to: the report, and what it says of each check."""

COMPARE = 60.0
"""Seconds for which plain two-phase commit is compared with."""


def main() -> int:
    options = _options()
    folder: Path = options.work
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"faults: {options.minutes:g} minutes, seed {options.seed}; logs are in {folder}", flush=True)
    try:
        lines, findings = asyncio.run(_until_told(options))
    except Stuck as stuck:
        print(f"{stuck}\n0 passed, 1 failed")
        return 1
    except asyncio.CancelledError:
        print("stopped")
        return 130
    except Exception:  # such as a cluster that does not start again
        traceback.print_exc(file=sys.stdout)
        print("0 passed, 1 failed")
        return 1
    print("\n".join(lines))
    wrong = sum(bool(finding.violations) for finding in findings)
    print(f"{len(findings) - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


async def _until_told(options: argparse.Namespace) -> Came:
    """SIGINT and SIGTERM end it, in good order."""
    began = time.monotonic()

    def tell(words: str) -> None:
        print(f"[{time.monotonic() - began:7.2f}] {words}", flush=True)

    task = asyncio.ensure_future((_replicated if options.replicated else _sites)(options, tell))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


async def _sites(options: argparse.Namespace, tell: Tell) -> Came:
    seconds, compare = options.minutes * 60, COMPARE if options.compare else 0.0
    plan.write(plan.make(options.seed, seconds), options.work / "plan.jsonl")
    outcome = await run.run(options.work, options.seed, seconds, compare, options.serializable, tell)
    return report(outcome, options.work), outcome.findings


async def _replicated(options: argparse.Namespace, tell: Tell) -> Came:
    seconds = options.minutes * 60
    plan.write(replicated.plan.make(options.seed, seconds, options.log), options.work / "plan.jsonl")
    outcome = await replicated.run.run(options.work, options.seed, seconds, tell, options.log)
    return replicated.report.report(outcome), replicated.report.findings(outcome)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for logs; emptied first")
    parser.add_argument("--minutes", type=float, default=10, help="for how long faults are injected")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the plan of faults")
    parser.add_argument("--replicated", action="store_true", help="three replicas of one database")
    parser.add_argument("--log", choices=replicated.plan.PARTS, default="postgresql", help="where theirs is")
    parser.add_argument("--compare", action="store_true", help="with plain two-phase commit, for a minute more")
    parser.add_argument(
        "--serializable", choices=("site", "everywhere"), default="everywhere", help="mip.serializable of the sites"
    )
    options = parser.parse_args()
    if options.replicated and (options.compare or options.serializable != "everywhere"):
        parser.error("--replicated goes with neither --compare nor --serializable")
    if options.log != "postgresql" and not options.replicated:
        parser.error("--log is of --replicated")
    return options


if __name__ == "__main__":
    sys.exit(main())
