"""What PostgreSQL promises, in memory: rows with their committed versions, and
what each running transaction has written and locked.

A row is an identity: an update gives it another version, a deleted row that is
inserted again is another row. A transaction sees what was committed when its
snapshot was taken, with its own writes in place of it; a sibling's writes and
locks do not exist for it. That is all that MIP adds.

A statement is evaluated against the model before it runs. The answer is the
set of outcomes that are right; mostly there is just one. Its effects are kept
in a level of their own (like a savepoint), which the caller keeps or drops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tables import TABLES, Constraint, Table, Values

KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE = range(4)
STRENGTHS = ("KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE")
CONFLICTS = {KEY_SHARE: {UPDATE}, SHARE: {NO_KEY_UPDATE, UPDATE}, NO_KEY_UPDATE: {SHARE, NO_KEY_UPDATE, UPDATE}}
CONFLICTS[UPDATE] = {KEY_SHARE, *CONFLICTS[NO_KEY_UPDATE]}


class Row:
    """Committed versions, oldest first; None stands for deleted."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.versions: list[Version] = []

    def at(self, time: int) -> Values | None:
        for version in reversed(self.versions):
            if version.time <= time:
                return version.values
        return None

    @property
    def latest(self) -> Values | None:
        return self.versions[-1].values if self.versions else None

    def changed_after(self, time: int) -> list[Version]:
        return [version for version in self.versions if version.time > time]


@dataclass
class Version:
    time: int
    values: Values | None
    key_changed: bool
    moved: bool  # to another partition


@dataclass
class Level:
    """A savepoint's worth of a transaction. `entered`: values that it ever put into an index."""

    writes: dict[Row, Values | None] = field(default_factory=dict)
    locks: dict[Row, int] = field(default_factory=dict)
    entered: set[tuple[str, str, int]] = field(default_factory=set)
    moved: set[Row] = field(default_factory=set)
    again: set[Row] = field(default_factory=set)  # written more than once
    cursor: Row | None = None


@dataclass(eq=False)
class Family:
    """One XID: what the MIPT should show. Active instances are not in `states`."""

    xid: str
    states: dict[int, str] = field(default_factory=dict)
    active: list[Txn] = field(default_factory=list)
    prepared: list[Txn] = field(default_factory=list)
    noted: set[int] = field(default_factory=set)  # as aborted, losers of a mip.commit: in a crash they may be lost
    perhaps: set[int] = field(default_factory=set)  # those that a crash came after

    @property
    def winner(self) -> int | None:
        return next((x for x, state in self.states.items() if state == "committed"), None)


@dataclass(eq=False)
class Txn:
    session: str
    snapshot: int | None = None  # of REPEATABLE READ
    family: Family | None = None
    xinst: int = 0
    levels: list[Level] = field(default_factory=lambda: [Level()])
    failed: bool = False
    prepared: bool = False
    awaits: Row | None = None

    def own(self, row: Row) -> tuple[bool, Values | None]:
        for level in reversed(self.levels):
            if row in level.writes:
                return True, level.writes[row]
        return False, None

    def strength(self, row: Row) -> int:
        return max((level.locks.get(row, -1) for level in self.levels), default=-1)

    def sibling_of(self, other: Txn) -> bool:
        return self.family is not None and self.family is other.family

    def merge(self) -> None:
        """Releases the top level into the one below it."""
        top = self.levels.pop()
        below = self.levels[-1]
        below.writes.update(top.writes)
        for row, strength in top.locks.items():
            below.locks[row] = max(strength, below.locks.get(row, -1))
        below.entered |= top.entered
        below.moved |= top.moved
        below.again |= top.again
        below.cursor = top.cursor or below.cursor

    @property
    def cursor(self) -> Row | None:
        return next((level.cursor for level in reversed(self.levels) if level.cursor), None)


def rekeyed(old: Values, new: Values, table: str) -> bool:
    """Does the update change what a foreign key could refer to?"""
    return any(getattr(old, column) != getattr(new, column) for column in TABLES[table].keys)


# ---- outcomes


@dataclass
class Rows:
    """The statement succeeds; `rows` is what it returns, `count` the rows it counts."""

    rows: list[tuple[int, ...]] | None = None
    count: int | None = None


@dataclass
class Error:
    sqlstate: str


@dataclass
class Blocks:
    on: list[Txn]

    def __repr__(self) -> str:
        return f"Blocks(on={sorted({t.session for t in self.on})})"


Outcome = Rows | Error | Blocks


