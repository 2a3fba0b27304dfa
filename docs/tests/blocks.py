"""The code blocks of a page, and the comments before them that say how they are to be run.

    <!-- site: bank -->         a block of SQL is for this site (else for `store`)
    <!-- file: shop.py -->      a block is a file of that name, for the page's commands and modules
    <!-- serves: 8001 -->       a command runs until the page ends; what follows waits until it listens on that port
    <!-- runs: REASON -->       likewise, without listening; nothing waits for it
    <!-- exit: 1 -->            a block of commands ends with that exit code (else with 0)
    <!-- not run: REASON -->    a block is not run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "blocks"]

_BLOCK = re.compile(r"^(?P<notes>(?:<!--[^\n]*-->\n)*)```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
_NOTE = re.compile(r"<!-- (site|file|serves|runs|exit|not run): (.*?) -->")


@dataclass(frozen=True)
class Block:
    """`line` is where its text begins."""

    language: str
    text: str
    line: int
    notes: dict[str, str] = field(default_factory=dict)


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks that name a language."""
    content = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(content):
        line = content.count("\n", 0, match.start("text")) + 1
        yield Block(match["language"], match["text"], line, dict(_NOTE.findall(match["notes"])))
