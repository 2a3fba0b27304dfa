"""The auditor of a replicated site: whether all replicas have the same, and it is what the clients' transactions say.

It looks at the replicas, in plain SQL, and at the clients' record, and at nothing else. It shares no code with what it
audits, nor with the rest of the run, but the checker of histories; what transactions do it knows by what they have left
in `effect`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from .. import serial
from ..auditor import Finding

__all__ = ["CHECKS", "TABLES", "Look", "Record", "Replica", "Told", "audit", "read", "read_record", "read_replica"]

TABLES = {
    # and what an index of theirs is on
    "effect": "tx",
    "account": "id",
    "counter": "id",
    "name": "name",
    "parent": "id",
    "child": "tx",
    "follower": "tx",
    "census": "kind",
    "booking": "tx",
    "seat": "id",
    "part": "id",
    "tally": None,
    "ticket": None,
    "document": "id",
    "note": None,
    "list": "id",
}
FIRST_BALANCE, ACCOUNTS, SEATS, FIRST_PARENTS, KINDS_OF_PARENTS, PARTS_OF_A_GROUP = 1000, 30, 20, 12, 3, 10
PROMISED = (
    *("40001", "40P01", "57014", "25P04", "53400", "08007"),  # by docs/reference/sql.md
    *("23503", "23505", "23514", "23P01"),
    *("MP001", "MP005"),
    *("57P01", "57P02", "57P03", None),  # servers that end, connections that are lost
)


# Facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    tx: str
    detail: dict[str, Any]


@dataclass
class Replica:
    """What a replica holds at one moment."""

    position: int = 0
    """Up to which it has applied the log."""
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {table: [] for table in TABLES})
    digests: dict[str, str] = field(default_factory=dict)
    """Of each table's rows, as they lie there."""
    by_index: dict[str, str] = field(default_factory=dict)
    """The same, by way of an index."""

    @property
    def effects(self) -> list[Effect]:
        return [Effect(tx, detail) for tx, detail in self.rows["effect"]]

    def details(self, name: str) -> Iterator[dict[str, Any]]:
        """Of the effects that have something to say of this."""
        return (detail for _, detail in self.rows["effect"] if name in detail)


@dataclass(frozen=True)
class Told:
    """What a client was told of a transaction."""

    outcome: str
    """Committed, not, or unknown."""
    position: int | None = None
    """Where it is in the log, if its client has been told."""
    sqlstate: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class Look:
    """At what was committed before, by its session, or by another one whose token was waited for."""

    tx: str
    whose: str
    at: str
    found: int


