"""What bench.commit lets pgbench do, and what it makes of what it has measured."""

from __future__ import annotations

import argparse
import re

import pytest

from bench.cases import CASES, messages
from bench.commit import Cell, Measured, Results, script, summary
from bench.rounds import names

XID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7:m-8:m-:n")
TOLD = """\
\\if :first
PREPARE account AS UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2;
PREPARE read_accounts AS SELECT abalance FROM pgbench_accounts WHERE aid = $1;
PREPARE teller AS UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2;
PREPARE branch AS UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2;
PREPARE key AS INSERT INTO request (key, request, result) VALUES ($1, $2, $3);
\\set first 0
\\endif
\\set aid random(1, 100000 * :scale)
\\set bid random(1, :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
\\set m random(100, 999)
\\set n random(100000000000, 999999999999)
BEGIN\\; EXECUTE account(:delta, :aid);
EXECUTE read_accounts(:aid);
EXECUTE teller(:delta, :tid);
EXECUTE branch(:delta, :bid)\\; EXECUTE key('XID', '{"aid": :aid, "delta": :delta}', '{"done": true}')\\; \
PREPARE TRANSACTION 'XID';
COMMIT PREPARED 'XID';
"""


def test_a_script_is_the_messages_of_its_case() -> None:
    assert XID.sub("XID", script("c", "600")) == TOLD
    for case in CASES:
        lines = script(case, "712").partition("\\set n ")[2].splitlines()[1:]
        assert [len(line.split("\\; ")) for line in lines] == [len(message) for message in messages(case, "712")]
    assert script("e", "600").splitlines()[1] == "SET mip.synchronous_commit_prepared = off;"


def _results(flush: str, **rates: float) -> Results:
    """In the second round everything takes twice as long."""
    cells = [Cell("extended", flush, scale, "600", 5) for scale in (1, 100)]
    return {
        cell: {case: [Measured(100 * rates.get(case, 1) / turn, 0, 0) for turn in (1, 2)] for case in CASES}
        for cell in cells
    }  # fmt: skip


def test_cells_below_their_target_are_told() -> None:
    as_it_is, slow = _results("as it is", d=0.99, e=1.2, f=0.86), _results("2 ms", a=2, e=1.5, f=1.9)
    told = summary(as_it_is | slow | _results("off"))
    assert told[2::3] == [
        "| d / c | as it is | 0.99 | 0.99 | 0.99 | 2 of 2 (1) |",
        "| e / c | as it is | 1.20 | 1.20 | 1.20 | 0 of 2 (1.15) |",
        "| f / a+k | as it is | 0.86 | 0.86 | 0.86 | 2 of 2 (0.95) |",
        "| f / a | as it is | 0.86 | 0.86 | 0.86 | 0 of 2 (0.85) |",
        "| e, normalised | 2 ms, one client or one hot row | 0.50 | 0.50 | 0.50 | 1 of 1 (0.8) |",
    ]
    assert told[3::3] == [
        "| d / c | 2 ms | 1.00 | 1.00 | 1.00 | 0 of 2 (1) |",
        "| e / c | 2 ms | 1.50 | 1.50 | 1.50 | 1 of 1 (1.6) |",
        "| f / a+k | 2 ms | 1.90 | 1.90 | 1.90 | 0 of 2 (0.95) |",
        "| f / a | 2 ms | 0.95 | 0.95 | 0.95 | 0 of 1 (0.85), 0 of 1 (0.9) |",
    ]


def test_an_unknown_name_is_refused() -> None:
    assert names(("one", "two"))("two,one") == ("two", "one")
    with pytest.raises(argparse.ArgumentTypeError, match=r"three: not among one, two"):
        names(("one", "two"))("one,three")
