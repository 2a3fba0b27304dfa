"""Named steps of the protocol, and doing the same at several sites."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

__all__ = ["Hook", "Step", "StepName", "at_each_site", "emit"]

StepName = Literal["begun", "prepared-first-site", "prepared-all", "committed-first-site", "committed-all"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """A step that one attempt has just taken; see `App.on_step`. `site` is None for the steps of all sites."""

    name: StepName
    xid: str
    xinst: int
    site: str | None


Hook = Callable[[Step], Awaitable[None] | None]


async def emit(hooks: Iterable[Hook], step: Step) -> None:
    for hook in hooks:
        answer = hook(step)
        if inspect.isawaitable(answer):
            await answer


async def at_each_site(
    sites: Iterable[str], work: Callable[[str], Coroutine[Any, Any, T]], *, parallel: bool = True
) -> dict[str, T]:
    """What `work(site)` returns, per site; all at the same time or one after another.

    The first failure cancels the others, and is raised after all of them have ended.
    """
    sites = tuple(sites)
    if not parallel or len(sites) < 2:
        return {site: await work(site) for site in sites}
    tasks = {site: asyncio.create_task(work(site)) for site in sites}
    try:
        await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return {site: task.result() for site, task in tasks.items()}
