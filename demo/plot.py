"""demo.svg: every request's latency over time, and the kills."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # after the choice of the backend
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .faults import IN_WORDS
from .outcome import Outcome

_COLOURS = {
    "at random": "0.75",
    "begun": "tab:olive",
    "prepared-first-site": "tab:orange",
    "prepared-all": "tab:red",
    "committed-first-site": "tab:purple",
}


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    figure, panels = plt.subplots(len(outcomes), 1, sharex=True, sharey=True, figsize=(12, 4 * len(outcomes)))
    for outcome, axes in zip(outcomes, panels, strict=True):
        _panel(axes, outcome)
    panels[-1].set_xlabel("seconds since the shop opened")
    marks, words = panels[0].get_legend_handles_labels()
    figure.legend(marks, words, loc="lower center", ncols=4, frameon=False)
    figure.suptitle("Latency of every order while app servers are killed")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    path.write_text(svg(figure), encoding="utf-8")
    plt.close(figure)


def svg(figure: Figure) -> str:
    """With text as text, and coordinates as exact as can be seen: small, and the same for the same run."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "demo"}):
        figure.savefig(drawn, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    in_tag = r"-?\d+\.\d{2,}(?=[^<>]*>)"
    return re.sub(in_tag, lambda number: f"{float(number[0]):.1f}", drawn.getvalue())


def _panel(axes: Axes, outcome: Outcome) -> None:
    for point, colour in _COLOURS.items():
        times = [kill.when - outcome.began for kill in outcome.kills if kill.point == point]
        axes.vlines(
            times, 0, 1, transform=axes.get_xaxis_transform(), color=colour, linewidth=1,
            label="killed " + IN_WORDS.get(point, point),
        )  # fmt: skip
    answered = [asked for asked in outcome.asked if asked.ended is not None]
    waiting = [asked for asked in outcome.asked if asked.ended is None]
    for kind, marker, colour, words in (
        (answered, ".", "tab:blue", "answered"),
        (waiting, "x", "black", "not answered when time was up"),
    ):
        axes.scatter(
            [asked.began - outcome.began for asked in kind], [outcome.waited(asked) for asked in kind],
            marker=marker, s=24, color=colour, label=words, zorder=3,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("latency (s)")
    axes.set_title(
        f"{outcome.title}: {outcome.answered:,} orders answered, {len(outcome.kills)} kills, "
        f"99 % of the orders within {outcome.percentile(99)}",
        loc="left", fontsize=10,
    )  # fmt: skip
