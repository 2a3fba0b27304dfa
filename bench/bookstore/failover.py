"""Figure 2 of the paper: every request fails over. Its original is left prepared. Either a sibling does the work again
and is committed, as in the paper; or it finds the original prepared, and commits that.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from ..disk import set_flush
from ..rounds import interleaved
from ..rows import Row, markdown, median, plotted, ratios, spread
from .response import INTERACTIONS
from .scripts import SYSTEMS
from .store import Measured, Store

__all__ = ["measure", "plot", "tell"]

SINGLE, TWICE, ADOPTED = "MIP", "MIP fail-over", "MIP adopted"
CLIENTS = (1, 8)
DISKS = ("as it is", "2 ms")
PAPER = {"Buy Confirm": 33, "Admin Confirm": 25}  # per cent of the throughput that are lost
TARGET = 15  # for what is adopted
PHASES = ("original", "sibling", "commit")


def measure(store: Store, *, rounds: int, seconds: float) -> list[Row]:
    rows = []
    for disk in DISKS:
        set_flush(store.cluster, disk)
        for number in range(rounds):
            for interaction in INTERACTIONS:
                for clients in CLIENTS:
                    for system in interleaved((SINGLE, TWICE, ADOPTED), number):
                        m = store.run(interaction, SYSTEMS[system], clients=clients, seconds=seconds)
                        rows.append(
                            {"interaction": interaction, "disk": disk, "clients": clients, "system": system,
                             "round": number + 1, "tps": m.tps, "mean": m.mean} | _phases(m)
                        )  # fmt: skip
        print(f"fail-over: disk {disk} done", flush=True)
    set_flush(store.cluster, "as it is")
    return rows


def _phases(measured: Measured) -> dict[str, float]:
    """Milliseconds that a request has spent in each of its phases; with a single instance there is no sibling."""
    spent = dict.fromkeys(PHASES, 0.0)
    phase = None
    for text, latency in measured.messages:
        if "EXECUTE mip_start" in text:
            phase = "original" if phase is None else "sibling"
        elif "EXECUTE mip_commit('" in text:
            phase = "commit"
        if phase is not None:
            spent[phase] += latency
    return spent


def _lost(rows: list[Row], system: str, **where: object) -> list[float]:
    """Per cent of the throughput, round by round."""
    return [100 * (1 - value) for value in ratios(rows, "tps", system, SINGLE, **where)]


def _tell_lost(rows: list[Row], system: str, **where: object) -> str:
    lost = _lost(rows, system, **where)
    return f"{statistics.median(lost):.0f} % ({min(lost):.0f} to {max(lost):.0f})"


def tell(rows: list[Row]) -> str:
    lines = []
    for interaction in INTERACTIONS:
        for disk in DISKS:
            for clients in CLIENTS:
                where = {"interaction": interaction, "disk": disk, "clients": clients}
                lines.append(
                    [interaction, disk, clients, spread(rows, "tps", system=SINGLE, **where),
                     spread(rows, "tps", system=TWICE, **where), _tell_lost(rows, TWICE, **where),
                     f"{PAPER[interaction]} %", spread(rows, "tps", system=ADOPTED, **where),
                     _tell_lost(rows, ADOPTED, **where), f"{TARGET} %"]
                )  # fmt: skip
    header = ["interaction", "flush", "clients", "one instance, tps", "worked again, requests a second", "lost",
              "paper", "adopted, requests a second", "lost", "target"]  # fmt: skip
    return "\n\n".join([markdown(header, lines), "Where a request's time goes, ms:", _tell_phases(rows)])


def _tell_phases(rows: list[Row]) -> str:
    lines = []
    for interaction in INTERACTIONS:
        for disk in DISKS:
            where = {"interaction": interaction, "disk": disk, "clients": 1}
            for system in (SINGLE, TWICE, ADOPTED):
                spent = [median(rows, phase, system=system, **where) for phase in PHASES]
                lines.append([interaction, disk, system, *(f"{one:.2f}" if one else "" for one in spent)])
    header = ["interaction, one client", "flush", "case", "original to its prepare",
              "sibling to its prepare, or MIPT", "commit"]  # fmt: skip
    return markdown(header, lines)


def plot(rows: list[Row], file: Path) -> None:
    titles = [f"flush {disk}" for disk in DISKS]
    with plotted(file, titles, "", "requests a second, of those with one instance") as axes:
        cases = [(interaction, clients) for interaction in INTERACTIONS for clients in CLIENTS]
        for axis, disk in zip(axes, DISKS, strict=True):
            for system, shift in ((TWICE, -0.2), (ADOPTED, 0.2)):
                lost = [_lost(rows, system, interaction=it, clients=clients, disk=disk) for it, clients in cases]
                values = [[1 - one / 100 for one in case] for case in lost]
                axis.boxplot(values, positions=[number + shift for number in range(1, len(cases) + 1)], widths=0.3)
            axis.set_xticks(range(1, len(cases) + 1), [f"{name}\n{n} clients" for name, n in cases], fontsize=8)
            axis.plot([], [], label="left: worked again; right: adopted")
            for number, (interaction, _) in enumerate(cases, 1):
                axis.plot([number - 0.4, number + 0.4], 2 * [1 - PAPER[interaction] / 100], color="gray")
            axis.plot([], [], color="gray", label="paper")
            axis.set_ylim(0, 1.2)
