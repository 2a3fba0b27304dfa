"""The plan of a run at a replicated site is the seed's alone, and has all kinds of faults, for all that there is."""

from __future__ import annotations

import pytest

from faults.replicated import plan

LOGS = pytest.mark.parametrize("log", plan.PARTS)


def test_the_seed_says_it_all() -> None:
    assert plan.make(7, 60) == plan.make(7, 60)
    assert plan.make(7, 60) != plan.make(8, 60)


@LOGS
def test_every_kind_is_in_a_short_run(log: str) -> None:
    assert {fault.kind for fault in plan.make(1, 60, log)} == set(plan.kinds(log))


@LOGS
def test_targets_exist(log: str) -> None:
    known = {*plan.MEMBERS, *plan.PARTS[log], *plan.agents(), *plan.clients(), *plan.links(log)}
    assert {fault.target for seed in range(5) for fault in plan.make(seed, 300, log)} == known


@LOGS
def test_those_of_the_log_befall_it(log: str) -> None:
    faults = [fault for seed in range(5) for fault in plan.make(seed, 300, log)]
    of_the_log = ("kill log", "pause log", "disk full", "change leader")
    assert {fault.target for fault in faults if fault.kind in of_the_log} == set(plan.PARTS[log])
