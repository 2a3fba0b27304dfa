"""An app server, and a sweeper: processes that serve until somebody kills them.

A server's clock is skewed by what its file says at the moment. At a named step of the protocol it kills itself with
SIGKILL, if another file asks for that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pgmip
import pgmip.http
import uvicorn
from pgmip.sweeper import Sweeper
from psycopg.conninfo import make_conninfo

from . import plain
from .clock import follow_clock
from .handlers import TRANSACTIONS
from .process import begin, until_told

__all__ = ["Config", "arm", "died_at", "disarm", "serve", "sweep"]

STEP_TIMEOUT = 4.0
DEADLINE = 20.0
SWEEP_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    life: int
    port: int  # of a server, to listen at
    sites: dict[str, str]
    folder: Path
    compare: bool = False
    """Whether plain two-phase commit is served as well."""


def serve(config: Config) -> None:
    begin(config.folder, config.name)
    app = _app(config)
    app.on_step(lambda step: _die_if_asked_to(config, step.name))
    asyncio.run(_serve(config, pgmip.http.asgi(app)))


async def _serve(config: Config, application: Any) -> None:
    if config.compare:
        beside = await plain.start(
            config.name, config.life, config.sites, config.folder, lambda step: _die_if_asked_to(config, step)
        )
        application = plain.both(application, beside)
    server = uvicorn.Server(
        uvicorn.Config(application, host="127.0.0.1", port=config.port, access_log=False, log_config=None)
    )
    await server.serve()


def sweep(config: Config) -> None:
    begin(config.folder, config.name)
    asyncio.run(_sweep(config))


async def _sweep(config: Config) -> None:
    async with _app(config) as app, Sweeper(app, interval=SWEEP_EVERY, jitter=0.2):
        await until_told()


def _app(config: Config) -> pgmip.App:
    follow_clock(config.folder, config.name)
    name = f"{config.name}.{config.life}"
    sites = {site: make_conninfo(conninfo, application_name=name) for site, conninfo in config.sites.items()}
    # every other life, so that both are under way at the same time
    app = pgmip.App(sites, step_timeout=STEP_TIMEOUT, deadline=DEADLINE, wait_for_commit=config.life % 2 == 0)
    for known_as, transaction in TRANSACTIONS.items():
        register = app.transaction(sites=transaction.sites, isolation=transaction.isolation, name=known_as)
        register(transaction.handler)
    return app


# Death at a step -------------------------------------------------------------------------------------------------


def arm(folder: Path, name: str, step: str, after: int) -> None:
    """Let the process kill itself at this step, after having passed it so many times."""
    new = folder / f"{name}.death.new"
    new.write_text(f"{step} {after} {time.monotonic_ns()}")
    new.rename(folder / f"{name}.death")


def disarm(folder: Path, name: str) -> bool:
    """Whether that came in time; else the process dies, or is dead."""
    try:
        (folder / f"{name}.death").unlink()
    except FileNotFoundError:
        return False
    return True


def died_at(folder: Path, name: str) -> float:
    """When it did so, by time.monotonic()."""
    return float((folder / f"{name}.died").read_text())


_passed: Counter[str] = Counter()


def _die_if_asked_to(config: Config, step: str) -> None:
    file = config.folder / f"{config.name}.death"
    try:
        wanted, after, order = file.read_text().split()
        if wanted != step:
            return
        _passed[order] += 1
        if _passed[order] <= int(after):
            return
        file.unlink()  # from here on it cannot be called off
    except FileNotFoundError:
        return
    (config.folder / f"{config.name}.died").write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
