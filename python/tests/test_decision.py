"""The decision over every small family there is, against the rule written down a second time in other words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmip.decision import Entry, Rule, State, decide, explain, highest, live
from pgmip.exceptions import ProtocolViolation

STATES = [None, *State]  # None: the site has never heard of the instance


def mipt(states: tuple[State | None, ...]) -> tuple[Entry, ...]:
    """A MIPT of instances 1, 2, ... in these states."""
    return tuple(
        Entry(xinst, state, request="r", result=f"of {xinst}")
        for xinst, state in enumerate(states, start=1)
        if state is not None
    )


def families(sites: int, instances: int) -> Iterator[tuple[tuple[State | None, ...], ...]]:
    return itertools.product(itertools.product(STATES, repeat=instances), repeat=sites)


def rule(sites: tuple[tuple[State | None, ...], ...]) -> int | None:
    committed = sorted({n for site in sites for n, state in enumerate(site, 1) if state is State.COMMITTED})
    if len(committed) > 1:
        raise ProtocolViolation("two winners")
    for n in committed:
        return n
    for n in range(1, len(sites[0]) + 1):
        if [site[n - 1] for site in sites] == [State.PREPARED] * len(sites):
            return n
    return None


@pytest.mark.parametrize(("sites", "instances"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_every_small_family(sites: int, instances: int) -> None:
    for family in families(sites, instances):
        mipts = {f"s{n}": mipt(states) for n, states in enumerate(family)}
        try:
            expected = rule(family)
        except ProtocolViolation:
            with pytest.raises(ProtocolViolation):
                decide(mipts)
            continue
        winner = decide(mipts)
        assert (winner.xinst if winner else None) == expected
        if winner:
            assert winner.result == f"of {winner.xinst}"
            assert winner.committed == {
                site for site, entries in mipts.items() for e in entries if e.state is State.COMMITTED
            }


def test_a_site_that_was_not_read_forbids_any_decision_but_a_committed_one() -> None:
    prepared = (Entry(1, State.PREPARED),)
    assert decide({"a": prepared, "b": None}) is None
    assert decide({"a": None, "b": None}) is None
    winner = decide({"a": (Entry(1, State.COMMITTED, "q", "r"),), "b": None})
    assert winner is not None
    assert (winner.xinst, winner.request, winner.result, winner.committed) == (1, "q", "r", {"a"})


def test_no_sites_no_winner() -> None:
    assert decide({}) is None


def test_one_instance_with_two_results_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="different"):
        decide({"a": (Entry(1, State.PREPARED, "q", "r"),), "b": (Entry(1, State.PREPARED, "q", "other"),)})


def test_sites_acknowledge_one_after_another() -> None:
    whole, bare = Entry(1, State.COMMITTED, "q", "r"), Entry(1, State.COMMITTED, acknowledged=True)
    for mipts in ({"a": (whole,), "b": (bare,)}, {"a": (Entry(1, State.PREPARED, "q", "r"),), "b": (bare,)}):
        winner = decide(mipts)
        assert winner is not None
        assert (winner.request, winner.result, winner.acknowledged) == ("q", "r", False)
        assert "b" in winner.committed
    for mipt in ((bare,), (), None):
        winner = decide({"a": (bare,), "b": mipt})
        assert winner is not None
        assert (winner.request, winner.result, winner.acknowledged) == (None, None, True)
    cancelled = decide({"a": (Entry(1, State.COMMITTED),)})
    assert cancelled is not None
    assert not cancelled.acknowledged


def test_highest_and_live() -> None:
    mipts = {
        "a": (Entry(3, State.ABORTED), Entry(5, State.ACTIVE)),
        "b": (Entry(4, State.PREPARED), Entry(9, State.ABORTED), Entry(2, State.COMMITTED)),
        "c": None,
    }
    assert highest(mipts) == 9
    assert live(mipts) == {4, 5}
    assert highest({}) == 0


@pytest.mark.parametrize(
    ("mipts", "rule", "words"),
    [
        (
            {"a": [Entry(4, State.COMMITTED)], "b": [Entry(4, State.PREPARED)]},
            Rule.COMMITTED,
            ["Instance 4 is committed at a", "Still to be told: b"],
        ),
        ({"a": [Entry(4, State.COMMITTED)]}, Rule.COMMITTED, ["Instance 4 is committed at a"]),
        (
            {site: [Entry(4, State.PREPARED), Entry(7, State.PREPARED)] for site in "ab"},
            Rule.COMPLETE,
            ["Instance 4 is prepared at every site (a, b), and the smallest of the 2"],
        ),
        (
            {"a": [Entry(4, State.PREPARED)], "b": [Entry(4, State.ACTIVE), Entry(7, State.PREPARED)]},
            Rule.UNDECIDED,
            ["4 is missing at b; 7 is missing at a", "will decide"],
        ),
        ({"a": [], "b": [Entry(4, State.ABORTED)]}, Rule.UNDECIDED, ["No instance is prepared at any site"]),
        ({"a": [Entry(4, State.PREPARED)], "b": None}, Rule.UNREAD, ["b could not be read"]),
        ({}, Rule.UNREAD, ["No site has been read"]),
        ({"a": [Entry(4, State.COMMITTED)], "b": [Entry(5, State.COMMITTED)]}, Rule.VIOLATION, ["more than one"]),
        (
            {"a": [Entry(4, State.PREPARED, "q", "r")], "b": [Entry(4, State.PREPARED, "q", "s")]},
            Rule.VIOLATION,
            ["different requests or results"],
        ),
    ],
)
def test_explain(mipts: dict[str, list[Entry] | None], rule: Rule, words: list[str]) -> None:
    explanation = explain(mipts)
    assert explanation.rule is rule
    for part in words:
        assert part in explanation.reason
    if rule is Rule.VIOLATION:
        assert explanation.winner is None
    else:
        assert explanation.winner == decide(mipts)


entries = st.builds(Entry, st.integers(1, 2**63 - 1), st.sampled_from(State), st.just("q"), st.just("r"))


@given(st.dictionaries(st.text(), st.lists(entries, unique_by=lambda entry: entry.xinst), min_size=1), st.randoms())
def test_order_of_rows_and_sites_does_not_matter(family: dict[str, list[Entry]], random: object) -> None:
    def answer(mipts: dict[str, list[Entry]]) -> object:
        try:
            return decide(mipts)
        except ProtocolViolation:
            return ProtocolViolation

    shuffled = dict(sorted(family.items(), key=lambda _: random.random()))  # type: ignore[attr-defined]
    for rows in shuffled.values():
        random.shuffle(rows)  # type: ignore[attr-defined]
    assert answer(family) == answer(shuffled)
    explanation = explain(family)
    assert explanation.winner == (None if explanation.rule is Rule.VIOLATION else decide(family))
