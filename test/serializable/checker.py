"""Is there an order in which the transactions, one after the other, get the answers that they got?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from statements import Answer, Statement, Table, Violation


@dataclass
class Transaction:
    name: str
    done: list[tuple[Statement, Answer, bool]] = field(default_factory=list)  # with its effects, or but read?


def _after(transaction: Transaction, table: Table) -> Table | None:
    """The table after the transaction; None if that gets other answers."""
    now = dict(table)
    for statement, answer, kept in transaction.done:
        changed = dict(now)
        try:
            if statement.serially(changed) != answer:
                return None
        except Violation:
            return None
        if kept:
            now = changed
    return now


def serial_order(table: Table, transactions: Sequence[Transaction], end: Table) -> list[str] | None:
    """One that leads from `table` to `end`, by names."""
    if not transactions:
        return [] if table == end else None
    for first in transactions:
        now = _after(first, table)
        if now is not None:
            rest = serial_order(now, [other for other in transactions if other is not first], end)
            if rest is not None:
                return [first.name, *rest]
    return None
