"""What is done beside an attempt ends with it, and what is done because it takes too long."""

from __future__ import annotations

import asyncio

import pytest

from pgmip._watch import Watch

PATIENCE = 30  # seconds, for what happens soon or never


class World:
    """Counts what a watch does."""

    def __init__(self) -> None:
        self.gave_way = 0
        self.insisted = 0
        self.ended = 0

    async def give_way(self) -> None:
        self.gave_way += 1
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.01)
            self.ended += 1

    def insist(self) -> None:
        self.insisted += 1

    def watch(self, turn: float, late: float, again: float = 0.02) -> Watch:
        return Watch(self.give_way, turn, self.insist, asyncio.get_running_loop().time() + late, again)


async def test_nothing_is_done_where_it_does_not_take_long() -> None:
    world, told = World(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with world.watch(0.03, 0.03):
        pass
    await asyncio.sleep(0.06)
    assert (world.gave_way, world.insisted, told) == (0, 0, [])


@pytest.mark.parametrize("late", [0.01, PATIENCE])
async def test_whose_turn_is_over_gives_way_once(late: float) -> None:
    """Whether that is before it is late or after."""
    world = World()
    async with world.watch(0.03, late):
        for _ in range(10):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                assert late < PATIENCE
    assert (world.gave_way, world.ended) == (1, 1)
    assert (world.insisted > 0) == (late < PATIENCE)


async def test_who_is_late_is_cancelled_again_and_again() -> None:
    """As often as he swallows it; afterwards nobody has cancelled him."""
    world, swallowed = World(), 0
    task = asyncio.current_task()
    assert task is not None
    async with world.watch(PATIENCE, 0.01):
        while swallowed < 3:
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                swallowed += 1
                assert task.cancelling() == world.insisted == swallowed
    assert task.cancelling() == 0
    await asyncio.sleep(0.06)
    assert (world.insisted, world.gave_way) == (3, 0)


async def test_what_is_done_beside_ends_with_it() -> None:
    world = World()
    watch = world.watch(PATIENCE, PATIENCE)
    tasks: list[asyncio.Task[None]] = []

    async def fail() -> None:
        async with watch:
            assert watch.is_on
            tasks.append(watch.beside(world.give_way()))
            await asyncio.sleep(0)
            raise LookupError

    assert not watch.is_on
    with pytest.raises(LookupError):
        await fail()
    assert not watch.is_on
    assert [task.cancelled() for task in tasks] == [True]
    assert world.ended == 1
