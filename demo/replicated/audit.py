"""The audit, in plain SQL at each replica, and a comparison of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from .customers import Placed
from .site import Replica, Site

_SAME = """
SELECT mip.relation_checksum('item') || ' ' || mip.relation_checksum('orders'), applied, history FROM mip.replication
"""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    wrong: int


def audit(site: Site, placed: Sequence[Placed]) -> list[Finding]:
    """Once all have applied the same position."""
    end = site.end()
    for replica in site.replicas:
        replica.until_applied(end)
    same = {row[0] for replica in site.replicas for row in replica.ask(_SAME)}
    return [Finding("all replicas have the same rows", len(same) - 1), *_at_all(site, placed)]


def wrong_at(replica: Replica, placed: Sequence[Placed]) -> dict[str, int]:
    """How many are wrong there, by the name of each check."""
    sql = resources.files(__package__).joinpath("audit.sql").read_text()
    told = {
        "ids": [one.order.id for one in placed],
        "items": [one.order.item for one in placed],
        "copies": [one.order.copies for one in placed],
    }
    return {str(check): int(str(wrong)) for check, wrong in replica.ask(sql, told)}


def _at_all(site: Site, placed: Sequence[Placed]) -> list[Finding]:
    found = Counter[str]()
    for replica in site.replicas:
        found.update(wrong_at(replica, placed))
    return [Finding(check, wrong) for check, wrong in found.items()]
