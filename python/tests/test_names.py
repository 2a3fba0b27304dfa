"""XINSTs, XIDs, canonical texts, and what an SQLSTATE means."""

from __future__ import annotations

import json
import math
import time
import uuid
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgmip._json import canonical, parse
from pgmip._sqlstate import is_protocol, is_retryable
from pgmip.xinst import MAX_XINST, new_xid, new_xinst


def test_xinsts_are_ordered_by_time_and_differ() -> None:
    first = new_xinst()
    time.sleep(0.005)
    later = [new_xinst() for _ in range(100)]
    assert all(first < xinst <= MAX_XINST for xinst in later)
    assert len(set(later)) == 100


@given(st.integers(0, MAX_XINST - 2**22))
def test_an_xinst_is_above_what_was_seen(above: int) -> None:
    assert above < new_xinst(above) <= MAX_XINST


def test_no_room_above() -> None:
    with pytest.raises(OverflowError):
        new_xinst(MAX_XINST)


def test_xids_are_uuids_that_carry_their_time() -> None:
    first = uuid.UUID(new_xid())
    time.sleep(0.005)
    second = uuid.UUID(new_xid())
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first < second
    assert abs((first.int >> 80) / 1000 - time.time()) < 60


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


@pytest.mark.parametrize("value", [object(), {1, 2}, math.nan, math.inf, b""])
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(value)


def error(state: str) -> psycopg.Error:
    raised = psycopg.Error()
    raised.sqlstate = state
    return raised


@pytest.mark.parametrize(
    ("raised", "retry"),
    [
        *((error(state), True) for state in ("MP001", "MP002", "MP004", "MP005", "40001", "40P01", "57P01")),
        *((error(state), False) for state in ("MP003", "MP006", "23505", "42P01", "22012", "57014")),
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
    assert not is_protocol(error("40001"))
    assert not is_protocol(psycopg.OperationalError())
    assert not is_protocol(None)
