"""The command line `pgmip`: what an operator sees of requests and sites, and what can be done about them.

Needs the extra `cli` (typer, rich). docs/reference/cli.md has the exit codes, the documents of `--json`, and how sites
are given.
"""

from __future__ import annotations

import sys

from .._extra import missing

__all__ = ["main"]


def main() -> None:
    """The console script. Ends the process with an exit code of `pgmip.cli.errors.ExitCode`."""
    try:
        from .commands import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        print(f"pgmip: {missing('the command line', package, 'cli')}", file=sys.stderr)
        sys.exit(2)
    run()
