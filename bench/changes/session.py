"""A session of a server, what its statements take, and how much memory its process does."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from pgmip.testing import Cluster

__all__ = ["Session", "Took", "memory"]


@dataclass(frozen=True)
class Took:
    ms: float
    """As the client sees it."""
    cpu_ms: float
    """Processor time of the server's process."""


class Session:
    """Each statement is a transaction, unless they say otherwise."""

    def __init__(self, cluster: Cluster, dbname: str, settings: str = "") -> None:
        self.conn = psycopg.connect(cluster.conninfo(dbname, options=settings), autocommit=True)
        self.process = Path(f"/proc/{self.conn.info.backend_pid}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.conn.close()

    def run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.conn.execute(sql.encode(), values or None, binary=bool(values))
        return cursor.fetchall() if cursor.description else []

    def timed(self, sql: str, *values: object) -> Took:
        cpu, began = self.cpu_ms, time.perf_counter()
        self.run(sql, *values)
        ms = 1000 * (time.perf_counter() - began)
        return Took(ms, self.cpu_ms - cpu)

    @property
    def cpu_ms(self) -> float:
        """So far."""
        exact = self.process / "schedstat"
        if exact.exists():
            return int(exact.read_text().split()[0]) / 1e6
        words = (self.process / "stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def megabytes(self) -> float:
        """The most memory that its process has had, without what it shares with all others."""
        return memory((self.process / "status").read_text())


def memory(status: str) -> float:
    """Megabytes, from /proc/PID/status. Shared memory is what it is at the end: pages once used stay."""
    kilobytes = dict(re.findall(r"^(VmHWM|RssShmem):\s+(\d+) kB", status, re.MULTILINE))
    return (int(kilobytes["VmHWM"]) - int(kilobytes["RssShmem"])) / 1024
