"""Prometheus metrics of a replica and its agent (extra `metrics`), as `pgmip replica run --metrics` shows them::

    metrics = ReplicaMetrics(database, agent)
    watching = asyncio.create_task(metrics.watch())

=======================================  ==========  ===============================================================
Metric                                   Labels      Meaning
=======================================  ==========  ===============================================================
`pgmip_replica_up`                                   whether the replica could be asked: 1 or 0
`pgmip_replica_log_up`                               whether the log could be
`pgmip_replica_applied`                              the position that the replica has applied
`pgmip_replica_log_end`                              the position of the log's last entry
`pgmip_replica_behind`                               the difference: entries of the log to be applied yet
`pgmip_replica_applier`                              whether a session applies the log here: 1 or 0
`pgmip_replica_waiting`                              transactions at their `COMMIT` here
`pgmip_replica_events`                   event       the counters of `mip.replication`: `committed`, `applied_here`,
                                                     `refused`, `ended`, `slowed`, `stopped`
`pgmip_replica_refusals`                 relation,   what has been refused (`mip.refusals`), and because of a change of
                                         reason      which table
`pgmip_replica_appended_total`                       messages that this agent has appended
`pgmip_replica_received_total`           result      entries that it has handed over, by what has come of them
`pgmip_replica_member_applied`           member      how far each member of the site was when it was heard
`pgmip_replica_member_behind`            member      how many positions that is behind this replica
`pgmip_replica_member_behind_bytes`      member      and how many bytes of the log
`pgmip_replica_member_lag_seconds`       member      since when there is something that it had not applied
`pgmip_replica_member_silent_seconds`    member      since when it has not been heard
=======================================  ==========  ===============================================================

What is of a database or a log that could not be asked the last time is not there. All of it is of one replica, so its
series are told apart by Prometheus' own labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import _sql
from .._connection import cut_after
from .._extra import needed_for
from .agent import Agent, State
from .session import session

with needed_for("pgmip.replication.metrics", "metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

__all__ = ["ReplicaMetrics"]

_EVENTS = ("committed", "applied_here", "refused", "ended", "slowed", "stopped")


@dataclass(frozen=True, slots=True)
class _Seen:
    """At one look."""

    state: State
    replication: Mapping[str, Any] | None = None
    """None: the replica could not be asked."""
    members: Sequence[Mapping[str, Any]] = ()
    refusals: Sequence[Mapping[str, Any]] = ()


class ReplicaMetrics(Collector):
    """What was seen of a replica (a connection string) and its agent at the last look."""

    def __init__(
        self, database: str, agent: Agent, registry: CollectorRegistry = REGISTRY, *, patience: float = 5.0
    ) -> None:
        """`patience`: how many seconds to wait for an answer."""
        self._database = database
        self._agent = agent
        self._patience = patience
        self._seen: _Seen | None = None
        registry.register(self)

    async def watch(self, *, interval: float = 5.0) -> None:
        """Look every `interval` seconds, for ever. To be run as a task."""
        while True:
            await self.look()
            await asyncio.sleep(interval)

    async def look(self) -> None:
        """Ask the replica and its log, once."""
        state = await self._agent.state()
        try:
            async with session(self._database, "pgmip replica metrics", self._patience) as conn:
                with cut_after(conn, self._patience):
                    replication = await (await conn.execute(_sql.REPLICATION)).fetchone()
                    members = await (await conn.execute(_sql.REPLICA_SILENCE)).fetchall()
                    refusals = await (await conn.execute(_sql.REPLICA_REFUSALS)).fetchall()
        except psycopg.Error:
            self._seen = _Seen(state)
        else:
            said = replication and replication[0]
            self._seen = _Seen(state, said, [member for (member,) in members], [refusal for (refusal,) in refusals])

    def collect(self) -> Iterator[Metric]:
        """For Prometheus. From whatever thread."""
        seen = self._seen
        if seen is not None:
            yield from _of_replica(seen)
            yield from _of_agent(seen.state)
            yield from _of_members(seen.members)
            yield _of_refusals(seen.refusals)


def _gauge(name: str, what: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"pgmip_replica_{name}", what, value=value)


def _labelled(family: type[Any], name: str, what: str, label: str, values: Mapping[str, float | None]) -> Metric:
    found: Metric = family(f"pgmip_replica_{name}", what, labels=[label])
    for key, value in values.items():
        if value is not None:
            found.add_metric([key], value)  # type: ignore[attr-defined]
    return found


def _of_replica(seen: _Seen) -> Iterator[Metric]:
    known = seen.replication
    yield _gauge("up", "Whether the replica can be asked", known is not None)
    yield _gauge("log_up", "Whether the log can be asked", seen.state.end is not None)
    if seen.state.end is not None:
        yield _gauge("log_end", "Position of the log's last entry", seen.state.end)
    if known is None:
        return
    yield _gauge("applied", "Position that is applied", known["applied"])
    if seen.state.end is not None:
        yield _gauge("behind", "Entries of the log to be applied yet", max(0, seen.state.end - known["applied"]))
    yield _gauge("applier", "Whether a session applies the log", known["applier_pid"] is not None)
    yield _gauge("waiting", "Transactions at their COMMIT", known["waiting"])
    events = {event: known.get(event) for event in _EVENTS}
    yield _labelled(GaugeMetricFamily, "events", "Counters of mip.replication", "event", events)


def _of_agent(state: State) -> Iterator[Metric]:
    yield CounterMetricFamily("pgmip_replica_appended", "Messages appended", value=state.appended)
    yield _labelled(CounterMetricFamily, "received", "Entries handed over", "result", state.received)


def _of_members(members: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    def gauge(name: str, what: str) -> Metric:
        values = {member["member"]: member[name.removesuffix("_seconds")] for member in members}
        return _labelled(GaugeMetricFamily, f"member_{name}", what, "member", values)

    yield gauge("applied", "Position that a member had applied when it was heard")
    yield gauge("behind", "Positions that this is behind")
    yield gauge("behind_bytes", "Bytes of the log that this is behind")
    yield gauge("lag_seconds", "Since when there is something that it had not applied")
    yield gauge("silent_seconds", "Since when it has not been heard")


def _of_refusals(refusals: Sequence[Mapping[str, Any]]) -> Metric:
    found = GaugeMetricFamily("pgmip_replica_refusals", "What has been refused", labels=["relation", "reason"])
    for refusal in refusals:
        found.add_metric([refusal["relation"] or "", refusal["reason"]], refusal["refused"])
    return found
