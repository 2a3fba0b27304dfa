"""`pgmip enable` and `pgmip disable`: let tables opt in to sibling versions, or out."""

from __future__ import annotations

from typing import Annotated, Any

import psycopg
import typer

from .. import _sql
from .config import load
from .errors import CliError, ExitCode
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import Output
from .sites import Connection, connect, failure_of

__all__ = ["AtOption", "chosen_site", "disable", "enable"]

TablesArgument = Annotated[list[str], typer.Argument(metavar="TABLE...", help="Names as in SQL: orders, shop.item.")]
AtOption = Annotated[str | None, typer.Option("--at", metavar="NAME", help="The site, where more than one is given.")]
WaitOption = Annotated[
    float, typer.Option("--lock-timeout", min=0.001, help="Seconds to wait for those who use a table.")
]
_LONGEST_LOCK_TIMEOUT = 86_400  # seconds
_STATE = b"""
    SELECT c.oid::regclass::text AS name, a.amname AS method
    FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam WHERE c.oid = to_regclass(%s)
"""


def enable(
    tables: TablesArgument,
    at: AtOption = None,
    lock_timeout: WaitOption = 5.0,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Let tables opt in, with their partitions and inheritance children: in place, one after another.

    For its owner. Needs each table for itself for a moment; where somebody uses it, in doubt or otherwise, it gives up
    after --lock-timeout, so that nobody queues up behind it for long.

    Exit code 1 where a table could not be changed; those before it stay changed.
    """
    run("enable", json, lambda output: _switch(output, "enable", tables, at, lock_timeout, site, config, timeout))


def disable(
    tables: TablesArgument,
    at: AtOption = None,
    lock_timeout: WaitOption = 5.0,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Turn tables back into heap tables, as enable did it."""
    run("disable", json, lambda output: _switch(output, "disable", tables, at, lock_timeout, site, config, timeout))


async def _switch(
    output: Output, verb: str, names: list[str], at: str | None, lock_timeout: float, site: Any, config: Any,
    timeout: float,
) -> ExitCode:  # fmt: skip
    if not 0 <= lock_timeout <= _LONGEST_LOCK_TIMEOUT:
        raise CliError(f"--lock-timeout must be from 0 to {_LONGEST_LOCK_TIMEOUT} seconds", ExitCode.USAGE)
    where, conninfo = chosen_site(at, site, config)
    done: list[dict[str, Any]] = []
    failed: CliError | None = None
    try:
        async with connect(conninfo, timeout=timeout) as conn:
            await conn.execute(b"SELECT set_config('lock_timeout', %s, false)", (f"{int(lock_timeout * 1000)}ms",))
            for name in names:
                done.append(await _one(conn, verb, name))
                if not output.json:
                    told = done[-1]
                    output.line(f"{told['table']}: {'' if told['changed'] else 'already '}{verb}d")
    except psycopg.Error as error:
        failed = _why(error, names[len(done)] if len(done) < len(names) else None)
    except CliError as error:
        failed = error
    if failed is not None and (not output.json or not done):
        raise failed
    if output.json:
        error_document = (
            {"message": str(failed), "hint": failed.hint, "exit_code": int(failed.code)} if failed else None
        )
        output.document({"command": verb, "site": where, "tables": done, "error": error_document})
    return failed.code if failed else ExitCode.OK


async def _one(conn: Connection, verb: str, name: str) -> dict[str, Any]:
    before = await (await conn.execute(_STATE, (name,))).fetchone()
    if before is None:
        raise CliError(f"there is no table {name!r}", ExitCode.PROBLEMS)
    await conn.execute(_sql.ENABLE if verb == "enable" else _sql.DISABLE, (name,))
    after = await (await conn.execute(_STATE, (name,))).fetchone()
    assert after is not None
    return {"table": after["name"], "changed": before["method"] != after["method"]}


def _why(error: psycopg.Error, name: str | None) -> CliError:
    failure = failure_of(error)
    if error.sqlstate is None:
        return CliError(failure.message, ExitCode.UNREACHABLE, hint=failure.hint)
    prefix = f"{name}: " if name else ""
    if error.sqlstate == "55P03":
        hint = (
            "somebody uses the table, maybe a request in doubt (pgmip status); try again, or with more --lock-timeout"
        )
        return CliError(f"{prefix}still in use", hint=hint)
    return CliError(f"{prefix}{failure.message}", hint=failure.hint)


def chosen_site(at: str | None, site: Any, config: Any) -> tuple[str, str]:
    """The site that is meant, and how to get there."""
    sites = load(site, config).required()
    if at is None and len(sites) > 1:
        raise CliError("more than one site is given", ExitCode.USAGE, hint=f"say which: --at {next(iter(sites))}")
    where = at or next(iter(sites))
    if where not in sites:
        raise CliError(f"there is no site {where!r}", ExitCode.USAGE, hint=f"there are {', '.join(sites)}")
    return where, sites[where]
