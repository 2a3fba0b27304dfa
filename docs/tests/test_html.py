"""What Sphinx makes of the documents: without a warning, and as a reader wants to see it."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parent.parent
LIBRARY = DOCS.parent / "python" / "pgmip"
COLUMNS = 88  # of code that the theme shows without scrolling, on a wide screen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every page, by its path."""
    out = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {str(path.relative_to(out)): path.read_text(encoding="utf-8") for path in out.rglob("*.html")}


def test_nothing_is_shown_as_an_error(made: dict[str, str]) -> None:
    """Neither by the theme, nor by docutils, nor as code that is not what its block says."""
    for page, text in made.items():
        assert re.findall(r'ERROR:[^<]*|class="(?:err|problematic|system-message)"', text) == [], page


def test_code_is_not_cut_off(made: dict[str, str]) -> None:
    for page, text in made.items():
        for block in re.findall(r"<pre>(.*?)</pre>", text, re.S):
            lines = html.unescape(re.sub(r"<[^>]*>", "", block)).splitlines()
            assert [line for line in lines if len(line) > COLUMNS] == [], page


def test_nothing_is_lost_between_backticks() -> None:
    """Docutils takes `a <b>` for a link to b whose title is a."""
    for source in LIBRARY.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        assert re.findall(r"(?<!`)`[^`\n]* <?<[^`\n]*>`(?!`)|(?<!`)`[^`\n]*<\w+>`(?!`)", text) == [], source


class Links(HTMLParser):
    """What a page links to, and what of it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.names.add(value)
            elif tag == "a" and name == "href" and value:
                self.targets.append(value)


def test_links_lead_somewhere(made: dict[str, str]) -> None:
    pages = {page: Links(text) for page, text in made.items()}
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or not (url.path.endswith(".html") or not url.path):
                continue
            where = str((Path("/") / page).parent.joinpath(url.path).resolve().relative_to("/")) if url.path else page
            assert where in pages, f"{page}: {target}"
            assert not url.fragment or unquote(url.fragment) in pages[where].names, f"{page}: {target}"
