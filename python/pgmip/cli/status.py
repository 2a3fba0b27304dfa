"""`pgmip status` and `pgmip top`: sites, replicas, requests in doubt, who waits for whom."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..decision import Rule
from . import replicas
from .config import load
from .errors import ExitCode
from .judge import judge
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import STYLES, Output, age, rate, table, visible
from .sites import Failure
from .survey import RequestInDoubt, SiteState, Survey, Wait, family_sites, survey

__all__ = ["status", "top"]

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Show so many requests at most, the oldest ones.")]


def status(
    site: SiteOption = None,
    config: ConfigOption = None,
    limit: LimitOption = 100,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show the sites, how far replicas are, what is in doubt and what it waits for, and who waits for whom.

    Exit code 1 where a request has been in doubt for longer than mip.push_after, 3 where a site cannot be asked.
    """

    async def body(output: Output) -> ExitCode:
        found = await survey(load(site, config).required(), limit=limit, timeout=timeout)
        if output.json:
            output.document({"command": "status", **document(found)})
        else:
            output.console.print(rendered(found))
        return verdict(found)

    run("status", json, body)


def top(
    site: SiteOption = None,
    config: ConfigOption = None,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after so many looks.")] = None,
    limit: LimitOption = 20,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Show the same as status, again and again, until Ctrl-C. With --json a document per look, each on a line."""

    async def looks(output: Output, live: Live | None) -> ExitCode:
        sites = load(site, config).required()
        looked = 0
        before: Survey | None = None
        while True:
            found = await survey(sites, limit=limit, timeout=timeout)
            if output.json:
                output.document({"command": "top", **document(found)})
            else:
                shown = Group(rendered(found), *rates(before, found))
                if live is not None:
                    live.update(shown, refresh=True)
                else:
                    output.console.print(shown)
            before = found
            looked += 1
            if looked == count:
                return verdict(found)
            await asyncio.sleep(interval)

    async def body(output: Output) -> ExitCode:
        if output.json or not output.console.is_terminal:
            return await looks(output, None)
        with Live(console=output.console, screen=True, auto_refresh=False) as live:
            return await looks(output, live)

    run("top", json, body)


def verdict(found: Survey) -> ExitCode:
    if found.failed:
        return ExitCode.UNREACHABLE
    return ExitCode.PROBLEMS if found.old else ExitCode.OK


# -- JSON --------------------------------------------------------------------------------------------------------


def document(found: Survey) -> dict[str, Any]:
    """What docs/reference/cli.md says of `status --json`."""
    return {
        "exit_code": int(verdict(found)),
        "push_after": found.push_after,
        "in_doubt": found.total,
        "sites": {site: _site_document(state) for site, state in found.sites.items()},
        "families": [_family_document(family, found) for family in found.families],
        "waits": [_wait_document(wait) for wait in found.waits],
    }


def _site_document(state: SiteState | Failure) -> dict[str, Any]:
    if isinstance(state, Failure):
        return {"error": state.document()}
    return {
        "error": None,
        "database": state.database,
        "role": state.role,
        "server": state.server,
        "standby": state.standby,
        "extension": state.extension,
        "in_doubt": len(state.doubts),
        "oldest": max((doubt.age for doubt in state.doubts), default=None),
        "hidden": state.hidden,
        "foreign_prepared": len(state.foreign),
        "counters": dict(state.counters),
        "replica": state.replica and state.replica.document(),
    }


def _family_document(family: RequestInDoubt, found: Survey) -> dict[str, Any]:
    explanation = judge(family.known).explanation
    return {
        "xid": family.xid,
        "owner": family.owner,
        "sites": list(family_sites(family.mipts) or family.sites),
        "age": family.age,
        "instances": [{"xinst": xinst, "states": states} for xinst, states in family.states.items()],
        "winner": explanation.winner.xinst if explanation.winner else None,
        "rule": explanation.rule,
        "reason": explanation.reason,
        "blocks": [{"site": wait.site, "pid": wait.pid} for wait in _blocked_by(family, found)],
    }


def _wait_document(wait: Wait) -> dict[str, Any]:
    return {
        "site": wait.site,
        "pid": wait.pid,
        "instance": _named(wait.instance),
        "role": wait.role,
        "application": wait.application,
        "query": wait.query,
        "age": wait.age,
        "lock": wait.lock,
        "relation": wait.relation,
        "blocked_by": {
            "pids": list(wait.pids),
            "instances": [_named(instance) for instance in wait.instances],
            "prepared": list(wait.prepared),
        },
    }


def _named(instance: tuple[str, int] | None) -> dict[str, Any] | None:
    return None if instance is None else {"xid": instance[0], "xinst": instance[1]}


def _blocked_by(family: RequestInDoubt, found: Survey) -> list[Wait]:
    return [wait for wait in found.waits if any(xid == family.xid for xid, _ in wait.instances)]


# -- for people --------------------------------------------------------------------------------------------------


def rendered(found: Survey) -> RenderableType:
    parts: list[RenderableType] = [
        table(
            ["site", "state", "database", "server", "extension", "in doubt", "oldest", "waiting"],
            [_site_row(site, state, found) for site, state in found.sites.items()],
        )
    ]
    parts += [Text(note, STYLES["warning"]) for note in _notes(found)]
    parts += replicas.rendered(found.replicas)
    if found.families:
        parts += ["", Text(_headline(found), "bold")]
        parts.append(
            table(
                ["request", "in doubt for", "owner", "instances", "what it waits for", "blocks"],
                [_family_row(family, found) for family in found.families],
            )
        )
    elif not (found.failed or found.hidden):
        parts += ["", Text("Nothing is in doubt.", STYLES["ok"])]
    if found.waits:
        parts += ["", Text("Who waits for whom", "bold")]
        parts.append(
            table(["site", "session", "role", "for", "waits for", "query"], [_wait_row(wait) for wait in found.waits])
        )
    return Group(*parts)


_RATES = {
    "begun": "begun",
    "begun_beside_siblings": "siblings",
    "prepared": "prepared",
    "committed": "committed",
    "committed_in_one_phase": "in one phase",
    "rolled_back": "rolled back",
    "failed": "failed",
    "hand_overs": "hand-overs",
    "waits_for_outsiders": "waits",
    "pushes": "pushes",
}


def rates(before: Survey | None, found: Survey) -> list[RenderableType]:
    """What has happened per second since the look before, by site."""
    rows = []
    looks = {}
    for site, state in found.sites.items():
        last = before.sites.get(site) if before is not None else None
        if isinstance(state, SiteState) and isinstance(last, SiteState):
            seconds = max(state.at - last.at, 0.001)
            # A counter that went back has been reset.
            counted = (max(0, state.counters.get(name, 0) - last.counters.get(name, 0)) / seconds for name in _RATES)
            rows.append([site, *map(rate, counted)])
            if state.replica is not None and last.replica is not None:
                looks[site] = last.replica, state.replica, seconds
    shown: list[RenderableType] = ["", table(["per second", *_RATES.values()], rows)] if rows else []
    return shown + replicas.rates(looks)


def _headline(found: Survey) -> str:
    shown = "" if len(found.families) == found.total else f", the oldest {len(found.families)} of them"
    return f"In doubt: {found.total} request{'s' if found.total != 1 else ''}{shown}"


def _site_row(site: str, state: SiteState | Failure, found: Survey) -> list[str | Text]:
    if isinstance(state, Failure):
        return [site, Text(visible(f"{state.kind}: {state.message}"), STYLES["error"]), *[""] * 6]
    oldest = max((doubt.age for doubt in state.doubts), default=None)
    late = oldest is not None and oldest >= found.push_after
    return [
        site,
        Text("standby", STYLES["error"]) if state.standby else Text("ok", STYLES["ok"]),
        state.database,
        state.server.split()[0],
        state.extension or "-",
        str(len(state.doubts)),
        Text(age(oldest), STYLES["warning"] if late else ""),
        str(len(state.waits)),
    ]


def _notes(found: Survey) -> list[str]:
    notes = []
    for site, state in found.sites.items():
        if isinstance(state, Failure):
            if state.hint:
                notes.append(visible(f"{site}: {state.hint}"))
            continue
        if state.hidden:
            notes.append(visible(f"{site}: {state.hidden} more in doubt belong to roles that {state.role} is not in"))
        if state.foreign:
            oldest = age(state.foreign[0][2])
            notes.append(f"{site}: {len(state.foreign)} prepared transactions of others, the oldest for {oldest}")
    return notes


def _family_row(family: RequestInDoubt, found: Survey) -> list[str | Text]:
    explanation = judge(family.known).explanation
    style = STYLES["error"] if explanation.rule is Rule.VIOLATION else ""
    blocked = _blocked_by(family, found)
    instances = "\n".join(
        f"{xinst}: " + ", ".join(f"{site} {state}" for site, state in states.items())
        for xinst, states in family.states.items()
    )
    return [
        family.xid,
        Text(age(family.age), STYLES["warning"] if family.age >= found.push_after else ""),
        family.owner,
        Text(visible_lines(instances)),
        Text(visible(explanation.reason), style),
        ", ".join(f"{wait.site}/{wait.pid}" for wait in blocked) or "-",
    ]


def visible_lines(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))


def _wait_row(wait: Wait) -> list[str | Text]:
    holders = [f"request {xid} (instance {xinst})" for xid, xinst in wait.instances]
    holders += [f"session {pid}" for pid in wait.pids]
    holders += [f"prepared transaction {gid}" for gid in wait.prepared]
    who = f"{wait.pid} (request {wait.instance[0]})" if wait.instance else str(wait.pid)
    on = f" on {wait.relation}" if wait.relation else ""
    return [
        wait.site, who, wait.role or "-", age(wait.age),
        (", ".join(holders) or "somebody") + on, wait.query or "-",
    ]  # fmt: skip
