"""Every run of the protocol over small families: all deciders agree, and the broken variants are found broken.

The sites are modelled by design; the decision is the real `pgmip.decision.decide`.

A decider may hold a MIPT of each site read at any time, so a state carries, per site, every MIPT it ever had, and
whatever *any* combination of them decides may be committed at any time by anybody. Crashes and coordinators that are
slow, or that look again, need no transitions of their own: they are the runs in which somebody does nothing more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from pgmip.decision import Entry, State, decide
from pgmip.exceptions import ProtocolViolation

# What a site says of an instance. LOST is prepared, too, but its coordinator has not got the reply.
NONE, PREPARED, LOST, REFUSED, ABORTED, COMMITTED = "-", "p", "l", "r", "a", "c"

Mipt = str  # one letter per instance


@dataclass(frozen=True)
class Variant:
    """The protocol, or a broken one."""

    refuse_below_prepared: bool = True
    rollback_on_unknown: bool = False
    rollback: bool = True
    lose_commits: bool = False
    one_mipt_is_enough: bool = False


@dataclass(frozen=True)
class World:
    now: tuple[Mipt, ...]
    seen: tuple[frozenset[Mipt], ...]
    undo: tuple[Mipt | None, ...]

    def change(self, site: int, mipt: Mipt, undo: Mipt | None = None) -> World:
        now, seen, undos = list(self.now), list(self.seen), list(self.undo)
        now[site], seen[site], undos[site] = mipt, seen[site] | {shown(mipt)}, undo
        return World(tuple(now), tuple(seen), tuple(undos))


class Disagreement(AssertionError):
    """Two deciders disagree, or a winner cannot be committed somewhere."""


def shown(mipt: Mipt) -> Mipt:
    """The MIPT as anybody can read it."""
    return mipt.replace(LOST, PREPARED).replace(REFUSED, ABORTED)


def put(mipt: Mipt, inst: int, state: str) -> Mipt:
    return mipt[:inst] + state + mipt[inst + 1 :]


@cache
def winner_of(mipts: tuple[Mipt, ...]) -> int | None:
    states = {PREPARED: State.PREPARED, ABORTED: State.ABORTED, COMMITTED: State.COMMITTED}
    decided = decide(
        {
            str(site): tuple(Entry(i + 1, states[letter]) for i, letter in enumerate(mipt) if letter != NONE)
            for site, mipt in enumerate(mipts)
        }
    )
    return decided.xinst - 1 if decided else None


@cache
def winner(seen: tuple[frozenset[Mipt], ...], variant: Variant) -> int | None:
    """The one instance that anybody decides for. Raises Disagreement where there are two."""
    views: Iterator[tuple[Mipt, ...]] = itertools.product(*seen)
    if variant.one_mipt_is_enough:
        views = itertools.chain(views, ((mipt,) for mipts in seen for mipt in mipts))
    try:
        winners = {winner_of(view) for view in views} - {None}
    except ProtocolViolation as violation:
        raise Disagreement(str(violation)) from None
    if len(winners) > 1:
        raise Disagreement(f"winners {winners}")
    return winners.pop() if winners else None


def check(world: World, variant: Variant) -> int | None:
    decided = winner(world.seen, variant)
    for site, mipt in enumerate(world.now):
        if decided is not None and mipt[decided] not in (PREPARED, LOST, COMMITTED):
            raise Disagreement(f"winner {decided} is {mipt[decided]!r} at site {site}: {world.now}")
        if mipt.count(COMMITTED) > 1:
            raise Disagreement(f"two instances committed at site {site}: {mipt}")
    return decided


def steps(world: World, variant: Variant) -> Iterator[World]:
    decided = check(world, variant)
    for site, mipt in enumerate(world.now):
        for inst, state in enumerate(mipt):
            if state == NONE:
                higher_prepared = any(s in (PREPARED, LOST) for s in mipt[inst + 1 :])
                undo = world.undo[site]  # a refusal, unlike a prepare, flushes nothing
                refused = world.change(site, put(mipt, inst, REFUSED), undo and put(undo, inst, REFUSED))
                if COMMITTED in mipt or (variant.refuse_below_prepared and higher_prepared):
                    yield refused
                else:
                    yield world.change(site, put(mipt, inst, PREPARED))
                    yield world.change(site, put(mipt, inst, LOST))
                    yield refused  # the work failed: a definite no as well
            elif state in (PREPARED, LOST):
                elsewhere = [other[inst] for i, other in enumerate(world.now) if i != site]
                definite = variant.rollback and REFUSED in elsewhere
                unsafe = variant.rollback_on_unknown and (state == LOST or LOST in elsewhere)
                if definite or unsafe:
                    yield world.change(site, put(mipt, inst, ABORTED))
                if inst == decided and COMMITTED not in mipt:
                    losers = mipt.replace(PREPARED, ABORTED).replace(LOST, ABORTED)
                    after = put(losers, inst, COMMITTED)
                    yield world.change(site, after, undo=mipt if variant.lose_commits else None)
        lost_commit = world.undo[site]
        if lost_commit is not None:
            yield world.change(site, lost_commit)  # the site crashed before the commit was flushed


def explore(sites: int, instances: int, variant: Variant) -> int:
    """The number of states of all runs. Raises Disagreement at the first bad one."""
    empty = NONE * instances
    start = World((empty,) * sites, (frozenset({empty}),) * sites, (None,) * sites)
    known, todo = {start}, [start]
    while todo:
        for world in steps(todo.pop(), variant):
            if world not in known:
                known.add(world)
                todo.append(world)
    return len(known)


@pytest.mark.parametrize(("sites", "instances"), [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_all_deciders_agree(sites: int, instances: int) -> None:
    assert explore(sites, instances, Variant()) > 1
    assert explore(sites, instances, Variant(lose_commits=True)) > 1


@pytest.mark.parametrize("lose_commits", [False, True])
def test_all_deciders_agree_with_three_instances(lose_commits: bool) -> None:
    assert explore(2, 3, Variant(lose_commits=lose_commits)) > 10_000


@pytest.mark.parametrize(
    "broken",
    [
        Variant(refuse_below_prepared=False),
        Variant(rollback_on_unknown=True),
        Variant(one_mipt_is_enough=True),
    ],
)
def test_broken_variants_are_found(broken: Variant) -> None:
    with pytest.raises(Disagreement):
        explore(2, 3, broken)
