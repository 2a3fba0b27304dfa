"""What bench.ssi makes of what it has measured."""

from __future__ import annotations

from typing import Any

import pytest

from bench.rows import quartiles, ratios
from bench.serializable import across, deferrable, failures, families, sibench
from bench.serializable.client import ACROSS_SITES, DEPENDENCIES, FAILURES, Tally
from bench.serializable.dbt2 import READ_ONLY, STANDARD, mix, tell, wrong_anomalies
from bench.serializable.measured import SI, SSI, Measured
from bench.targets import Target, tell_targets

PRINTED = """\
transaction type: multiple scripts
number of clients: 4
maximum number of tries: unlimited
duration: 1 s
number of transactions actually processed: 2946
number of failed transactions: 2 (0.068%)
number of transactions retried: 47 (1.594%)
total number of retries: 52
latency average = 1.353 ms
tps = 2955.700414 (without initial connection time)
SQL script 1: script0.sql
 - 1490 transactions (50.5% of total, tps = 1494.9)
 - number of transactions retried: 47 (3.2%)
 - total number of retries: 52
"""


def test_pgbench_is_read() -> None:
    measured = Measured.read(PRINTED)
    assert measured == Measured(2955.700414, 2946, 54)
    assert measured.failures == 54 / 3000


def test_a_target() -> None:
    assert Target("a", 0.93, least=0.93).met
    assert not Target("a", 0.929, least=0.93).met
    assert Target("a", 0, most=0).met
    assert not Target("a", 1, most=0).met
    lines = tell_targets([Target("enough", 0.95, least=0.93), Target("too many", 1.5, most=1.2)]).splitlines()
    assert lines[2:] == ["| enough | at least 0.93 | 0.95 | yes |", "| too many | at most 1.2 | 1.5 | **no** |"]


def test_quartiles() -> None:
    assert quartiles([1.0]) == "1.00 (1.00 to 1.00)"
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0], ".0f") == "3 (2 to 4)"


def _rounds(metric: str, of_si: list[float], of_ssi: list[float], **what: Any) -> list[dict[str, Any]]:
    rows = [
        {**what, "system": level, "round": number, metric: value, "failures": 0.01}
        for level, values in ((SI, of_si), (SSI, of_ssi)) for number, value in enumerate(values, 1)
    ]  # fmt: skip
    return rows[::-1]


def test_ratios_are_of_the_same_round() -> None:
    rows = _rounds("tps", [100, 200, 400], [90, 190, 400], size=10, method="heap")
    assert sorted(ratios(rows, "tps", SSI, SI, size=10)) == [0.9, 0.95, 1.0]


def test_figures_stand_beside_the_papers() -> None:
    rows = [
        row for method in ("heap", "mip")
        for row in _rounds("tps", [100, 200, 400], [90, 190, 400], size=10, method=method)
    ]  # fmt: skip
    first = sibench.tell(rows).splitlines()[2]
    assert "| 95 (92 to 98) % | 80 to 90 %" in first
    rows = [
        row for method in ("heap", "mip")
        for row in _rounds("tps", [100, 200, 400], [90, 190, 400], read_only=8, method=method)
    ]  # fmt: skip
    assert "| 95 (92 to 98) % | 95 % | 1.00% | 1.00% | below 0.25 % |" in tell(rows)
    waits = [
        {"system": system, "sample": number, "milliseconds": float(number)}
        for system in deferrable.SYSTEMS for number in range(1, 11)
    ]  # fmt: skip
    assert "| heap | 10 | 6 | 10 | 10 |" in deferrable.tell(waits)
    assert "| 1,980 | 6,000 | 20,000 |" in deferrable.tell(waits)


def test_a_mix_keeps_its_proportions() -> None:
    assert mix(8) == pytest.approx({name: share / 100 for name, share in STANDARD.items()})
    for read_only in (28, 48, 68, 88):
        shares = mix(read_only)
        assert sum(shares.values()) == pytest.approx(1)
        assert sum(shares[name] for name in READ_ONLY) == pytest.approx(read_only / 100)
        assert shares["pay"] / shares["enter_order"] == pytest.approx(43 / 41)
    assert set(mix(100)) == set(READ_ONLY)
    assert set(mix(0)) == set(STANDARD) - set(READ_ONLY)


