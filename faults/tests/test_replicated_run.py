"""A short run at a replicated site finds nothing wrong, and something wherever that is made."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from faults.replicated import lies, plan, run
from faults.replicated.lies import Lie

SEED, SECONDS = 3, 15.0


def _quiet(words: str) -> None:
    pass


def test_nothing_is_wrong(tmp_path: Path) -> None:
    outcome = asyncio.run(run.run(tmp_path, SEED, SECONDS, _quiet))
    assert [finding for finding in outcome.findings if finding.violations] == []
    assert outcome.done.total() > 3
    outcomes = [outcome.record.outcome(tx) for tx in outcome.record.begun]
    assert min(outcomes.count("committed"), outcomes.count("not")) > 10
    assert {look.whose for look in outcome.record.looks} == {"own", "told"}


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lies, "PATIENCE", 5.0)


@pytest.mark.usefixtures("no_patience")
def test_what_is_not_noticed(tmp_path: Path) -> None:
    """Of a log that does what a log does nobody takes notice."""
    (found,) = asyncio.run(_tell(tmp_path, {"does its work": Lie("SELECT 1")}))
    assert found == [f"the agent of {member} goes on" for member in plan.MEMBERS]


async def _tell(folder: Path, told: dict[str, Lie]) -> list[list[str]]:
    world = run.Replicated(folder, SEED)
    try:
        await world.start()
        await world.until_clients_are_gone()
        await asyncio.to_thread(world.site.until_quiet)
        return [list(finding.violations) for finding in await world.lie(told)]
    finally:
        await world.end()


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        ((), []),
        (("1", "2"), []),
        (("1", "2", "2"), ["2 is there 2 times"]),
        (("1", "3"), ["2 is not there"]),
        (("2",), ["1 is not there"]),
    ],
)
def test_what_is_not_a_beginning(there: tuple[str, ...], wrong: list[str]) -> None:
    assert lies.not_a_beginning(there, ["1", "2", "3"]) == wrong

