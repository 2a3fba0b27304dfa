"""XINSTs, XIDs, canonical texts, what an SQLSTATE means, and where the extension is called by its names."""

from __future__ import annotations

import ast
import json
import math
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmip import xinst
from pgmip._family import _pause
from pgmip._json import canonical, parse
from pgmip._sqlstate import is_protocol, is_retryable
from pgmip.xinst import MAX_XINST, new_xid, new_xinst, xid_time

MS = 1_000_000  # nanoseconds
TICK = 16 * MS
NOW = time.time_ns()
CLOCKS = st.integers(-(2**63), 2**63 - 1)  # of any machine, however wrong


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock, in nanoseconds since 1970."""
    return lambda now: monkeypatch.setattr(xinst, "clock", lambda: now)


def xinst_at(now: int, above: int = 0) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xinst, "clock", lambda: now)
        return new_xinst(above)


def test_xinsts_are_ordered_by_time() -> None:
    last = 0
    for tick in range(100):
        last, before = xinst_at(NOW + tick * TICK), last
        assert before < last <= MAX_XINST


def test_xinsts_of_one_moment_differ(clock: Callable[[int], None]) -> None:
    clock(NOW)
    drawn = [new_xinst() for _ in range(1000)]
    assert len(set(drawn)) > 990
    assert max(drawn) - min(drawn) < 2**26


@given(CLOCKS, st.integers(0, MAX_XINST - 1))
def test_an_xinst_is_above_what_was_seen(now: int, above: int) -> None:
    assert above < xinst_at(now, above) <= MAX_XINST


@given(st.lists(CLOCKS, min_size=2, max_size=40))
def test_attempts_go_on_whatever_the_clocks_say(clocks: list[int]) -> None:
    seen = 0
    for now in clocks:
        seen, before = xinst_at(now, seen), seen
        assert before < seen
    assert MAX_XINST - seen > 2**58, "room for as many again"


def test_a_clock_that_goes_back() -> None:
    first = xinst_at(NOW)
    second = xinst_at(NOW - 86_400_000 * MS, above=first)
    assert first < second <= first + 2**26
    assert xinst_at(NOW + TICK, above=second) > second


def test_the_last_xinsts(clock: Callable[[int], None]) -> None:
    clock(NOW)
    for above in range(MAX_XINST - 3, MAX_XINST):
        assert above < new_xinst(above) <= MAX_XINST
    seen, attempts = MAX_XINST - 2**26, 0
    while seen < MAX_XINST:
        seen, attempts = new_xinst(seen), attempts + 1
    assert attempts > 15, "the end is approached in smaller and smaller steps"
    with pytest.raises(OverflowError):
        new_xinst(MAX_XINST)


def test_xids_are_uuids_that_carry_their_time(clock: Callable[[int], None]) -> None:
    clock(NOW)
    first = new_xid()
    clock(NOW + MS)
    second = new_xid()
    assert (uuid.UUID(first).version, uuid.UUID(first).variant) == (7, uuid.RFC_4122)
    assert first < second
    assert (xid_time(first), xid_time(second)) == (NOW // MS, NOW // MS + 1)
    assert len({new_xid() for _ in range(1000)}) == 1000


@given(CLOCKS)
def test_a_clock_that_is_wrong_makes_xids_all_the_same(now: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xinst, "clock", lambda: now)
        assert xid_time(new_xid()) == min(max(now // MS, 0), 2**48 - 1)


@pytest.mark.parametrize(
    ("xid", "time"),
    [
        ("00000000-0000-7000-8000-000000000000", 0),
        ("019a9b1c-2d3e-7fff-bfff-ffffffffffff", 0x019A9B1C2D3E),
        ("ffffffff-ffff-7fff-bfff-ffffffffffff", 2**48 - 1),
        ("019A9B1C-2D3E-7FFF-BFFF-FFFFFFFFFFFF", None),
        ("019a9b1c2d3e7fffbfffffffffffffff", None),
        ("{019a9b1c-2d3e-7fff-bfff-ffffffffffff}", None),
        ("urn:uuid:019a9b1c-2d3e-7fff-bfff-ffffffffffff", None),
        ("019a9b1c-2d3e-4fff-bfff-ffffffffffff", None),
        ("019a9b1c-2d3e-7fff-cfff-ffffffffffff", None),
        ("019a9b1c-2d3e-7fff-7fff-ffffffffffff", None),
        ("019a9b1c-2d3e-7fff-bfff-fffffffffff", None),
        ("019a9b1c-2d3e-7fff-bfff-ffffffffffff ", None),
        ("019a9b1c-2d3e-7fff-bfff-fffffffffffg", None),
        ("8f1c", None),
        ("", None),
    ],
)
def test_the_time_in_an_xid(xid: str, time: int | None) -> None:
    assert xid_time(xid) == time


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_a_value_has_one_text(value: Any) -> None:
    text = canonical(value)
    assert text.isascii()
    assert "\0" not in text
    assert canonical(parse(text)) == text
    assert parse(text) == json.loads(json.dumps(value))


@given(st.dictionaries(st.text(), st.integers()))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@given(st.lists(st.dictionaries(st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.integers())))
def test_keys_that_are_numbers(value: Any) -> None:
    """They are strings in JSON, and sorted as such: whoever has read them again says the same."""
    text = canonical(value)
    assert canonical(parse(text)) == text
    assert parse(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize("value", [object(), {1, 2}, math.nan, math.inf, b""])
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(value)


class _OfTheExtension(psycopg.Error):
    @property
    def diag(self) -> Any:
        return SimpleNamespace(source_function="mip_raise")


class _OfADblink(psycopg.Error):
    @property
    def diag(self) -> Any:
        return SimpleNamespace(source_function="dblink_get_conn", severity_nonlocalized="ERROR")


def error(state: str, kind: type[psycopg.Error] = _OfTheExtension) -> psycopg.Error:
    raised = kind()
    raised.sqlstate = state
    return raised


@pytest.mark.parametrize(
    ("raised", "retry"),
    [
        *((error(state), True) for state in ("MP001", "MP002", "MP004", "MP005", "40001", "40P01", "57P01")),
        *((error(state), False) for state in ("MP003", "MP006", "23505", "42P01", "22012", "57014")),
        *((error(state, psycopg.Error), True) for state in ("08P01", "08006", "57P05")),
        (error("08001", _OfADblink), False),
        *((error(state, psycopg.Error), False) for state in ("MP001", "MP002", "MP004", "MP005")),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters were passed"), False),
        (ValueError("a bug of the handler"), False),
    ],
)
def test_what_a_new_instance_may_do_better(raised: Exception, retry: bool) -> None:
    assert is_retryable(raised) is retry


def test_protocol_errors() -> None:
    assert is_protocol(error("MP003"))
    assert is_protocol(error("MP006", psycopg.Error))
    assert not is_protocol(error("MP003", psycopg.Error))
    assert not is_protocol(error("40001"))
    assert not is_protocol(psycopg.OperationalError())
    assert not is_protocol(None)


@given(st.integers(1, 10**9), st.floats(0, 1e6))
def test_pauses_are_bounded_by_what_they_are_for(number: int, took: float) -> None:
    assert 0 <= _pause(number, took) <= max(0.5, 2 * took)


def test_pauses_grow_until_an_attempt_fits() -> None:
    def longest(number: int, took: float) -> float:
        return max(_pause(number, took) for _ in range(200))

    assert longest(1, 10) < 0.011, "the first retry follows at once"
    assert longest(20, 10) > 10, "later ones leave room for whole attempts"
    assert longest(20, 0) <= 0.5


def test_sql_for_the_extension_is_in_one_module() -> None:
    package = Path(xinst.__file__).parent
    modules = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and re.search(r"\b(SELECT|FROM|JOIN|LATERAL)\s+mip\.", str(node.value))
    }
    assert modules == {"_sql.py"}
