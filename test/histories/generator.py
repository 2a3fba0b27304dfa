"""Random histories. A step is proposed with an eye on the state, so that most
proposals make sense; what was played is what a history consists of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from player import OUTSIDERS, SIBLINGS, Player, Session, Step
from tables import TABLES

GROUPS = (["plain"], ["many"], ["later"], ["apart"], ["part"], ["parent", "child"], ["owner", "pet"])
# Truncating would wait for a lock, for seconds.
VACUUM = tuple(
    f"({options}TRUNCATE false)"
    for options in ("", "FREEZE, ", "FREEZE, DISABLE_PAGE_SKIPPING, ", "INDEX_CLEANUP ON, ", "ANALYZE, ")
)
KEYS = 4


class Generator:
    def __init__(self, seed: str) -> None:
        self.rng = rng = random.Random(seed)
        self.tables = [name for group in rng.sample(GROUPS, rng.choice((1, 1, 2))) for name in group]
        self.blocking = rng.random() < 0.35
        self.crash = rng.random() < 0.06
        letters = ["A1", "A2"] + (["A3"] if rng.random() < 0.4 else [])
        if rng.random() < 0.3:
            letters += ["B1", "B2"]
        self.names = letters + list(OUTSIDERS[: rng.choice((1, 1, 2))])
        self.length = rng.randint(15, 45)
        self.repeatable = rng.choice((0.0, 0.3, 0.6))
        self.heat = rng.choice((0.0, 0.5, 0.8))  # how much of it is about one row
        self.hot = rng.randrange(KEYS)

    def value(self) -> int:
        return self.hot if self.rng.random() < self.heat else self.rng.randrange(KEYS)

    def values(self, name: str, k: int | None = None) -> list[int]:
        rng = self.rng
        # a foreign key mostly refers to a row that is there
        u = rng.randrange(KEYS) if TABLES[name].parent else rng.randrange(8)
        return [self.value() if k is None else k, u, self.value(), rng.randrange(8)]

    def rows(self) -> list[Step]:
        """Committed rows to begin with, that violate nothing."""
        rng = self.rng
        steps: list[Step] = []
        keys: dict[str, list[int]] = {}
        for name in self.tables:
            table = TABLES[name]
            many = []
            taken: list[int] = []
            for k in sorted(rng.sample(range(KEYS), rng.randint(1, KEYS))):
                values = self.values(name, k)
                if table.parent:
                    values[1] = rng.choice(keys[table.parent])
                for constraint in table.constraints[1:]:
                    if any(constraint.clash(values[1], u) for u in taken):
                        break
                else:
                    taken.append(values[1])
                    many.append(values)
            keys[name] = [values[0] for values in many]
            if table.children:
                self.hot = rng.choice(keys[name])  # so that there is what is to be referred to
            steps.append(["X", "rows", name, many])
        return steps

    def change(self, name: str) -> list[Any]:
        rng = self.rng
        kind = rng.choice(("v", "v", "v", "w", "w", "k", "u", "v+", "same") + (("u^",) if name == "later" else ()))
        if kind in ("v+", "same", "u^"):
            return [kind]
        if kind == "u":
            return [kind, rng.randrange(KEYS if TABLES[name].parent else 8)]
        return [kind, rng.randrange(8) if kind == "w" else self.value()]

    def where(self, name: str) -> list[int]:
        """Path, argument, a bit; by key half of the time."""
        rng = self.rng
        path = rng.randrange(2) if rng.random() < 0.5 else rng.randrange(len(TABLES[name].paths))
        return [path, self.value() if rng.random() < 0.8 else rng.randrange(8), rng.randrange(2)]

    def inside(self, player: Player, session: Session) -> Step:
        """A step of a session that is in a transaction."""
        rng = self.rng
        txn = session.txn
        assert txn
        name = rng.choice(self.tables)
        who = session.name
        if txn.failed:
            return [who, "rollback to"] if len(txn.levels) > 1 and rng.random() < 0.8 else [who, "rollback"]
        if txn.cursor and rng.random() < 0.4:
            return [who, "current", self.change(txn.cursor.table) if rng.random() < 0.8 else None]
        what = rng.random()
        if what < 0.14:
            if txn.family is None:
                return [who, rng.choice(("commit", "commit", "rollback"))]
            if len(txn.levels) > 1 and rng.random() < 0.9:
                return [who, rng.choice(("release", "rollback to"))]
            return [who, rng.choice(("prepare",) * 6 + ("one phase", "rollback"))]
        if what < 0.32:
            return [who, "update", name, *self.where(name), self.change(name)]
        if what < 0.42:
            return [who, "delete", name, *self.where(name)]
        if what < 0.52:
            many = [self.values(name)]
            if rng.random() < 0.15:
                many.append(self.values(name))
            return [who, "insert", name, many]
        if what < 0.58:
            return [who, "conflict", name, self.values(name), rng.random() < 0.6]
        if what < 0.61:
            return [who, "merge", name, self.values(name), rng.random() < 0.3]
        if what < 0.74:
            if rng.random() < 0.1:
                return [who, "generic", name]
            path = rng.randrange(len(TABLES[name].paths))
            return [who, "select", name, path, self.value(), rng.randrange(2), rng.random() < 0.3]
        if what < 0.87:
            policy = rng.choice(("", "", "NOWAIT", "SKIP LOCKED"))
            return [who, "lock", name, *self.where(name), rng.randrange(4), policy]
        if what < 0.90:
            return [who, "cursor", name, self.value()]
        return [who, rng.choice(("savepoint", "savepoint", "rollback to", "release"))]

    def decide(self, player: Player) -> Step:
        rng = self.rng
        letter = rng.choice("AB") if "B1" in self.names else "A"
        family = player.families.get(letter)
        if family and family.prepared:
            xinst = rng.choice(family.prepared).xinst
            if rng.random() < 0.75:
                return ["X", "decide", letter, xinst, rng.random() < 0.3]
            return ["X", "give up", letter, xinst]
        if family and family.active and rng.random() < 0.1:
            return ["X", "give up", letter, rng.choice(family.active).xinst]
        return ["X", "next", letter]

    def propose(self, player: Player) -> Step:
        rng = self.rng
        what = rng.random()
        if what < 0.06:
            return self.decide(player)
        if what < 0.09:
            name = rng.choice(self.tables)
            if rng.random() < 0.05:
                return ["X", "checkpoint"]
            return ["X", "vacuum", name, rng.choice(VACUUM)]
        session = player.sessions[rng.choice(self.names)]
        if session.txn:
            return self.inside(player, session)
        family = player.families.get(session.name[0])
        if family and family.winner is not None and rng.random() < 0.8:
            return ["X", "next", session.name[0]]
        xinst = rng.randint(1, 30)
        if session.name in SIBLINGS and family and family.prepared and rng.random() < 0.8:
            xinst = max(t.xinst for t in family.prepared) + rng.randint(1, 9)
        return [session.name, "begin", rng.random() < self.repeatable, xinst]

    def meeting(self) -> Iterator[Step]:
        """Two siblings that have changed the same row, which an outsider has locked."""
        rng = self.rng
        name = self.tables[0]
        for who, xinst in (("A1", 10), ("A2", 20)):
            yield [who, "begin", rng.random() < self.repeatable, xinst]
            yield [who, "update", name, 0, self.hot, rng.randrange(2), [rng.choice("vw"), self.value()]]
        yield ["U1", "begin", rng.random() < self.repeatable, 0]
        yield ["U1", "lock", name, 0, self.hot, rng.randrange(2), 0, ""]
        if rng.random() < 0.5:
            yield ["A2", "prepare"]
            yield ["X", "decide", "A", 20, rng.random() < 0.3]
            yield ["U2", "begin", False, 0]
            yield ["U2", "lock", name, 0, self.hot, rng.randrange(2), rng.randrange(4), rng.choice(("NOWAIT", ""))]

    def reference(self) -> Iterator[Step]:
        """A row that somebody refers to while it is being changed, several times, and at last perhaps its key."""
        rng = self.rng
        parent, child = self.tables[-2:]
        who = rng.choice(("A1", "U1"))
        yield [who, "begin", rng.random() < self.repeatable, 10]
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.3:
                yield [who, rng.choice(("savepoint", "savepoint", "rollback to", "release"))]
            yield [who, "update", parent, 0, self.hot, rng.randrange(2), [rng.choice("vw"), self.value()]]
        if rng.random() < 0.7:
            where = [parent, 0, self.hot, rng.randrange(2)]
            yield rng.choice(([who, "update", *where, ["k", rng.randrange(KEYS, 8)]], [who, "delete", *where]))
        yield ["U2", "begin", rng.random() < self.repeatable, 0]
        yield ["U2", "insert", child, [[rng.randrange(KEYS, 8), self.hot, self.value(), rng.randrange(8)]]]
        if rng.random() < 0.7:
            yield [who, rng.choice(("commit", "rollback") if who == "U1" else ("prepare", "one phase", "rollback"))]

    def opening(self) -> Iterator[Step]:
        """What seldom comes by chance."""
        what = self.rng.random()
        if what < 0.25:
            self.heat = 0.8
            yield from self.meeting()
        elif what < 0.6 and self.blocking and TABLES[self.tables[-1]].parent:
            yield from self.reference()

    def proposals(self, player: Player) -> Any:
        """The steps of a history, each after the one before has been played."""
        yield from self.rows()
        yield from self.opening()
        crash_at = self.rng.randrange(10, self.length) if self.crash else None
        for i in range(self.length):
            if i == crash_at:
                yield ["X", "crash"]
            else:
                yield self.propose(player)