def test_families_have_a_target_for_every_case() -> None:
    rows = [
        row for share, left in families.QUICK
        for row in _rounds("rate", [100, 100, 100], [95, 90 if share else 94, 80], share=share, left=left)
    ]  # fmt: skip
    none, prepared, running = families.targets(rows)
    assert (none.value, none.met) == (0.94, True)
    assert (prepared.value, prepared.met) == (running.value, running.met) == (0.9, False)
    assert [line.split(" | ")[0] for line in families.tell(rows).splitlines()[2:]] == [
        "| none", "| 100%, prepared", "| 100%, running",
    ]  # fmt: skip


def _told(system: str, who: str, failed: int, committed: int = 1000) -> dict[str, Any]:
    return {
        "workload": "by key", "system": system, "round": 1, "who": who, "committed": committed,
        "attempts": committed + failed, "both_prepared": 0, **dict.fromkeys(FAILURES, 0), DEPENDENCIES: failed,
    }  # fmt: skip


def test_outsiders_are_compared_with_those_beside_heap() -> None:
    siblings = [_told(failures.TWICE, failures.REQUESTS, 0)]
    rows = [_told(system, who, 30) for system in failures.SYSTEMS for who in failures.WHO]
    alone, outsiders = failures.targets(rows, siblings)
    assert (alone.value, alone.met, outsiders.value, outsiders.met) == (0, True, 1, True)
    rows = [row for row in rows if (row["system"], row["who"]) != (failures.TWICE, failures.OUTSIDERS)]
    rows.append(_told(failures.TWICE, failures.OUTSIDERS, 60, committed=1500))
    _, outsiders = failures.targets(rows, siblings)
    assert outsiders.value == pytest.approx(4 / 3)
    assert not outsiders.met
    siblings[0]["deadlock"] = 1
    assert not failures.targets(rows, siblings)[0].met


def _across(system: str, number: int, rate: float, anomalies: int = 0, contention: str = "low") -> dict[str, Any]:
    return {
        "contention": contention, "share": 0.0, "system": system, "round": number, "rate": rate, "committed": 100,
        "attempts": 120, **dict.fromkeys(FAILURES, 0), DEPENDENCIES: 12, ACROSS_SITES: 6, "anomalies": anomalies,
    }  # fmt: skip


def test_across_sites() -> None:
    rows = [
        _across(mode, number, rate * factor)
        for number, rate in enumerate((100, 200, 400)) for mode, factor in ((across.SITE, 1), (across.EVERYWHERE, 0.9))
    ]  # fmt: skip
    rows += [_across(across.SITE, 0, 50, 3, "high"), _across(across.EVERYWHERE, 0, 20, 0, "high")]
    (wanted,) = across.targets(rows)  # of high contention nothing is wanted
    assert wanted.value == pytest.approx(0.9)
    assert wanted.met
    lines = across.tell(rows).splitlines()
    assert lines[3].endswith("| 0.90 (0.90 to 0.90) | 15.00% | 10.00% | 5.00% | 0 of 300 |")
    assert lines[4].endswith("| 3 of 100 |")
    assert across.wrong(rows) == []


def test_what_the_anomalies_across_sites_say() -> None:
    assert across.wrong([]) == []
    assert len(across.wrong([_across(across.SITE, 0, 50, 1), _across(across.EVERYWHERE, 0, 50, 1)])) == 1
    assert len(across.wrong([_across(across.SITE, 0, 50, 0), _across(across.EVERYWHERE, 0, 50, 0)])) == 1
    told = across.Told() + across.Told()
    told.read.update([(1, 0), (1, 1), (2, 0), (1, 1)])
    assert told.anomalies == 1


def test_too_few_failures_say_nothing() -> None:
    rows = [_told(system, who, failures.ENOUGH - 1) for system in failures.SYSTEMS for who in failures.WHO]
    assert [one.what for one in failures.targets(rows, [])] == ["failures of siblings by siblings"]


@pytest.mark.parametrize(
    ("level", "anomalies", "wrong"), [(SI, 0, True), (SI, 3, False), (SSI, 0, False), (SSI, 1, True)]
)
def test_what_the_anomalies_say(level: str, anomalies: int, wrong: bool) -> None:
    row = {"who": "heap", "system": level, "runs": 1, "transactions": 100, "anomalies": anomalies}
    assert bool(wrong_anomalies([row])) == wrong


def test_tallies_are_added() -> None:
    one, other = Tally(attempts=3), Tally(attempts=2, both_prepared=1)
    one.committed["pay"] += 2
    one.failed[DEPENDENCIES] += 1
    other.committed["pay"] += 2
    both = sum([one, other], Tally())
    assert (both.requests, both.attempts, both.both_prepared, both.by_dependencies) == (4, 5, 1, 0.25)
