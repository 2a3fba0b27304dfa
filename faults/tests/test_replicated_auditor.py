"""The auditor of a replicated site finds every kind of violation that is planted, and none where there is none."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pgmip.testing import Cluster

from faults.auditor import Finding
from faults.replicated.auditor import Replica, audit, read, read_record
from faults.replicated.client import outcome
from faults.replicated.work import EFFECT, WORKS, Nothing, rows

SAME = "all replicas have the same rows at the same position"
INDEXES = "indexes have the same rows as their tables"
COMMITTED = "what was told to be committed is there once"
NOT = "what was told not to have happened is not there"
WHOLE = "whatever is there is somebody's, whole, and once"
RESULTS = "all who have made a request are told what it has done"
BALANCES = "balances are the sum of their transfers"
MONEY = "no money was made or lost"
COUNTERS = "no update of a counter is lost"
TALLIES = "no update of a row without a key is lost"
TICKETS = "of rows that look the same there are as many as were issued and not used"
PARTS = "rows that are changed together have changed together"
UNIQUE = "unique keys are"
BOOKINGS = "no two bookings are at the same time, and there are those that were not taken back"
SEATS = "no two seats are at one place"
CENSUS = "triggers have counted each row once"
REFERENCES = "no child is without its parent"
NAMES = "names are there that were claimed and not released"
PARENTS = "parents are there that were founded and not ended"
CHILDREN = "children are there that were born and have not gone"
DOCUMENTS = "long values are what was written last"
NOTES = "the table that is emptied has what came later"
SNAPSHOTS = "who has one snapshot has read one, and has lost no update"
SESSIONS = "sessions see what they have committed, and what they have waited for"
PROMISED = "nothing fails but as is promised"

REPLICAS = ("one", "two")
TRANSACTIONS = 1000
ISOLATIONS = (psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ)
FOLLOWED = "(SELECT min(tx) FROM effect WHERE detail = '{}')"


@dataclass
class Day:
    """What a test may spoil, before the auditor looks."""

    cluster: Cluster
    folder: Path
    harm: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def sql(self, sql: str, *replicas: str) -> None:
        """As if that had happened at these; at all of them, if none is named."""
        self.harm.append((sql, replicas or REPLICAS))

    def write(self, **event: Any) -> None:
        with (self.folder / "test.record").open("a") as record:
            record.write(json.dumps(event) + "\n")

    def transaction(self, tx: str, told: str | None, sqlstate: str | None = None, **detail: Any) -> None:
        """In the record, as one that was sent, and what its client was told."""
        self.write(event="begin", tx=tx)
        self.write(event="commit", tx=tx, detail=detail)
        if told is not None:
            self.write(event="told", tx=tx, outcome=told, sqlstate=sqlstate, why=None)

    def effect(self, tx: str, **detail: Any) -> None:
        self.sql(f"INSERT INTO effect VALUES ('{tx}', '{json.dumps(detail)}')")

    def read(self, replica: str, position: int = 0) -> Replica:
        with psycopg.connect(self.cluster.conninfo()) as conn:
            for sql, where in self.harm:
                if replica in where:
                    conn.execute(sql.encode())
            facts = read(conn)
            conn.rollback()
        facts.position = position
        return facts

    def audit(self, *, between: bool = False, position: int = 0) -> set[str]:
        """The checks that found something."""
        replicas = {name: self.read(name, position) for name in REPLICAS}
        return found(audit(replicas, read_record(self.folder), between=between))


def found(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.violations}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """A database in which transactions have gone well, and their record."""
    with Cluster("replicated") as cluster:
        cluster.run_sql((resources.files("faults.replicated") / "schema.sql").read_text())
        day = Day(cluster, tmp_path_factory.mktemp("good"))
        asyncio.run(_work(day))
        yield day


async def _work(day: Day) -> None:
    rng = random.Random(1)
    async with await psycopg.AsyncConnection.connect(day.cluster.conninfo(), autocommit=True) as conn:
        works = rng.choices(list(WORKS.values()), [work.often for work in WORKS.values()], k=TRANSACTIONS)
        for number, work in enumerate([*works, WORKS["note"], WORKS["note"]]):
            tx = f"t{number}"
            day.write(event="begin", tx=tx)
            await conn.set_isolation_level(rng.choice(ISOLATIONS))
            try:
                async with conn.transaction():
                    detail = await work.do(conn, tx, rng)
                    if not work.alone:
                        await rows(conn, EFFECT, tx, json.dumps(detail))
            except (Nothing, psycopg.IntegrityError):
                continue
            day.write(event="commit", tx=tx, detail=None if work.alone else detail)
            day.write(event="told", tx=tx, outcome="committed", sqlstate=None, why=None)
            day.write(event="position", tx=tx, position=number + 1)


@pytest.fixture
def day(good: Day, tmp_path: Path) -> Day:
    """The day, at two replicas and with a record of the test's own."""
    shutil.copy(good.folder / "test.record", tmp_path)
    return Day(good.cluster, tmp_path)


