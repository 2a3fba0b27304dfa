"""What the documents show runs as it is written there.

The blocks of a page run one after another: Python in one namespace, where `await` needs no function, as in
`python -m asyncio`; SQL by psql, a session per block; of `console` the lines that begin with `$ `, each by a shell.
Each has to end as the page says, and to print what the page shows below it. What a page leaves behind is checked by
its own Python, with `assert`, where the reader gains by it. Servers listen on any free port in place of the page's.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blocks import Block, blocks

DOCS = Path(__file__).parent.parent
PAGES = sorted(page for page in DOCS.rglob("*.md") if {block.language for block in blocks(page)} & {"python", "sql"})
FIRST = DOCS / "guide" / "first-transaction.md"


PORTS = ("8001", "8002", "5433", "5434", "5435")
PATIENCE = 120  # seconds until a server has to listen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path, services: dict[str, str]) -> None:
    namespace: dict[str, Any] = {"__name__": "guide"}
    with asyncio.Runner() as loop, ExitStack() as servers:
        try:
            if page != FIRST:
                run(FIRST, namespace, loop, servers)  # the shop that the other pages speak of
            run(page, namespace, loop, servers)
        finally:
            if "app" in namespace:
                loop.run(namespace["app"].close())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_where_await_stands(page: Path) -> None:
    """A reader pastes what is shown: what is a file runs as one, and `await` outside of functions is for where the page
    says.
    """
    shown = [block for block in blocks(page) if block.language == "python"]
    for block in shown:
        if "file" in block.notes:
            compile(block.text, str(page), "exec")
    if any(not is_script(block.text) for block in shown):
        assert "`python -m asyncio`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_whose_sql_it_is(page: Path) -> None:
    """The notes are not shown: a reader is told in words which site a block is for."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in blocks(page):
        if "site" in block.notes:
            words = [line for line in lines[: block.line - 1] if line and not line.startswith(("<!--", "```"))]
            assert block.notes["site"] in words[-1] + block.text.splitlines()[0]


def is_script(text: str) -> bool:
    try:
        compile(text, "shown", "exec")
    except SyntaxError:
        return False
    return True


def run(page: Path, namespace: dict[str, Any], loop: asyncio.Runner, servers: ExitStack) -> None:
    ports = {port: free_port() for port in PORTS}
    for shown in blocks(page):
        block = replace(shown, text=re.sub("|".join(ports), lambda port: ports[port[0]], shown.text))
        if "not run" in block.notes:
            continue
        if "file" in block.notes:
            Path(block.notes["file"]).write_text(block.text)
            continue
        match block.language:
            case "python":
                run_python(page, block, namespace, loop)
            case "sql":
                run_command(page, block, ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", dsn(block)], block.text)
            case "console":
                for command, printed in commands(block.text):
                    if {"serves", "runs"} & block.notes.keys():
                        servers.enter_context(serving(command, ports.get(block.notes.get("serves", ""))))
                        continue
                    said = run_command(page, block, ["sh", "-c", command])
                    assert printed in ("", said), f"{page.name}:{block.line}: {command}"


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command, and what is shown of what it prints."""
    for part in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.M)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


@contextmanager
def serving(command: str, port: str | None) -> Iterator[None]:
    with subprocess.Popen(["sh", "-c", f"exec {command}"], start_new_session=True) as process:
        try:
            end = time.monotonic() + PATIENCE
            while port is not None and not listens(command, port):
                assert process.poll() is None, f"{command} has ended"
                assert time.monotonic() < end, f"{command} does not listen"
                time.sleep(0.1)
            yield
        finally:
            # By SIGTERM a PostgreSQL server waits for those who are connected.
            os.killpg(process.pid, signal.SIGINT if is_server(command) else signal.SIGTERM)


def is_server(command: str) -> bool:
    return command.startswith("postgres ")


def listens(command: str, port: str) -> bool:
    if is_server(command):  # which listens before it lets anybody in
        asked = subprocess.run(["pg_isready", "--quiet", "--host=localhost", f"--port={port}"], check=False)
        return asked.returncode == 0
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


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


def run_command(page: Path, block: Block, command: list[str], text: str = "") -> str:
    """What it has printed."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    told = f"{page.name}:{block.line}: {command}: {done.stdout}{done.stderr}"
    assert done.returncode == int(block.notes.get("exit", 0)), told
    return done.stdout
