"""What the sites say of requests: who is in doubt, since when, with what MIPTs, and who waits for whom."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from .. import _sql
from ..decision import Entry, Mipts, State, declared
from .replicas import Replica, read_replica
from .sites import Connection, Failure, ask

__all__ = [
    "Doubt",
    "RequestInDoubt",
    "SiteState",
    "Survey",
    "Wait",
    "family_sites",
    "instance_of",
    "push_after",
    "read_mipts",
    "rows_of",
    "survey",
]

_FACTS = f"""
    SELECT current_database() AS database, current_user AS role, current_setting('server_version') AS server,
           pg_is_in_recovery() AS standby,
           (SELECT extversion FROM pg_extension WHERE extname = 'pg_mip') AS extension,
           {_sql.SAYS_PUSH_AFTER} AS push_after
""".encode()
_PREPARED = b"""
    SELECT gid, owner::text AS owner, extract(epoch FROM clock_timestamp() - prepared)::float8 AS age,
           coalesce(pg_has_role(owner, 'USAGE'),  -- it may have been dropped
                    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)) AS ours
    FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An instance that is prepared at a site and not decided there."""

    xid: str
    xinst: int
    owner: str
    sites: tuple[str, ...]
    age: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A session that waits for a lock, and who is in its way: sessions, instances, other prepared transactions."""

    site: str
    pid: int
    instance: tuple[str, int] | None
    """The instance that waits, where it is one."""
    role: str | None
    application: str | None
    query: str | None
    age: float | None
    lock: str
    relation: str | None
    pids: tuple[int, ...]
    instances: tuple[tuple[str, int], ...]
    """Active or prepared, as XID and XINST."""
    prepared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteState:
    """What one site says of itself."""

    database: str
    role: str
    server: str
    standby: bool
    extension: str | None
    push_after: float | None
    doubts: tuple[Doubt, ...]
    prepared: tuple[tuple[str, str, float], ...]
    """All prepared transactions of the database: gid, owner, age."""
    hidden: int
    """Instances in doubt whose entries this role may not see."""
    waits: tuple[Wait, ...]
    counters: Mapping[str, int]
    """Of the view mip.stats."""
    replica: Replica | None
    """Where its database is replicated."""
    at: float
    """When, by a clock of ours that knows nothing but intervals."""

    @property
    def foreign(self) -> list[tuple[str, str, float]]:
        """Prepared transactions that are no instances."""
        return [row for row in self.prepared if instance_of(row[0]) is None]


@dataclass
class RequestInDoubt:
    """One request in doubt, over all sites."""

    xid: str
    owner: str
    sites: tuple[str, ...]
    """As declared; where that is not known, those at which it was seen."""
    age: float
    """Of the oldest instance in doubt, in seconds."""
    mipts: dict[str, Sequence[Entry] | None] = field(default_factory=dict)

    @property
    def known(self) -> Mipts:
        """The same, with what it declares and was not to be read."""
        return {**dict.fromkeys(self.sites), **self.mipts}

    @property
    def states(self) -> dict[int, dict[str, State]]:
        """For each instance, its state by site."""
        states: dict[int, dict[str, State]] = {}
        for site, mipt in self.mipts.items():
            for entry in mipt or ():
                states.setdefault(entry.xinst, {})[site] = entry.state
        return dict(sorted(states.items()))


@dataclass
class Survey:
    """Everything of all sites."""

    sites: dict[str, SiteState | Failure]
    families: list[RequestInDoubt]
    """Oldest first, and no more than asked for."""
    total: int
    """How many requests are in doubt."""

    @property
    def failed(self) -> bool:
        return any(isinstance(state, Failure) for state in self.sites.values())

    @property
    def hidden(self) -> int:
        """Instances in doubt whose entries the roles may not see, at all sites that were asked."""
        return sum(state.hidden for state in self.sites.values() if isinstance(state, SiteState))

    @property
    def replicas(self) -> dict[str, Replica]:
        """Those of the sites that are replicas, by site."""
        states = ((site, state) for site, state in self.sites.items() if isinstance(state, SiteState))
        return {site: state.replica for site, state in states if state.replica is not None}

    @property
    def waits(self) -> list[Wait]:
        return [wait for state in self.sites.values() if isinstance(state, SiteState) for wait in state.waits]

    @property
    def push_after(self) -> float:
        """From which age, in seconds, an instance in doubt is nobody's daily business any more."""
        known = [state.push_after for state in self.sites.values() if isinstance(state, SiteState) and state.push_after]
        return max(known, default=_sql.PUSH_AFTER)

    @property
    def old(self) -> list[RequestInDoubt]:
        return [family for family in self.families if family.age >= self.push_after]


async def survey(sites: Mapping[str, str], *, limit: int, timeout: float) -> Survey:
    """Ask all sites. `limit`: of how many families to read the MIPTs, the oldest ones."""
    states = await ask(sites, _state, timeout=timeout)
    families = _families(states)
    shown = families[:limit]
    wanted = [family.xid for family in shown]
    if wanted:
        reachable = {site: sites[site] for site, state in states.items() if isinstance(state, SiteState)}

        async def digests(site: str, conn: Connection) -> Mapping[str, Sequence[_Row]]:
            try:
                return await _mipts(conn, _sql.MIPT_DIGESTS, wanted)
            except psycopg.errors.InsufficientPrivilege:
                # One of the names is another role's request here; that must not hide the others.
                found: dict[str, Sequence[_Row]] = {}
                for xid in wanted:
                    with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                        found |= await _mipts(conn, _sql.MIPT_DIGESTS, [xid])
                return found

        answers = await ask(reachable, digests, timeout=timeout)
        for family in shown:
            for site, answer in answers.items():
                rows = None if isinstance(answer, Failure) else answer.get(family.xid)
                family.mipts[site] = None if rows is None else tuple(row.entry for row in rows)
    return Survey(states, shown, len(families))