# what goes wrong, where (nowhere named: everywhere), SQL that does the harm, and the checks that find it
VIOLATIONS: dict[str, tuple[tuple[str, ...], str, set[str]]] = {
    "a transaction lost": ((), f"DELETE FROM effect WHERE tx = {FOLLOWED}", {COMMITTED}),
    "one twice": ((), f"INSERT INTO effect SELECT * FROM effect WHERE tx = {FOLLOWED}", {COMMITTED, WHOLE}),
    "nobody's": ((), "INSERT INTO effect VALUES ('nobody', '{}')", {WHOLE}),
    "another one": ((), f"UPDATE effect SET detail = '{{\"else\": 1}}' WHERE tx = {FOLLOWED}", {WHOLE}),
    "a row lost at one": (("one",), "DELETE FROM document WHERE id = 3", {SAME}),
    "a row more at one": (("two",), "INSERT INTO follower SELECT 'x', min(id) FROM parent", {SAME}),
    "another row at one": (("one",), "UPDATE follower SET tx = 'x' WHERE tx = (SELECT min(tx) FROM follower)", {SAME}),
    "a row that no index has": (
        (),
        "UPDATE pg_index SET indisready = false WHERE indexrelid = 'follower_pkey'::regclass;"
        "INSERT INTO follower SELECT 'x', min(id) FROM parent;"
        "UPDATE pg_index SET indisready = true WHERE indexrelid = 'follower_pkey'::regclass",
        {INDEXES},
    ),
    "money made": ((), "UPDATE account SET balance = balance + 1 WHERE id = 1", {BALANCES, MONEY}),
    "half a transfer": ((), "UPDATE account SET balance = balance - 5 WHERE id = 2", {BALANCES, MONEY}),
    "another account": (
        (),
        "UPDATE account SET balance = balance + CASE id WHEN 1 THEN 1 ELSE -1 END WHERE id IN (1, 2)",
        {BALANCES},
    ),
    "a count lost": ((), "UPDATE counter SET n = n - 1 WHERE id = 1", {COUNTERS}),
    "a count lost, without a key": ((), "UPDATE tally SET n = n - 1 WHERE of = 1", {TALLIES}),
    "a row of several lost": ((), "DELETE FROM ticket WHERE ctid = (SELECT min(ctid) FROM ticket)", {TICKETS}),
    "a row of several twice": ((), "INSERT INTO ticket VALUES (1)", {TICKETS}),
    "one row of a group": ((), "UPDATE part SET version = version + 1 WHERE id = 1", {PARTS}),
    "a group once more": ((), "UPDATE part SET version = version + 1 WHERE of = 1", {PARTS}),
    "a name twice": (
        (),
        "ALTER TABLE name DROP CONSTRAINT name_pkey; INSERT INTO name SELECT * FROM name LIMIT 1",
        {UNIQUE, NAMES},
    ),
    "two of a name": (
        (),
        "ALTER TABLE name DROP CONSTRAINT name_pkey; UPDATE name SET name = (SELECT min(name) FROM name)",
        {UNIQUE},
    ),
    "a name lost": ((), "DELETE FROM name WHERE name = (SELECT min(name) FROM name)", {NAMES}),
    "another one's name": ((), "UPDATE name SET owner = 'x' WHERE name = (SELECT min(name) FROM name)", {NAMES}),
    "a booking lost": ((), "DELETE FROM booking WHERE tx = (SELECT min(tx) FROM booking)", {BOOKINGS}),
    "two bookings at the same time": (
        (),
        "DO $$ BEGIN EXECUTE 'ALTER TABLE booking DROP CONSTRAINT ' || (SELECT conname FROM pg_constraint"
        " WHERE conrelid = 'booking'::regclass AND contype = 'x'); END $$;"
        "UPDATE booking SET during = int4range(0, 500) WHERE tx = (SELECT min(tx) FROM booking)",
        {BOOKINGS},
    ),
    "two seats at one place": (
        (),
        "ALTER TABLE seat DROP CONSTRAINT seat_place_key; UPDATE seat SET place = 3 WHERE id = 2",
        {SEATS},
    ),
    "a row that no trigger has counted": ((), "UPDATE census SET n = n - 1 WHERE kind = 1", {CENSUS}),
    "a parent gone from its children": (
        (),
        "SET session_replication_role = replica; DELETE FROM parent WHERE id = (SELECT min(parent) FROM child)",
        {REFERENCES, PARENTS},
    ),
    "a child without a parent": (
        (),
        "SET session_replication_role = replica; INSERT INTO child VALUES ('x', 1000)",
        {REFERENCES, CHILDREN},
    ),
    "a child lost": ((), "DELETE FROM child WHERE tx = (SELECT min(tx) FROM child)", {CHILDREN}),
    "a text torn": ((), "UPDATE document SET body = body || 'x' WHERE id = 1", {DOCUMENTS}),
    "a text lost": ((), "UPDATE document SET revision = revision - 1 WHERE id = 1", {DOCUMENTS}),
    "a note lost": ((), "DELETE FROM note WHERE tx = (SELECT max(tx) FROM note WHERE NOT mark)", {NOTES}),
    "nobody's note": ((), "INSERT INTO note VALUES ('x', false)", {NOTES}),
    "a note that is gone": (
        (),
        "INSERT INTO note SELECT tx, false FROM effect WHERE detail ? 'note' AND tx NOT IN (SELECT tx FROM note)"
        " LIMIT 1",
        {NOTES},
    ),
    "nobody has emptied it": ((), "DELETE FROM note WHERE mark", {NOTES}),
    "emptied earlier": (
        (),
        "UPDATE note SET tx = (SELECT tx FROM effect WHERE detail ? 'emptied'"
        " AND tx <> (SELECT tx FROM note WHERE mark) LIMIT 1) WHERE mark",
        {NOTES},
    ),
    "what was appended is lost": (
        (),
        "UPDATE list SET elements = elements[2:] WHERE id = (SELECT min(id) FROM list)",
        {SNAPSHOTS},
    ),
    "what nobody has appended": (
        (),
        "UPDATE list SET elements = elements || '{x}' WHERE id = (SELECT min(id) FROM list)",
        {SNAPSHOTS},
    ),
}


