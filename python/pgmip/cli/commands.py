"""All commands under one name."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from .bench import bench
from .demo import demo
from .doctor import doctor
from .replica import replica
from .resolve import resolve
from .show import show
from .status import status, top
from .sweep import sweep
from .tables import disable, enable
from .writeset import writeset

__all__ = ["app", "run"]

app = typer.Typer(
    name="pgmip",
    help="See what requests over several PostgreSQL databases are up to, and put right what is left behind.",
    epilog="Sites: --site NAME=CONNINFO, PGMIP_SITES, or a TOML file (--config, PGMIP_CONFIG, pgmip.toml). "
    "Exit codes: 0 fine, 1 problems, 2 usage, 3 a site cannot be asked, 4 unknown XID.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a local variable may hold a password
)
for command in (status, top, show, resolve, sweep, doctor, enable, disable, bench, demo):
    app.command()(command)
app.add_typer(writeset)
app.add_typer(replica)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pgmip {version('pgmip')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run() -> None:
    app(prog_name="pgmip")
