"""`pgmip bench`: how many requests a second these sites take, in a schema that is made for it and dropped."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from statistics import quantiles
from typing import Annotated, Any

import typer
from psycopg.sql import SQL, Identifier

from .. import _sql
from ..app import App, Step, Tx
from ..exceptions import SubmitError
from .config import load
from .errors import CliError, ExitCode
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import Output
from .sites import Connection, Failure, Kind, ask

__all__ = ["bench"]

_ROWS = 1000


def bench(
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="For how long.")] = 5.0,
    clients: Annotated[int, typer.Option("--clients", min=1, max=1000, help="How many at the same time.")] = 4,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Measure requests per second over these sites. Each updates one of 1000 rows, and inserts one, at every site.

    Works in a schema pgmip_bench_* of its own, which it drops at the end along with its entries in the MIPT; nothing
    else is touched. Needs the privilege CREATE on the databases. The sites' other work feels it.
    """

    async def body(output: Output) -> ExitCode:
        sites = load(site, config).required()
        name = f"pgmip_bench_{secrets.token_hex(4)}"
        async with _schema(output, sites, name, timeout) as xids:
            figures = await _measure(sites, name, xids, seconds=seconds, clients=clients, timeout=timeout)
        figures = {"sites": list(sites), "clients": clients, **figures}
        if output.json:
            output.document({"command": "bench", **figures})
        else:
            _print(output, figures)
        return ExitCode.PROBLEMS if figures["failed"] else ExitCode.OK

    run("bench", json, body)


@asynccontextmanager
async def _schema(output: Output, sites: Mapping[str, str], name: str, timeout: float) -> AsyncIterator[list[str]]:
    """The schema at all sites, for as long as the block takes. It adds the XIDs it uses to the list that it gets."""
    xids: list[str] = []

    async def create(_: str, conn: Connection) -> None:
        schema = Identifier(name)
        async with conn.transaction():
            await conn.execute(SQL("CREATE SCHEMA {}").format(schema))
            await conn.execute(SQL("CREATE TABLE {}.counter (id int PRIMARY KEY, n bigint) USING mip").format(schema))
            await conn.execute(SQL("CREATE TABLE {}.entry (client int, n bigint) USING mip").format(schema))
            await conn.execute(
                SQL("INSERT INTO {}.counter SELECT id, 0 FROM generate_series(1, {}) id").format(schema, _ROWS)
            )

    async def drop(_: str, conn: Connection) -> None:
        await conn.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)))
        for first in range(0, len(xids), 1000):
            await conn.execute(_sql.FORGET, (xids[first : first + 1000],))

    try:
        _check(await ask(sites, create, timeout=max(timeout, 30)), "cannot make the schema of the bench")
        yield xids
    finally:
        left = await ask(sites, drop, timeout=max(timeout, 60))
        for site, failure in left.items():
            if isinstance(failure, Failure) and failure.kind is not Kind.NOT_INSTALLED:
                output.error(f"site {site!r}: the schema {name} may be left behind: {failure.message}")


def _check(answers: Mapping[str, Failure | None], what: str) -> None:
    for site, failure in answers.items():
        if failure is not None:
            code = ExitCode.UNREACHABLE if failure.kind is Kind.UNREACHABLE else ExitCode.PROBLEMS
            raise CliError(f"site {site!r}: {what}: {failure.message}", code, hint=_hint(failure))


def _hint(failure: Failure) -> str | None:
    if failure.kind is Kind.PERMISSION:
        return "the bench needs GRANT CREATE ON DATABASE for this role, and touches nothing but a schema of its own"
    return failure.hint


class _Load:
    """Clients that submit one request after another, and what came of it."""

    def __init__(self, app: App, prefix: str, xids: list[str]) -> None:
        self._app = app
        self._prefix = prefix
        self._xids = xids
        self._unfinished: set[str] = set()
        self.latencies: list[float] = []
        self.failures: dict[str, int] = {}

    async def submit(self, client: int, number: int) -> None:
        xid = f"{self._prefix}-{client}-{number}"
        self._xids.append(xid)
        self._unfinished.add(xid)
        began = time.perf_counter()
        try:
            await self._app.submit("bench", [client, number % _ROWS + 1], xid=xid)
        except SubmitError as error:
            cause = error.__cause__ or error
            why = " ".join(f"{type(cause).__name__}: {cause}".split())
            self.failures[why] = self.failures.get(why, 0) + 1
        else:
            self.latencies.append(time.perf_counter() - began)
            self._unfinished.discard(xid)

    async def client(self, number: int, until: float) -> None:
        turn = number * 7919  # so that clients seldom meet
        while time.perf_counter() < until:
            turn += 1
            await self.submit(number, turn)

    async def finish(self) -> None:
        """Leave nothing in doubt, also when interrupted: the schema could not be dropped."""
        for xid in self._unfinished:
            with suppress(SubmitError):
                await self._app.resolve(xid, sites=self._app.sites)


async def _measure(
    sites: Mapping[str, str], name: str, xids: list[str], *, seconds: float, clients: int, timeout: float
) -> dict[str, Any]:
    async with App(sites, pool_size=clients, step_timeout=timeout) as app:
        _register(app, tuple(sites), name)
        load = _Load(app, name, xids)
        attempts: list[int] = []
        first = next(iter(sites))

        def count(step: Step) -> None:
            if step.name == "begun" and step.site == first:
                attempts.append(step.xinst)

        try:
            await load.submit(clients, 0)  # connections, plans
            if load.failures:
                why = next(iter(load.failures))
                raise CliError(f"a request does not get through: {why}", hint="pgmip doctor may say more")
            load.latencies.clear()
            app.on_step(count)
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(clients):
                    group.create_task(load.client(number, began + seconds))
            took = time.perf_counter() - began
        finally:
            await load.finish()
    return _figures(load.latencies, load.failures, len(attempts), took)


def _register(app: App, sites: tuple[str, ...], schema: str) -> None:
    update = SQL("UPDATE {}.counter SET n = n + 1 WHERE id = %s").format(Identifier(schema))
    insert = SQL("INSERT INTO {}.entry VALUES (%s, %s)").format(Identifier(schema))

    @app.transaction(sites=sites, name="bench")
    async def work(tx: Tx, request: Any) -> Any:
        client, row = request
        for site in sites:
            await tx[site].execute(update, (row,))
            await tx[site].execute(insert, (client, row))
        return row


def _figures(latencies: list[float], failures: Mapping[str, int], attempts: int, seconds: float) -> dict[str, Any]:
    percentiles = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
    return {
        "seconds": round(seconds, 3),
        "requests": len(latencies),
        "per_second": round(len(latencies) / seconds, 1),
        "p50_ms": round(percentiles[49] * 1000, 3) if percentiles else None,
        "p99_ms": round(percentiles[98] * 1000, 3) if percentiles else None,
        "retries": max(0, attempts - len(latencies) - sum(failures.values())),
        "failed": sum(failures.values()),
        "failures": dict(failures),
    }


def _print(output: Output, figures: Mapping[str, Any]) -> None:
    output.line(f"{figures['per_second']} requests per second over {', '.join(figures['sites'])}")
    output.line(
        f"{figures['requests']} in {figures['seconds']} s by {figures['clients']} clients, {figures['retries']} retries"
    )
    output.line(f"latency: {figures['p50_ms']} ms in the middle, {figures['p99_ms']} ms at the 99th percentile")
    for why, times in figures["failures"].items():
        output.line(f"{times} failed: {why}")