def test_nothing_is_wrong(day: Day) -> None:
    assert day.audit() == set()


def test_there_is_something_of_everything(day: Day) -> None:
    facts = day.read("one")
    assert min(len(rows) for rows in facts.rows.values()) > 1
    for name in ("emptied", "released", "unbooked", "ended", "document", "tally"):
        assert len(list(facts.details(name))) > 1
    assert {kind for detail in facts.details("steps") for kind, *_ in detail["steps"]} == {"append", "read"}
    assert max(len(body) for *_, body, _ in facts.rows["document"]) > 10_000


@pytest.mark.parametrize("what", VIOLATIONS)
def test_violation(day: Day, what: str) -> None:
    where, sql, checks = VIOLATIONS[what]
    day.sql(sql, *where)
    assert day.audit() == checks


def test_a_lost_update_that_the_number_does_not_tell(day: Day) -> None:
    """Two say that they have made it the same."""
    n = dict(day.read("one").rows["counter"])[1]
    day.sql(f"UPDATE counter SET n = {n} + 1 WHERE id = 1")
    day.transaction("x", "committed", counter=1, n=n)
    day.effect("x", counter=1, n=n)
    assert day.audit() == {COUNTERS}


def test_told_not_to_have_happened(day: Day) -> None:
    day.transaction("x", "not", "40001")
    assert day.audit() == set()
    day.effect("x")
    assert day.audit() == {NOT}


def test_its_commit_was_not_sent(day: Day) -> None:
    day.write(event="begin", tx="x")
    assert day.audit() == set()
    day.effect("x")
    assert day.audit() == {NOT}


@pytest.mark.parametrize("told", ["unknown", None])
def test_not_known(day: Day, told: str | None) -> None:
    """Both are right, but not twice."""
    day.transaction("x", told)
    assert day.audit() == set()
    day.effect("x")
    assert day.audit() == set()
    day.effect("x")
    assert day.audit() == {WHOLE}


