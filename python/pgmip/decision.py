"""The decision: which instance of a family wins, given its MIPTs. Pure; no input or output happens here.

A family's MIPT at a site is what `mip.prepare`, `mip.commit` or `mip.instances` returned there, at any time. Anybody
who holds one from every site derives the same winner from them, however long ago each was read:

1. an instance seen committed anywhere; only a winner is ever committed, so one site's word is enough;
2. else the smallest XINST prepared at *every* site. Nothing smaller can become complete any more, because a site
   refuses to prepare an instance below one that it has prepared;
3. else nobody yet: the request is to be retried as a new instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .exceptions import ProtocolViolation

__all__ = [
    "Decision",
    "Entry",
    "Explanation",
    "Mipts",
    "Rule",
    "State",
    "Winner",
    "decide",
    "declared",
    "explain",
    "highest",
    "in_doubt",
    "live",
    "over",
]


class State(StrEnum):
    """What a site knows of an instance (SQL type `mip.state`)."""

    ACTIVE = "active"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Entry:
    """One instance in the MIPT of one site."""

    xinst: int
    state: State
    request: str | None = None
    result: str | None = None
    sites: tuple[str, ...] = ()
    acknowledged: bool = False
    """Whether it is committed and its texts have been dropped here, because nobody will ask for them again."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The instance that commits, with the request and the result it was prepared with."""

    xinst: int
    request: str | None
    result: str | None
    committed: frozenset[str]
    """The sites where it was seen committed already."""
    acknowledged: bool = False
    """Whether its texts were seen at no site any more, so that `request` and `result` say nothing."""


Decision = Winner | None


class Rule(StrEnum):
    """Which rule gave the decision, or why there is none."""

    COMMITTED = "committed"
    """An instance is committed somewhere."""
    COMPLETE = "complete"
    """It is the smallest of the instances that are prepared at every site."""
    UNDECIDED = "undecided"
    """No instance is complete."""
    UNREAD = "unread"
    """Not every site has been read, and none of the others has committed an instance."""
    VIOLATION = "violation"
    """The MIPTs contradict each other: `decide` raises ProtocolViolation."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with its reason, for people."""

    winner: Winner | None
    rule: Rule
    reason: str
    """One or two sentences."""


Mipts = Mapping[str, Sequence[Entry] | None]
"""The MIPT of every site of the family; None stands for a site that has not been read."""


def decide(mipts: Mipts) -> Decision:
    """The winner of the family, or None while there is none.

    `mipts` must name *every* site of the family. Where one of them is None, only an instance seen committed can win.
    Raises ProtocolViolation where two instances were committed, or where one instance carries different requests or
    results at two sites.
    """
    _, xinst = _judge(mipts)
    return None if xinst is None else _winner(xinst, mipts)


def explain(mipts: Mipts) -> Explanation:
    """The decision of `decide` with its reason in words. Never raises."""
    try:
        rule, xinst = _judge(mipts)
        winner = None if xinst is None else _winner(xinst, mipts)
    except ProtocolViolation as violation:
        return Explanation(None, Rule.VIOLATION, f"{violation}.")
    reason = {
        Rule.COMMITTED: _why_committed,
        Rule.COMPLETE: _why_complete,
        Rule.UNDECIDED: _why_undecided,
        Rule.UNREAD: _why_unread,
    }[rule](mipts, winner)
    return Explanation(winner, rule, reason)


def declared(mipts: Mipts) -> frozenset[frozenset[str]]:
    """The site sets of the instances that are prepared or committed somewhere. Where one of them is not that of
    `mipts`, the XID is also another request's, and nothing can be decided from these MIPTs.
    """
    named = (State.PREPARED, State.COMMITTED)
    return frozenset(frozenset(entry.sites or (site,)) for site, entry in _entries(mipts) if entry.state in named)


def over(sites: Iterable[str], mipts: Mipts) -> dict[str, Sequence[Entry] | None]:
    """The MIPTs of these sites, without what is prepared or committed over others: another request with the XID."""
    own = frozenset(sites)

    def is_own(site: str, entry: Entry) -> bool:
        named = entry.state in (State.PREPARED, State.COMMITTED)
        return not named or frozenset(entry.sites or (site,)) == own

    return {
        site: None if (mipt := mipts.get(site)) is None else tuple(entry for entry in mipt if is_own(site, entry))
        for site in sorted(own)
    }


