"""Benches of several parts, each of which can be asked for: their options, their clock, and their report."""

from __future__ import annotations

import argparse
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .rounds import names
from .rows import Row, write_csv

__all__ = ["Bench", "Part", "measure_parts", "options"]


def options(doc: str, parts: Sequence[str], *, rounds: int, seconds: float, out: str) -> argparse.ArgumentParser:
    """Those that they all have, with these defaults. `out` is a folder beside this file."""

    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=type(seconds), default=seconds, help="of a case")
    parser.add_argument("--only", type=names(parts), default=tuple(parts), help=f"some of {', '.join(parts)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / out)
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run, and is it right?")
    return parser


@dataclass(frozen=True)
class Part:
    """Of a report: its table, its picture, and what stands before them."""

    tell: Callable[[list[Row]], str]
    plot: Callable[[list[Row], Path], None] | None
    text: str


class Bench(ABC):
    parts: Mapping[str, Part]
    """Of the report, in its order."""
    report: str
    prefix = ""
    """Of all other files."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows: dict[str, list[Row]] = {}
        self.minutes = 0.0

    @abstractmethod
    def run(self) -> None:
        """Measures what is asked for."""

    @abstractmethod
    def head(self) -> list[str]:
        """What the report begins with."""

    def tail(self) -> list[str]:
        """And ends with."""
        return []

    def wrong(self) -> list[str]:
        """What must not be."""
        return []

    def wants(self, *names: str) -> bool:
        """Is any of these asked for?"""
        return not set(names).isdisjoint(self.args.only)

    def measure(self, name: str, measure: Callable[[], list[Row]], *, of: str | None = None) -> None:
        """A part, if it is asked for by its name, or that of what it belongs to."""
        if not self.wants(of or name):
            return
        began = time.monotonic()
        self.rows.setdefault(name, []).extend(measure())
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)

    def file(self, name: str) -> Path:
        path: Path = self.args.out / f"{self.prefix}{name}"
        return path

    def write(self) -> Path:
        """The report of the parts that have been measured."""
        told = self.head()
        for name, part in self.parts.items():
            if name not in self.rows:
                continue
            rows, values = self.rows[name], self.file(f"{name}.csv")
            write_csv(values, rows)
            told += [part.text, part.tell(rows)]
            if part.plot is not None:
                picture = self.file(f"{name}.png")
                part.plot(rows, picture)
                told.append(f"![{name}]({picture.name})")
            told.append(f"Every value: [{values.name}]({values.name}).")
        report: Path = self.args.out / self.report
        report.write_text("\n\n".join(told + self.tail()) + "\n")
        return report


def measure_parts(bench: Bench) -> None:
    """Exits where something is wrong, after having written it all the same."""
    bench.args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    bench.run()
    bench.minutes = (time.monotonic() - began) / 60
    print(f"the report is {bench.write()}")
    if wrong := bench.wrong():
        sys.exit("; ".join(wrong))
