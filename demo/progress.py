"""What is going on, live: on a terminal a line that changes, elsewhere a line every five seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_INTERVAL = 5.0


async def show(console: Console, total: int, state: Callable[[], tuple[int, str]]) -> None:
    """Until cancelled. `state` tells how many requests are done, and the rest in words."""
    if not console.is_terminal:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PLAIN_INTERVAL)
            done, words = state()
            console.print(f"  {time.monotonic() - began:3.0f} s  {done:5,} of {total:,} done, {words}")
    columns = (BarColumn(15), TextColumn("{task.completed:,.0f} of {task.total:,.0f} done, {task.fields[words]}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total, words="")
        try:
            while True:
                done, words = state()
                progress.update(task, completed=done, words=words)
                await asyncio.sleep(0.2)
        finally:
            done, words = state()
            progress.update(task, completed=done, words=words)
