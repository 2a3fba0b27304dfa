"""What there is to check, and what TLC has to say of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pgmip.decision import Entry, Mipts, Rule, State, explain, highest, live

HERE = Path(__file__).resolve().parent

# The longest first: they are run side by side.
CONFIGURATIONS = (
    "sweeper", "retry", "told_canceller", "replica_trim", "replica_log", "replica", "told_client", "families",
    "replica_live", "requests_owners", "told_requests", "told_sweeper", "told_refusals", "everywhere", "requests",
    "definitions", "definitions_left_out", "definitions_rows", "replica_references", "replica_joins", "crossing",
    "site_sets", "replica_window", "replica_unhashed", "timeless", "family", "everywhere_one_site", "one_site",
    "definitions_window", "requests_refusals", "requests_window", "claims", "claims_live",
)  # fmt: skip
LARGE = (
    "old_and_new", "four_instances", "everywhere_three", "three_sites", "five_instances", "everywhere_siblings",
    "replica_chain", "replica_forks", "replica_orphans", "replica_all", "replica_three", "requests_all",
    "requests_askers", "requests_three", "definitions_all", "definitions_crash", "definitions_three",
)  # fmt: skip

_COMPLETE = re.compile(r"^\d+ states generated, (\d+) distinct states found, 0 states left on queue", re.MULTILINE)
_VIOLATED = re.compile(r"Error: (?:Invariant|Action property) (\w+) is violated")
_NOT_LIVE = "Error: Temporal properties were violated"


class Check(Protocol):
    """Something that TLC is to be asked."""

    @property
    def name(self) -> str: ...
    @property
    def module(self) -> str: ...

    def configuration(self) -> str:
        """TLC's configuration file."""

    def judge(self, output: str) -> tuple[bool, str]:
        """Whether TLC says what it should, and this in a few words."""


@dataclass(frozen=True)
class Holds:
    """A configuration, whose properties hold in every state."""

    name: str

    @property
    def module(self) -> str:
        return _module(self.name)

    def configuration(self) -> str:
        return (HERE / f"{self.name}.cfg").read_text()

    def judge(self, output: str) -> tuple[bool, str]:
        complete = _COMPLETE.search(output)
        if complete and "No error has been found" in output:
            return True, f"{complete[1]} states"
        return False, "does not hold"


@dataclass(frozen=True)
class Fails:
    """A configuration in which one rule is left out, so that a property does not hold any more."""

    rule: str
    base: str
    violated: str

    @property
    def module(self) -> str:
        return _module(self.base)

    @property
    def name(self) -> str:
        return "without-" + self.rule.replace(" ", "-")

    def configuration(self) -> str:
        text = (HERE / f"{self.base}.cfg").read_text()
        stated = re.findall(r"^(?:INVARIANTS|PROPERTIES) .*", text, re.MULTILINE)
        kind = next(line.split()[0] for line in stated if self.violated in line.split())
        text = re.sub(r"^(INVARIANTS|PROPERTIES) .*\n", "", text, flags=re.MULTILINE)
        return text.replace("Broken = {}", f'Broken = {{"{self.rule}"}}') + f"{kind} {self.violated}\n"

    def judge(self, output: str) -> tuple[bool, str]:
        found = _VIOLATED.search(output)
        if found:
            return found[1] == self.violated, f"{found[1]} is violated"
        if _NOT_LIVE in output:  # there is but one property
            return True, f"{self.violated} is violated"
        return False, "nothing is violated"


@dataclass(frozen=True)
class Table:
    """The decisions of the library, for all MIPTs of two sites."""

    name = "decision"
    module = "Table"

    def configuration(self) -> str:
        return (HERE / "Table.cfg").read_text()

    def judge(self, output: str) -> tuple[bool, str]:
        rows = [_parse(row) for row in re.findall(r'<<\s*"decision".*?(?=<<\s*"decision"|$)', _tuples(output))]
        wrong = [row for row in rows if not _agrees(row)]
        if wrong:
            return False, f"the library differs: {wrong[0]}"
        return bool(rows), f"{len(rows)} decisions compared"


def chosen(names: Sequence[str], *, large: bool) -> list[Check]:
    """The checks of these names; without names, all that do not take long, or those that do."""
    quick: list[Check] = [*map(Holds, CONFIGURATIONS), Table(), *_broken()]
    long: list[Check] = [*map(Holds, LARGE)]
    if names:
        return [check for check in [*quick, *long] if check.name in names]
    return long if large else quick


def _module(configuration: str) -> str:
    modules = {
        "told": "Told", "everywhere": "MCEverywhere", "replica": "MCReplica", "requests": "Requests",
        "definitions": "Definitions", "claims": "Claims",
    }  # fmt: skip
    return modules.get(configuration.partition("_")[0], "MC")


def _broken() -> list[Fails]:
    """broken.txt: rule | configuration | property."""
    lines = (HERE / "broken.txt").read_text().splitlines()
    return [Fails(*(cell.strip() for cell in line.split("|"))) for line in lines if not line.startswith("#")]


# -- the table ---------------------------------------------------------------------------------------------------


def _tuples(output: str) -> str:
    """TLC breaks long values over several lines, and speaks of other things after them."""
    lines = [line.strip() for line in output.splitlines()]
    first = next((i for i, line in enumerate(lines) if line.startswith("<<")), len(lines))
    last = max((i for i, line in enumerate(lines) if line.endswith(">>")), default=-1)
    return " ".join(lines[first : last + 1])


def _parse(row: str) -> list[Any]:
    value: list[Any] = ast.literal_eval(re.sub(r"<<|\{", "[", re.sub(r">>|\}", "]", row)).strip())
    return value


def _agrees(row: list[Any]) -> bool:
    _, a, b, rule, winner, top, alive = row
    mipts: Mipts = {"a": _mipt(a), "b": _mipt(b)}
    said = explain(mipts)
    same_winner = said.rule is Rule.VIOLATION or ([said.winner.xinst] if said.winner else []) == winner
    return said.rule == rule and same_winner and highest(mipts) == top and live(mipts) == frozenset(alive)


def _mipt(states: list[str]) -> tuple[Entry, ...] | None:
    if "unread" in states:
        return None
    return tuple(Entry(xinst, State(state)) for xinst, state in enumerate(states, 1) if state != "none")
