"""What a run at a replicated site came to, in words and numbers."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..auditor import Finding
from ..report import injected, told
from .run import Outcome

__all__ = ["findings", "report"]


def findings(outcome: Outcome) -> list[Finding]:
    """Those in the end, and those in between, by what they are about."""
    between: dict[str, list[str]] = defaultdict(list)
    for number, seen in enumerate(outcome.looks, 1):
        for finding in seen.findings:
            between[finding.check] += [f"in between, look {number}: {words}" for words in finding.violations]
    return [
        Finding(finding.check, (*between[finding.check], *finding.violations)) for finding in outcome.findings
    ]


def report(outcome: Outcome) -> list[str]:
    record = outcome.record
    outcomes = Counter(map(record.outcome, record.begun))
    why = Counter(f"{it.sqlstate or (it.why or '').partition(':')[0]}" for it in record.told.values() if it.why)
    looked = Counter(look.whose for look in record.looks)
    return [
        *injected(outcome.kinds, outcome.done, outcome.left_out),
        "",
        f"transactions {len(record.begun):,}: told to be committed {outcomes['committed']:,}, not to have happened "
        f"{outcomes['not']:,}, not known {outcomes['unknown']:,}; positions of the log {outcome.positions:,}",
        "failed with: " + ", ".join(f"{name} {number:,}" for name, number in sorted(why.items())),
        f"looks of sessions at what they had committed {looked['own']:,}, at what others had {looked['told']:,}",
        f"looks of the auditor in between {len(outcome.looks)}, at replicas "
        f"{sum(seen.replicas for seen in outcome.looks)}, of which at the same position "
        f"{sum(seen.together for seen in outcome.looks)}",
        *told(findings(outcome)),
    ]
