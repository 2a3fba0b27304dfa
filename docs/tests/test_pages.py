"""Sphinx makes the documents without a warning, and what they show runs as it is written there.

The blocks of a page run one after another: Python in one namespace, where `await` needs no function; SQL by psql, a
session per block; of `console` the lines that begin with `$ `, each by a shell. Each has to end as the page says. What
a page leaves behind is checked by its own Python, with `assert`, where the reader gains by it. Servers listen on any
free port in place of 8001.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blocks import Block, blocks

DOCS = Path(__file__).parent.parent
PAGES = sorted(page for page in DOCS.rglob("*.md") if {block.language for block in blocks(page)} & {"python", "sql"})
FIRST = DOCS / "guide" / "first-transaction.md"


def test_sphinx(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, services: dict[str, str]) -> None:
    namespace: dict[str, Any] = {"__name__": "guide"}
    with asyncio.Runner() as loop:
        try:
            if page != FIRST:
                run(FIRST, namespace, loop)  # the shop that the other pages speak of
            run(page, namespace, loop)
        finally:
            loop.run(namespace["app"].close())


def run(page: Path, namespace: dict[str, Any], loop: asyncio.Runner) -> None:
    port = free_port()
    for shown in blocks(page):
        block = replace(shown, text=shown.text.replace("8001", port))
        if "not run" in block.notes:
            continue
        if "file" in block.notes:
            Path(block.notes["file"]).write_text(block.text)
        match block.language:
            case "python":
                run_python(page, block, namespace, loop)
            case "sql":
                run_command(page, block, ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", dsn(block)], block.text)
            case "console":
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        run_command(page, block, ["sh", "-c", line[2:]])


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def dsn(block: Block) -> str:
    return f"service={block.notes.get('site', 'store')}"


def run_python(page: Path, block: Block, namespace: dict[str, Any], loop: asyncio.Runner) -> None:
    source = "\n" * (block.line - 1) + block.text  # so that a traceback tells the line
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def execute() -> None:
        answer = eval(code, namespace)
        if inspect.isawaitable(answer):
            await answer

    loop.run(execute())


def run_command(page: Path, block: Block, command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    told = f"{page.name}:{block.line}: {command}: {done.stdout}{done.stderr}"
    assert done.returncode == int(block.notes.get("exit", 0)), told