async def read_mipts(
    sites: Mapping[str, str], xid: str, *, timeout: float
) -> tuple[Mipts, dict[str, Failure], dict[tuple[str, int], float], str | None]:
    """The family's MIPT at each site, with texts; which sites could not be asked; ages by site and XINST; the owner."""

    async def look(site: str, conn: Connection) -> Sequence[_Row]:
        return (await _mipts(conn, _sql.MIPT_TEXTS, [xid]))[xid]

    answers = await ask(sites, look, timeout=timeout)
    failures = {site: answer for site, answer in answers.items() if isinstance(answer, Failure)}
    found = {site: answer for site, answer in answers.items() if not isinstance(answer, Failure)}
    mipts: Mipts = {site: tuple(row.entry for row in found[site]) if site in found else None for site in sites}
    ages = {(site, row.entry.xinst): row.age for site, rows in found.items() for row in rows}
    owner = next((row.owner for rows in found.values() for row in rows), None)
    return mipts, failures, ages, owner


def family_sites(mipts: Mapping[str, Sequence[Entry] | None]) -> tuple[str, ...]:
    """The sites that the family declares, all of them where its instances differ; where no MIPT says it, those at
    which it is known.
    """
    named = {site for sites in declared(mipts) for site in sites}
    named = named or {site for mipt in mipts.values() for entry in mipt or () for site in entry.sites}
    return tuple(sorted(named)) or tuple(site for site, mipt in mipts.items() if mipt)


def instance_of(gid: str) -> tuple[str, int] | None:
    """The XID and XINST in the name of a prepared transaction, None where it is not an instance's."""
    parts = gid.split(":", 3)
    if len(parts) < 4 or parts[0] != "mip" or not parts[1].isdecimal() or not parts[2].isdecimal():
        return None
    return parts[3], int(parts[2])


async def _state(site: str, conn: Connection) -> SiteState:
    (facts,) = await rows_of(conn, _FACTS)
    if facts["extension"] is None:
        # The same as if a function were missing.
        await conn.execute(_sql.INSTALLED)
    doubts = await rows_of(conn, _sql.DOUBTS)
    prepared = await rows_of(conn, _PREPARED)
    waits = await rows_of(conn, _sql.WAITS)
    (counters,) = await rows_of(conn, _sql.COUNTERS)
    return SiteState(
        **facts,
        doubts=tuple(Doubt(**{**row, "sites": tuple(row["sites"] or ())}) for row in doubts),
        prepared=tuple((row["gid"], row["owner"], row["age"]) for row in prepared),
        hidden=sum(instance_of(row["gid"]) is not None and not row["ours"] for row in prepared),
        waits=tuple(_wait(site, row) for row in waits),
        counters={name: value for name, value in counters.items() if isinstance(value, int)},
        replica=await read_replica(conn),
        at=time.monotonic(),
    )


def _wait(site: str, row: Mapping[str, Any]) -> Wait:
    known = {name: row[name] for name in ("pid", "role", "application", "query", "age", "lock", "relation")}
    return Wait(
        site=site,
        instance=None if row["xid"] is None else (row["xid"], row["xinst"]),
        pids=tuple(row["pids"]),
        instances=tuple((name.rpartition("/")[0], int(name.rpartition("/")[2])) for name in row["instances"]),
        prepared=tuple(row["prepared"]),
        **known,
    )


async def rows_of(conn: Connection, sql: bytes) -> list[dict[str, Any]]:
    """The rows of a query."""
    return await (await conn.execute(sql)).fetchall()


def _families(states: Mapping[str, SiteState | Failure]) -> list[RequestInDoubt]:
    families: dict[str, RequestInDoubt] = {}
    for site, state in states.items():
        for doubt in state.doubts if isinstance(state, SiteState) else ():
            new = RequestInDoubt(doubt.xid, doubt.owner, doubt.sites or (site,), doubt.age)
            family = families.setdefault(doubt.xid, new)
            family.age = max(family.age, doubt.age)
    return sorted(families.values(), key=lambda family: (-family.age, family.xid))


@dataclass(frozen=True, slots=True)
class _Row:
    entry: Entry
    age: float
    owner: str


async def _mipts(conn: Connection, sql: bytes, xids: Sequence[str]) -> dict[str, list[_Row]]:
    """The MIPT of each of these families."""
    mipts: dict[str, list[_Row]] = {xid: [] for xid in xids}
    cursor = await conn.execute(sql, (list(xids),))
    for row in await cursor.fetchall():
        (entry,) = _sql.entries([[row[name] for name in _sql.ENTRY]])
        mipts[row["xid"]].append(_Row(entry, row["age"], row["owner"]))
    return mipts


async def push_after(sites: Mapping[str, str], *, timeout: float) -> float:
    """From which age, in seconds, an instance counts as left behind: the most that a site says."""

    async def look(site: str, conn: Connection) -> float | None:
        (row,) = await rows_of(conn, _FACTS)
        return row["push_after"]  # type: ignore[no-any-return]

    answers = await ask(sites, look, timeout=timeout)
    return max((answer for answer in answers.values() if isinstance(answer, float) and answer), default=_sql.PUSH_AFTER)
