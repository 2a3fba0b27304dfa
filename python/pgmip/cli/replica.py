"""`pgmip replica`: the agent of a replicated database, and its log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from rich.text import Text

from .. import _sql
from .._connection import cut_after
from .._extra import missing
from .._text import text
from ..replication import logs
from ..replication.agent import Agent, Event, EventName, State, Stopped
from ..replication.beginning import beginning, follow, has_begun
from ..replication.engine import LogError, Message, NoLog, Unavailable
from .errors import CliError, ExitCode
from .options import JsonOption, TimeoutOption, run
from .output import STYLES, Output, table, visible
from .replica_diff import diff
from .signals import telling, until_signalled
from .sites import Connection, connect, failure_of

__all__ = ["replica"]

replica = typer.Typer(
    name="replica",
    help="A replicated database: its log, and the agent of each replica.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
replica.command("diff")(diff)
DatabaseOption = Annotated[str, typer.Option("--database", metavar="CONNINFO", help="The replica.")]
LogOption = Annotated[
    str, typer.Option("--log", metavar="LOG", help="A database of its own: CONNINFO. In JetStream: nats://HOST,.../STREAM.")
]
_LOOK_EVERY = 0.05  # seconds
_STYLE = {
    EventName.BEGUN: STYLES["ok"],
    EventName.LOST: STYLES["error"],
    EventName.UNANSWERED: STYLES["warning"],
    EventName.ANSWERED: STYLES["ok"],
}


@replica.command("init")
def init(
    database: DatabaseOption,
    log: LogOption,
    window: Annotated[
        int, typer.Option("--window", min=1, help="So many positions a transaction may be behind at its COMMIT.")
    ] = 100_000,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Make a log for a database, with the settings that all its replicas will have, and let this replica begin with it.

    Where that has been done before nothing happens. Exit code 1 where there is a log of another database, or with
    another --window, or another one than the replica follows; and where the replica follows none, and that one has gone
    on already.
    """

    async def body(output: Output) -> ExitCode:
        with _failures(database, log):
            first = await beginning(database, window, patience=timeout)
            begun = await has_begun(database, patience=timeout)
            made = await _made(log, first, begun, timeout)
            await _follow(database, log, timeout)
        if output.json:
            output.document({"command": "replica init", "made": made, "window": window})
        else:
            output.line("the log is made" if made else "the log is there already")
        return ExitCode.OK

    run("replica init", json, body)


@replica.command("run")
def run_agent(
    database: DatabaseOption,
    log: LogOption,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Show Prometheus metrics there, by HTTP."),
    ] = None,
    timeout: TimeoutOption = 30.0,
    json: JsonOption = False,
) -> None:
    """Carry messages between a replica and its log, until Ctrl-C or SIGTERM. A second agent of a replica waits.

    Prints a line per event; with --json, a document per line. Whatever cannot be reached is tried again. Exit code 1
    where the replica cannot go on: replicas have diverged, or what it needs of the log is gone. 3 where it may when
    it is started again: the output cannot be written, or the port of --metrics is taken.
    """

    async def body(output: Output) -> ExitCode:
        with telling(partial(_tell, output), lambda: agent.stop()) as tell, _failures(database, log):
            async with logs.opened(log, patience=timeout) as engine:
                agent = Agent(database, engine, patience=timeout, on_event=tell)
                with _metrics(metrics, database, agent) as watching:
                    await until_signalled(_beside(agent.run(), watching), agent.stop)
        return ExitCode.OK

    run("replica run", json, body, unwritable=ExitCode.UNREACHABLE)


