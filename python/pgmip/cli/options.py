"""What all commands take, and how each of them ends."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import psycopg
import typer

from .errors import CliError, ExitCode
from .output import Output
from .sites import failure_of

__all__ = ["ConfigOption", "JsonOption", "SiteOption", "TimeoutOption", "run"]

SiteOption = Annotated[
    list[str] | None,
    typer.Option("--site", metavar="NAME=CONNINFO", help="A site; once per site. Else see PGMIP_SITES and --config."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file with the sites. Else PGMIP_CONFIG, or pgmip.toml."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a site may take to answer.")]

Body = Callable[[Output], Coroutine[Any, Any, ExitCode]]


def run(name: str, json: bool, body: Body, *, unwritable: ExitCode = ExitCode.PROBLEMS) -> NoReturn:
    """Run a command, and end it: with its exit code, or with its error told in a line, not shown as a traceback.
    `unwritable`: where its output cannot be written, as to a full disk.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # there may be none; and an XID may have any characters
            stream.reconfigure(errors="backslashreplace")
    output = Output(json=json)
    # Commands tell by themselves what libraries log; without a handler Python would print warnings on stderr.
    for library in ("pgmip", "psycopg"):
        logging.getLogger(library).addHandler(logging.NullHandler())
    try:
        code = _ended(name, output, body)
    except OSError as error:
        # Nothing can be written; the interpreter must not try to flush at its end, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.CLOSED_PIPE
        if not isinstance(error, BrokenPipeError):
            output.error(str(error))
            code = unwritable
    raise typer.Exit(int(code))


def _ended(name: str, output: Output, body: Body) -> ExitCode:
    try:
        code = asyncio.run(body(output))
        sys.stdout.flush()
        return code
    except CliError as error:
        return _told(output, name, str(error), error.code, error.hint)
    except psycopg.Error as error:
        failure = failure_of(error)
        return _told(output, name, failure.message, ExitCode.UNREACHABLE, failure.hint)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _told(output: Output, name: str, message: str, code: ExitCode, hint: str | None) -> ExitCode:
    if output.json:
        output.document({"command": name, "error": {"message": message, "hint": hint, "exit_code": int(code)}})
    else:
        output.error(message, hint)
    return code
