"""Whether a history of transactions that append to lists, and read them, has a serial order, or one of snapshots.

A list tells who has appended to it, in which order. So what was read says of any two transactions that have to do with
the same list which of them comes first:

    ww   the second one has appended next after the first one
    wr   the second one has read what the first one has appended
    rw   the first one has read the list without what the second one has appended next
    rt   the first one was over before the second one began, in real time

There is a serial order if and only if there is no cycle of these. A cycle has the name that Adya gave it, by which
edges it takes: G0 only ww; G1c also wr; G-single one rw; G2 several of them. What is wrong without a cycle has names as
well. It is all as in *Elle: Inferring Isolation Anomalies from Experimental Observations* (Kingsbury, Alvaro; 2020).

Where everybody reads one snapshot, and of two who are there at the same time, and append to the same list, one is
refused, there are cycles all the same, but each has two rw one after the other (*Analysing Snapshot Isolation*, Cerone,
Gotsman; 2018). One that has several, and none behind another, is a G-nonadjacent.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Append", "Read", "Transaction", "check", "check_snapshots"]

WW, WR, RW, RT = "ww", "wr", "rw", "rt"


class Append(NamedTuple):
    to: str
    element: str
    """That nobody else appends to this list."""


class Read(NamedTuple):
    of: str
    elements: tuple[str, ...]


@dataclass(frozen=True)
class Transaction:
    """One that was committed."""

    name: str
    steps: tuple[Append | Read, ...]
    began: float = -math.inf
    """Not before this."""
    ended: float = math.inf
    """By then it had been committed."""


def check(history: Sequence[Transaction], lists: Mapping[str, Sequence[str]], *, real_time: bool) -> list[str]:
    """What is wrong with it, nothing if there is a serial order; with `real_time`, one in which who begins when another
    one is over comes behind it. `lists`: what they are in the end.
    """
    wrong = list(_unordered(history, lists))
    if wrong:  # then there is no order to find cycles by
        return wrong
    graph = _depend(history, lists)
    if real_time:
        _in_real_time(graph, history)
    return list(_cycles(graph, SERIAL))


def check_snapshots(history: Sequence[Transaction], lists: Mapping[str, Sequence[str]]) -> list[str]:
    """What is wrong with it, nothing if all may have read snapshots, of whatever age, and nobody has appended to a list
    that is longer than in his.
    """
    return list(_unordered(history, lists)) or list(_cycles(_without_adjacent(_depend(history, lists)), SNAPSHOT))


# What is wrong without a cycle ----------------------------------------------------------------------------------


def _unordered(history: Sequence[Transaction], lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    writers = _writers(history)
    for name, elements in lists.items():
        if len(set(elements)) < len(elements):
            yield f"duplicate: list {name} is {' '.join(elements)}"
        yield from _nobodys("in the end", name, elements, writers)
    for name, element in writers:
        if element not in lists.get(name, ()):
            yield f"lost: {writers[name, element].name} has appended {element} to list {name}, which has it not"
    for transaction in history:
        yield from _of_itself(transaction)
        for step in transaction.steps:
            if not isinstance(step, Read):
                continue
            if nobodys := list(_nobodys(transaction.name, step.of, step.elements, writers)):
                yield from nobodys
                continue
            final = tuple(lists.get(step.of, ()))
            if step.elements != final[: len(step.elements)]:
                yield (
                    f"another order: {transaction.name} has read {' '.join(step.elements)} of list {step.of}, "
                    f"which is {' '.join(final)}"
                )
            elif (halfway := _halfway(transaction, step, final, writers)) is not None:
                yield f"G1b: {transaction.name} has read only the first of what {halfway.name} appended to {step.of}"


def _writers(history: Iterable[Transaction]) -> dict[tuple[str, str], Transaction]:
    return {
        (step.to, step.element): transaction
        for transaction in history for step in transaction.steps if isinstance(step, Append)
    }  # fmt: skip


def _nobodys(
    who: str, name: str, elements: Iterable[str], writers: Mapping[tuple[str, str], Transaction]
) -> Iterator[str]:
    for element in elements:
        if (name, element) not in writers:
            yield f"G1a: list {name} has, as {who} has seen, {element}, which nobody has appended who was committed"


def _of_itself(transaction: Transaction) -> Iterator[str]:
    """It sees what it has seen and done itself, and nothing more."""
    seen: dict[str, tuple[str, ...]] = {}
    added: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for step in transaction.steps:
        if isinstance(step, Append):
            added[step.to] += (step.element,)
            if step.to in seen:
                seen[step.to] += (step.element,)
            continue
        mine = added[step.of]
        last = step.elements[len(step.elements) - len(mine) :]
        if step.elements != seen.get(step.of, step.elements) or last != mine:
            told = " ".join(step.elements)
            yield f"internal: {transaction.name} has read {told} of list {step.of}, against its own steps"
        seen[step.of] = step.elements


def _halfway(
    reader: Transaction, read: Read, final: Sequence[str], writers: Mapping[tuple[str, str], Transaction]
) -> Transaction | None:
    """Somebody else, of whom it has seen an element, but not the next one, which is his as well."""
    seen = len(read.elements)
    if not 0 < seen < len(final):
        return None
    last, following = (writers[read.of, final[at]] for at in (seen - 1, seen))
    return last if last is following and last is not reader else None


# Who comes before whom ------------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """Of real time. Whoever ended before comes before it, and it before who began after it."""

    at: float


Node = Hashable
Graph = dict[Node, dict[Node, set[str]]]


def _depend(history: Sequence[Transaction], lists: Mapping[str, Sequence[str]]) -> Graph:
    graph: Graph = {transaction.name: {} for transaction in history}
    writers = _writers(history)

    def edge(kind: str, first: Transaction, second: Transaction) -> None:
        if first is not second:
            graph[first.name].setdefault(second.name, set()).add(kind)

    for name, elements in lists.items():
        for first, second in pairwise(elements):
            edge(WW, writers[name, first], writers[name, second])
    for transaction in history:
        for step in transaction.steps:
            if not isinstance(step, Read):
                continue
            final, seen = lists.get(step.of, ()), len(step.elements)
            if seen:
                edge(WR, writers[step.of, final[seen - 1]], transaction)
            if seen < len(final):
                edge(RW, transaction, writers[step.of, final[seen]])
    return graph


def _in_real_time(graph: Graph, history: Sequence[Transaction]) -> None:
    """Over moments, of which each comes before the next one: else there would be an edge for any two transactions."""
    ends = sorted({transaction.ended for transaction in history} - {math.inf})
    moments = [_Moment(end) for end in ends]
    for moment in moments:
        graph[moment] = {}
    for earlier, later in pairwise(moments):
        graph[earlier][later] = {RT}
    for transaction in history:
        if transaction.ended < math.inf:
            graph[transaction.name].setdefault(_Moment(transaction.ended), set()).add(RT)
        if before := bisect_left(ends, transaction.began):
            graph[moments[before - 1]].setdefault(transaction.name, set()).add(RT)


class _Place(NamedTuple):
    """On a way from transaction to transaction."""

    at: Node
    behind_rw: bool

    def __str__(self) -> str:
        return str(self.at)


def _without_adjacent(graph: Graph) -> Graph:
    """All ways in which no rw comes right behind another one."""
    ways: Graph = {_Place(node, behind_rw): {} for node in graph for behind_rw in (False, True)}
    for node, others in graph.items():
        for to, kinds in others.items():
            if but_rw := kinds - {RW}:
                for behind_rw in (False, True):
                    ways[_Place(node, behind_rw)][_Place(to, False)] = but_rw
            if RW in kinds:
                ways[_Place(node, False)][_Place(to, True)] = {RW}
    return ways


# Cycles ---------------------------------------------------------------------------------------------------------

Classes = Mapping[str, tuple[set[str], int]]
"""Which edges there may be besides at least so many rw, in the order in which they are looked for."""
SINGLE: Classes = {"G0": ({WW}, 0), "G1c": ({WW, WR}, 0), "G-single": ({WW, WR}, 1)}
SERIAL: Classes = {**SINGLE, "G2": ({WW, WR, RW}, 1)}
SNAPSHOT: Classes = {**SINGLE, "G-nonadjacent": ({WW, WR, RW}, 1)}


def _cycles(graph: Graph, classes: Classes) -> Iterator[str]:
    """One of each set of transactions that all come before each other: of the first class that there is one of, without
    real time if there is one without it.
    """
    for component in _components(graph):
        for real_time in (False, True):
            found = next(filter(None, (_cycle(graph, component, its, real_time) for its in classes.items())), None)
            if found is not None:
                yield found
                break
        else:
            raise AssertionError("a component without a cycle")


def _cycle(graph: Graph, component: set[Node], its: tuple[str, tuple[set[str], int]], real_time: bool) -> str | None:
    """A shortest one of its class, in words."""
    name, (also, least) = its
    kinds = also | ({RT} if real_time else set())

    def follow(node: Node) -> Iterator[Node]:
        return (to for to, found in graph[node].items() if to in component and found & kinds)

    starts = [
        (node, to) for node in graph if node in component for to, found in graph[node].items()
        if to in component and (RW in found if least else found & kinds)
    ]  # fmt: skip
    paths = (path for node, to in starts if (path := _path(to, node, follow)) is not None)
    shortest = min(paths, key=len, default=None)
    if shortest is None:
        return None
    first, kind = shortest[-1], RW if least else None
    return f"{name}{'-realtime' if real_time else ''}: {_told(graph, [first, *shortest], kind, kinds)}"


def _told(graph: Graph, path: Sequence[Node], first: str | None, kinds: set[str]) -> str:
    """Moments are left out."""
    words = []
    for number, (node, to) in enumerate(pairwise(path)):
        kind = first if number == 0 and first else min(graph[node][to] & kinds, key=[RT, WW, WR, RW].index)
        if not isinstance(node, _Moment):
            words.append(f"{node} {kind}")
    return " ".join([*words, str(next(node for node in path if not isinstance(node, _Moment)))])


def _path(start: Node, end: Node, follow: Callable[[Node], Iterator[Node]]) -> list[Node] | None:
    """A shortest one, from `start` to `end`."""
    came: dict[Node, Node | None] = {start: None}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == end:
            path: list[Node] = []
            at: Node | None = node
            while at is not None:
                path.append(at)
                at = came[at]
            return path[::-1]
        for to in follow(node):
            if to not in came:
                came[to] = node
                waiting.append(to)
    return None


def _components(graph: Graph) -> Iterator[set[Node]]:
    """Of several nodes, all of which can be reached from each other (Kosaraju's)."""
    back: dict[Node, list[Node]] = {node: [] for node in graph}
    for node, others in graph.items():
        for to in others:
            back[to].append(node)
    left = set(graph)
    for node in reversed(list(_finished(graph))):
        component, waiting = set(), [node]
        while waiting:
            member = waiting.pop()
            if member in left:
                left.remove(member)
                component.add(member)
                waiting += back[member]
        if len(component) > 1:
            yield component


def _finished(graph: Graph) -> Iterator[Node]:
    """Depth first, each when all have been that can be reached from it."""
    seen: set[Node] = set()
    for root in graph:
        work = [(root, False)]
        while work:
            node, over = work.pop()
            if over:
                yield node
            elif node not in seen:
                seen.add(node)
                work.append((node, True))
                work += [(to, False) for to in graph[node]]
