"""What the app servers in Python are to do, and what they write down of it; see node.py."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from pgmip.xinst import new_xid

__all__ = ["DEADLINE", "MOVE", "PAUSE", "Journal", "Request", "random_request", "read_requests"]

Request = tuple[str, int, int]  # its key, and from where to where

MOVE = "UPDATE account SET balance = balance + %s WHERE a_id = %s"
PAUSE = 0.05  # seconds, until what has failed is tried again
DEADLINE = 3600.0


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begins(self, key: str, source: int, target: int) -> int:
        """A request begins; now, in nanoseconds."""
        self._note(f"b {key} {source} {target}")
        return time.monotonic_ns()

    def answered(self, key: str, began: int) -> None:
        self._note(f"e {key} {began} {time.monotonic_ns()}")

    def failed(self, key: str, error: Exception) -> None:
        self._note(f"x {key} {' '.join(str(error).split())}")

    def _note(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def random_request(accounts: int) -> Request:
    """A new one, between two of so many accounts."""
    return new_xid(), random.randint(1, accounts), random.randint(1, accounts)


def read_requests(path: Path) -> list[Request]:
    """Those that somebody else has left undone."""
    return [(key, int(a), int(b)) for key, a, b in map(str.split, path.read_text().splitlines())]
