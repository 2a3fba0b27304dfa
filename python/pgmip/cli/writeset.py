"""`pgmip writeset`: what a transaction has changed, read and applied; and what differs between two databases."""

from __future__ import annotations

import binascii
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from rich.text import Text

from .. import _sql
from .._connection import cut_after
from .checksums import compared, differing
from .config import load
from .errors import CliError, ExitCode
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import Output, table, visible
from .sites import Connection, Failure, ask, connect, failure_of
from .tables import AtOption, chosen_site

__all__ = ["writeset"]

writeset = typer.Typer(
    name="writeset",
    help="Writesets: what transactions have changed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="Its bytes, or these as hexadecimal digits; - is standard input.")
]
_TABLES = b"""
    SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_am a ON a.oid = c.relam
    WHERE a.amname = 'mip' AND c.relkind = 'r' ORDER BY 1
"""
_LIMIT = b"SELECT pg_catalog.set_config('statement_timeout', %s, true)"
_GRACE = 1.0  # seconds that a site has to say that it has ended it
_OPS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}


@writeset.command("show")
def show(
    file: FileArgument,
    at: AtOption = None,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show what is in a writeset, change by change. A site reads it; nothing is changed there."""

    async def body(output: Output) -> ExitCode:
        where, conninfo = chosen_site(at, site, config)
        content = _read(file)
        try:
            async with connect(conninfo, timeout=timeout) as conn:
                with cut_after(conn, timeout):
                    info = await _fetch(conn, _sql.WRITESET_INFO, content)
                    changes = await _fetch(conn, _sql.WRITESET_CHANGES, content)
        except psycopg.Error as error:
            raise _why(error) from error
        if output.json:
            output.document({"command": "writeset show", "site": where, "info": info[0]["info"], "changes": changes})
            return ExitCode.OK
        counts = info[0]["info"]
        said = [f"{counts[kind]} {kind}" for kind in ("inserted", "updated", "deleted", "truncated") if counts[kind]]
        output.line(Text("rows      ", "bold"), ", ".join(said) or "none")
        output.line(Text("tables    ", "bold"), str(counts["relations"]))
        output.line()
        rows = (
            (str(c["number"]), _OPS[c["op"]], visible(c["relation"]), _values(c["identity"]), _values(c["row"]))
            for c in changes
        )
        output.console.print(table(("number", "change", "table", "row", "values"), rows))
        return ExitCode.OK

    run("writeset show", json, body)


@writeset.command("apply")
def apply(
    file: FileArgument,
    at: AtOption = None,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Make the changes of a writeset at a site: all of them, or none.

    Exit code 1 where they cannot be made: a row is not there, a key is there already, a table is not as it was, or
    it would take longer than --timeout.
    """

    async def body(output: Output) -> ExitCode:
        where, conninfo = chosen_site(at, site, config)
        content = _read(file)
        sent = False
        try:
            async with connect(conninfo, timeout=timeout) as conn:
                sent = True
                changes = await _apply(conn, content, timeout)
        except psycopg.Error as error:
            raise _perhaps(error) if sent and error.sqlstate is None else _why(error) from error
        if output.json:
            output.document({"command": "writeset apply", "site": where, "changes": changes})
        else:
            output.line(f"{where}: {changes} changes")
        return ExitCode.OK

    run("writeset apply", json, body)


@writeset.command("diff")
def diff(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Names as in SQL. Else all that have opted in.")
    ] = None,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 60.0,
    json: JsonOption = False,
) -> None:
    """Compare tables at all sites by their checksums: the same rows, whatever their order.

    Each site is read at a moment of its own: nobody should write meanwhile. Exit code 0 where all are the same, 1 where
    they are not, or where there is no such table at any site, 3 where a site cannot be asked.
    """

    async def body(output: Output) -> ExitCode:
        sites = load(site, config).required()
        if len(sites) < 2:
            raise CliError("there is nothing to compare", ExitCode.USAGE, hint="give two sites, or more")
        names = tables or await _tables_of(sites, timeout)

        async def work(_site: str, conn: Connection) -> dict[str, str | None]:
            found: dict[str, str | None] = {}
            for name in names:
                row = await (await conn.execute(_sql.CHECKSUM, (name,))).fetchone()
                found[name] = row["checksum"] if row else None
            return found

        answers = await ask(sites, work, timeout=timeout)
        failures = {name: answer for name, answer in answers.items() if isinstance(answer, Failure)}
        sums = {name: answer for name, answer in answers.items() if not isinstance(answer, Failure)}
        differ = differing(names, sums)
        missing = [name for name in names if all(checksums[name] is None for checksums in sums.values())]
        if not failures and not names:
            raise CliError("there is nothing to compare", hint="no table has opted in at any of these sites: name some")
        wrong = differ or (sums and missing)
        code = ExitCode.UNREACHABLE if failures else ExitCode.PROBLEMS if wrong else ExitCode.OK
        if output.json:
            output.document(
                {
                    "command": "writeset diff",
                    "exit_code": int(code),
                    "errors": {name: failure.document() for name, failure in failures.items()},
                    "tables": {name: {where: checksums[name] for where, checksums in sums.items()} for name in names},
                    "differ": differ,
                    "missing": missing if sums else [],
                }
            )
            return code
        for name, failure in failures.items():
            output.error(f"{name}: {failure.message}", failure.hint)
        if sums:
            for name in missing:
                output.error(f"there is no table {visible(name)} at any of these sites")
        output.console.print(compared(names, sums))
        return code

    run("writeset diff", json, body)


async def _tables_of(sites: Mapping[str, str], timeout: float) -> list[str]:
    """Those that have opted in at any of the sites."""

    async def work(_site: str, conn: Connection) -> list[str]:
        return [row["name"] for row in await (await conn.execute(_TABLES)).fetchall()]

    answers = await ask(sites, work, timeout=timeout)
    return sorted({name for answer in answers.values() if not isinstance(answer, Failure) for name in answer})


async def _apply(conn: Connection, content: bytes, timeout: float) -> int:
    """The site itself ends it in time: it would go on, and make the changes later, if we only went away."""
    with cut_after(conn, timeout + _GRACE):
        async with conn.transaction():
            await conn.execute(_LIMIT, (str(math.ceil(timeout * 1000)),))
            changes: int = (await _fetch(conn, _sql.WRITESET_APPLY, content))[0]["changes"]
    return changes


async def _fetch(conn: Connection, query: bytes, content: bytes) -> list[dict[str, Any]]:
    return await (await conn.execute(query, (content,))).fetchall()


def _read(file: str) -> bytes:
    """What psql prints of a bytea is taken, too."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", ExitCode.USAGE) from error
    if content.startswith(b"MIPW"):
        return content
    try:
        return binascii.unhexlify(content.strip().removeprefix(b"\\x"))
    except binascii.Error:
        return content


def _values(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return "-"
    return ", ".join(f"{visible(name)} = {'NULL' if v is None else visible(str(v))}" for name, v in values.items())


def _perhaps(error: psycopg.Error) -> CliError:
    return CliError(
        f"{failure_of(error).message}. Whether the changes have been made is not known",
        ExitCode.UNREACHABLE,
        hint="look at the rows before applying it again",
    )


def _why(error: psycopg.Error) -> CliError:
    failure = failure_of(error)
    if error.sqlstate is None:
        return CliError(failure.message, ExitCode.UNREACHABLE, hint=failure.hint)
    detail = error.diag.message_detail
    return CliError(f"{failure.message}. {detail}" if detail else failure.message, hint=failure.hint)
