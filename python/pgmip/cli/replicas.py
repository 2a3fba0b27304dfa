"""Replicas among the sites that `pgmip status` and `pgmip top` show: how far each is, and what it has done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from .. import _sql
from .output import STYLES, age, rate, table
from .sites import Connection

__all__ = ["Member", "Replica", "rates", "read_replica", "rendered"]

_COUNTERS = {
    "committed": "committed",
    "applied_here": "applied here",
    "refused": "refused",
    "ended": "ended",
    "slowed": "slowed",
    "stopped": "stopped",
}
"""Of mip.replication, and what they are called here."""
_LATE = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Member:
    """What a replica has heard of one."""

    member: str
    applied: int
    behind: int
    behind_bytes: int
    lag: float
    """For so many seconds there has been something that it had not applied."""
    silent: float | None
    """For so many seconds; None where it has not been heard since the server's start."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What a replica says of itself (mip.replication), and of all (mip.members)."""

    member: str
    applied: int
    applier_pid: int | None
    waiting: int
    counters: Mapping[str, int]
    members: tuple[Member, ...]

    def document(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "applied": self.applied,
            "applier_pid": self.applier_pid,
            "waiting": self.waiting,
            **self.counters,
            "members": [asdict(it) for it in self.members],
        }


async def read_replica(conn: Connection) -> Replica | None:
    """None where the database is not replicated."""
    row = await (await conn.execute(_sql.REPLICATION)).fetchone()
    if row is None:
        return None
    said = row["replication"]
    members = [row["member"] for row in await (await conn.execute(_sql.REPLICA_SILENCE)).fetchall()]
    return Replica(
        member=said["member"],
        applied=said["applied"],
        applier_pid=said["applier_pid"],
        waiting=said["waiting"],
        counters={name: said[name] for name in _COUNTERS},
        members=tuple(Member(**it) for it in members),
    )


def rendered(replicas: Mapping[str, Replica]) -> list[RenderableType]:
    """A table of all members of the site, by the sites that have been asked; nothing where none is a replica."""
    if not replicas:
        return []
    told = _told(replicas.values())
    lags = _lags(replicas.values())
    end = max([it.applied for it in replicas.values()] + [it.applied for it in told.values()])
    rows = [_row(site, it, end, lags, told.get(it.member)) for site, it in replicas.items()]
    asked = {it.member for it in replicas.values()}
    rows += [_row_of_others(it, end, lags) for name, it in sorted(told.items()) if name not in asked]
    columns = ["replica", "site", "applied", "behind", "lag", "heard", "agent", "waiting", *_COUNTERS.values()]
    return ["", Text("Replicas", "bold"), table(columns, rows)]


def _told(replicas: Iterable[Replica]) -> dict[str, Member]:
    """The last that was heard of each member, by anybody."""
    last: dict[str, Member] = {}
    for it in (member for replica in replicas for member in replica.members):
        known = last.get(it.member)
        if known is None or _silence(it) < _silence(known):
            last[it.member] = it
    return last


def _silence(member: Member) -> float:
    return float("inf") if member.silent is None else member.silent


def _heard(member: Member | None) -> Text:
    if member is None or member.silent is None:
        return Text("-")
    return Text(f"{age(member.silent)} ago", STYLES["warning"] if member.silent >= _LATE else "")


def _lags(replicas: Iterable[Replica]) -> dict[str, float]:
    """As the replica says that has the most, and knows what others do not have."""
    furthest = max(replicas, key=lambda it: it.applied)
    return {member.member: member.lag for member in furthest.members}


def _behind(name: str, applied: int, end: int, lags: Mapping[str, float]) -> tuple[str, str, str]:
    behind = end - applied
    return str(applied), str(behind), age(lags.get(name) if behind else 0.0)


def _row(site: str, it: Replica, end: int, lags: Mapping[str, float], told: Member | None) -> list[str | Text]:
    agent = Text("none", STYLES["error"]) if it.applier_pid is None else Text("at work", STYLES["ok"])
    counts = (str(it.counters[name]) for name in _COUNTERS)
    return [it.member, site, *_behind(it.member, it.applied, end, lags), _heard(told), agent, str(it.waiting), *counts]


def _row_of_others(it: Member, end: int, lags: Mapping[str, float]) -> list[str | Text]:
    """Of who has not been asked is known what he has told."""
    return [it.member, "-", *_behind(it.member, it.applied, end, lags), _heard(it), *["-"] * (2 + len(_COUNTERS))]


def rates(looks: Mapping[str, tuple[Replica, Replica, float]]) -> list[RenderableType]:
    """What has happened per second, by site: between two looks, so many seconds from each other."""
    if not looks:
        return []
    rows = [[now.member, site, *_rates(before, now, seconds)] for site, (before, now, seconds) in looks.items()]
    return ["", table(["replica, per second", "site", "positions", *_COUNTERS.values()], rows)]


def _rates(before: Replica, now: Replica, seconds: float) -> list[str]:
    counted = [now.applied - before.applied, *(now.counters[name] - before.counters[name] for name in _COUNTERS)]
    # A counter that went back has been reset.
    return [rate(max(0, number) / seconds) for number in counted]
