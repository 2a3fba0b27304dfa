"""`pgmip sweep`: a sweeper as a process of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import sync
from .._text import text
from .._twin import AnyApp
from ..app import App
from ..sweeper import Event, EventName, Sweeper
from .config import load
from .errors import CliError, ExitCode
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import STYLES, Output, age
from .signals import telling, until_signalled
from .survey import Survey, survey

__all__ = ["load_app", "sweep"]

_STYLE = {
    EventName.COMMITTED: STYLES["ok"],
    EventName.CANCELLED: STYLES["warning"],
    EventName.REFUSED: STYLES["ok"],
    EventName.UNDONE: STYLES["warning"],
    EventName.FAILED: STYLES["error"],
    EventName.LOST: STYLES["error"],
}


def sweep(
    app: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:ATTRIBUTE", help="The App, with its handlers and sites.")
    ] = None,
    cancel_unknown: Annotated[
        bool, typer.Option("--cancel-unknown", help="Cancel requests without a handler here, instead of leaving them.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Attend to what is old by now, and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between two looks of its own.")
    ] = 10.0,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, help="Seconds; by default the sites' mip.push_after.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="So many requests at a time.")] = 4,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Finish the requests that nobody retransmits, until Ctrl-C or SIGTERM. Any number of sweepers may run.

    With --app (or "app" in the TOML file) a request's handler runs again, as for a retransmission; the sites are
    those of the App. Without it, or without the handler, decided requests are finished, and the others left alone or,
    with --cancel-unknown, cancelled. Prints a line per event; with --json, a document per line.

    --once ends with what is left in doubt, also where it has found nothing to do; with --json there are events alone.
    Exit code of --once: 0, or 1 where a request could not be finished, or 3 where a site cannot be asked.
    """

    async def body(output: Output) -> ExitCode:
        given = load(site, config)
        name = app or given.app
        serving: AnyApp = App(given.required(), step_timeout=timeout) if name is None else load_app(name)
        with telling(partial(_tell, output), lambda: sweeper.stop()) as tell:
            async with serving:
                sweeper = Sweeper(
                    serving,
                    interval=interval,
                    older_than=older_than,
                    cancel_unknown_after=0 if cancel_unknown else None,
                    concurrency=concurrency,
                    on_event=tell,
                )
                if once:
                    return await _once(output, serving, sweeper, older_than, timeout)
                await until_signalled(sweeper.run(), sweeper.stop)
        return ExitCode.OK

    run("sweep", json, body)


def load_app(name: str) -> AnyApp:
    """The App called `module:attribute`. Raises CliError where there is none."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise CliError(f"an App is given as MODULE:ATTRIBUTE, not {name!r}", ExitCode.USAGE)
    if "" not in sys.path:
        sys.path.insert(0, "")  # as for `python -m`
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = "the current folder and PYTHONPATH are looked at"
        raise CliError(f"cannot import {module_name!r}: {error}", ExitCode.USAGE, hint=hint) from None
    except Exception as error:
        what = f"{type(error).__name__}: {text(error)}"
        raise CliError(f"cannot import {module_name!r}: {what}", ExitCode.USAGE) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CliError(f"{module_name!r} has no attribute {attribute!r}", ExitCode.USAGE)
        found = getattr(found, part)
    if not isinstance(found, App | sync.App):
        raise CliError(f"{name!r} is no pgmip.App, but a {type(found).__name__}", ExitCode.USAGE)
    return found


async def _once(
    output: Output, serving: AnyApp, sweeper: Sweeper, older_than: float | None, timeout: float
) -> ExitCode:
    """One pass. People are told what it looks at, and what is left, also where there was nothing to do."""
    if not output.json:
        output.line(f"looking at {', '.join(serving.sites)}")
    events = await sweeper.sweep()
    if not output.json:
        left = await survey(serving.sites, limit=0, timeout=timeout)
        output.line(_summary(events, left, older_than))
    return _verdict(events)


def _summary(events: Sequence[Event], left: Survey, older_than: float | None) -> str:
    attended = sum(event.xid is not None for event in events)
    done = f"{_requests(attended)} attended to" if attended else "nothing to attend to"
    if left.failed:
        return f"{done}; what is in doubt is not known of all sites"
    if left.hidden:
        done = f"{done}; of roles whose privileges these have not, {left.hidden} in doubt"
    if not left.total:
        return done if left.hidden else f"{done}; nothing is in doubt"
    still = f"{done}; in doubt: {_requests(left.total)}"
    if attended:
        return still
    limit = left.push_after if older_than is None else older_than
    return f"{still}, with an instance younger than {age(limit)}, at which somebody may be at work (see --older-than)"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def _verdict(events: Sequence[Event]) -> ExitCode:
    names = {event.name for event in events}
    if EventName.LOST in names:
        return ExitCode.UNREACHABLE
    return ExitCode.PROBLEMS if EventName.FAILED in names else ExitCode.OK


def document(event: Event, now: datetime) -> Mapping[str, Any]:
    """What docs/reference/cli.md says of `sweep --json`."""
    error = None if event.error is None else " ".join(f"{type(event.error).__name__}: {text(event.error)}".split())
    return {
        "command": "sweep",
        "time": now.isoformat(timespec="milliseconds"),
        "event": event.name,
        "xid": event.xid,
        "site": event.site,
        "error": error,
    }


def _tell(output: Output, event: Event) -> None:
    told = document(event, datetime.now(UTC))
    if output.json:
        output.document(told)
        return
    what = f"request {event.xid}" if event.xid is not None else f"site {event.site}"
    reason = f": {told['error']}" if told["error"] else ""
    output.line(f"{datetime.now():%H:%M:%S} ", Text(f"{event.name:<12}", _STYLE.get(event.name, "")), f"{what}{reason}")
