"""Processes that are there to be killed, and what each of them does first.

They are forked from one that has everything imported, so a new one is there within a tenth of a second. None of them
outlives the run, however that ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

__all__ = ["Process", "begin", "preload", "until_told"]

_context = multiprocessing.get_context("forkserver")


def preload(*modules: str) -> None:
    """What the process has imported from which all others are forked."""
    _context.set_forkserver_preload(list(modules))


def begin(folder: Path, name: str) -> None:
    """What a new process does first. On SIGUSR1 it writes down where it is; without its parent it ends."""
    logging.basicConfig(
        filename=folder / f"{name}.log", level=logging.WARNING, format="%(asctime)s %(process)d %(name)s %(message)s"
    )
    stacks = (folder / f"{name}.stacks").open("a")
    faulthandler.register(signal.SIGUSR1, stacks)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the run
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


async def until_told() -> None:
    """Wait for SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


@dataclass
class Process:
    """A name with one life after the other."""

    name: str
    target: Callable[[Any], None]
    config: Callable[[int], Any]
    """What the target is called with; told the number of the life, from 1."""
    life: int = 0
    deaths: list[float] = field(default_factory=list)
    """When it was killed, by time.monotonic()."""
    doomed: bool = False
    """Whether it may die, or has died, of a fault."""
    process: ForkServerProcess | None = None

    async def start(self) -> None:
        self.life += 1
        process = _context.Process(target=self.target, args=(self.config(self.life),), daemon=True)
        await asyncio.to_thread(process.start)
        self.process = process
        self.doomed = False

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.pid and self.process.is_alive():
            os.kill(self.process.pid, number)

    async def kill(self) -> None:
        self.deaths.append(time.monotonic())
        self.send(signal.SIGKILL)
        await self.ended()

    async def ended(self) -> int | None:
        """Wait until it is gone; its exit status."""
        if self.process is None:
            return None
        # There is one reader of its exit status: of two, as `alive` would be beside a `join`, one is told 255.
        await asyncio.to_thread(multiprocessing.connection.wait, [self.process.sentinel])
        self.process.join()
        status = self.process.exitcode
        self.process.close()
        self.process = None
        return status
