"""`pgmip replica diff`: whether all replicas have the same, at the same position of the log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict
from rich.text import Text

from .. import _sql
from .._connection import Connection, cut_after
from ..replication.same_position import Coincidence, Unreached, at_same_position
from ..replication.session import session
from .checksums import Sums, compared, differing
from .errors import CliError, ExitCode
from .options import JsonOption, TimeoutOption, run
from .output import STYLES, Output, visible
from .sites import failure_of

__all__ = ["diff"]

Checksums = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class _Replica:
    """What one says of itself."""

    member: str
    applied: int
    applier_pid: int | None
    log: dict[str, Any] | None
    """The settings of the log that it follows."""


def diff(
    databases: Annotated[list[str], typer.Argument(metavar="CONNINFO...", help="The replicas, two or more.")],
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
) -> None:
    """Compare replicas at the same position of the log: all their tables, by checksums, and their history of the log.
    They may be in use meanwhile, and nobody has to wait for it.

    Exit code 0 where all are the same, 1 where they are not, 3 where a replica cannot be asked, or where within
    --timeout seconds there was no position that was seen at all of them. A table may take as long, too.
    """

    async def body(output: Output) -> ExitCode:
        if len(databases) < 2:
            raise CliError("there is nothing to compare", ExitCode.USAGE, hint="give two replicas, or more")
        members = [it.member for it in _checked(await _ask(databases, timeout))]

        async def look(conn: Connection, tables: Sequence[str]) -> Checksums:
            return await _checksums(conn, tables, timeout)

        try:
            found = await at_same_position(databases, look, patience=timeout)
        except Unreached:
            raise await _unreached(databases, timeout) from None
        except psycopg.Error as error:
            raise _why(error) from error
        return _told(output, members, found)

    run("replica diff", json, body)


# -- before ------------------------------------------------------------------------------------------------------


async def _ask(databases: Sequence[str], timeout: float) -> list[_Replica]:
    for database in databases:
        try:
            conninfo_to_dict(database)
        except (psycopg.ProgrammingError, UnicodeError) as error:
            why = " ".join(str(error).split())
            raise CliError(f"not a connection string: {why}", ExitCode.USAGE) from None
    return list(await asyncio.gather(*(_identify(database, timeout) for database in databases)))


async def _identify(database: str, timeout: float) -> _Replica:
    try:
        async with session(database, "pgmip diff", timeout) as conn:
            with cut_after(conn, timeout):
                rows = await (await conn.execute(_sql.REPLICA_IDENTITY)).fetchall()
    except psycopg.Error as error:
        raise _why(error, database) from error
    if not rows:
        raise CliError(f"{_named(database)} is not replicated", hint="see mip.replicated_database")
    return _Replica(*rows[0])


def _checked(replicas: Sequence[_Replica]) -> Sequence[_Replica]:
    """Raise CliError where they are not several replicas of one site."""
    for member, times in Counter(it.member for it in replicas).items():
        if times > 1:
            raise CliError(f"{times} replicas are called {visible(member)}", hint="give each once; see mip.member")
    for it in replicas:
        if it.log is None:
            raise CliError(f"{visible(it.member)} has not read a log yet", hint="see pgmip replica init, run")
    if any(it.log != replicas[0].log for it in replicas):
        raise CliError("these are not replicas of one site", hint="their logs have begun otherwise, see mip.log")
    return replicas


def _named(database: str) -> str:
    """Without a password."""
    known = conninfo_to_dict(database)
    words = (f"{key}={known[key]}" for key in ("service", "host", "port", "dbname") if known.get(key))
    return visible(" ".join(words) or "the default database")


# -- looking -----------------------------------------------------------------------------------------------------


async def _checksums(conn: Connection, tables: Sequence[str], timeout: float) -> Checksums:
    found: Checksums = {}
    for name in tables:
        with cut_after(conn, timeout):
            ((found[name],),) = await (await conn.execute(_sql.CHECKSUM, (name,))).fetchall()
    return found


async def _unreached(databases: Sequence[str], timeout: float) -> CliError:
    """Why there was no position that all have."""
    replicas = await _ask(databases, timeout)
    idle = [it.member for it in replicas if it.applier_pid is None]
    where = ", ".join(f"{it.member} has applied {it.applied}" for it in replicas)
    hint = f"no agent is at work at {', '.join(idle)}" if idle else "try again, with a longer --timeout"
    return CliError(f"no position was seen at all replicas: {visible(where)}", ExitCode.UNREACHABLE, hint=visible(hint))


def _why(error: psycopg.Error, database: str | None = None) -> CliError:
    failure = failure_of(error)
    where = "" if database is None else f"{_named(database)}: "
    code = ExitCode.UNREACHABLE if isinstance(error, psycopg.OperationalError) else ExitCode.PROBLEMS
    return CliError(f"{where}{failure.message}", code, hint=failure.hint)


# -- telling -----------------------------------------------------------------------------------------------------


def _told(output: Output, members: Sequence[str], found: Coincidence[Checksums]) -> ExitCode:
    names = sorted({name for checksums in found.seen for name in checksums})
    sums: Sums = {
        member: {name: checksums.get(name) for name in names}
        for member, checksums in zip(members, found.seen, strict=True)
    }
    histories = dict(zip(members, found.histories, strict=True))
    differ = differing(names, sums)
    diverged = len(set(found.histories)) > 1
    code = ExitCode.PROBLEMS if differ or diverged else ExitCode.OK
    if output.json:
        output.document(
            {
                "command": "replica diff",
                "exit_code": int(code),
                "position": found.position,
                "histories": histories,
                "tables": {name: {member: checksums[name] for member, checksums in sums.items()} for name in names},
                "differ": differ,
            }
        )
        return code
    verdict = Text("other histories", STYLES["error"]) if diverged else Text("the same history", STYLES["ok"])
    output.line(f"position {found.position} of the log, with ", verdict)
    if diverged:
        output.line(", ".join(f"{member} has {history}" for member, history in histories.items()))
    output.line()
    output.console.print(compared(names, sums))
    return code
