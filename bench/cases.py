"""The transactions that `commit`, `instructions` and `waits` compare, and their ends: what is sent, message by message.

    a    COMMIT
    a+k  a and a row with an idempotency key and the result, as people do it today
    b    PREPARE TRANSACTION, COMMIT PREPARED
    c    b and the row
    d    mip.prepare, mip.commit
    e    d with mip.synchronous_commit_prepared = off
    f    mip.commit_one_phase

db, eb and fb are d, e and f with the functions for drivers, which need no BEGIN and return no rows of the MIPT.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import random
from typing import Any

__all__ = [
    "CASES", "ENDS", "READS", "REQUEST", "SETTINGS", "Statement", "Values", "distinct", "draw", "messages", "method",
    "values",
]  # fmt: skip

CASES = ("a", "a+k", "b", "c", "d", "e", "f")
SETTINGS = dict.fromkeys(("e", "eb"), "SET mip.synchronous_commit_prepared = off")  # of the session

REQUEST = (
    "CREATE TABLE request (key text PRIMARY KEY, request text, result text,"
    " at timestamptz NOT NULL DEFAULT now()) USING heap"
)

Values = dict[str, Any]  # of a transaction, by name


@dataclass(frozen=True)
class Statement:
    name: str
    text: str
    parameters: tuple[str, ...] = ()
    """which of the transaction's values $1, $2 and so on are"""

    @property
    def names_xid(self) -> bool:
        """Whether the XID is part of its text, since it can have no parameters: so it cannot be prepared, either."""
        return "{xid}" in self.text


def _update(name: str, table: str, balance: str, key: str) -> Statement:
    text = f"UPDATE pgbench_{table} SET {balance} = {balance} + $1 WHERE {key} = $2"
    return Statement(name, text, ("delta", key))


def _read(table: str, balance: str, key: str) -> Statement:
    return Statement(f"read_{table}", f"SELECT {balance} FROM pgbench_{table} WHERE {key} = $1", (key,))


ACCOUNT = _update("account", "accounts", "abalance", "aid")
TELLER = _update("teller", "tellers", "tbalance", "tid")
BRANCH = _update("branch", "branches", "bbalance", "bid")
READ_ACCOUNT = _read("accounts", "abalance", "aid")
# By the size of the prepared transaction's state, in bytes
READS = {
    "600": [READ_ACCOUNT],
    "712": [READ_ACCOUNT, _read("branches", "bbalance", "bid"), _read("tellers", "tbalance", "tid")],
}

BEGIN, COMMIT = Statement("begin", "BEGIN"), Statement("commit", "COMMIT")
PREPARE_TRANSACTION = Statement("prepare_transaction", "PREPARE TRANSACTION '{xid}'")
COMMIT_PREPARED = Statement("commit_prepared", "COMMIT PREPARED '{xid}'")
KEY = Statement("key", "INSERT INTO request (key, request, result) VALUES ($1, $2, $3)", ("xid", "request", "result"))
MIP_BEGIN = Statement("mip_begin", "SELECT mip.begin($1, $2)", ("xid", "xinst"))
MIP_START = Statement("mip_start", "SELECT mip.start($1, $2)", ("xid", "xinst"))


def _mip(call: str, *parameters: str) -> tuple[Statement, Statement]:
    """Of this function, and of the one for drivers."""
    ours = Statement(f"mip_{call}", f"SELECT * FROM mip.{call}($1, $2)", parameters)
    return ours, Statement(f"mip_{call}_beside", f"SELECT mip.{call}_beside($1, $2)", parameters)


MIP_PREPARE, MIP_PREPARE_BESIDE = _mip("prepare", "request", "result")
MIP_COMMIT, MIP_COMMIT_BESIDE = _mip("commit", "xid", "xinst")
MIP_ONE_PHASE, MIP_ONE_PHASE_BESIDE = _mip("commit_one_phase", "request", "result")

End = tuple[list[Statement], list[Statement], list[Statement]]
# With the first statement, with the last one, and afterwards
_INSTANCE: End = ([BEGIN, MIP_BEGIN], [MIP_PREPARE], [MIP_COMMIT])
_INSTANCE_BESIDE: End = ([MIP_START], [MIP_PREPARE_BESIDE], [MIP_COMMIT_BESIDE])
ENDS: dict[str, End] = {
    "a": ([BEGIN], [COMMIT], []),
    "a+k": ([BEGIN], [KEY, COMMIT], []),
    "b": ([BEGIN], [PREPARE_TRANSACTION], [COMMIT_PREPARED]),
    "c": ([BEGIN], [KEY, PREPARE_TRANSACTION], [COMMIT_PREPARED]),
    "d": _INSTANCE,
    "db": _INSTANCE_BESIDE,
    "e": _INSTANCE,
    "eb": _INSTANCE_BESIDE,
    "f": ([BEGIN, MIP_BEGIN], [MIP_ONE_PHASE], []),
    "fb": ([MIP_START], [MIP_ONE_PHASE_BESIDE], []),
}


def method(case: str) -> str:
    """The access method of its tables."""
    return "mip" if case[0] in "def" else "heap"


def messages(case: str, state: str) -> list[list[Statement]]:
    """Of one transaction. It takes account, teller and branch in this order, so that nobody waits in a circle."""
    first, last, then = ENDS[case]
    reads = [[read] for read in READS[state]]
    return [[*first, ACCOUNT], *reads, [TELLER], [BRANCH, *last], *([statement] for statement in then)]


def distinct(of: Sequence[Sequence[Statement]]) -> list[Statement]:
    """The statements of these messages, each once."""
    return list(dict.fromkeys(statement for message in of for statement in message))


def values(aid: object, bid: object, tid: object, delta: object, m: object, n: object) -> Values:
    """All that a transaction needs: m and n, of three and twelve digits, make its XID a new one."""
    now = f"{time.time_ns() // 1_000_000:012x}"
    return {
        "aid": aid, "bid": bid, "tid": tid, "delta": delta, "xinst": 1,
        "xid": f"{now[:8]}-{now[8:]}-7{m}-8{m}-{n}",  # a UUID of version 7: clients of pg_mip make such
        "request": f'{{"aid": {aid}, "delta": {delta}}}', "result": '{"done": true}',
    }  # fmt: skip


def draw(scale: int) -> Values:
    """Of random rows. Not by randint, which takes longer than all the rest."""
    return values(
        aid=1 + int(random() * 100_000 * scale),
        bid=1 + int(random() * scale),
        tid=1 + int(random() * 10 * scale),
        delta=int(random() * 10_001) - 5000,
        m=100 + int(random() * 900),
        n=100_000_000_000 + int(random() * 900_000_000_000),
    )
