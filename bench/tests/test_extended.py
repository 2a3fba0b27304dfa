"""The load client of bench.extended: it does what it counts, and an error ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from pgmip.testing import Cluster

from bench import extended
from bench.cases import ENDS, REQUEST, draw, method
from bench.extended import Load, run, run_apart
from bench.rounds import load

Loads = Callable[..., Load]
PREPARED = "SELECT count(*) FROM pg_prepared_xacts"
BALANCES = """
    SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
           (SELECT sum(bbalance) FROM pgbench_branches), (SELECT count(*) FROM request),
           (SELECT count(*) FROM mip.mipt WHERE NOT aborted)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Cluster]:
    with Cluster("load") as cluster:
        load(cluster, scale=1)
        cluster.run_sql(REQUEST, dbname="mip")
        cluster.run_sql(REQUEST, dbname="heap")
        yield cluster


@pytest.fixture
def loads(site: Cluster) -> Loads:
    def make(case: str, clients: int = 3, dbname: str = "") -> Load:
        return Load(site.conninfo(dbname or method(case)), case, "712", scale=1, clients=clients, seconds=0.2)

    return make


def _always(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """Draw these values."""
    monkeypatch.setattr(extended, "draw", lambda scale: draw(scale) | values)


def _balances(site: Cluster, case: str) -> tuple[int, ...]:
    return tuple(map(int, site.run_sql(BALANCES, dbname=method(case))[0]))


@pytest.mark.parametrize("case", ENDS)
def test_what_is_counted_is_committed(site: Cluster, loads: Loads, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    _always(monkeypatch, delta=1)
    before = _balances(site, case)
    done = run(loads(case))
    grown = [b - a for a, b in zip(before, _balances(site, case), strict=True)]
    committed = done.before + done.transactions
    assert done.before == 3
    assert done.transactions >= 3
    assert done.seconds >= 0.2
    assert grown[:3] == [committed] * 3
    assert grown[3] == (committed if case in ("a+k", "c") else 0)
    assert grown[4] == (committed if method(case) == "mip" else 0)
    assert site.run_sql(PREPARED) == [(0,)]


def test_who_is_refused_ends_with_the_error(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    _always(monkeypatch, xid="the same")
    with pytest.raises(psycopg.errors.UniqueViolation, match="request_pkey"):
        run(loads("a+k", clients=1))


def test_in_a_process_of_its_own(loads: Loads) -> None:
    assert run_apart(loads("fb")).transactions >= 3
    with pytest.raises(SystemExit, match='relation "pgbench_accounts" does not exist'):
        run_apart(loads("a", dbname="postgres"))
