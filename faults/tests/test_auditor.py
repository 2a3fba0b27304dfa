"""The auditor finds every kind of violation that is planted, and none where there is none."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from faults import auditor

from .conftest import Day

ANSWERS = "every answer of a request is the same, byte for byte"
TOLD = "callers are told what was answered"
DONE = "what was answered is in effect once at each of its sites, with that result"
WHOLE = "whatever is in effect is so once, at all of its sites, by one attempt"
NEVER = "what was said not to have happened has not"
BALANCES = "balances are the sum of their entries"
ENTRIES = "entries are what their requests say"
MONEY = "no money was made or lost"
STOCKS = "stocks are what was not taken"
TALLIES = "hot rows have counted every request"
SERIAL = "what was SERIALIZABLE has a serial order"
WINNERS = "one instance of a request is committed, the same everywhere"
LEFT = "nothing is left behind"
STANDBYS = "standbys hold the same"

KEY = "(SELECT max(e_key) FROM effect)"

# what goes wrong, site, SQL that does the harm, and the checks that find it
VIOLATIONS = {
    "an effect twice": (
        "birch",
        "INSERT INTO effect (e_key, e_nonce, e_part) SELECT e_key, e_nonce, e_part FROM effect"
        f" WHERE e_key = {KEY}; UPDATE tally SET t_count = t_count + 1 WHERE t_id = 1",
        {DONE, WHOLE},
    ),
    "an effect lost": ("ash", f"DELETE FROM effect WHERE e_key = {KEY}", {DONE, TALLIES}),
    "an effect at some sites only": (
        "cedar",
        f"DELETE FROM effect WHERE e_key = {KEY}; UPDATE tally SET t_count = t_count - 1 WHERE t_id = 1",
        {DONE},
    ),
    "the effect of another attempt": (
        "ash",
        f"UPDATE effect SET e_nonce = 'another' WHERE e_key = {KEY}",
        {DONE},
    ),
    "another result": (
        "ash",
        f"UPDATE effect SET e_part = e_part || '{{\"status\": \"no money\"}}' WHERE e_key = {KEY}",
        {DONE},
    ),
    "nobody's effect": (
        "ash",
        "INSERT INTO effect (e_key, e_nonce, e_part) VALUES ('nobody', 'x', '{}');"
        " UPDATE tally SET t_count = t_count + 1 WHERE t_id = 1",
        {WHOLE},
    ),
    "a balance": ("birch", "UPDATE account SET a_balance = a_balance + 1 WHERE a_id = 3", {BALANCES, MONEY}),
    "an entry twice": (
        "cedar",
        "INSERT INTO entry (n_key, n_account, n_change) SELECT n_key, n_account, n_change FROM entry"
        " WHERE n_change <> 0 LIMIT 1",
        {BALANCES, ENTRIES},
    ),
    "money on the way": (
        "ash",
        "WITH lost AS (DELETE FROM entry WHERE n_id = (SELECT max(n_id) FROM entry WHERE n_change <> 0) RETURNING *)"
        " UPDATE account SET a_balance = a_balance - n_change FROM lost WHERE a_id = n_account",
        {ENTRIES, MONEY},
    ),
    "a stock": ("ash", "UPDATE item SET i_stock = i_stock - 1 WHERE i_id = 2", {STOCKS}),
    "a lost update of a hot row": ("cedar", "UPDATE tally SET t_count = t_count - 1 WHERE t_id = 0", {TALLIES}),
    "another instance committed": (
        "birch",
        "UPDATE mip.mipt SET xinst = xinst + 1 WHERE xid = (SELECT max(e_key) FROM effect"
        " WHERE e_part ? 'changes' AND e_key IN (SELECT xid FROM mip.mipt WHERE cardinality(sites) > 1))",
        {WINNERS},
    ),
    "a list that has lost an element": (
        "cedar",
        "UPDATE list SET l_elements = l_elements[2:] WHERE l_elements <> '{}'",
        {SERIAL},
    ),
    "a prepared transaction": (
        "birch",
        "BEGIN; SELECT mip.begin('left', 1, '{birch,cedar}'); SELECT xinst FROM mip.prepare('r', 'r')",
        {LEFT},
    ),
}


def test_nothing_wrong(day: Day) -> None:
    assert day.audit() == set()


@pytest.mark.parametrize("what", VIOLATIONS)
def test_violations(day: Day, what: str) -> None:
    site, sql, found = VIOLATIONS[what]
    with psycopg.connect(day.cluster.conninfo(site), autocommit=True) as conn:
        for statement in sql.split("; "):
            conn.execute(statement.encode())
    assert day.audit() >= found
    assert day.audit() <= found | {DONE, WHOLE, ENTRIES, TALLIES, LEFT, WINNERS, SERIAL}


def test_a_partial_effect_that_nobody_was_told_of(day: Day) -> None:
    key = day.answer("order")["key"]
    events = [event for event in day.events if event["key"] != key or event["event"] == "send"]
    (day.folder / "test.requests").unlink()
    day.log(*events)
    assert day.audit() == set()
    day.cluster.run_sql(f"DELETE FROM effect WHERE e_key = '{key}'", dbname="ash")
    assert WHOLE in day.audit()


@pytest.mark.parametrize("everywhere", [True, False])
def test_later_in_the_order_than_in_time(day: Day, everywhere: bool) -> None:
    """Who has appended first to some list began when the second one was over."""
    sql = """
        SELECT f.e_key FROM list JOIN effect f ON f.e_nonce = split_part(l_elements[1], '.', 1)
        JOIN effect s ON s.e_nonce = split_part(l_elements[2], '.', 1) WHERE f.e_key <> s.e_key LIMIT 1
    """
    [(first,)] = day.cluster.run_sql(sql, dbname="cedar")
    events = [{**event, "time": event["time"] + 1000 * (event["key"] == first)} for event in day.events]
    (day.folder / "test.requests").unlink()
    day.log(*events)
    if not everywhere:
        day.cluster.run_sql("ALTER DATABASE ash SET mip.serializable = site", dbname="ash")
    assert day.audit() == ({SERIAL} if everywhere else set())


def test_different_answers(day: Day) -> None:
    answer = day.answer("order")
    day.log({**answer, "body": answer["body"].replace(": ", ":")})
    assert day.audit() == {ANSWERS}


def test_a_caller_is_told_something_else(day: Day) -> None:
    answer = day.answer("order")
    day.log({**answer, "event": "told", "result": json.loads(answer["body"]) | {"status": "sold out"}})
    assert day.audit() == {TOLD}


def test_an_answer_without_effect(day: Day) -> None:
    answer = day.answer("restock")
    send = {"event": "send", "path": "/restock", "body": "{}"}
    day.log({**answer, **send, "key": "new"}, {**answer, "key": "new"})
    assert day.audit() == {DONE}


def denied(day: Day, *, told: str | None = None, answered: str | None = None) -> dict[str, Any]:
    """An order that is in effect, but whose one call came to this; the event of its transmission."""
    key = day.answer("order")["key"]
    kept = [event for event in day.events if event["key"] != key or event["event"] == "send"]
    send = next(event for event in kept if event["key"] == key)
    later = {**send, "clock": send["clock"] + 1}
    (day.folder / "test.requests").unlink()
    day.log(*kept)
    if answered is not None:
        body = json.dumps({"type": f"urn:pgmip:problem:{answered}"})
        day.log({**later, "event": "answer", "status": 500, "body": body})
    if told is not None:
        day.log({**later, "event": "told", "error": told})
    return send


@pytest.mark.parametrize("error", auditor.NEVER)
def test_told_never_but_done(day: Day, error: str) -> None:
    denied(day, told=error)
    assert day.audit() == {NEVER}


@pytest.mark.parametrize("problem", auditor.NEVER.values())
def test_answered_never_but_done(day: Day, problem: str) -> None:
    denied(day, answered=problem)
    assert day.audit() == {NEVER}


@pytest.mark.parametrize("problem", ["unknown", "in-progress", "expired"])
def test_answered_nothing_of_the_kind(day: Day, problem: str) -> None:
    denied(day, answered=problem)
    assert day.audit() == set()


def test_told_unknown(day: Day) -> None:
    denied(day, told="Unknown")
    assert day.audit() == set()


@pytest.mark.parametrize("sent", [2.0, 0.5, -1.0])
def test_never_unless_anew(day: Day, sent: float) -> None:
    """After it was said; meanwhile; or before, and still on its way to a site then."""
    send = denied(day, told="NothingHappened", answered="failed")
    other = {**send, "number": "other", "call": "other", "clock": send["clock"] + sent}
    day.log(other)
    assert day.audit() == set()


def test_another_transmission_of_the_same_call_is_not_anew(day: Day) -> None:
    send = denied(day)
    day.log({**send, "number": "other"}, {**send, "event": "told", "error": "NothingHappened"})
    assert day.audit() == {NEVER}


def test_what_has_been_answered_before_is_not_anew(day: Day) -> None:
    send = denied(day, told="NothingHappened")
    other = {**send, "number": "other", "call": "other", "clock": send["clock"] - 2}
    answer = {**other, "event": "answer", "status": 503, "body": "", "clock": send["clock"] - 1}
    day.log(other, answer)
    assert day.audit() == {NEVER}


def test_what_a_site_knew_before_is_not_anew(day: Day) -> None:
    send = denied(day, told="NothingHappened")
    other = {**send, "number": "other", "call": "other", "clock": send["clock"] - 1}
    day.log(other)
    assert day.audit() == set()
    earlier = f"UPDATE effect SET e_begun = e_begun - interval '1 s' WHERE e_key = '{send['key']}'"
    day.cluster.run_sql(earlier, dbname="ash")
    assert day.audit() == {NEVER}


def test_what_was_sent_long_before_is_not_anew(day: Day) -> None:
    send = denied(day, told="NothingHappened")
    day.log({**send, "number": "other", "call": "other", "clock": send["clock"] - auditor.LATE})
    assert day.audit() == {NEVER}


def test_cancelled_is_for_ever(day: Day) -> None:
    send = denied(day, told="Cancelled")
    day.log({**send, "number": "other", "call": "other", "clock": send["clock"] + 2})
    assert day.audit() == {NEVER}


def test_other_tables_at_the_standby(day: Day, tmp_path: object) -> None:
    site = auditor.read_site(day.cluster.conninfo("ash"), day.cluster.conninfo("birch"))
    findings = auditor.audit({"ash": site}, auditor.Log())
    assert STANDBYS in {finding.check for finding in findings if finding.violations}
