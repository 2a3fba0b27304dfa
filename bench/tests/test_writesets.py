"""What bench.writesets makes of what it has measured, and what it lets pgbench do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.changes import application, capture, compaction, extraction, growth, instructions, paper
from bench.changes.items import OPS, change
from bench.changes.session import memory

Rows = list[dict[str, Any]]


def test_memory_is_what_is_not_shared() -> None:
    assert memory("Name:\tpostgres\nVmHWM:\t  102400 kB\nRssAnon:\t 10 kB\nRssShmem:\t   51200 kB\n") == 50


def test_the_papers_ratios() -> None:
    assert [round(paper.ratio(paper.V2, op), 2) for op in OPS] == [1.38, 1.38, 1.92]


def test_a_change() -> None:
    assert change("U", 1, 10, "other") == "UPDATE other SET n = n + 1 WHERE id BETWEEN 1 AND 10"


# -- capture ---------------------------------------------------------------------------------------------------------


def _captured(sizes: tuple[int, ...], **ratios: float) -> Rows:
    """In the second round everything takes twice as long."""
    return [
        {"size": size, "system": system, "round": turn, "op": op, "ms": 1.0, "cpu_ms": 10 * turn * ratios.get(op, 1)
         if system == capture.OURS else 10.0 * turn}
        for size in sizes for system in capture.SYSTEMS for turn in (1, 2) for op in OPS
    ]  # fmt: skip


def test_capture_is_judged_by_the_worst_of_each_size() -> None:
    rows = _captured((1, 100), I=1.02, D=1.04) + _captured((10_000,), U=1.06)
    told = [(round(one.value, 2), one.met) for one in capture.targets(rows)]
    assert told == [(1.04, True), (1.04, True), (1.06, False)]


def test_capture_stands_beside_the_paper() -> None:
    lines = capture.tell(_captured((100, 10_000), I=1.5)).splitlines()[2:]
    assert lines[0] == "| 100 | I | 15 | 1.50 (1.50 to 1.50) | 1.00 | 1.00 | 1.00 | 1.00 |  |  |"
    assert lines[3].startswith("| 10,000 | I | 15 | 1.50")
    assert lines[3].endswith("| 10.19 | 1.38 |")
    assert len(lines) == 6


# -- extraction and compaction ---------------------------------------------------------------------------------------


def _extracted(ours: float) -> Rows:
    prepared = (extraction.PREPARED, *extraction.PLUGINS)
    return [
        {"op": op, "system": system, "round": 1, "ms": 50.0, "cpu_ms": ours if system == extraction.OURS else 9.0,
         "prepare_cpu_ms": 3.0 if system in prepared else math.nan, "bytes": 1000}
        for system in extraction.SYSTEMS for op in OPS
    ]  # fmt: skip


@pytest.mark.parametrize(("ms", "met"), [(2.0, True), (2.1, False)])
def test_extraction(ms: float, met: bool) -> None:
    (target,) = extraction.targets(_extracted(ms))
    assert (target.value, target.met) == (ms, met)


def test_extraction_stands_beside_the_paper() -> None:
    lines = extraction.tell(_extracted(1)).splitlines()[2:]
    assert lines[0] == f"| {extraction.OURS} | {' | '.join(3 * ['1 (1 to 1)'])} |  | 1,000 | 1,000 | 1,000 |"
    assert lines[1].split(" | ")[4] == "3"
    assert lines[-1] == "| paper: DbLayer_v2 | 1,595 | 184 |  |  | 210,016 |  |  |"


def test_compaction() -> None:
    row = {
        "case": "all", "round": 1, "ms": 9.0, "cpu_ms": 2.5, "writesets": 4, "changes_before": 35_000,
        "bytes_before": 1000, "changes_after": 5_000, "bytes_after": 10,
    }  # fmt: skip
    assert compaction.tell([row]).splitlines()[2] == "| all | 4 | 2.5 (2.5 to 2.5) | 35,000 | 5,000 | 1,000 | 10 |"


# -- instructions ----------------------------------------------------------------------------------------------------


def _counted(captured: int, extracted: int) -> Rows:
    """Of a hundred rows; of transactions of one row D is the worst, of larger ones all are the same."""
    counts = {instructions.NONE: 100_000, instructions.CAPTURED: captured, instructions.EXTRACTED: extracted}
    return [
        {"size": size, "op": op, "system": system, "rows": 100,
         "instructions": counts[system] + (1000 if (size, op, system) == (1, "D", instructions.CAPTURED) else 0)}
        for size in (1, 10_000) for system in counts for op in OPS
        if system != instructions.EXTRACTED or size == 10_000
    ]  # fmt: skip


@pytest.mark.parametrize(("captured", "extracted", "met"), [(104_000, 70_000, 5), (105_000, 80_000, 3)])
def test_instructions(captured: int, extracted: int, met: int) -> None:
    told = instructions.targets(_counted(captured, extracted))
    assert [round(one.value, 2) for one in told[:2]] == [captured / 100_000 + 0.01, captured / 100_000]
    assert [one.value for one in told[2:]] == 3 * [extracted / 100]
    assert sum(one.met for one in told) == met


def test_instructions_are_those_of_a_row() -> None:
    lines = instructions.tell(_counted(104_000, 70_000)).splitlines()[2:]
    assert lines[2] == "| 1 | D | 1,000 | 1,050 | 1.050 |  |"
    assert lines[3] == "| 10,000 | I | 1,000 | 1,040 | 1.040 | 700 |"
    assert len(lines) == 6


# -- application -----------------------------------------------------------------------------------------------------


def _applied(by_row: float, copied: float) -> Rows:
    """Milliseconds, beside 10."""
    times = {application.OURS: 10.0, application.BY_ROW: by_row, application.COPY: copied}
    return [
        {"op": op, "system": name, "round": turn, "rows": 100, "ms": turn * times.get(name, 50.0)}
        for name, (_, ops) in application.WAYS.items() for op in ops for turn in (1, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(("by_row", "copied", "met"), [(100, 5, 4), (99, 5, 1), (100, 4.9, 3)])
def test_application(by_row: float, copied: float, met: int) -> None:
    targets = application.targets(_applied(by_row, copied))
    assert len(targets) == 4
    assert sum(target.met for target in targets) == met


def test_only_insertions_are_copied() -> None:
    lines = application.tell(_applied(100, 20)).splitlines()[2:]
    assert lines[4] == "| COPY | 30 (20 to 40) |  |  | 2.00 (2.00 to 2.00) |  |  |"
    assert lines[0].endswith("|  |  |  |")


@pytest.mark.parametrize("at_once", [1, 100])
def test_a_script_changes_each_row_once_in_one_transaction(at_once: int) -> None:
    lines = application.script("D", 250, at_once).splitlines()
    assert lines[:2] == ["PREPARE change (int) AS DELETE FROM item WHERE id = $1;", "BEGIN;"]
    assert [line for line in lines if line.startswith("EXECUTE")] == [f"EXECUTE change({i});" for i in range(1, 251)]
    assert lines[-1] == "COMMIT;"
    assert lines.count("\\startpipeline") == lines.count("\\endpipeline") == (3 if at_once > 1 else 0)


# -- growth ----------------------------------------------------------------------------------------------------------


def _grown(slower: float, more: float) -> Rows:
    return [
        {"inserted": size, "system": name, "round": 1, "cpu_ms": size / 1000 * (slower if size == 100_000 else 1),
         "megabytes": 20.0 + (more if name in growth.BOUNDED and size == 100_000 else 0)}
        for name in growth.SYSTEMS for size in (1_000, 10_000, 100_000)
    ]  # fmt: skip


@pytest.mark.parametrize(("slower", "more"), [(1.5, growth.MEGABYTES), (1.6, growth.MEGABYTES + 1)])
def test_growth(slower: float, more: float) -> None:
    linear, bounded = growth.targets(_grown(slower, more))
    assert linear.value == pytest.approx(slower)
    assert bounded.value == pytest.approx(more)
    assert linear.met == (slower == 1.5)
    assert bounded.met == (more == growth.MEGABYTES)
    assert growth.tell(_grown(1.5, 4)).splitlines()[3] == "| inserted, captured | 1 | 1 | 1.5 | 20 | 20 | 24 |"
