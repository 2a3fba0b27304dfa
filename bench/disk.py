"""How the disk of a bench's cluster flushes: as it is, more slowly, or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pgmip.testing import Cluster

__all__ = ["FLUSHES", "set_flush"]

# What the server's environment gets besides
FLUSHES = {"as it is": {}, "2 ms": {"SLOW_FLUSH_US": "2000"}, "off": {}}


def set_flush(cluster: Cluster, flush: str) -> None:
    """Restart the server with a disk that flushes so."""
    cluster.stop()
    cluster.configure({"fsync": "off" if flush == "off" else "on"})
    if FLUSHES[flush]:
        os.environ.update(FLUSHES[flush], LD_PRELOAD=str(_library(cluster)))
    try:
        cluster.start()
    finally:
        for name in ("LD_PRELOAD", "SLOW_FLUSH_US"):
            os.environ.pop(name, None)


def _library(cluster: Cluster) -> Path:
    made = cluster.directory / "slow_flush.so"
    if not made.exists():
        source = Path(__file__).parent / "slow_flush.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made
