"""What bench.replicated makes of what it has measured."""

from __future__ import annotations

from bench.replication import catching_up, latency, load, loss
from bench.rows import Row


def _latencies(**more: float) -> list[Row]:
    return [
        {"system": name, "round": turn, "commits": 9, "median_ms": turn + more.get(name, 0.0), "p95_ms": 9.0}
        for turn in (1, 5, 9) for name in latency.SYSTEMS
    ]  # fmt: skip


def test_a_commit_is_judged_by_the_append_of_its_round() -> None:
    for more, met in ((0.9, True), (1.1, False)):
        (target,) = latency.targets(_latencies(**{latency.THREE: more}))
        assert (round(target.value, 1), target.met) == (more, met)
    assert latency.tell(_latencies()).splitlines()[2] == "| one server | 5 (1 to 9) | 9 (9 to 9) |"


def test_aborts_count_up_to_the_papers_loads() -> None:
    rows: list[Row] = [
        {"system": name, "round": 1, "load": at, "transactions": 9, "ms": 3.0, "aborted": at / 10}
        for name in load.SYSTEMS for at in load.LOADS
    ]  # fmt: skip
    (target,) = load.targets(rows)
    assert (target.value, target.met) == (5, True)
    assert len(load.tell(rows).splitlines()) == 2 + 2 * len(load.SYSTEMS)


def test_application_is_judged_at_its_best_size() -> None:
    rows: list[Row] = [
        {"size": size, "round": 1, "rows": 9, "rows_a_second": 200.0 * size, "positions_a_second": 200.0}
        for size in (1, 100)
    ]  # fmt: skip
    (target,) = catching_up.targets(rows)
    assert (target.value, target.met) == (20_000, True)


def test_a_loss_is_judged_by_the_longest_commit() -> None:
    row: Row = {"round": 1, "seconds": 3.0, "before": 9.0, "behind": 9.0, "longest_before_ms": 9.0,
                "longest_behind_ms": 1100.0, "caught_up_s": 1.0}  # fmt: skip
    (target,) = loss.targets([row])
    assert (round(target.value, 2), target.met) == (1.1, False)
