"""`pgmip resolve`: finish one request without any app server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..app import App, Resolution
from ..decision import Explanation, Mipts, Rule, State, explain
from ..decision import declared as site_sets
from ..exceptions import Cancelled, Decided, Refused, SubmitError
from .config import load
from .errors import CliError, ExitCode
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import Output, age
from .show import XidArgument, read_known
from .survey import family_sites, push_after

__all__ = ["resolve"]


def resolve(
    xid: XidArgument,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the request where it is not decided.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before cancelling something young.")] = False,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Finish a request that is in doubt: commit its winner at all sites, or with --cancel cancel it.

    A request that is decided is finished as it is decided, with and without --cancel. One that is not takes --cancel:
    an empty instance then makes sure that nothing of it ever happens (that of a role that has been dropped is rolled
    back, by a superuser). Safe at any time, and beside anybody. Needs no app server; to run the request's handler
    again, use sweep, or send the request again.

    Exit code 0 where nothing is in doubt any more, 1 where something is, 3 where a site cannot be asked, 4 where no
    site knows the request.
    """

    async def body(output: Output) -> ExitCode:
        sites = load(site, config).required()
        mipts, failures, ages, _ = await read_known(sites, xid, timeout=timeout)
        declared = family_sites(mipts)
        missing = [name for name in declared if name not in sites]
        if missing:
            raise CliError(
                f"the request is about site {missing[0]!r}, too, which is not given",
                ExitCode.USAGE,
                hint=f"give all of its sites: {', '.join(declared)}",
            )
        several = len(site_sets(mipts)) > 1
        decision = explain({name: mipts[name] for name in declared})
        down = [name for name in declared if name in failures]
        if not _in_doubt(mipts, decision) and not down:
            return _tell(output, xid, "nothing", "nothing is in doubt: no instance is left", None)
        if decision.rule is Rule.VIOLATION and not several:
            raise CliError(decision.reason, hint=f"look at it: pgmip show {xid}")
        if decision.winner is None or several:
            if down:
                raise CliError(
                    f"site {down[0]!r} cannot be asked: {failures[down[0]].message}",
                    ExitCode.UNREACHABLE,
                    hint="without it nobody can tell what is decided; try again when it is back",
                )
            if not cancel and not several:
                raise CliError(decision.reason, hint="send the request again, or cancel it: pgmip resolve --cancel")
            if cancel and not yes:
                youngest = min(
                    (ages[name, entry.xinst] for name, mipt in mipts.items() for entry in mipt or ()
                     if entry.state in (State.ACTIVE, State.PREPARED)),
                    default=None,
                )  # fmt: skip
                _ask(output, youngest, await push_after(sites, timeout=timeout))
        known = {name: sites[name] for name in declared}
        undecided = several or decision.winner is None
        resolution = await _resolve(
            known, xid, None if several else declared, cancel=cancel and undecided, timeout=timeout
        )
        if resolution is None:
            return _tell(output, xid, "nothing", "nothing is in doubt any more", None)
        if resolution.cancelled:
            return _tell(output, xid, "cancelled", "cancelled: it has no effect, and never will", resolution)
        if resolution.refused:
            return _tell(output, xid, "refused", "refused by its handler: it has no effect, and never will", resolution)
        return _tell(output, xid, "committed", "committed at all of its sites", resolution)

    run("resolve", json, body)


def _in_doubt(mipts: Mipts, decision: Explanation) -> bool:
    """Whether there is anything to do: a winner to be told of, or an instance that is not decided."""
    if decision.winner is not None:
        return True
    return any(entry.state in (State.ACTIVE, State.PREPARED) for mipt in mipts.values() for entry in mipt or ())


def _ask(output: Output, youngest: float | None, limit: float) -> None:
    if youngest is None or youngest >= limit:
        return
    what = f"its youngest instance is only {age(youngest)} old: somebody may be working on the request"
    if output.json or not sys.stdin.isatty():
        raise CliError(what, hint="wait, or cancel it nevertheless with --yes")
    output.line(f"pgmip: {what}.")
    if not typer.confirm("Cancel it nevertheless?", default=False):
        raise CliError("not cancelled")


async def _resolve(
    sites: Mapping[str, str], xid: str, declared: tuple[str, ...] | None, *, cancel: bool, timeout: float
) -> Resolution | None:
    async with App(sites, step_timeout=timeout) as app:
        try:
            return await app.resolve(xid, sites=declared, cancel=cancel)
        except Decided as error:
            raise CliError(
                f"{error}: {error.__cause__}",
                ExitCode.UNREACHABLE,
                hint="it is decided and has taken effect; resolve it again when the site is back",
            ) from None
        except (Cancelled, Refused) as error:
            raise CliError(
                f"{error}: {error.__cause__}",
                ExitCode.UNREACHABLE,
                hint="it has no effect, and never will; resolve it again when the site is back",
            ) from None
        except (SubmitError, ValueError) as error:  # as where its instances are over different sites
            raise CliError(str(error)) from None


def _tell(output: Output, xid: str, outcome: str, text: str, resolution: Resolution | None) -> ExitCode:
    if output.json:
        result: Any = resolution.result if resolution else None
        output.document({"command": "resolve", "exit_code": 0, "xid": xid, "outcome": outcome, "result": result})
    else:
        output.line(f"{xid}: {text}")
    return ExitCode.OK
