"""What commands print: tables and lines for people, or JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Output", "age", "rate", "table", "visible"]

_WIDTH_OF_PIPES = 200
STYLES = {
    "ok": "green",
    "info": "dim",
    "warning": "yellow",
    "error": "bold red",
    "prepared": "yellow",
    "committed": "green",
    "active": "cyan",
    "aborted": "dim",
}


class Output:
    """One command's way to its reader. Colours go to terminals only, and nowhere with NO_COLOR."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.console = _console(sys.stdout)
        self.errors = _console(sys.stderr)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print a JSON document on a line of its own."""
        # Not through rich, which would wrap it.
        sys.stdout.write(json.dumps(document, default=str) + "\n")
        sys.stdout.flush()

    def line(self, *parts: str | Text) -> None:
        """Print a line for people. A part that is a plain string is shown as it is, markup and all."""
        self.console.print(_text(*parts), soft_wrap=True)

    def error(self, message: str, hint: str | None = None) -> None:
        """Say on stderr what is wrong."""
        self.errors.print(_text(Text("pgmip: ", STYLES["error"]), message), soft_wrap=True)
        if hint:
            self.errors.print(_text(Text("hint: ", "cyan"), hint), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    """A table whose cells are shown as they are, and folded rather than cut."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(_text(cell) for cell in row))
    return made


def age(seconds: float | None) -> str:
    """A time span in the unit that fits."""
    if seconds is None:
        return "-"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def rate(per_second: float) -> str:
    """With as many digits as are of use."""
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}"


def visible(text: str) -> str:
    """The text without anything that a terminal would obey: XIDs and requests are other people's."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _text(*parts: str | Text) -> Text:
    return Text.assemble(*(visible(part) if isinstance(part, str) else part for part in parts))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # of which the whole command ends, see `options.run`


def _console(stream: IO[str] | None) -> Console:
    return _Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream is not None and stream.isatty() else _WIDTH_OF_PIPES,
    )
