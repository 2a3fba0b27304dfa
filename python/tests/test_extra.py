"""What is said where a package of an extra is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
APP = "pgmip.App(sites={'store': ''})"


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("httpx", "client", "pgmip.Client"),
        ("prometheus_client", "metrics", "import pgmip.metrics"),
        ("starlette", "http", f"import pgmip.http; pgmip.http.asgi({APP})"),
        ("starlette", "http", f"import pgmip.http; pgmip.http.routes({APP})"),
        ("opentelemetry", "tracing", "import pgmip.tracing; pgmip.tracing.Tracing()"),
        ("typer", "cli", "import pgmip.cli; pgmip.cli.main()"),
        ("rich", "cli", "import pgmip.cli; pgmip.cli.main()"),
        ("nats", "jetstream", "import pgmip.replication.jetstream"),
    ],
)
def test_a_missing_package(package: str, extra: str, code: str) -> None:
    """The hint can be followed: pgmip is on no index, and the extra has the package."""
    code = f"import sys; sys.modules[{package!r}] = None; import pgmip; {code}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode != 0
    said = process.stderr.splitlines()[-1]
    assert f"in the clone of pg_mip, pip install './python[{extra}]'" in said
    assert any(one.replace("-", "_").startswith(package) for one in EXTRAS[extra])
