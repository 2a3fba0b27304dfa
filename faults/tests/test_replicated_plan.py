"""The plan of a run at a replicated site is the seed's alone, and has all kinds of faults, for all that there is."""

from __future__ import annotations

from faults.replicated import plan


def test_the_seed_says_it_all() -> None:
    assert plan.make(7, 60) == plan.make(7, 60)
    assert plan.make(7, 60) != plan.make(8, 60)


def test_every_kind_is_in_a_short_run() -> None:
    assert {fault.kind for fault in plan.make(1, 60)} == set(plan.KINDS)


def test_targets_exist() -> None:
    known = {*plan.SERVERS, *plan.agents(), *plan.clients(), *plan.links()}
    assert {fault.target for seed in range(5) for fault in plan.make(seed, 300)} == known


def test_those_of_the_log_befall_it() -> None:
    faults = [fault for seed in range(5) for fault in plan.make(seed, 300)]
    assert {fault.target for fault in faults if fault.kind in ("kill log", "pause log", "disk full")} == {"log"}
