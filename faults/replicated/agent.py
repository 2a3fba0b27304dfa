"""An agent: `pgmip replica run`, as a process to be killed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pgmip.cli import main

from ..process import begin

__all__ = ["Config", "carry"]

TIMEOUT = 5  # seconds for a server that does not answer


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    database: str
    log: str
    folder: Path


def carry(config: Config) -> None:
    begin(config.folder, config.name)
    output = os.open(config.folder / f"{config.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    where = ["--database", config.database, "--log", config.log]
    sys.argv = ["pgmip", "replica", "run", "--json", f"--timeout={TIMEOUT}", *where]
    main()
