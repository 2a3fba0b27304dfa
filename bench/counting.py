"""The instructions that a server's backends execute, counted by callgrind: the same on any machine, beside any load."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable
from typing import Any

import psycopg
from pgmip.testing import Cluster, find_bindir

__all__ = ["Counting"]

PATIENCE = 300.0  # seconds for callgrind to write what it has counted


class Counting:
    """What the backends of a server count. It starts the server again, under callgrind."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counts = cluster.directory / "callgrind"
        self._counts.mkdir()
        cluster.stop()
        self._start()

    def _start(self) -> None:
        bindir = self._cluster.directory / "bin"
        bindir.mkdir()
        wrapper = bindir / "postgres"
        wrapper.write_text(
            "#!/bin/sh\n"
            f"exec valgrind --tool=callgrind --trace-children=yes --callgrind-out-file={self._counts}/%p -q "
            f'{find_bindir()}/postgres "$@"\n'
        )
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        self._cluster.bindir = bindir
        self._cluster.start(timeout=PATIENCE)

    def count(self, dbname: str, work: Callable[[psycopg.Connection[Any]], None]) -> int:
        """The instructions of a session that does this."""
        with psycopg.connect(self._cluster.conninfo(dbname), autocommit=True) as conn:
            pid = conn.info.backend_pid
            work(conn)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            file = self._counts / str(pid)
            counted = re.search(r"^totals: (\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
            if counted is not None:
                return int(counted[1])
            time.sleep(0.1)
        raise TimeoutError(f"callgrind has written nothing of backend {pid}")
