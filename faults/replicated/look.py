"""A look of the auditor's while everything is under way, in a process of its own.

Replicas that do not answer, or are too far behind, are left out. Clients begin nothing meanwhile, so that the others
come to the same position.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from ..auditor import Finding
from ..process import begin
from .auditor import Replica, audit, read_record, read_replica
from .client import go_on, hold

__all__ = ["Config", "Seen", "look", "seen"]

NAME = "auditor"
COME_TO_REST = 0.5  # seconds
PATIENCE = "2s"


@dataclass(frozen=True, slots=True)
class Config:
    number: int
    replicas: dict[str, str]
    folder: Path


@dataclass(frozen=True)
class Seen:
    """What a look has come to."""

    replicas: int
    """So many have answered,"""
    together: int
    """so many of them at the same position."""
    findings: list[Finding]


def look(config: Config) -> None:
    begin(config.folder, NAME)
    hold(config.folder)
    try:
        replicas = _replicas(config)
    finally:
        go_on(config.folder)
    findings = audit(replicas, read_record(config.folder), between=True)
    positions = [replica.position for replica in replicas.values()]
    together = max(map(positions.count, positions), default=0)
    found = Seen(len(replicas), together, [finding for finding in findings if finding.violations])
    (config.folder / f"look-{config.number}.json").write_text(json.dumps(asdict(found)))


def _replicas(config: Config) -> dict[str, Replica]:
    time.sleep(COME_TO_REST)
    with ThreadPoolExecutor() as threads:
        end = max(threads.map(_applied, config.replicas.values()))
        read = threads.map(lambda conninfo: _replica(conninfo, end), config.replicas.values())
        return {name: replica for name, replica in zip(config.replicas, read, strict=True) if replica is not None}


def _applied(conninfo: str) -> int:
    """0 where it does not answer."""
    with suppress(psycopg.Error), psycopg.connect(conninfo) as conn:
        conn.execute(f"SET statement_timeout = '{PATIENCE}'".encode())
        return int(conn.execute("SELECT applied FROM mip.replication").fetchall()[0][0])
    return 0


def _replica(conninfo: str, position: int) -> Replica | None:
    """At this position, if that does not take too long."""
    with suppress(psycopg.Error):
        with suppress(psycopg.errors.QueryCanceled), psycopg.connect(conninfo, autocommit=True) as conn:
            conn.execute(f"SET statement_timeout = '{PATIENCE}'".encode())
            conn.execute("SELECT mip.wait_for(%s)", (position,))
        return read_replica(conninfo)
    return None


def seen(folder: Path) -> list[Seen]:
    """Of all looks."""
    return [_read(json.loads(path.read_text())) for path in sorted(folder.glob("look-*.json"))]


def _read(found: dict[str, Any]) -> Seen:
    findings = [Finding(one["check"], tuple(one["violations"])) for one in found["findings"]]
    return Seen(found["replicas"], found["together"], findings)
