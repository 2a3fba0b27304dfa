"""Clocks of processes that make requests: what their XIDs and XINSTs go by. Each is skewed by what its file says."""

from __future__ import annotations

import time
from pathlib import Path

import pgmip.xinst

__all__ = ["follow_clock", "set_clock"]


def set_clock(folder: Path, name: str, seconds: float) -> None:
    """From now on the clock of this process is so many seconds ahead."""
    new = folder / f"{name}.clock.new"
    new.write_text(str(round(seconds * 1e9)))
    new.rename(folder / f"{name}.clock")


def follow_clock(folder: Path, name: str) -> None:
    """To be called by the process."""
    pgmip.xinst.clock = lambda: time.time_ns() + _skew(folder, name)


def _skew(folder: Path, name: str) -> int:
    try:
        return int((folder / f"{name}.clock").read_text())
    except FileNotFoundError:
        return 0
