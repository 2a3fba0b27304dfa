"""What the documents of this repository link to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for path in TOP.rglob("*.md") if not {".git", "venv", "node_modules"} & set(path.relative_to(TOP).parts)
)
_LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(TOP)))
def test_links(document: Path) -> None:
    linked = _LINK.findall(document.read_text(encoding="utf-8"))
    assert [path for path in linked if not (document.parent / path).exists()] == []
