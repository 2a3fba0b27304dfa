"""The plan is the seed's alone, and has all kinds of faults."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from faults import plan
from faults.handlers import SITES


def test_the_seed_says_it_all(tmp_path: Path) -> None:
    assert plan.make(7, 60) == plan.make(7, 60)
    assert plan.make(7, 60) != plan.make(8, 60)
    plan.write(plan.make(7, 60), tmp_path / "plan")
    written = [json.loads(line) for line in (tmp_path / "plan").read_text().splitlines()]
    assert [plan.Fault(**fault) for fault in written] == plan.make(7, 60)


def test_every_kind_is_in_a_short_run() -> None:
    assert {fault.kind for fault in plan.make(1, 60)} == set(plan.KINDS)


def test_in_order_and_in_time() -> None:
    times = [fault.at for fault in plan.make(1, 300)]
    assert times == sorted(times)
    assert times[-1] < 300
    assert len(times) > 300


def test_targets_exist() -> None:
    known = {*SITES, *plan.servers(), *plan.sweepers(), *plan.clients(), *plan.links()}
    assert {fault.target for seed in range(5) for fault in plan.make(seed, 300)} == known


def test_compared_deaths_do_not_overlap() -> None:
    deaths = plan.compare(1, 60)
    assert len(deaths) > 10
    assert all(fault.at + fault.details["back"] < following.at for fault, following in itertools.pairwise(deaths))
