"""The checker of serial orders finds what is planted, and says the same as who tries all orders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from faults.serial import Append, Read, Transaction, check, check_snapshots

Lists = Mapping[str, Sequence[str]]


def _transaction(text: str) -> Transaction:
    """As "T1 0-5: x=1,2 y+3": from 0 to 5 it has read list x, which was 1, 2, and appended 3 to list y."""
    head, _, steps = text.partition(":")
    name, _, times = head.partition(" ")
    made: list[Append | Read] = []
    for word in steps.split():
        if "+" in word:
            made.append(Append(*word.split("+")))
        else:
            of, elements = word.split("=")
            made.append(Read(of, tuple(elements.split(",")) if elements else ()))
    if not times:
        return Transaction(name, tuple(made))
    began, ended = map(float, times.split("-"))
    return Transaction(name, tuple(made), began, ended)


def _lists(text: str) -> dict[str, list[str]]:
    """As "x=1,2 y=3"."""
    return {name: elements.split(",") for name, elements in (word.split("=") for word in text.split())}


def _checked(lists: str, *transactions: str, real_time: bool = True) -> list[str]:
    return check([_transaction(text) for text in transactions], _lists(lists), real_time=real_time)


def _checked_snapshots(lists: str, *transactions: str) -> list[str]:
    return check_snapshots([_transaction(text) for text in transactions], _lists(lists))


RIGHT: dict[str, tuple[str, ...]] = {
    "one after the other": ("x=1,2", "A: x= x+1", "B: x=1 x+2"),
    "who reads comes in between": ("x=1,2", "A: x+1", "B: x+2", "C: x=1"),
    "who has seen nothing comes first": ("x=1 y=1", "A: x+1 y+1", "B: x= y="),
    "it sees its own": ("x=1,2", "A: x= x+1 x=1 x+2 x=1,2"),
    "somebody else's before its own": ("x=1,2", "A: x+1", "B: x+2 x=1,2"),
    "one of two that have read the same": ("x=1 y=1", "A: x= y= x+1", "B: x=1 y= y+1"),
    "side by side, in any order": ("x=1,2", "A 0-9: x=1 x+2", "B 1-8: x+1"),
    "one after the other, in real time": ("x=1", "A 0-1: x+1", "B 2-3: x=1"),
    "at the same moment": ("x=1", "A 0-1: x+1", "B 1-2: x="),
    "nobody knows when it ended": ("x=1", "A 0-inf: x+1", "B 2-3: x="),
    "nothing": ("x=1", "A: x+1"),
}
WRONG: dict[str, tuple[str, ...]] = {
    # by how it is told, the rest as above
    "duplicate: list x": ("x=1,1", "A: x+1"),
    "lost: A has appended 2 to list x": ("x=1", "A: x+2", "B: x+1"),
    "G1a: list x has, as B has seen, 9": ("x=1", "A: x+1", "B: x=9"),
    "G1a: list x has, as in the end has seen, 9": ("x=9", "A: x="),
    "G1b: B has read only the first of what A appended to x": ("x=1,2", "A: x+1 x+2", "B: x=1"),
    "another order: B has read 2 of list x": ("x=1,2", "A: x+1", "C: x+2", "B: x=2"),
    "internal: A has read 1 of list x": ("x=1", "A: x= x=1", "B: x+1"),
    "internal: A has read  of list x": ("x=1", "A: x+1 x="),
    "G0: ": ("x=1,2 y=2,1", "A: x+1 y+1", "B: x+2 y+2"),
    "G1c: ": ("x=1 y=2", "A: x+1 y=2", "B: x=1 y+2"),
    "G-single: A rw B ww A": ("x=2,1", "A: x= x+1", "B: x+2"),  # a lost update
    "G-single: C rw B wr C": ("x=1 y=1", "B: x+1 y+1", "C: x=1 y="),  # a read that is torn
    "G2: ": ("x=1 y=2", "A: x= y= x+1", "B: x= y= y+2"),  # write skew
    "G-single-realtime: B rw A rt B": ("x=1", "A 0-1: x+1", "B 2-3: x="),
    "G0-realtime: A rt B ww A": ("x=2,1", "A 0-1: x+1", "B 2-3: x+2"),
    "G1c-realtime: ": ("x=2", "A 0-1: x=2", "B 2-3: x+2"),
    "G2-realtime: ": ("x=1 y=2", "A 0-9: x= y+2", "B 1-2: x+1", "C 3-4: y="),
}
RIGHT_OF_SNAPSHOTS: dict[str, tuple[str, ...]] = {
    "write skew": ("x=1 y=2", "A: x= y= x+1", "B: x= y= y+2"),
    "three in a ring": ("x=1 y=2 z=3", "A: x= y+2", "B: y= z+3", "C: z= x+1"),
    "who only reads sees what two made of it": ("x=1 y=2", "A: x= y= x+1", "B: x= y= y+2", "C: x=1 y="),
    "an old snapshot": ("x=1", "A 0-1: x+1", "B 2-3: x="),
}
WRONG_OF_SNAPSHOTS: dict[str, tuple[str, ...]] = {
    "G-single: A rw B ww A": ("x=2,1", "A: x= x+1", "B: x+2"),
    "G-single: C rw B wr C": ("x=1 y=1", "B: x+1 y+1", "C: x=1 y="),
    "G-nonadjacent: ": ("x=1 y=2", "A: x+1", "B: y+2", "C: x=1 y=", "D: x= y=2"),  # in another order at another place
    "G-nonadjacent: A rw": ("x=1 y=3,2", "A: x= y=3 y+2", "B: x+1", "D: y+3", "C: x=1 y="),
    "G0: ": ("x=1,2 y=2,1", "A: x+1 y+1", "B: x+2 y+2"),
    "G1c: ": ("x=1 y=2", "A: x+1 y=2", "B: x=1 y+2"),
    "lost: A has appended 2": ("x=1", "A: x+2", "B: x+1"),
}


@pytest.mark.parametrize("what", RIGHT)
def test_right(what: str) -> None:
    assert _checked(*RIGHT[what]) == []


@pytest.mark.parametrize("how", WRONG)
def test_wrong(how: str) -> None:
    found = _checked(*WRONG[how])
    assert found
    assert all(words.startswith(how) for words in found)


@pytest.mark.parametrize("how", [how for how in WRONG if "realtime" in how])
def test_right_but_for_real_time(how: str) -> None:
    assert _checked(*WRONG[how], real_time=False) == []


@pytest.mark.parametrize("what", RIGHT_OF_SNAPSHOTS)
def test_right_of_snapshots(what: str) -> None:
    assert _checked_snapshots(*RIGHT_OF_SNAPSHOTS[what]) == []


@pytest.mark.parametrize("how", WRONG_OF_SNAPSHOTS)
def test_wrong_of_snapshots(how: str) -> None:
    found = _checked_snapshots(*WRONG_OF_SNAPSHOTS[how])
    assert found
    assert all(words.startswith(how) for words in found)


def test_a_cycle_is_told() -> None:
    (words,) = _checked("x=1 y=2 z=3", "A: x= y+2", "B: y= z+3", "C: z= x+1", "D: x=1 y=2 z=3")
    assert set(words.split(": ")[1].split(" rw ")) == {"A", "B", "C"}


def test_the_shortest_cycle_without_real_time_is_told() -> None:
    (words,) = _checked("x=1 y=2", "A 0-1: x= y= x+1", "B 0-1: x= y= y+2", "C 2-3: x=1 y=")
    assert words == "G2: A rw B rw A"


# -- all orders ----------------------------------------------------------------------------------------------------


def _explains(order: Iterable[Transaction], lists: Lists) -> bool:
    now: dict[str, list[str]] = {name: [] for name in lists}
    for transaction in order:
        for step in transaction.steps:
            if isinstance(step, Append):
                now[step.to].append(step.element)
            elif tuple(now[step.of]) != step.elements:
                return False
    return now == {name: list(elements) for name, elements in lists.items()}


def _in_time(order: Sequence[Transaction]) -> bool:
    return all(first.began <= second.ended for first, second in itertools.combinations(order, 2))


def _some_history(rng: random.Random) -> tuple[list[Transaction], Lists]:
    """Transactions that begin and end at random times, read as of their beginning, but for some, and append, mostly in
    the order in which they end: nothing keeps them from any anomaly.
    """
    lists: dict[str, list[str]] = {name: [] for name in "xyz"[: rng.randint(1, 3)]}
    made = []
    clock = itertools.count()
    events = [number for number in range(rng.randint(2, 5)) for _ in range(2)]
    rng.shuffle(events)
    open_: dict[int, tuple[int, dict[str, tuple[str, ...]]]] = {}
    for number in events:
        if number not in open_:
            open_[number] = next(clock), {name: tuple(elements) for name, elements in lists.items()}
            continue
        began, seen = open_[number]
        steps: list[Append | Read] = []
        for name in rng.sample(sorted(lists), rng.randint(1, len(lists))):
            if rng.random() < 0.1:
                seen = {**seen, name: tuple(lists[name])}  # as at READ COMMITTED
            steps.append(Read(name, seen[name]))
        for name in rng.sample(sorted(lists), rng.randint(0, len(lists))):
            at = len(lists[name]) if rng.random() < 0.9 else rng.randint(len(seen[name]), len(lists[name]))
            lists[name].insert(at, f"{number}")
            steps.append(Append(name, f"{number}"))
        made.append(Transaction(f"T{number}", tuple(steps), began, next(clock)))
    return made, lists


def _histories(count: int) -> Iterator[tuple[list[Transaction], Lists]]:
    rng = random.Random(1)
    for _ in range(count):
        yield _some_history(rng)


def test_as_who_tries_all_orders() -> None:
    verdicts = {False: [0, 0], True: [0, 0]}
    for history, lists in _histories(5_000):
        orders = [order for order in itertools.permutations(history) if _explains(order, lists)]
        for real_time in (False, True):
            right = any(_in_time(order) for order in orders) if real_time else bool(orders)
            assert bool(check(history, lists, real_time=real_time)) != right, (history, lists)
            verdicts[real_time][right] += 1
    assert min(map(min, verdicts.values())) > 200  # both verdicts, often


def _snapshots_explain(history: Sequence[Transaction], lists: Lists) -> bool:
    """Somehow: each begins, and later appends what it does where nobody has appended since it began."""

    def go_on(waiting: frozenset[Transaction], begun: dict[Transaction, dict[str, int]], now: dict[str, int]) -> bool:
        """`begun`, `now`: how long the lists were when it began, and are."""
        if not waiting and not begun:
            return all(now[name] == len(elements) for name, elements in lists.items())
        for transaction in waiting:
            if _reads(transaction, lists, now) and go_on(waiting - {transaction}, {**begun, transaction: now}, now):
                return True
        for transaction, then in begun.items():
            after = _appended(transaction, lists, then, now)
            others = {other: its for other, its in begun.items() if other is not transaction}
            if after is not None and go_on(waiting, others, after):
                return True
        return False

    return go_on(frozenset(history), {}, dict.fromkeys(lists, 0))


def _reads(transaction: Transaction, lists: Lists, now: Mapping[str, int]) -> bool:
    """All that it has read is of these lists, so long, and its own."""
    seen = {name: tuple(elements[: now[name]]) for name, elements in lists.items()}
    for step in transaction.steps:
        if isinstance(step, Append):
            seen[step.to] += (step.element,)
        elif seen[step.of] != step.elements:
            return False
    return True


def _appended(
    transaction: Transaction, lists: Lists, then: Mapping[str, int], now: dict[str, int]
) -> dict[str, int] | None:
    after = dict(now)
    for step in transaction.steps:
        if isinstance(step, Append):
            if now[step.to] != then[step.to] or lists[step.to][after[step.to] : after[step.to] + 1] != [step.element]:
                return None
            after[step.to] += 1
    return after


def test_as_who_tries_all_snapshots() -> None:
    verdicts = [0, 0]
    for history, lists in _histories(5_000):
        right = _snapshots_explain(history, lists)
        assert bool(check_snapshots(history, lists)) != right, (history, lists)
        verdicts[right] += 1
    assert min(verdicts) > 200
