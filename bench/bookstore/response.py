"""Figure 1 of the paper: response time against offered load, to saturation and past it; and the ordering mix."""

from __future__ import annotations

import statistics
from pathlib import Path

from ..rounds import interleaved
from ..rows import Row, markdown, median, plotted, ratio, ratios, spread
from .scripts import SYSTEMS
from .store import Store

__all__ = ["INTERACTIONS", "measure", "measure_mix", "plot", "tell", "tell_mix"]

INTERACTIONS = ("Buy Confirm", "Admin Confirm")
COMPARED = ("COMMIT", "2PC", "MIP", "MIP unflushed", "MIP one-phase")
LOADS = (0.2, 0.5, 0.8, 1.0, 1.2)  # of what stock 2PC achieves
CLIENTS = 8  # sessions; what falls due while all are busy waits, and its time counts


def measure(store: Store, *, rounds: int, seconds: float, loads: tuple[float, ...] = LOADS) -> list[Row]:
    rows = []
    most = {
        name: store.run(name, SYSTEMS["2PC"], clients=8, seconds=2 * seconds).tps for name in INTERACTIONS
    }  # fmt: skip
    for number in range(rounds):
        for interaction in INTERACTIONS:
            for load in loads:
                for system in interleaved(COMPARED, number):
                    offered = load * most[interaction]
                    m = store.run(interaction, SYSTEMS[system], clients=CLIENTS, seconds=seconds, offered=offered)
                    rows.append(
                        {"interaction": interaction, "load": load, "offered": offered, "system": system,
                         "round": number + 1, "tps": m.tps, "mean": m.mean, "p50": m.p50, "p95": m.p95, "p99": m.p99}
                    )  # fmt: skip
        print(f"response times: round {number + 1} of {rounds}", flush=True)
    return rows


def tell(rows: list[Row]) -> str:
    parts = []
    for interaction in INTERACTIONS:
        mine = [row for row in rows if row["interaction"] == interaction]
        lines = []
        for load in sorted({row["load"] for row in mine}):
            times = [spread(mine, "mean", load=load, system=system) for system in COMPARED]
            offered = median(mine, "offered", load=load)
            against = [ratio(mine, "mean", system, "2PC", load=load) for system in COMPARED[2:]]
            lines.append([f"{offered:.0f}", *times, *against])
        header = ["offered, tps", *(f"{name}, ms" for name in COMPARED), *(f"{name} / 2PC" for name in COMPARED[2:])]
        below = [row for row in mine if row["load"] <= 0.5]
        curve = [statistics.median(ratios(below, "mean", "MIP", "2PC", load=load)) for load in _loads(below)]
        told = (
            f"Up to half of saturation MIP is {100 * (statistics.mean(curve) - 1):+.0f} % from stock 2PC (mean of the "
            f"loads; paper: about 2 % from a PostgreSQL without MIP, over the whole curve)."
        )
        parts += [f"**{interaction}**, mean response time", markdown(header, lines), told]
    return "\n\n".join(parts)


def _loads(rows: list[Row]) -> list[float]:
    return sorted({row["load"] for row in rows})


def plot(rows: list[Row], file: Path) -> None:
    with plotted(file, INTERACTIONS, "offered load, transactions a second", "mean response time, ms") as axes:
        for axis, interaction in zip(axes, INTERACTIONS, strict=True):
            mine = [row for row in rows if row["interaction"] == interaction]
            for system in COMPARED:
                loads = _loads(mine)
                axis.plot(
                    [median(mine, "offered", load=load) for load in loads],
                    [median(mine, "mean", load=load, system=system) for load in loads], marker=".", label=system,
                )  # fmt: skip
            axis.set_yscale("log")


def measure_mix(store: Store, *, rounds: int, seconds: float) -> list[Row]:
    """The full ordering mix, as fast as it goes."""
    rows = []
    for number in range(rounds):
        for system in interleaved(COMPARED, number):
            m = store.run_mix(SYSTEMS[system], clients=8, seconds=seconds)
            rows.append({"system": system, "round": number + 1, "tps": m.tps, "mean": m.mean, "p95": m.p95})
    return rows


def tell_mix(rows: list[Row]) -> str:
    lines = [
        [system, spread(rows, "tps", system=system), f"{median(rows, 'p95', system=system):.1f}",
         ratio(rows, "tps", system, "2PC")]
        for system in COMPARED
    ]  # fmt: skip
    return markdown(["system", "interactions a second (spread)", "p95, ms", "rate / 2PC"], lines)
