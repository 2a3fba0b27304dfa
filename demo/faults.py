"""Dying at a named point of the protocol.

The killer arms a point by making a file in the folder of faults; the server that reaches that point first removes the
file and kills itself with SIGKILL, exactly there.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

# The points the issue of dying is about, by the names that pgmip gives its steps.
POINTS = ("begun", "prepared-first-site", "prepared-all", "committed-first-site")
IN_WORDS = {
    "begun": "after begin",
    "prepared-first-site": "after the first site prepared",
    "prepared-all": "after all sites prepared",
    "committed-first-site": "after the first site committed",
}


def _file(folder: Path, slot: int, point: str) -> Path:
    return folder / f"{slot}.{point}"


def arm(folder: Path, slot: int, point: str) -> None:
    _file(folder, slot, point).touch()


def disarm(folder: Path, slot: int, point: str) -> None:
    _file(folder, slot, point).unlink(missing_ok=True)


def die_if_armed(folder: Path, slot: int, point: str) -> None:
    """What a server calls at every step."""
    try:
        _file(folder, slot, point).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