@dataclass
class Record:
    """What the clients wrote down, by transaction."""

    begun: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    """Those whose COMMIT was, or may have been."""
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What these were to leave, where their clients knew."""
    told: dict[str, Told] = field(default_factory=dict)
    """The last word."""
    results: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Of requests: what each of those who worked one was told."""
    looks: list[Look] = field(default_factory=list)
    reads: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of lists, by transactions that have done nothing else."""

    def outcome(self, tx: str) -> str:
        if tx in self.told:
            return self.told[tx].outcome
        return "unknown" if tx in self.sent else "not"

    def position(self, tx: str) -> int | None:
        return self.told[tx].position if tx in self.told else None

    def known_at(self, position: int) -> Record:
        """What can be said of a replica that has applied the log so far, though transactions are still under way, and
        have read more.
        """
        told = {tx: self._known_at(it, position) for tx, it in self.told.items()}
        return Record(self.begun, self.sent, self.details, told, self.results, self.looks)

    def _known_at(self, told: Told, position: int) -> Told:
        there = told.outcome != "committed" or (told.position is not None and told.position <= position)
        return told if there else Told("unknown")


def read_replica(conninfo: str) -> Replica:
    """As of one snapshot, which a TRUNCATE behind it would take rows from: so with locks, for which it may be ended."""
    with psycopg.connect(conninfo) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS SHARE MODE".encode())
        conn.execute("SET LOCAL statement_timeout = '60s'")
        return read(conn)


def read(conn: psycopg.Connection[Any]) -> Replica:
    """In its transaction."""
    replica = Replica()
    replica.position = conn.execute("SELECT coalesce(max(position), 0) FROM mip.applied").fetchall()[0][0]
    for table in TABLES:
        replica.rows[table] = conn.execute(f"SELECT * FROM {table}".encode()).fetchall()
    conn.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off")
    conn.execute("SET LOCAL enable_bitmapscan = off")
    replica.digests = {table: _digest(conn, f"SELECT * FROM {table}") for table in TABLES}
    conn.execute("SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
    for table, key in TABLES.items():
        if key is not None:
            replica.by_index[table] = _digest(conn, f"SELECT * FROM {table} ORDER BY {key} OFFSET 0")
    return replica


def _digest(conn: psycopg.Connection[Any], query: str) -> str:
    aggregate = "md5(coalesce(string_agg(md5(t::text), '' ORDER BY md5(t::text) COLLATE \"C\"), ''))"
    return str(conn.execute(f"SELECT {aggregate} FROM ({query}) t".encode()).fetchall()[0][0])


def read_record(folder: Path) -> Record:
    record = Record()
    for path in sorted(folder.glob("*.record")):
        for line in path.read_text().splitlines():
            _note(record, json.loads(line))
    return record


def _note(record: Record, event: Mapping[str, Any]) -> None:
    tx = event["tx"]
    match event["event"]:
        case "begin":
            record.begun.add(tx)
        case "commit":
            record.sent.add(tx)
            if event["detail"] is not None:
                record.details[tx] = event["detail"]
        case "told":
            record.told[tx] = Told(event["outcome"], None, event["sqlstate"], event["why"])
            if event.get("result") is not None:
                record.results[tx].append(event["result"])
        case "position":
            record.told[tx] = Told(record.told[tx].outcome, event["position"])
        case "read":
            record.reads[tx] = event["detail"]
        case "look":
            record.looks.append(Look(tx, event["whose"], event["at"], event["found"]))


# Checks ----------------------------------------------------------------------------------------------------------


def audit(replicas: Mapping[str, Replica], record: Record, *, between: bool = False) -> list[Finding]:
    """Every check with its violations; none of them is what everybody hopes for. `between`: transactions are still
    under way, and replicas may be at different positions.
    """
    findings = []
    for words, check in CHECKS.items():
        violations = []
        for name, replica in replicas.items():
            known = record.known_at(replica.position) if between else record
            violations += [f"at {name}: {violation}" for violation in check(replica, known)]
        findings.append(Finding(words, tuple(violations)))
    if not between:
        findings += [Finding(words, tuple(check(record))) for words, check in OF_THE_RECORD.items()]
    return [Finding(SAME, tuple(_same(replicas, between=between))), *findings]


def _same(replicas: Mapping[str, Replica], *, between: bool) -> Iterator[str]:
    """Those that are at the same position. In the end, that is all."""
    at: dict[int, list[str]] = defaultdict(list)
    for name, replica in replicas.items():
        at[replica.position].append(name)
    if not between and len(at) > 1:
        yield f"they are not at one position: {dict(at)}"
    for position, names in at.items():
        for table in TABLES:
            digests = {name: replicas[name].digests[table] for name in names}
            if len(set(digests.values())) > 1:
                yield f"table {table} at position {position}: {digests}{_difference(table, replicas, names)}"


def _difference(table: str, replicas: Mapping[str, Replica], names: Sequence[str]) -> str:
    """What each of them has, and not all."""
    counted = {name: Counter(map(str, replicas[name].rows[table])) for name in names}
    everywhere = counted[names[0]]
    for rows in counted.values():
        everywhere = everywhere & rows
    only = {name: [row[:200] for row in (rows - everywhere).elements()][:3] for name, rows in counted.items()}
    return "".join(f"; only at {name}: {rows}" for name, rows in only.items() if rows)


def _indexes(replica: Replica, record: Record) -> Iterator[str]:
    for table, digest in replica.by_index.items():
        if digest != replica.digests[table]:
            yield f"table {table}"


def _told_committed(replica: Replica, record: Record) -> Iterator[str]:
    there = Counter(effect.tx for effect in replica.effects)
    for tx, told in record.told.items():
        if told.outcome == "committed" and there[tx] != 1:
            yield f"{tx} is there {there[tx]} times: {told}"


def _told_not(replica: Replica, record: Record) -> Iterator[str]:
    for effect in replica.effects:
        if effect.tx in record.begun and record.outcome(effect.tx) == "not":
            yield f"{effect.tx}: {record.told.get(effect.tx, 'its COMMIT was not sent')}"


def _whole(replica: Replica, record: Record) -> Iterator[str]:
    for tx, number in Counter(effect.tx for effect in replica.effects).items():
        if tx not in record.begun:
            yield f"{tx}: nobody's"
        elif number > 1:
            yield f"{tx} is there {number} times"
    for effect in replica.effects:
        if effect.detail != record.details.get(effect.tx, effect.detail):
            yield f"{effect.tx}: {effect.detail}, but it was to be {record.details[effect.tx]}"


def _results(replica: Replica, record: Record) -> Iterator[str]:
    for effect in replica.effects:
        for result in record.results.get(effect.tx, ()):
            if result != effect.detail:
                yield f"{effect.tx}: {effect.detail}, but its result is {result}"


def _balances(replica: Replica, record: Record) -> Iterator[str]:
    change: Counter[int] = Counter()
    for detail in replica.details("amount"):
        change[detail["from"]] -= detail["amount"]
        change[detail["to"]] += detail["amount"]
    for account, balance in replica.rows["account"]:
        if balance != FIRST_BALANCE + change[account] or balance < 0:
            yield f"account {account}: {balance}, but its transfers give {FIRST_BALANCE + change[account]}"


def _money(replica: Replica, record: Record) -> Iterator[str]:
    there = sum(balance for _, balance in replica.rows["account"])
    if there != FIRST_BALANCE * ACCOUNTS:
        yield f"{there}, but {FIRST_BALANCE * ACCOUNTS} in the beginning"


def _counted(replica: Replica, name: str, table: str) -> Iterator[str]:
    """Who adds one to a number says what it is then."""
    said: dict[int, list[int]] = defaultdict(list)
    for detail in replica.details(name):
        said[detail[name]].append(detail["n"])
    for of, n in replica.rows[table]:
        if sorted(said[of]) != list(range(1, len(said[of]) + 1)):
            twice = [number for number, times in Counter(said[of]).items() if times > 1]
            yield f"{name} {of}: two have made it the same, {twice[:5]}" if twice else f"{name} {of}: with gaps"
        if n != len(said[of]):
            yield f"{name} {of}: {n}, but {len(said[of])} have counted"


def _counters(replica: Replica, record: Record) -> Iterator[str]:
    yield from _counted(replica, "counter", "counter")


def _tallies(replica: Replica, record: Record) -> Iterator[str]:
    yield from _counted(replica, "tally", "tally")


def _tickets(replica: Replica, record: Record) -> Iterator[str]:
    left: Counter[int] = Counter()
    for detail in replica.details("ticket"):
        left[detail["ticket"]] += detail["number"]
    there = Counter(kind for (kind,) in replica.rows["ticket"])
    for kind in {*left, *there}:
        if left[kind] != there[kind]:
            yield f"kind {kind}: {there[kind]}, but {left[kind]} have been issued and not used"


def _parts(replica: Replica, record: Record) -> Iterator[str]:
    said: dict[int, list[int]] = defaultdict(list)
    for tx, detail in replica.rows["effect"]:
        if "group" in detail:
            said[detail["group"]] += detail["versions"]
            if len(detail["versions"]) != 1 or detail["rows"] != PARTS_OF_A_GROUP:
                yield f"{tx} has met a group that was changed in part: {detail}"
    there: dict[int, set[int]] = defaultdict(set)
    for _, group, version in replica.rows["part"]:
        there[group].add(version)
    for group, versions in there.items():
        if versions != {len(said[group])} or sorted(said[group]) != list(range(1, len(said[group]) + 1)):
            yield f"group {group}: versions {sorted(versions)}, and {len(said[group])} have changed it"


def _unique(replica: Replica, record: Record) -> Iterator[str]:
    for table, key in TABLES.items():
        if key is not None and table != "effect":
            for value, number in Counter(row[0] for row in replica.rows[table]).items():
                if number > 1:
                    yield f"{table}, {key} = {value}: {number} rows"


def _bookings(replica: Replica, record: Record) -> Iterator[str]:
    yield from _came_and_went(
        (tx for tx, _ in replica.rows["booking"]),
        (detail["booked"] for detail in replica.details("booked")),
        (detail["unbooked"] for detail in replica.details("unbooked")),
    )
    in_order = sorted((during.lower, during.upper, tx) for tx, during in replica.rows["booking"])
    for (_, end, tx), (begin, _, other) in pairwise(in_order):
        if begin < end:
            yield f"{tx} and {other}: at the same time"


def _seats(replica: Replica, record: Record) -> Iterator[str]:
    places = sorted(place for _, place in replica.rows["seat"])
    if places != list(range(1, SEATS + 1)):
        yield f"they are at {places}"


def _census(replica: Replica, record: Record) -> Iterator[str]:
    there = Counter(parent % KINDS_OF_PARENTS for _, parent in replica.rows["follower"])
    for kind, n in replica.rows["census"]:
        if n != there[kind]:
            yield f"of kind {kind}: {n} were counted, but {there[kind]} are there"


def _references(replica: Replica, record: Record) -> Iterator[str]:
    parents = {parent for parent, _ in replica.rows["parent"]}
    for table in ("child", "follower"):
        for tx, parent in replica.rows[table]:
            if parent not in parents:
                yield f"{table} {tx}: there is no parent {parent}"


def _came_and_went(there: Iterable[str], came: Iterable[str], went: Iterable[str]) -> Iterator[str]:
    expected = Counter(came)
    expected.subtract(Counter(went))
    found = Counter(there)
    for owner in {*expected, *found}:
        if expected[owner] != found[owner]:
            yield f"of {owner!r}: {found[owner]}, but {expected[owner]} have come and not gone"


def _names(replica: Replica, record: Record) -> Iterator[str]:
    yield from _came_and_went(
        (owner for _, owner in replica.rows["name"]),
        (detail["claimed"] for detail in replica.details("claimed")),
        (detail["released"] for detail in replica.details("released")),
    )


def _parents(replica: Replica, record: Record) -> Iterator[str]:
    yield from _came_and_went(
        (owner for _, owner in replica.rows["parent"]),
        [*[""] * FIRST_PARENTS, *(detail["founded"] for detail in replica.details("founded"))],
        (detail["ended"] for detail in replica.details("ended")),
    )


def _children(replica: Replica, record: Record) -> Iterator[str]:
    yield from _came_and_went(
        (tx for tx, _ in replica.rows["child"]),
        (detail["born"] for detail in replica.details("born")),
        (child for detail in replica.details("gone") for child in detail["gone"]),
    )


def _documents(replica: Replica, record: Record) -> Iterator[str]:
    said: dict[int, list[int]] = defaultdict(list)
    for detail in replica.details("document"):
        said[detail["document"]].append(detail["revision"])
    for document, revision, digest, body, plain in replica.rows["document"]:
        if digest != _md5(body + plain):
            yield f"document {document}: its text is not what its digest says"
        if revision != len(said[document]) or sorted(said[document]) != list(range(1, revision + 1)):
            yield f"document {document}: revision {revision}, and {len(said[document])} have written it"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def _notes(replica: Replica, record: Record) -> Iterator[str]:
    """Behind the last one who has emptied the table are just those that have come later."""
    marks = [tx for tx, mark in replica.rows["note"] if mark]
    notes = Counter(tx for tx, mark in replica.rows["note"] if not mark)
    if len(marks) != 1:
        yield f"emptied last by {marks}"
        return
    written = {effect.tx for effect in replica.effects if "note" in effect.detail}
    yield from (f"{tx}: nobody's, or twice" for tx, number in notes.items() if tx not in written or number > 1)
    emptied = [effect.tx for effect in replica.effects if "emptied" in effect.detail]
    last = record.position(marks[0]) if marks[0] else 0
    if last is None or (marks[0] and marks[0] not in emptied):
        if marks[0] not in emptied:
            yield f"emptied last by {marks[0]}, which has left nothing else"
        return
    for tx in emptied:
        if (record.position(tx) or 0) > last:
            yield f"emptied last by {marks[0]}, at {last}, but {tx} came later, at {record.position(tx)}"
    for tx in written:
        position = record.position(tx)
        if position is not None and (position > last) != (tx in notes):
            there = "there" if tx in notes else "gone"
            yield f"{tx}, at {position}, is {there}, and {marks[0]} has emptied the table at {last}"


def _snapshots(replica: Replica, record: Record) -> Iterator[str]:
    """Those who append at READ COMMITTED have read nothing."""
    details = {**dict(replica.rows["effect"]), **record.reads}
    history = [
        serial.Transaction(tx, tuple(_step(*step) for step in detail["steps"]))
        for tx, detail in details.items() if "steps" in detail
    ]  # fmt: skip
    yield from serial.check_snapshots(history, dict(replica.rows["list"]))


def _step(kind: str, of: str, what: Any) -> serial.Append | serial.Read:
    return serial.Append(of, what) if kind == "append" else serial.Read(of, tuple(what))


def _sessions(record: Record) -> Iterator[str]:
    for look in record.looks:
        if look.found != 1:
            yield f"at {look.at}, {look.tx} ({look.whose}) was seen {look.found} times"


def _promised(record: Record) -> Iterator[str]:
    for tx, told in record.told.items():
        if told.sqlstate not in PROMISED:
            yield f"{tx}: {told}"


SAME = "all replicas have the same rows at the same position"
CHECKS = {
    "indexes have the same rows as their tables": _indexes,
    "what was told to be committed is there once": _told_committed,
    "what was told not to have happened is not there": _told_not,
    "whatever is there is somebody's, whole, and once": _whole,
    "all who have made a request are told what it has done": _results,
    "balances are the sum of their transfers": _balances,
    "no money was made or lost": _money,
    "no update of a counter is lost": _counters,
    "no update of a row without a key is lost": _tallies,
    "of rows that look the same there are as many as were issued and not used": _tickets,
    "rows that are changed together have changed together": _parts,
    "unique keys are": _unique,
    "no two bookings are at the same time, and there are those that were not taken back": _bookings,
    "no two seats are at one place": _seats,
    "triggers have counted each row once": _census,
    "no child is without its parent": _references,
    "names are there that were claimed and not released": _names,
    "parents are there that were founded and not ended": _parents,
    "children are there that were born and have not gone": _children,
    "long values are what was written last": _documents,
    "the table that is emptied has what came later": _notes,
    "who has one snapshot has read one, and has lost no update": _snapshots,
}
OF_THE_RECORD = {
    "sessions see what they have committed, and what they have waited for": _sessions,
    "nothing fails but as is promised": _promised,
}
