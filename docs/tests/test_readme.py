"""What README says is what was measured, and stands elsewhere, too."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).parents[2]
NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b(?! (?:sessions|requests|ms))")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_it_opens_with_the_two_commands() -> None:
    first = re.search(r"```sh\n(.*?)```", (TOP / "README.md").read_text(encoding="utf-8"), re.S)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["./run demo", "./run test"]


def test_what_it_costs_has_been_measured() -> None:
    """Every number is one of docs/performance.md, and every command one that there is."""
    rows = section((TOP / "README.md").read_text(encoding="utf-8"), "What it costs")
    measured = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
    cells = [row.split("|") for row in rows.splitlines() if row.startswith("| ") and "./run" in row]
    assert len(cells) == 3
    for row in cells:
        for number in NUMBER.findall(" ".join(row[1:4])):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", measured), number
        assert (TOP / "bench" / f"{row[4].split()[2].strip('`')}.py").is_file()
