"""replicated.svg: orders a second, and how far each replica is behind, while things are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from ..plot import svg
from .customers import Placed
from .killer import Kill
from .monitor import Look
from .site import MEMBERS

_COLOURS = dict(zip(MEMBERS, ("tab:blue", "tab:orange", "tab:green"), strict=True))


def plot(began: float, placed: Sequence[Placed], looks: Sequence[Look], kills: Sequence[Kill], path: Path) -> None:
    figure, (rate, lag) = plt.subplots(2, 1, sharex=True, figsize=(12, 7))
    below = Counter[int]()
    for member in MEMBERS:
        seconds = Counter(int(one.ended - began) for one in placed if one.at == member)
        at = range(int(max(one.ended for one in placed) - began) + 1)
        rate.bar(
            [second + 0.5 for second in at], [seconds[second] for second in at], width=1.0,
            bottom=[below[second] for second in at], color=_COLOURS[member], label=f"placed at {member}",
        )  # fmt: skip
        below.update(seconds)
        lag.plot(
            [look.when - began for look in looks],
            [max(look.applied.values()) - look.applied[member] if member in look.applied else None for look in looks],
            color=_COLOURS[member], label=member,
        )  # fmt: skip
    for axes in (rate, lag):
        for kill in kills:
            axes.axvline(kill.when - began, color="0.6", linewidth=1)
            axes.annotate(kill.what, (kill.when - began, 0.98), xycoords=("data", "axes fraction"), rotation=90,
                          va="top", ha="right", fontsize=7, color="0.4")  # fmt: skip
        axes.legend(loc="upper left", frameon=False)
    rate.set_ylabel("orders a second")
    lag.set_ylabel("positions behind the first one\n(a gap: it does not answer)")
    lag.set_xlabel("seconds since the shop opened; what is killed comes back after one")
    figure.suptitle("Three replicas of one bookstore, orders at all three")
    figure.tight_layout()
    path.write_text(svg(figure), encoding="utf-8")
    plt.close(figure)