def highest(mipts: Mipts) -> int:
    """The largest XINST in any of the MIPTs, 0 where there is none: a retry has to be above it."""
    return max((entry.xinst for _, entry in _entries(mipts)), default=0)


def live(mipts: Mipts) -> frozenset[int]:
    """The instances that are active or prepared somewhere: each of them may still take effect."""
    alive = (State.ACTIVE, State.PREPARED)
    return frozenset(entry.xinst for _, entry in _entries(mipts) if entry.state in alive)


def in_doubt(mipts: Mipts) -> list[Entry]:
    """What is prepared somewhere, once for each site."""
    return [entry for _, entry in _entries(mipts) if entry.state is State.PREPARED]


def _judge(mipts: Mipts) -> tuple[Rule, int | None]:
    committed = {entry.xinst for _, entry in _entries(mipts) if entry.state is State.COMMITTED}
    if len(committed) > 1:
        raise ProtocolViolation(f"more than one instance is committed: {sorted(committed)}")
    if committed:
        return Rule.COMMITTED, committed.pop()
    if not mipts or any(mipt is None for mipt in mipts.values()):
        return Rule.UNREAD, None
    complete = set.intersection(*(_prepared(mipt) for mipt in mipts.values()))
    return (Rule.COMPLETE, min(complete)) if complete else (Rule.UNDECIDED, None)


def _winner(xinst: int, mipts: Mipts) -> Winner:
    mine = [(site, entry) for site, entry in _entries(mipts) if entry.xinst == xinst]
    texts = {(entry.request, entry.result) for _, entry in mine if _has_texts(entry)}
    if len(texts) > 1:
        raise ProtocolViolation(f"instance {xinst} was prepared with different requests or results")
    request, result = next(iter(texts), (None, None))
    committed = frozenset(site for site, entry in mine if entry.state is State.COMMITTED)
    return Winner(xinst, request, result, committed, acknowledged=not texts)


def _has_texts(entry: Entry) -> bool:
    # An instance that is active or was aborted has no texts to compare, and sites drop them one after another.
    return entry.state in (State.PREPARED, State.COMMITTED) and not entry.acknowledged


def _entries(mipts: Mipts) -> Iterator[tuple[str, Entry]]:
    return ((site, entry) for site, mipt in mipts.items() for entry in _rows(mipt))


def _rows(mipt: Sequence[Entry] | None) -> Iterable[Entry]:
    return mipt if mipt is not None else ()


def _prepared(mipt: Sequence[Entry] | None) -> set[int]:
    return {entry.xinst for entry in _rows(mipt) if entry.state is State.PREPARED}


# -- reasons -----------------------------------------------------------------------------------------------------


def _why_committed(mipts: Mipts, winner: Winner | None) -> str:
    assert winner is not None
    reason = f"Instance {winner.xinst} is committed at {_listed(winner.committed)}: only a winner is ever committed."
    untold = mipts.keys() - winner.committed
    return reason + (f" Still to be told: {_listed(untold)}." if untold else "")


def _why_complete(mipts: Mipts, winner: Winner | None) -> str:
    assert winner is not None
    others = set.intersection(*(_prepared(mipt) for mipt in mipts.values())) - {winner.xinst}
    smallest = f", and the smallest of the {len(others) + 1} that are" if others else ""
    return f"Instance {winner.xinst} is prepared at every site ({_listed(mipts)}){smallest}. It is to be committed."


def _why_undecided(mipts: Mipts, _: Winner | None) -> str:
    missing = {
        xinst: [site for site, mipt in mipts.items() if xinst not in _prepared(mipt)]
        for xinst in sorted(set().union(*(_prepared(mipt) for mipt in mipts.values())))
    }
    if not missing:
        return "No instance is prepared at any site."
    details = "; ".join(f"{xinst} is missing at {_listed(sites)}" for xinst, sites in missing.items())
    return f"No instance is prepared at every site: {details}. A new attempt, or one that cancels, will decide."


def _why_unread(mipts: Mipts, _: Winner | None) -> str:
    unread = [site for site, mipt in mipts.items() if mipt is None]
    if not unread:
        return "No site has been read."
    return f"No instance was seen committed, and {_listed(unread)} could not be read: without its MIPT nobody can tell."


def _listed(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites))