class Stop(Exception):
    def __init__(self, *outcomes: Outcome) -> None:
        super().__init__(outcomes)
        self.outcomes = list(outcomes)


class Skip(Exception):
    """Not a step of this history: what would happen depends on what the model does not know."""


@dataclass
class Statement:
    """
    What outlives a wait: which rows it found, and when; when it asked for the
    parent; is it sure that ON CONFLICT waits for the lock of its row, and not
    for what becomes of the key?
    """

    time: int
    targets: list[Row] | None = None
    parent_time: int | None = None
    surely: bool = True


class Model:
    def __init__(self) -> None:
        self.time = 0
        self.rows: dict[str, list[Row]] = {name: [] for name in TABLES}
        self.txns: list[Txn] = []  # running and prepared

    # ---- transactions

    def begin(self, session: str, repeatable: bool) -> Txn:
        txn = Txn(session, self.time if repeatable else None)
        self.txns.append(txn)
        return txn

    def commit(self, txn: Txn) -> None:
        self.time += 1
        while len(txn.levels) > 1:
            txn.merge()
        for row, values in txn.levels[0].writes.items():
            if not row.versions and values is None:
                continue
            key_changed = values is None or (row.latest is not None and rekeyed(row.latest, values, row.table))
            row.versions.append(Version(self.time, values, key_changed, row in txn.levels[0].moved))
        self.abort(txn)

    def fail(self, txn: Txn) -> None:
        """An error: what the transaction, or its last savepoint, has is given up at once."""
        txn.failed = True
        if len(txn.levels) > 1:
            self.drop_level(txn)
            txn.levels.append(Level())
        else:
            self.abort(txn)

    def abort(self, txn: Txn) -> None:
        if txn not in self.txns:
            return
        self.txns.remove(txn)
        if txn.family:
            for crowd in (txn.family.active, txn.family.prepared):
                if txn in crowd:
                    crowd.remove(txn)
        self.prune()

    def prune(self) -> None:
        """Forgets rows of which no version is left."""
        for rows in self.rows.values():
            rows[:] = [r for r in rows if r.versions or any(t.own(r)[0] for t in self.txns)]

    def drop_level(self, txn: Txn) -> None:
        txn.levels.pop()
        self.prune()

    # ---- reading

    def now(self, txn: Txn) -> int:
        return self.time if txn.snapshot is None else txn.snapshot

    def view(self, txn: Txn | None, table: str, time: int | None = None) -> Iterator[tuple[Row, Values]]:
        if time is None:
            time = self.time if txn is None else self.now(txn)
        for row in self.rows[table]:
            mine, values = txn.own(row) if txn else (False, None)
            if not mine:
                values = row.at(time)
            if values is not None:
                yield row, values

    def others(self, txn: Txn) -> list[Txn]:
        return [other for other in self.txns if other is not txn and not other.sibling_of(txn)]

    # ---- locks

    def holders(self, txn: Txn, row: Row, strength: int) -> list[Txn]:
        return [other for other in self.others(txn) if other.strength(row) in CONFLICTS[strength]]

    def current(
        self,
        txn: Txn,
        statement: Statement,
        row: Row,
        strength: int,
        match: Callable[[Values], bool],
    ) -> Values | None:
        """
        The version to change or lock; None if the row has gone meanwhile. One
        that has changed meanwhile is locked and looked at again.
        """
        self.queue(txn, row)
        mine, values = txn.own(row)
        if mine:
            # others may have a key share lock
            if values and (holders := self.holders(txn, row, strength)):
                raise Stop(Blocks(holders))
            return values
        later = row.changed_after(self.now(txn) if txn.snapshot is not None else statement.time)
        if txn.snapshot is not None and later:
            # heap waits for lockers before it looks at an update beside them
            holders = self.holders(txn, row, strength)
            raise Stop(Error("40001"), *([Blocks(holders)] if holders else []))
        if holders := self.holders(txn, row, strength):
            raise Stop(Blocks(holders))
        if row.latest is None:
            if row.versions[-1].moved:
                raise Stop(Error("40001"))
            return None
        if later:
            self.lock(txn, row, strength)
        return None if later and not match(row.latest) else row.latest

    def lock(self, txn: Txn, row: Row, strength: int) -> None:
        level = txn.levels[-1]
        level.locks[row] = max(strength, level.locks.get(row, -1))

    def queue(self, txn: Txn, row: Row) -> None:
        """Others that wait for the row may come first; unless a sibling uses it, nobody knows."""
        rest = [other for other in self.txns if other is not txn]
        if any(other.awaits is row for other in rest) and not any(
            other.sibling_of(txn) and other.strength(row) >= 0 for other in rest
        ):
            raise Skip

    # ---- constraints

    def clashes(self, txn: Txn, constraint: Constraint, row: Row, value: int) -> tuple[Row | None, list[Txn], bool]:
        """
        (a row that is there, or None; transactions to wait for; is the waiting
        certain?) It depends on the index what is found first, and what an
        instance did to a row that a sibling has changed before it is found
        through its lock only. So sometimes either of two answers is right.
        """
        there: list[Row] = []
        wait: list[Txn] = []
        certain = True
        for other in self.rows[row.table]:
            mine, values = txn.own(other)
            if other is row:
                continue
            if not mine:
                values = other.latest
            if values is None or not constraint.clash(getattr(values, constraint.column), value):
                continue
            there.append(other)
            writers = [] if mine else [t for t in self.others(txn) if t.own(other)[0]]
            lockers = [] if mine else [t for t in self.others(txn) if t.family and t.strength(other) >= NO_KEY_UPDATE]
            wait += writers + lockers
            certain &= any(t.family is None or not self.still(t, other, constraint, value) for t in writers)
        for t in self.others(txn):
            for level in t.levels:
                for table, column, entered in level.entered:
                    if (table, column) == (row.table, constraint.column) and constraint.clash(entered, value):
                        wait.append(t)
        return there[0] if there else None, wait, certain

    @staticmethod
    def still(txn: Txn, row: Row, constraint: Constraint, value: int) -> bool:
        """Will the row clash when the transaction, which has written it, has committed?"""
        values = txn.own(row)[1]
        return values is not None and constraint.clash(getattr(values, constraint.column), value)

    def check(self, txn: Txn, row: Row, constraints: list[Constraint]) -> None:
        values = txn.own(row)[1]
        assert values is not None
        for constraint in constraints:
            there, wait, certain = self.clashes(txn, constraint, row, getattr(values, constraint.column))
            if wait:
                if certain:
                    raise Stop(Blocks(wait))
                raise Stop(Blocks(wait), Error(constraint.sqlstate))
            if there:
                raise Stop(Error(constraint.sqlstate))

    # ---- writing

    def write(self, txn: Txn, row: Row, values: Values | None, strength: int) -> None:
        level = txn.levels[-1]
        if txn.own(row)[0]:
            level.again.add(row)
        level.writes[row] = values
        self.lock(txn, row, strength)
        if values:
            for constraint in TABLES[row.table].constraints:
                level.entered.add((row.table, constraint.column, getattr(values, constraint.column)))

    def insert(self, txn: Txn, table: Table, values: Values) -> Row:
        row = Row(table.name)
        self.rows[table.name].append(row)
        self.write(txn, row, values, UPDATE)
        self.check(txn, row, [c for c in table.constraints if not c.at_end])
        return row

    def find(
        self, txn: Txn, statement: Statement, table: Table, match: Callable[[Values], bool]
    ) -> list[Row]:
        if statement.targets is None:
            statement.targets = [row for row, values in self.view(txn, table.name) if match(values)]
        return statement.targets

    def each(self, targets: list[Row], do: Callable[[Row], None]) -> None:
        """It is not known which of several rows comes first, so they must not stop in different ways."""
        stops: list[Stop] = []
        for row in targets:
            try:
                do(row)
            except Stop as stop:
                if len(targets) > 1 and stop.outcomes != [Error("40001")]:
                    raise Skip from stop
                stops.append(stop)
        if stops:
            raise stops[0]

    # ---- statements; each returns what the statement returns

    def do_insert(self, txn: Txn, statement: Statement, table: Table, many: list[Values]) -> Rows:
        rows = []
        for values in many:
            try:
                rows.append(self.insert(txn, table, values))
            except Stop:
                if len(many) > 1 and len({v.k for v in many}) > 1:
                    raise Skip from None
                raise
        self.after(txn, table, [(row, None, txn.own(row)[1]) for row in rows], statement)
        return Rows([tuple(values) for values in many])

    def do_insert_on_conflict(
        self, txn: Txn, statement: Statement, table: Table, values: Values, update: bool
    ) -> Rows | list[Outcome]:
        """ON CONFLICT (k) DO NOTHING, or DO UPDATE SET v = excluded.v."""
        there, wait, certain = self.clashes(txn, table.constraints[0], Row(table.name), values.k)
        if update and there is not None and not txn.own(there)[0]:
            holders = self.holders(txn, there, NO_KEY_UPDATE)
            if holders and statement.targets is None and not any(t.own(there)[0] for t in wait):
                statement.targets, statement.surely = [there], not wait
            wait += holders
        if wait and (update or certain):
            raise Stop(Blocks(wait))
        if txn.snapshot is not None and statement.targets and statement.targets[0].changed_after(txn.snapshot):
            # a row that it had found and waited to lock is another one now, or gone
            if not statement.surely:
                raise Skip
            raise Stop(Error("40001"))
        if there is None:
            return self.do_insert(txn, statement, table, [values])
        mine, _ = txn.own(there)
        if txn.snapshot is not None and not mine and there.changed_after(txn.snapshot):
            raise Stop(*([Blocks(wait)] if wait else []), Error("40001"))
        if not update:
            return [Rows([]), Blocks(wait)] if wait else Rows([])
        return self.do_update(txn, statement, table, [there], lambda r: True, lambda r: r._replace(v=values.v))

    def do_update(
        self,
        txn: Txn,
        statement: Statement,
        table: Table,
        targets: list[Row],
        match: Callable[[Values], bool],
        change: Callable[[Values], Values],
    ) -> Rows:
        done: list[tuple[Row, Values | None, Values | None]] = []

        def update(row: Row) -> None:
            mine, values = txn.own(row)
            seen = [values] if mine else [row.latest, row.at(statement.time)]
            strength = UPDATE if any(v and rekeyed(v, change(v), table.name) for v in seen) else NO_KEY_UPDATE
            old = self.current(txn, statement, row, strength, match)
            if old is None:
                return
            new = change(old)
            if table.parts and new.k % 2 != old.k % 2:
                self.write(txn, row, None, UPDATE)
                txn.levels[-1].moved.add(row)
                done.append((row, old, None))
                moved_row = self.insert(txn, table, new)
                done.append((moved_row, None, new))
                return
            self.write(txn, row, new, strength)
            changed = [c for c in table.constraints if not c.at_end and c.touched(old, new)]
            self.check(txn, row, changed)
            for constraint in table.constraints:
                # somebody may be waiting for us with a value that is in the index already
                if constraint not in changed and self.clashes(
                    txn, constraint, row, getattr(new, constraint.column)
                )[1]:
                    raise Skip
            done.append((row, old, new))

        self.each(targets, update)
        self.after(txn, table, done, statement)
        return Rows([tuple(new) for _, _, new in done if new is not None])

    def do_delete(
        self, txn: Txn, statement: Statement, table: Table, targets: list[Row], match: Callable[[Values], bool]
    ) -> Rows:
        done: list[tuple[Row, Values | None, Values | None]] = []

        def delete(row: Row) -> None:
            old = self.current(txn, statement, row, UPDATE, match)
            if old is not None:
                self.write(txn, row, None, UPDATE)
                done.append((row, old, None))

        self.each(targets, delete)
        self.after(txn, table, done, statement)
        return Rows([tuple(old) for _, old, _ in done if old is not None])

    def do_merge(
        self, txn: Txn, statement: Statement, table: Table, values: Values, delete: bool
    ) -> Rows:
        """MERGE ... WHEN MATCHED THEN UPDATE SET v / DELETE WHEN NOT MATCHED THEN INSERT."""
        targets = self.find(txn, statement, table, lambda r: r.k == values.k)
        try:
            if not targets:
                self.do_insert(txn, statement, table, [values])
            elif delete:
                self.do_delete(txn, statement, table, targets, lambda r: True)
            else:
                self.do_update(txn, statement, table, targets, lambda r: True, lambda r: r._replace(v=values.v))
        except Stop as stop:
            if any(isinstance(outcome, Blocks) for outcome in stop.outcomes):
                raise Skip from stop
            raise
        return Rows(count=1)

    def do_lock(
        self,
        txn: Txn,
        statement: Statement,
        targets: list[Row],
        match: Callable[[Values], bool],
        strength: int,
        policy: str,
    ) -> list[Outcome]:
        got: list[tuple[int, ...]] = []
        also: list[Outcome] = []

        def lock(row: Row) -> None:
            if self.stale_key_share(txn, row, strength):
                if self.holders(txn, row, strength):
                    raise Skip
                also.append(Error("40001"))
                values = row.at(self.now(txn))
            elif txn.family and txn.own(row)[0] and self.holders(txn, row, strength):
                raise Skip  # an overlay's version shows no key share locks; changing it would wait
            else:
                try:
                    values = self.current(txn, statement, row, strength, match)
                except Stop as stop:
                    if not isinstance(stop.outcomes[0], Blocks) or not policy:
                        raise
                    # heap waits for later versions whatever the policy
                    if strength == KEY_SHARE and any(
                        t.own(row)[1] or row in level.again for t in stop.outcomes[0].on for level in t.levels
                    ):
                        raise Skip from stop
                    if policy == "SKIP LOCKED":
                        return
                    raise Stop(Error("55P03")) from stop
            if values is not None:
                self.lock(txn, row, strength)
                got.append(tuple(values))

        self.each(targets, lock)
        if len(targets) > 1 and also:
            raise Skip
        return [Rows(got), *also]

    def stale_key_share(self, txn: Txn, row: Row, strength: int) -> bool:
        """
        A key share lock on a version of the snapshot, updated since, but not
        its key: heap grants it, unless others' locks have left their mark.
        """
        if txn.snapshot is None or strength != KEY_SHARE or txn.own(row)[0]:
            return False
        later = row.changed_after(txn.snapshot)
        return bool(later) and not any(version.key_changed or version.values is None for version in later)

    # ---- the end of a statement: deferrable constraints, foreign keys

    def after(
        self,
        txn: Txn,
        table: Table,
        done: list[tuple[Row, Values | None, Values | None]],
        statement: Statement,
    ) -> None:
        for constraint in table.constraints:
            if constraint.at_end:
                for row, old, new in done:
                    if new is not None and (old is None or constraint.touched(old, new)):
                        self.after_one(done, lambda row=row, c=constraint: self.check(txn, row, [c]))
        if table.parent:
            for row, old, new in done:
                # values that came with this transaction are checked again
                if new is not None and (old is None or old.u != new.u or self.was_own(txn, row)):
                    self.after_one(done, lambda new=new: self.check_parent(txn, statement, table, new.u))
        if table.children:
            for _, old, new in done:
                if old is not None and (new is None or new.k != old.k):
                    self.after_one(done, lambda old=old, new=new: self.check_children(txn, table, old.k, new))

    @staticmethod
    def after_one(done: list, check: Callable[[], None]) -> None:
        try:
            check()
        except Stop as stop:
            if len(done) > 1 or (len(stop.outcomes) > 1 and any(isinstance(o, Blocks) for o in stop.outcomes)):
                raise Skip from stop
            raise

    @staticmethod
    def was_own(txn: Txn, row: Row) -> bool:
        return any(row in level.writes for level in txn.levels[:-1])

    def check_parent(self, txn: Txn, statement: Statement, table: Table, key: int) -> None:
        """
        A query with a snapshot of its own, which a wait for the parent does not
        renew: if that row goes, another one that has got its key is not seen.
        """
        if statement.parent_time is None:
            statement.parent_time = self.now(txn)
        asked = Statement(statement.parent_time)
        found = [row for row, values in self.view(txn, table.parent, asked.time) if values.k == key]
        if not found:
            raise Stop(Error("23503"))
        if len(found) > 1:
            raise Skip  # one that has been deleted since, and our own: it asks for the one that the index has first
        row = found[0]
        if self.stale_key_share(txn, row, KEY_SHARE):
            raise Skip
        if self.current(txn, asked, row, KEY_SHARE, lambda r: r.k == key) is None:
            raise Stop(Error("23503"))
        self.lock(txn, row, KEY_SHARE)

    def check_children(self, txn: Txn, table: Table, key: int, new: Values | None) -> None:
        children = TABLES[table.children]
        if not table.cascade and any(values.k == key for _, values in self.view(txn, table.name, self.time)):
            return  # another row has that key now
        found = [row for row, values in self.view(txn, children.name, self.time) if values.u == key]
        for row in found:
            mine, _ = txn.own(row)
            strength = (UPDATE if new is None else NO_KEY_UPDATE) if table.cascade else KEY_SHARE
            if self.holders(txn, row, strength):
                raise Skip
            if table.cascade and not mine and txn.snapshot is not None and row.changed_after(txn.snapshot):
                if len(found) > 1:
                    raise Skip
                raise Stop(Error("40001"))
        if not found:
            return
        if not table.cascade:
            raise Stop(Error("23503"))
        for row in found:
            mine, values = txn.own(row)
            values = values if mine else row.latest
            assert values is not None
            if new is None:
                self.write(txn, row, None, UPDATE)
            else:
                self.write(txn, row, values._replace(u=new.k), NO_KEY_UPDATE)
