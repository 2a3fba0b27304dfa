"""DBT-2++ and the clients of bench.ssi: its checks see what is wrong, and what they do takes effect once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from pgmip.testing import Cluster

from bench.rounds import METHODS, create_database
from bench.serializable import dbt2, families
from bench.serializable.client import (
    COMMIT,
    DEPENDENCIES,
    INSTANCE,
    TWO_PHASE,
    Ending,
    Failed,
    Session,
    Tally,
    Work,
    driving,
    perform,
)
from bench.serializable.dbt2 import CHECKS, Store, count_anomalies
from bench.serializable.measured import SI, SSI
from bench.ssi import SETTINGS


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Cluster("ssi", settings=SETTINGS | {"shared_buffers": "256MB"}) as cluster:
        cluster.create_database("heap")
        create_database(cluster, "mip")
        made = Store(cluster, 1)
        made.load()
        yield made


def _ask(store: Store, sql: str) -> int:
    return int(store.cluster.run_sql(sql, dbname="mip")[0][0])


def _seeds(store: Store, district: int, count: int) -> list[int]:
    """With which this district is chosen."""
    sql = f"SELECT seed FROM generate_series(1, 1000) seed WHERE choose(seed, 2, 1, 10) = {district} LIMIT {count}"
    return [int(seed) for (seed,) in store.cluster.run_sql(sql, dbname="mip")]


# -- the anomaly -----------------------------------------------------------------------------------------------------

# What there is of checks beside an order 4000: their numbers, and the last order that they have seen. How many
# anomalies that is if the order has seen none of them, and if it has seen the first.
STATES: dict[str, tuple[list[tuple[int, int]], tuple[int, int]]] = {
    "no check": ([], (0, 0)),
    "a check that has seen the order": ([(1, 4000)], (0, 0)),
    "a check that has not": ([(1, 3999)], (1, 0)),
    "the first has not, the second has": ([(1, 3999), (2, 4000)], (1, 0)),
    "two that have not": ([(1, 3999), (2, 3999)], (2, 1)),
}


@pytest.mark.parametrize("what", STATES)
@pytest.mark.parametrize("seen", [0, 1])
def test_an_anomaly_by_hand(store: Store, what: str, seen: int) -> None:
    checks, anomalies = STATES[what]
    before = count_anomalies(store.cluster, "mip")
    with psycopg.connect(store.cluster.conninfo("mip")) as conn:
        conn.execute("INSERT INTO orders VALUES (1, 9, 4000, 1, now(), NULL, 1, %s)", (seen,))
        for number, last in checks:
            conn.execute("INSERT INTO credit_check VALUES (1, 9, 1, %s, %s)", (number, last))
            conn.execute("INSERT INTO credit_check VALUES (1, 9, 2, %s, 3999), (1, 8, 1, %s, 3999)", 2 * (number,))
        found = conn.execute(dbt2.ANOMALIES.encode()).fetchall()[0][0] - before
        conn.rollback()
    assert found == anomalies[seen]


@pytest.mark.parametrize(("level", "district"), [(SI, 3), (SSI, 4)])
def test_the_credit_check_and_an_order(store: Store, level: str, district: int) -> None:
    """Each does its work without having seen the other one."""
    conninfo = store.cluster.conninfo("mip")
    order, check = _seeds(store, district, 2)
    before = count_anomalies(store.cluster, "mip")
    with closing(Session(conninfo)) as one, closing(Session(conninfo)) as other:
        one.send(f"BEGIN ISOLATION LEVEL {level}", f"SELECT enter_order(1, 1, {order})")
        other.send(f"BEGIN ISOLATION LEVEL {level}", f"SELECT check_credit(1, 1, {check})")
        one.send("COMMIT")
        if level == SSI:
            with pytest.raises(Failed) as failed:
                other.send("COMMIT")
            assert failed.value.kind == DEPENDENCIES
        else:
            other.send("COMMIT")
    assert count_anomalies(store.cluster, "mip") - before == (level == SI)


# -- the data --------------------------------------------------------------------------------------------------------

DAMAGE = {
    "a district's orders are those that it has numbered": "UPDATE district SET d_next_o_id = d_next_o_id + 1",
    "an order has all its lines": "DELETE FROM order_line WHERE (ol_w_id, ol_d_id, ol_o_id, ol_number) = (1, 1, 7, 1)",
    "what is not delivered is a new order": "DELETE FROM new_order WHERE (no_w_id, no_d_id, no_o_id) = (1, 1, 3000)",
    "a customer has paid what the history says, and owes what was delivered":
        "UPDATE customer SET c_balance = c_balance + 1 WHERE (c_w_id, c_d_id, c_id) = (1, 1, 1)",
}  # fmt: skip


def test_every_transaction_keeps_the_data_right(store: Store) -> None:
    tally = Tally()
    with closing(Session(store.cluster.conninfo("mip"))) as session:
        for name in dbt2.STANDARD:
            for seed in range(20):
                work = Work(name, [f"SELECT {name}(1, 3000, {seed})"], only_reads=name in dbt2.READ_ONLY)
                perform([session], SSI, COMMIT, work, tally)
    assert tally.committed == dict.fromkeys(dbt2.STANDARD, 20)
    assert not tally.failed
    store.check()


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_seen(store: Store, what: str) -> None:
    with psycopg.connect(store.cluster.conninfo("mip")) as conn:
        conn.execute(DAMAGE[what].encode())
        assert conn.execute(CHECKS[what].encode()).fetchall() == [(False,)]
        conn.rollback()


def test_what_is_in_doubt_is_seen(store: Store) -> None:
    with closing(Session(store.cluster.conninfo("heap"))) as session:
        session.send("BEGIN", "DELETE FROM new_order WHERE no_o_id = 0")
        session.send("PREPARE TRANSACTION 'left'")
        try:
            with pytest.raises(SystemExit, match="nothing is in doubt"):
                store.check()
        finally:
            session.send("ROLLBACK PREPARED 'left'")
    store.check()


# -- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "attempts"), [(COMMIT, 1), (TWO_PHASE, 1), (INSTANCE, 1), (INSTANCE, 2)])
def test_a_request_takes_effect_once(store: Store, ending: Ending, attempts: int) -> None:
    tally, paid = Tally(), "SELECT count(*) FROM history"
    before = _ask(store, paid)
    sessions = [Session(store.cluster.conninfo("mip")) for _ in range(attempts)]
    perform(sessions, SSI, ending, Work("pay", ["SELECT pay(1, 3000, 5)", "SELECT"]), tally)
    for session in sessions:
        session.close()
    assert (tally.requests, tally.attempts, tally.both_prepared) == (1, attempts, attempts - 1)
    assert _ask(store, paid) - before == 1


@pytest.mark.parametrize("left", ["prepared", "running"])
def test_a_request_that_fails_over_takes_effect_once(store: Store, left: str) -> None:
    tally, paid = Tally(), "SELECT count(*) FROM history"
    before = _ask(store, paid)
    asked = iter([False, False, False, True])
    client = families.failing_over(store, SSI, 1, [left], {"pay": 1}, 3000, tally, seed=1)
    client(lambda: next(asked))
    assert (tally.requests, tally.attempts, tally.failed.total()) == (3, 6, 0)
    assert _ask(store, paid) - before == 3
    store.check()


@pytest.mark.parametrize("left", ["prepared", "running"])
def test_where_the_second_attempt_fails_the_request_takes_effect_once(store: Store, left: str) -> None:
    conninfo = store.cluster.conninfo("mip")
    tally, paid = Tally(), "SELECT count(*) FROM history"
    before = _ask(store, paid)
    request = families.Request(SSI, Work("pay", ["SELECT pay(1, 3000, 5)"]), tally)
    with closing(Session(conninfo)) as first, closing(_Failing(conninfo)) as second:
        families.fail_over(first, second, request, left)
    assert tally.attempts == (2 if left == "prepared" else 3)
    assert tally.failed == {DEPENDENCIES: 1}
    assert _ask(store, paid) - before == 1
    store.check()


class _Failing(Session):
    """The first message fails."""

    failed = False

    def send(self, *statements: str) -> bytes:
        if not self.failed:
            self.failed = True
            raise Failed(DEPENDENCIES)
        return super().send(*statements)


def test_clients_that_fail_are_told_of() -> None:
    class Wrong(Exception):
        pass

    def wrong(over: Callable[[], bool]) -> None:
        raise Wrong

    def right(over: Callable[[], bool]) -> None:
        while not over():
            time.sleep(0.001)

    with pytest.raises(Wrong), driving([right, wrong]):
        pass


def test_a_request_runs_again_when_all_its_attempts_have_failed(store: Store) -> None:
    """Somebody else updates the row, after the attempts have looked for the first time."""
    conninfo = store.cluster.conninfo("mip")
    tally, sessions = Tally(), [Session(conninfo), _Disturbed(conninfo, store)]
    row = "WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 77"
    before = _ask(store, f"SELECT c_checks FROM customer {row}")
    work = Work("check", [f"SELECT c_id FROM customer {row}", f"UPDATE customer SET c_checks = c_checks + 1 {row}"])
    perform(sessions, SSI, INSTANCE, work, tally)
    for session in sessions:
        session.close()
    assert (tally.requests, tally.attempts, tally.both_prepared) == (1, 4, 1)
    assert tally.failed == {"concurrent_update": 2}
    assert _ask(store, f"SELECT c_checks FROM customer {row}") - before == 2


class _Disturbed(Session):
    """Beside which something happens once, after its first message."""

    def __init__(self, conninfo: str, store: Store) -> None:
        super().__init__(conninfo)
        self._store: Store | None = store

    def send(self, *statements: str) -> bytes:
        found = super().send(*statements)
        if self._store is not None:
            store, self._store = self._store, None
            store.cluster.run_sql("UPDATE customer SET c_checks = c_checks + 1 WHERE c_id = 77", dbname="mip")
        return found


def test_both_copies_are_alike(store: Store) -> None:
    sql = "SELECT count(*), sum(ol_amount), (SELECT sum(c_last) FROM customer) FROM order_line WHERE ol_o_id <= 3000"
    assert len({str(store.cluster.run_sql(sql, dbname=method)) for method in METHODS}) == 1
