"""Is there an order in which the transactions, one after the other, get the answers that they got?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from statements import Answer, Statement, Violation

Tables = dict[Any, Any]  # one, or one of each site


@dataclass
class Transaction:
    name: str
    done: list[tuple[Statement, Answer, bool]] = field(default_factory=list)  # with its effects, or but read?
    began: float = -math.inf
    over: float = math.inf  # who begins behind that comes behind it


def _copy(tables: Tables) -> Tables:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in tables.items()}


def _after(transaction: Transaction, tables: Tables) -> Tables | None:
    """The tables after the transaction; None if that gets other answers."""
    now = _copy(tables)
    for statement, answer, kept in transaction.done:
        changed = _copy(now)
        try:
            if statement.serially(changed) != answer:
                return None
        except Violation:
            return None
        if kept:
            now = changed
    return now


def serial_order(tables: Tables, transactions: Sequence[Transaction], end: Tables) -> list[str] | None:
    """One that leads from `tables` to `end`, by names."""
    if not transactions:
        return [] if tables == end else None
    for first in transactions:
        rest = [other for other in transactions if other is not first]
        if any(other.over < first.began for other in rest):
            continue
        now = _after(first, tables)
        if now is not None:
            order = serial_order(now, rest, end)
            if order is not None:
                return [first.name, *order]
    return None
