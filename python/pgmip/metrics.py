"""Prometheus metrics of an App (extra `metrics`)::

    metrics = Metrics()
    app.observe(metrics)                            # any number of Apps may share it
    watching = asyncio.create_task(metrics.watch(app))
    Route("/metrics", exporter())                   # in Starlette; add_route in FastAPI

Where there is no event loop, with a `pgmip.sync.App`, `asyncio.run(metrics.look(app))` now and then does the same.

=====================================  ===============================  ================================================
Metric                                 Labels                           Meaning
=====================================  ===============================  ================================================
`pgmip_operations_total`               operation, transaction, outcome  `submit`, `settle`, `resolve`, `acknowledge`
`pgmip_operations_in_progress`         operation                        those running now
`pgmip_decisions_total`                transaction, kind                winners found: an instance of one's `own`; a
                                                                        `sibling`'s, completed for its dead or slow
                                                                        server; one that is `adopted`, as it needs no
                                                                        more work; one committed `earlier` (a
                                                                        retransmission); or the request is `cancelled`
`pgmip_siblings_total`                 transaction                      instances of others met, active or prepared
`pgmip_attempts_total`                 transaction, outcome             instances begun
`pgmip_retries_total`                  transaction, reason              attempts made because the one before failed
`pgmip_phase_seconds`                  phase, site, ok                  histogram, also of `submit`, `attempt` and
                                                                        `handler`, whose site is empty; ok: true, false
`pgmip_phase_failures_total`           phase, site, reason              trips to a site that failed or were refused
`pgmip_in_doubt`                       site                             instances in doubt, by `watch`; keeps its last
                                                                        value while the site is down
`pgmip_in_doubt_oldest_seconds`        site                             the age of the oldest of them, 0 without any
`pgmip_site_up`                        site                             whether `watch` could ask the site: 1 or 0
`pgmip_site_events`                    site, event                      the site's counters, such as `hand_overs`: the
                                                                        columns of its view `mip.stats` (by `watch`)
=====================================  ===============================  ================================================

Outcomes and reasons are those of `pgmip.observe.outcome`. No label ever holds an XID or anything of a request, so the
number of time series depends on the code and the sites alone.

Servers of several processes: set `PROMETHEUS_MULTIPROC_DIR` to an empty folder before Python starts; `exporter` then
adds all processes up. Have your server call `prometheus_client.multiprocess.mark_process_dead(pid)` for each that ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from . import _sql
from ._connection import Connection, cut_after
from ._extra import needed_for
from ._pool import at_site
from ._sites import at_each_site
from ._twin import AnyApp, inner, within
from .observe import Observer, Phase, outcome

with needed_for("pgmip.metrics", "metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, make_asgi_app
    from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["BUCKETS", "Metrics", "exporter"]

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds (seconds) of the histogram's buckets, unless others are given."""

_OPERATIONS = ("submit", "settle", "resolve", "acknowledge")


class Metrics(Observer):
    """Counts and times what the Apps do that it observes."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, buckets: Sequence[float] = BUCKETS) -> None:
        """Registers the metrics: make one for each registry, so normally one for each process."""

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"pgmip_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str, over_processes: Any) -> Gauge:
            return Gauge(f"pgmip_{name}", what, labels, registry=registry, multiprocess_mode=over_processes)

        self._operations = counter("operations", "Operations ended", "operation", "transaction", "outcome")
        self._decisions = counter("decisions", "Winners found", "transaction", "kind")
        self._siblings = counter("siblings", "Instances of others met", "transaction")
        self._attempts = counter("attempts", "Instances begun", "transaction", "outcome")
        self._retries = counter("retries", "Attempts after a failed one", "transaction", "reason")
        self._failures = counter("phase_failures", "Trips to a site that failed", "phase", "site", "reason")
        self._seconds = Histogram(
            "pgmip_phase_seconds", "Durations", ["phase", "site", "ok"], registry=registry, buckets=buckets
        )
        self._running = gauge("operations_in_progress", "Operations", "operation", over_processes="livesum")
        # Any process's word about a site is as good as another's; the latest counts.
        self._in_doubt = gauge("in_doubt", "Instances in doubt", "site", over_processes="mostrecent")
        self._oldest = gauge("in_doubt_oldest_seconds", "Age of the oldest", "site", over_processes="mostrecent")
        self._events = gauge("site_events", "Counters of mip.stats", "site", "event", over_processes="mostrecent")
        self._up = gauge("site_up", "Whether the site can be asked", "site", over_processes="mostrecent")

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        running = self._running.labels(phase.name) if _is_operation(phase) else None
        if running is not None:
            running.inc()
        began = time.perf_counter()
        try:
            yield
        finally:
            if running is not None:
                running.dec()
        ok = "true" if phase.error is None else "false"
        self._seconds.labels(phase.name, phase.site or "", ok).observe(time.perf_counter() - began)
        self._count(phase)

    async def watch(self, app: AnyApp, *, interval: float = 15.0) -> None:
        """Ask the sites of `app` what is in doubt and what they have counted, every `interval` seconds, for ever.

        To be run as a task. What is in doubt is of roles whose privileges the App's role has; what has been counted is
        everybody's.
        """
        while True:
            await self.look(app)
            await asyncio.sleep(interval)

    async def look(self, app: AnyApp) -> None:
        """Ask the sites of `app` what is in doubt and what they have counted, once."""
        asked = inner(app)

        async def ask(conn: Connection) -> tuple[int, float, dict[str, int]]:
            with cut_after(conn, asked.step_timeout):
                ((number, age),) = await (await conn.execute(_sql.IN_DOUBT)).fetchall()
                ((events,),) = await (await conn.execute(_sql.EVENTS)).fetchall()
            return int(number), float(age), events

        async def look(site: str) -> None:
            try:
                number, age, events = await at_site(asked._pools[site], ask)
            except psycopg.Error:
                self._up.labels(site).set(0)
                return
            self._up.labels(site).set(1)
            self._in_doubt.labels(site).set(number)
            self._oldest.labels(site).set(age)
            for event, times in events.items():
                self._events.labels(site, event).set(times)

        await within(app, at_each_site(asked.sites, look))

    def _count(self, phase: Phase) -> None:
        transaction = phase.transaction or ""
        if _is_operation(phase):
            self._operations.labels(phase.name, transaction, phase.outcome).inc()
            self._siblings.labels(transaction).inc(phase.siblings)
            if phase.decision is not None:
                self._decisions.labels(transaction, phase.decision).inc()
        elif phase.name == "attempt":
            self._attempts.labels(transaction, phase.outcome).inc()
            if phase.after is not None:
                self._retries.labels(transaction, outcome(phase.after)).inc()
        elif phase.site is not None and phase.error is not None:
            self._failures.labels(phase.name, phase.site, phase.outcome).inc()


class _Exporter:
    """An object, as Starlette's routes take it for an application; a function would be an endpoint to them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._app = make_asgi_app(registry)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


def exporter() -> Any:
    """An ASGI application that answers with all metrics of this process; with `PROMETHEUS_MULTIPROC_DIR`, of all.

    To be routed with Starlette's `Route("/metrics", exporter())`, or `add_route` of Starlette or FastAPI. (A `Mount`
    takes `/metrics/` alone.)
    """
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return _Exporter(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return _Exporter(registry)


def _is_operation(phase: Phase) -> bool:
    return phase.name in _OPERATIONS and phase.site is None
