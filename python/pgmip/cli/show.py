"""`pgmip show`: one request at all of its sites, and the decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from ..decision import Entry, Explanation, Mipts, Rule, State
from ..xinst import checked_xid
from .config import load
from .errors import CliError, ExitCode
from .judge import Judgement, judge
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import STYLES, Output, age, table, visible
from .sites import Failure, Kind
from .survey import family_sites, read_mipts

__all__ = ["XidArgument", "read_known", "show"]

XidArgument = Annotated[str, typer.Argument(metavar="XID", help="The request's name, as status and the log tell it.")]
_SHORT = 200


def show(
    xid: XidArgument,
    site: SiteOption = None,
    config: ConfigOption = None,
    full: Annotated[bool, typer.Option("--full", help="Show requests and results in full.")] = False,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show the instances of a request at all sites side by side, and what is decided and why.

    Exit code 0 where it is decided and finished at all of its sites, 1 where it is not, 3 where a site cannot be
    asked, 4 where no site knows it.
    """

    async def body(output: Output) -> ExitCode:
        sites = load(site, config).required()
        mipts, failures, ages, owner = await read_known(sites, xid, timeout=timeout)
        declared = family_sites(mipts)
        judgement = judge(mipts)
        decision = judgement.explanation
        code = _verdict(declared, mipts, judgement)
        if output.json:
            output.document(
                {
                    "command": "show",
                    "exit_code": int(code),
                    "xid": xid,
                    "owner": owner,
                    "sites": list(declared),
                    "errors": {name: failure.document() for name, failure in failures.items()},
                    "mipts": {name: _rows(mipt, name, ages) for name, mipt in mipts.items()},
                    "winner": decision.winner.xinst if decision.winner else None,
                    "rule": decision.rule,
                    "reason": decision.reason,
                }
            )
            return code
        output.line(Text("request   ", "bold"), xid)
        output.line(Text("owner     ", "bold"), owner or "-")
        output.line(Text("sites     ", "bold"), ", ".join(declared))
        output.line(Text("decision  ", "bold"), Text(visible(decision.reason), _style(decision)))
        output.line()
        output.console.print(_side_by_side(mipts, failures, ages))
        for heading, text in _texts(mipts, decision):
            output.line()
            output.line(Text(heading, "bold"))
            output.line(text if full or len(text) <= _SHORT else f"{text[:_SHORT]}... ({len(text)} characters; --full)")
        return code

    run("show", json, body)


async def read_known(
    sites: Mapping[str, str], xid: str, *, timeout: float
) -> tuple[Mipts, dict[str, Failure], dict[tuple[str, int], float], str | None]:
    """As `read_mipts`. Raises CliError where it cannot be an XID, or no MIPT has an entry."""
    _check(xid)
    found = await read_mipts(sites, xid, timeout=timeout)
    mipts, failures, _, _ = found
    if not any(mipts.values()):
        raise _nobody_knows(xid, failures)
    return found


def _check(xid: str) -> None:
    try:
        checked_xid(xid)
    except ValueError as error:
        raise CliError(
            str(error) if not isinstance(error, UnicodeError) else "the XID is not text", ExitCode.USAGE
        ) from None


def _nobody_knows(xid: str, failures: dict[str, Failure]) -> CliError:
    if not failures:
        return CliError(f"no site knows the request {xid!r}", ExitCode.UNKNOWN_XID)
    name, failure = next(iter(failures.items()))
    what = "says" if failure.kind is Kind.PERMISSION else "cannot be asked"
    return CliError(f"site {name!r} {what}: {failure.message}", ExitCode.UNREACHABLE, hint=failure.hint)


def _verdict(declared: tuple[str, ...], mipts: Mipts, judgement: Judgement) -> ExitCode:
    if any(mipts.get(name) is None for name in declared):
        return ExitCode.UNREACHABLE
    return ExitCode.OK if judgement.is_finished else ExitCode.PROBLEMS


def _style(decision: Explanation) -> str:
    if decision.rule is Rule.COMMITTED:
        return STYLES["ok"]
    return STYLES["error" if decision.rule is Rule.VIOLATION else "warning"]


def _rows(mipt: Sequence[Entry] | None, site: str, ages: dict[tuple[str, int], float]) -> list[dict[str, Any]] | None:
    if mipt is None:
        return None
    return [
        {
            "xinst": entry.xinst,
            "state": entry.state,
            "request": entry.request,
            "result": entry.result,
            "sites": list(entry.sites),
            "age": ages.get((site, entry.xinst)),
            "acknowledged": entry.acknowledged,
        }
        for entry in mipt
    ]


def _side_by_side(mipts: Mipts, failures: dict[str, Failure], ages: dict[tuple[str, int], float]) -> Any:
    xinsts = sorted({entry.xinst for mipt in mipts.values() for entry in mipt or ()})

    def cell(site: str, xinst: int) -> Text:
        if site in failures:
            return Text(visible(f"{failures[site].kind}: {failures[site].message}"), STYLES["error"])
        state = next((entry.state for entry in mipts[site] or () if entry.xinst == xinst), None)
        if state is None:
            return Text("-", STYLES["info"])
        since = f" for {age(ages[site, xinst])}" if state in (State.ACTIVE, State.PREPARED) else ""
        return Text(f"{state}{since}", STYLES[state])

    return table(
        ["instance", *(visible(site) for site in mipts)],
        [[str(xinst), *(cell(site, xinst) for site in mipts)] for xinst in xinsts],
    )


def _texts(mipts: Mipts, decision: Explanation) -> list[tuple[str, str]]:
    entries = [entry for mipt in mipts.values() for entry in mipt or ()]
    requests = [entry.request for entry in entries if entry.request is not None]
    if decision.winner is not None and decision.winner.request is not None:
        requests = [decision.winner.request]
    request = next(iter(requests), None)
    texts = [("request", request)] if request is not None else []
    if decision.winner is not None:
        result = decision.winner.result
        lost = "acknowledged, and dropped" if decision.winner.acknowledged else "none: the request is cancelled"
        texts.append(("result", lost if result is None else result))
    return texts
