"""The isolation suite with every transaction block an instance of a family of its own, with siblings or without."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from pgmip.testing import find_bindir

HERE = Path(__file__).resolve().parent


def build_preload(folder: Path) -> Path:
    """Compile in_family.c."""
    pg_config = find_bindir() / "pg_config"
    include = subprocess.run([pg_config, "--includedir"], check=True, capture_output=True, text=True).stdout.strip()
    library = folder / "in_family.so"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run(["gcc", *flags, "-o", library, HERE / "in_family.c"], check=True)
    return library


def excluded() -> dict[str, tuple[str, str]]:
    """Specs that cannot run so: name -> (a pattern that tells why, the reason)."""
    found: dict[str, tuple[str, str]] = {}
    for line in (HERE / "not_in_families").read_text().splitlines():
        if line and not line.startswith("#"):
            name, pattern, reason = line.split(" | ", 2)
            found[name] = pattern, reason
    return found


def serializable(build: Path, specs: list[str]) -> list[str]:
    """Those of the specs that are about SERIALIZABLE, but for what waits for all siblings, its own included."""
    texts = {spec: (build / f"src/test/isolation/specs/{spec}.spec").read_text().upper() for spec in specs}
    return [spec for spec in specs if "SERIALIZABLE" in texts[spec] and "DEFERRABLE" not in texts[spec]]


def check_excluded(build: Path, name: str) -> str:
    """What is wrong with leaving a spec out, or nothing: it must contain its reason."""
    pattern, reason = excluded()[name]
    spec = build / f"src/test/isolation/specs/{name}.spec"
    if re.search(pattern, spec.read_text(), re.IGNORECASE | re.MULTILINE):
        return ""
    return f"does not contain {pattern!r} ({reason}): it need not be left out"
