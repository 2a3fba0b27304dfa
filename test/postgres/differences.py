"""Differences between two runs of a suite, and the ones that are expected."""

from __future__ import annotations

import subprocess
from pathlib import Path

from suites import Outputs


def between(heap: Outputs, other: Outputs, test: str) -> str:
    """The lines that differ; none where PostgreSQL takes both outputs for right."""
    if heap.passed.get(test) and other.passed.get(test):
        return ""
    outputs = [run.folder / f"{test}.out" for run in (heap, other)]
    for output in outputs:
        if not output.exists():
            return f"{output} is missing\n"
    done = subprocess.run(["diff", "-U0", *outputs], capture_output=True, text=True, errors="replace")
    lines = done.stdout.splitlines()[2:]
    return "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in lines)


def load(folder: Path, major: int) -> dict[str, str]:
    """The expected ones by test: TEST.diff, or TEST.MAJOR.diff for one major. A reason is their head."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.diff")):  # TEST.15.diff comes before TEST.diff
        test, _, only = file.name.removesuffix(".diff").partition(".")
        if only and int(only) != major:
            continue
        lines = file.read_text().splitlines(keepends=True)
        if not lines[0].startswith("# "):
            raise ValueError(f"{file} does not begin with a reason")
        found.setdefault(test, "".join(line for line in lines if not line.startswith("#")))
    return found


def judge(difference: str, expected: str | None) -> str:
    """What is wrong with a test's difference, or nothing."""
    if difference == (expected or ""):
        return ""
    if expected is None:
        return difference
    if not difference:
        return "the expected difference has gone"
    return f"another difference than expected:\n{difference}"
