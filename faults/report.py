"""What a run came to, in words and numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .auditor import Finding
from .plan import KINDS
from .run import Outcome

__all__ = ["injected", "report", "told", "waits"]


def report(outcome: Outcome, folder: Path) -> list[str]:
    log = outcome.log
    lines = injected(KINDS, outcome.done, outcome.left_out)
    answers = sum(map(len, log.answers.values()))
    unanswered = sum(1 for key in log.sent if not log.answers[key])
    lines += [
        "",
        f"requests {len(log.sent):,}, transmissions {log.sent.total():,}, answers {answers:,}, "
        f"requests without answer {unanswered:,}",
        "answers by status: " + ", ".join(f"{status}: {number:,}" for status, number in sorted(log.statuses.items())),
        f"the sweepers needed {outcome.swept:.1f} s to finish what the death of all clients and app servers had left",
        "from an app server's death to the answers of those who were waiting for it: "
        + percentiles(waits(folder, _between(outcome, 0.0, outcome.compared_since))),
    ]
    if outcome.compared_since is not None:
        deaths = _between(outcome, outcome.compared_since, None)
        lines += [
            f"the same where nothing else happens, {sum(map(len, deaths.values()))} deaths:",
            f"  pg_mip                   {percentiles(waits(folder, deaths))}",
            f"  plain two-phase commit   {percentiles(waits(folder / 'plain', deaths))}",
        ]
    lists = [key for key in log.answers if log.names[key].startswith("lists")]
    lines.append(f"requests at SERIALIZABLE that were answered {len(lists):,}")
    if outcome.over_sites:
        lines.append("over all sites these have no serial order, of which mip.serializable = site promises none:")
        lines += [f"  {words}" for words in outcome.over_sites[:5]]
        lines.append(f"  {len(outcome.over_sites):,} in all")
    return [*lines, *told(outcome.findings)]


def injected(kinds: Iterable[str], done: Counter[str], left_out: Counter[str]) -> list[str]:
    lines = ["", "faults injected (left out: the target was still busy, or nothing came by to strike at)"]
    for kind in kinds:
        without = f"  ({left_out[kind]} left out)" if left_out[kind] else ""
        lines.append(f"  {kind:20} {done[kind]:5}{without}")
    return [*lines, f"  {'all':20} {done.total():5}"]


def told(findings: Iterable[Finding]) -> list[str]:
    """Every check, and what it has found."""
    lines = [""]
    for finding in findings:
        lines.append(f"  {'WRONG' if finding.violations else 'ok   '}  {finding.check}")
        lines += [f"           {violation}" for violation in finding.violations[:20]]
        if len(finding.violations) > 20:
            lines.append(f"           and {len(finding.violations) - 20} more")
    return lines


def _between(outcome: Outcome, since: float, until: float | None) -> dict[str, list[float]]:
    """The deaths of that time."""
    end = math.inf if until is None else until
    return {server: [death for death in deaths if since <= death < end] for server, deaths in outcome.deaths.items()}


def waits(folder: Path, deaths: Mapping[str, Sequence[float]]) -> list[float]:
    """Seconds from a server's death until a call that had a transmission under way there got its result."""
    seconds = []
    for path in folder.glob("*.requests"):
        open_at: dict[str, tuple[str, str, float]] = {}  # transmissions: server, key, sent at
        waiting: dict[str, float] = {}  # keys: since which death
        for line in path.read_text().splitlines():
            event = json.loads(line)
            key, now = event["key"], event["time"]
            for number, (server, its_key, sent) in list(open_at.items()):
                died = next((death for death in deaths.get(server, ()) if sent < death <= now), None)
                if died is not None:
                    waiting.setdefault(its_key, died)
                    del open_at[number]
            match event["event"]:
                case "send" if key:
                    open_at[event["number"]] = (event["server"], key, now)
                case "lost":
                    open_at.pop(event["number"], None)
                case "answer":
                    open_at.pop(event["number"], None)
                    if event["status"] == 200 and key in waiting:
                        seconds.append(now - waiting.pop(key))
                case "left":
                    waiting.pop(key, None)
    return sorted(seconds)


def percentiles(values: Sequence[float]) -> str:
    if not values:
        return "nobody was waiting"

    def percentile(percent: float) -> str:
        return f"{values[max(0, math.ceil(len(values) * percent / 100) - 1)] * 1000:,.0f} ms"

    return f"p50 {percentile(50)}, p99 {percentile(99)}, worst {percentile(100)} ({len(values)} of them)"
