"""Checksums of tables, side by side: by where they are from, and by table; None where there is no such table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from .output import STYLES, table, visible

__all__ = ["Sums", "compared", "differing"]

Sums = Mapping[str, Mapping[str, str | None]]


def differing(names: Sequence[str], sums: Sums) -> list[str]:
    """The tables that are not the same everywhere."""
    return [name for name in names if len(_of(name, sums)) > 1]


def compared(names: Sequence[str], sums: Sums) -> Table:
    """For people."""
    return table(("table", "", *map(visible, sums)), [_row(name, sums) for name in names])


def _of(name: str, sums: Sums) -> set[str | None]:
    return {checksums[name] for checksums in sums.values()}


def _row(name: str, sums: Sums) -> list[str | Text]:
    checksums = [of_one[name] or "no such table" for of_one in sums.values()]
    return [visible(name), _verdict(name, sums), *checksums]


def _verdict(name: str, sums: Sums) -> Text:
    found = _of(name, sums)
    if found <= {None}:
        return Text("nowhere", STYLES["error"])
    return Text("differs", STYLES["error"]) if len(found) > 1 else Text("same", STYLES["ok"])