@replica.command("status")
def status(
    database: DatabaseOption,
    log: LogOption,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show a replica beside the end of its log, and all members of its site as it has heard of them. Exit code 1 where
    no agent applies what is in the log.
    """

    async def body(output: Output) -> ExitCode:
        with _failures(database, log):
            async with connect(database, timeout=timeout) as conn:
                with cut_after(conn, timeout):
                    replication, members = await _replication(conn), await _members(conn)
                    refusals = await _refusals(conn)
            async with logs.opened(log, patience=timeout) as engine:
                end = await engine.end()
        behind = max(0, end - replication["applied"])
        code = ExitCode.PROBLEMS if replication["applier_pid"] is None else ExitCode.OK
        if output.json:
            output.document(
                {
                    "command": "replica status",
                    "exit_code": int(code),
                    "end": end,
                    "behind": behind,
                    "replication": replication,
                    "members": members,
                    "refusals": refusals,
                }
            )
            return code
        if code:
            output.error("no agent is at work here", "start one: pgmip replica run")
        shown = {**replication, "end": end, "behind": behind}
        output.console.print(table(("", ""), ((visible(name), _shown(value)) for name, value in shown.items())))
        _print_rows(output, members)
        _print_rows(output, refusals)
        return code

    run("replica status", json, body)


@replica.command("leave")
def leave(
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Its name, as in mip.members.")],
    database: DatabaseOption,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Tell all replicas, by any of them, that a member has left: the log is not kept for it any more. Stop its agent
    and its server before.

    Exit code 1 where there is no such member, or it still is one after --timeout seconds: no agent is at work here.
    What is still at work is a member again as soon as it tells of itself.
    """

    async def body(output: Output) -> ExitCode:
        with _failures(database):
            async with connect(database, timeout=timeout) as conn:
                with cut_after(conn, 2 * timeout):
                    left = await _leave(conn, member, timeout)
        if not left:
            hint = "an agent has to be at work at this replica"
            raise CliError(f"{visible(member)} is still a member", hint=hint)
        if output.json:
            output.document({"command": "replica leave", "member": member})
        else:
            output.line(f"{member} has left")
        return ExitCode.OK

    run("replica leave", json, body)


# -- the beginning -----------------------------------------------------------------------------------------------


async def _made(log: str, first: Message, begun: bool, timeout: float) -> bool:
    """Whether it was not there yet. It has to be, where the replica has begun."""
    try:
        return await logs.create(log, first, new=not begun, patience=timeout)
    except NoLog as error:
        if not begun:
            raise
        hint = 'where its log is lost see "When the log is lost" in docs/guide/replication.md'
        raise CliError(f"the log: {text(error)}, and this replica follows one already", hint=hint) from error


async def _follow(database: str, log: str, timeout: float) -> None:
    try:
        async with logs.opened(log, patience=timeout) as engine:
            await follow(database, engine, patience=timeout)
    except psycopg.errors.ObjectInUse as error:
        hint = "to see whether it is this log that it follows, stop the agent"
        raise CliError("an agent is at work at this replica, which follows a log already", hint=hint) from error


# -- metrics -----------------------------------------------------------------------------------------------------


@contextmanager
def _metrics(where: str | None, database: str, agent: Agent) -> Iterator[Coroutine[Any, Any, None] | None]:
    """Serve them; what keeps them up to date is to be carried out in the block."""
    if where is None:
        yield None
        return
    host, port = _place(where)
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from ..replication.metrics import ReplicaMetrics
    except ModuleNotFoundError as error:
        raise CliError(missing("--metrics", error.name, "metrics"), ExitCode.USAGE) from None
    registry = CollectorRegistry()
    shown = ReplicaMetrics(database, agent, registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise CliError(f"--metrics: {error.strerror}: {where}", ExitCode.UNREACHABLE) from None
    try:
        yield shown.watch()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _place(where: str) -> tuple[str, int]:
    """Of this machine only, unless a host is named."""
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise CliError(f"--metrics: not [HOST:]PORT: {visible(where)}", ExitCode.USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)


async def _beside(work: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None] | None) -> None:
    """Carry out `work`, and the other until that has ended."""
    if other is None:
        await work
        return
    task = asyncio.create_task(other)
    try:
        await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# -- what the others need ----------------------------------------------------------------------------------------


async def _replication(conn: Connection) -> dict[str, Any]:
    row = await (await conn.execute(_sql.REPLICATION)).fetchone()
    if row is None:
        raise CliError("this database is not replicated", hint="see mip.replicated_database")
    found: dict[str, Any] = row["replication"]
    return found


async def _members(conn: Connection) -> list[dict[str, Any]]:
    return [row["member"] for row in await (await conn.execute(_sql.REPLICA_MEMBERS)).fetchall()]


async def _refusals(conn: Connection) -> list[dict[str, Any]]:
    return [row["refusal"] for row in await (await conn.execute(_sql.REPLICA_REFUSALS)).fetchall()]


def _print_rows(output: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        output.line("")
        output.console.print(table(tuple(rows[0]), ([_shown(value) for value in row.values()] for row in rows)))


async def _leave(conn: Connection, member: str, timeout: float) -> bool:
    """Have it told, and wait until this replica has heard it; whether it has."""

    async def is_one() -> bool:
        return member in [known["member"] for known in await _members(conn)]

    await _replication(conn)
    if not await is_one():
        raise CliError(f"no member is called {visible(member)}", hint="mip.members has those that there are")
    await conn.execute(_sql.REPLICA_LEAVE, (member,))
    end = time.monotonic() + timeout
    while await is_one():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_LOOK_EVERY)
    return True


def _shown(value: object) -> str:
    return "-" if value is None else visible(str(value))


@contextmanager
def _failures(database: str, log: str = "") -> Iterator[None]:
    """What these raise is told as a CliError."""
    for option, check, given in (("--database", conninfo_to_dict, database), ("--log", logs.check, log)):
        try:
            check(given)
        except (psycopg.ProgrammingError, ValueError) as error:
            why = " ".join(str(error).split())
            raise CliError(f"{option}: not a connection string: {why}", ExitCode.USAGE) from None
        except ModuleNotFoundError as error:
            raise CliError(f"{option}: {text(error)}", ExitCode.USAGE) from None
    try:
        yield
    except Stopped as error:
        raise CliError(text(error), hint=error.hint) from error
    except LogError as error:
        code = ExitCode.UNREACHABLE if isinstance(error, Unavailable) else ExitCode.PROBLEMS
        raise CliError(f"the log: {text(error)}", code, hint=error.hint) from error
    except psycopg.Error as error:
        failure = failure_of(error)
        code = ExitCode.UNREACHABLE if error.sqlstate is None else ExitCode.PROBLEMS
        raise CliError(f"the database: {failure.message}", code, hint=failure.hint) from error


def _tell(output: Output, event: Event) -> None:
    error = None if event.error is None else " ".join(f"{type(event.error).__name__}: {text(event.error)}".split())
    hint = event.error.hint if isinstance(event.error, LogError) else None
    if output.json:
        output.document(
            {
                "command": "replica run",
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "event": event.name,
                "part": event.part,
                "error": error,
                "hint": hint,
                "state": None if event.state is None else _document(event.state),
            }
        )
        return
    what = f"{event.part}{f': {error}' if error else ''}{f' ({hint})' if hint else ''}"
    told = what if event.state is None else _line(event.state)
    output.line(f"{datetime.now():%H:%M:%S} ", Text(f"{event.name:<12}", _STYLE.get(event.name, "")), told)


def _document(state: State) -> Mapping[str, Any]:
    """What docs/reference/cli.md says of it."""
    return {
        "member": state.member,
        "applied": state.applied,
        "end": state.end,
        "behind": state.behind,
        "appended": state.appended,
        "received": state.received,
        "appended_per_second": round(state.appended_per_second, 1),
        "received_per_second": round(state.received_per_second, 1),
    }


def _line(state: State) -> str:
    behind = "unknown how far" if state.behind is None else str(state.behind)
    return (
        f"{state.member} has applied {state.applied}, {behind} behind; a second: "
        f"{state.appended_per_second:.1f} appended, {state.received_per_second:.1f} received"
    )
