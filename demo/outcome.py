"""What a run came to, in numbers; the table of both runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from . import audit
from .audit import Finding
from .client import Asked
from .killer import Kill


@dataclass(frozen=True)
class Outcome:
    title: str
    began: float
    ended: float
    requests: int  # that there were to send
    asked: list[Asked]
    kills: list[Kill]
    retransmissions: int
    longest_block: float
    findings: list[Finding]

    @property
    def answered(self) -> int:
        return sum(asked.ended is not None for asked in self.asked)

    @property
    def unanswered(self) -> int:
        return len(self.asked) - self.answered

    @property
    def wrong(self) -> list[Finding]:
        """What the auditor found. Where time ran out, being unanswered is no finding."""
        cut_short = len(self.asked) < self.requests or self.unanswered > 0
        return [
            finding
            for finding in self.findings
            if finding.wrong and not (cut_short and finding.check == audit.ANSWERED)
        ]

    @property
    def exactly_once(self) -> int:
        """Answered requests that no check complains about."""
        bad = {key for finding in self.wrong for key, _ in finding.wrong}
        return sum(asked.ended is not None and asked.request.key not in bad for asked in self.asked)

    def waited(self, asked: Asked) -> float:
        """Its latency; where there was no answer, until time was up."""
        return (asked.ended or self.ended) - asked.began

    def percentile(self, percent: float) -> str:
        """Of all requests that were sent; `>` where that one is still without answer."""
        waits = sorted((self.waited(asked), asked.ended is None) for asked in self.asked)
        wait, open_ended = waits[max(0, math.ceil(len(waits) * percent / 100) - 1)]
        return ("> " if open_ended else "") + duration(wait)


def duration(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def table(outcomes: Sequence[Outcome]) -> Table:
    rows = Table(title="The same orders, the same kills", title_justify="left")
    rows.add_column("")
    for outcome in outcomes:
        rows.add_column(outcome.title, justify="right")

    def row(title: str, cells: list[str]) -> None:
        rows.add_row(title, *cells)

    row("seconds", [f"{outcome.ended - outcome.began:.0f}" for outcome in outcomes])
    row("requests sent", [f"{len(outcome.asked):,} of {outcome.requests:,}" for outcome in outcomes])
    row("answered", [f"{outcome.answered:,}" for outcome in outcomes])
    row("still waiting when time was up", [f"{outcome.unanswered:,}" for outcome in outcomes])
    row("exactly once, of the answered", [f"{outcome.exactly_once:,}" for outcome in outcomes])
    row("app servers killed", [f"{len(outcome.kills)}" for outcome in outcomes])
    row("retransmissions", [f"{outcome.retransmissions:,}" for outcome in outcomes])
    row("longest time a row was blocked by a dead server", [duration(outcome.longest_block) for outcome in outcomes])
    row("latency, median", [outcome.percentile(50) for outcome in outcomes])
    row("latency, 99 %", [outcome.percentile(99) for outcome in outcomes])
    row("latency, worst", [outcome.percentile(100) for outcome in outcomes])
    return rows
