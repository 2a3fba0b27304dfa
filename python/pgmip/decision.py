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

__all__ = ["Decision", "Entry", "Mipts", "State", "Winner", "decide", "highest", "live"]


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


@dataclass(frozen=True, slots=True)
class Winner:
    """The instance that commits, with the request and the result it was prepared with."""

    xinst: int
    request: str | None
    result: str | None
    committed: frozenset[str]
    """The sites where it was seen committed already."""


Decision = Winner | None

Mipts = Mapping[str, Sequence[Entry] | None]
"""The MIPT of every site of the family; None stands for a site that has not been read."""


def decide(mipts: Mipts) -> Decision:
    """The winner of the family, or None while there is none.

    `mipts` must name *every* site of the family. Where one of them is None, only an instance seen committed can win.
    Raises ProtocolViolation where two instances were committed, or where one instance carries different requests or
    results at two sites.
    """
    committed = {entry.xinst for _, entry in _entries(mipts) if entry.state is State.COMMITTED}
    if len(committed) > 1:
        raise ProtocolViolation(f"more than one instance is committed: {sorted(committed)}")
    if committed:
        return _winner(committed.pop(), mipts)
    if not mipts or any(mipt is None for mipt in mipts.values()):
        return None
    prepared = [{entry.xinst for entry in mipt or () if entry.state is State.PREPARED} for mipt in mipts.values()]
    complete = set.intersection(*prepared)
    return _winner(min(complete), mipts) if complete else None


def highest(mipts: Mipts) -> int:
    """The largest XINST in any of the MIPTs, 0 where there is none: a retry has to be above it."""
    return max((entry.xinst for _, entry in _entries(mipts)), default=0)


def live(mipts: Mipts) -> frozenset[int]:
    """The instances that are active or prepared somewhere: each of them may still take effect."""
    alive = (State.ACTIVE, State.PREPARED)
    return frozenset(entry.xinst for _, entry in _entries(mipts) if entry.state in alive)


def _winner(xinst: int, mipts: Mipts) -> Winner:
    mine = [(site, entry) for site, entry in _entries(mipts) if entry.xinst == xinst and _has_texts(entry)]
    if len({(entry.request, entry.result) for _, entry in mine}) > 1:
        raise ProtocolViolation(f"instance {xinst} was prepared with different requests or results")
    return Winner(
        xinst,
        mine[0][1].request,
        mine[0][1].result,
        frozenset(site for site, entry in mine if entry.state is State.COMMITTED),
    )


def _has_texts(entry: Entry) -> bool:
    # An instance that is active or was aborted has no texts to compare.
    return entry.state in (State.PREPARED, State.COMMITTED)


def _entries(mipts: Mipts) -> Iterator[tuple[str, Entry]]:
    return ((site, entry) for site, mipt in mipts.items() for entry in _rows(mipt))


def _rows(mipt: Sequence[Entry] | None) -> Iterable[Entry]:
    return mipt if mipt is not None else ()
