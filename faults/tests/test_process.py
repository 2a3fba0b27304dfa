"""The processes that faults strike at."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from faults.process import Process

STATUS = 3


def end_soon(_: int) -> None:
    time.sleep(0.05)
    sys.exit(STATUS)


def look(process: Process) -> None:
    if process.alive:
        asyncio.get_running_loop().call_soon(look, process)


@pytest.mark.parametrize("_", range(10))
def test_its_exit_status_though_somebody_looks(_: int) -> None:
    """Whether it is alive: both may see just then that it is not."""

    async def live() -> int | None:
        process = Process("a test", end_soon, int)
        await process.start()
        look(process)
        return await process.ended()

    assert asyncio.run(live()) == STATUS