def test_a_note_of_which_the_position_is_not_known(day: Day) -> None:
    """Both are right."""
    day.transaction("x", "committed", note=True)
    day.effect("x", note=True)
    assert day.audit() == set()
    day.sql("INSERT INTO note VALUES ('x', false)")
    assert day.audit() == set()


def test_taken_back(day: Day) -> None:
    """What was rolled back to a savepoint is nobody's."""
    day.transaction("x", "committed")
    day.effect("x")
    assert day.audit() == set()
    day.effect("x undone")
    assert day.audit() == {WHOLE}


def test_a_snapshot_that_is_none(day: Day) -> None:
    """It has one half of what another one has appended to two lists."""
    steps = [["append", "one", "x"], ["append", "two", "y"]]
    day.transaction("x", "committed", steps=steps)
    day.effect("x", steps=steps)
    day.sql("INSERT INTO list VALUES ('one', '{x}'), ('two', '{y}')")
    day.write(event="read", tx="y", detail={"steps": [["read", "one", []], ["read", "two", []]]})
    day.write(event="read", tx="z", detail={"steps": [["read", "one", ["x"]], ["read", "two", ["y"]]]})
    assert day.audit() == set()
    day.write(event="read", tx="torn", detail={"steps": [["read", "one", ["x"]], ["read", "two", []]]})
    assert day.audit() == {SNAPSHOTS}
    assert day.audit(between=True) == set()  # who knows where it has read


@pytest.mark.parametrize("seen", [0, 1, 2])
@pytest.mark.parametrize("whose", ["own", "told"])
def test_looks(day: Day, whose: str, seen: int) -> None:
    day.write(event="look", tx="t1", whose=whose, at="one", found=seen)
    assert day.audit() == (set() if seen == 1 else {SESSIONS})


def test_unheard_of(day: Day) -> None:
    day.transaction("x", "not", "40001")
    assert day.audit() == set()
    day.transaction("y", "unknown", "XX000")
    assert day.audit() == {PROMISED}


def test_in_between(day: Day) -> None:
    """What was committed up to the replica's position has to be there, and what comes later does not."""
    day.transaction("x", "committed")
    assert day.audit(between=True, position=1000) == set()
    day.write(event="position", tx="x", position=1001)
    assert day.audit(between=True, position=1000) == set()
    assert day.audit(between=True, position=1001) == {COMMITTED}
    day.effect("x")
    assert day.audit(between=True, position=1001) == set()


def test_at_several_positions(day: Day) -> None:
    """Those may differ, but not in the end."""
    day.sql("UPDATE follower SET tx = 'x' WHERE tx = (SELECT min(tx) FROM follower)", "two")
    one, two = map(day.read, REPLICAS)
    record = read_record(day.folder)
    assert found(audit({"one": one, "two": two}, record, between=True)) == {SAME}
    later = replace(two, position=1)
    assert found(audit({"one": one, "two": later}, record, between=True)) == set()
    assert found(audit({"one": one, "two": later}, record)) == {SAME}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (psycopg.errors.SerializationFailure(), "not"),
        (psycopg.errors.QueryCanceled(), "not"),
        (psycopg.errors.UniqueViolation(), "not"),
        (psycopg.errors.TransactionResolutionUnknown(), "unknown"),
        (psycopg.errors.AdminShutdown(), "unknown"),
        (psycopg.errors.InternalError_(), "unknown"),
        (psycopg.OperationalError(), "unknown"),
        (TimeoutError(), "unknown"),
    ],
)
def test_what_an_error_at_commit_tells(error: BaseException, expected: str) -> None:
    assert outcome(error) == expected


def test_results(day: Day) -> None:
    """Of two that have worked a request, at the same time or one after the other."""
    day.write(event="begin", tx="request")
    day.write(event="commit", tx="request", detail=None)
    day.effect("request", note=True)
    told = {"event": "told", "tx": "request", "outcome": "committed", "sqlstate": None, "why": None}
    for _ in range(2):
        day.write(**told, result={"note": True})
    day.sql("INSERT INTO note VALUES ('request', false)")
    assert day.audit() == set()
    day.write(**told, result={"note": False})
    assert day.audit() == {RESULTS}
