"""Delta debugging: leaves out steps as long as a difference remains."""

from __future__ import annotations

from history import History
from laboratory import Laboratory


def shrink(laboratory: Laboratory, history: History) -> History:
    def fails(steps: list) -> bool:
        return laboratory.replay(History(history.seed, history.blocking, steps))[0] is not None

    steps = history.steps
    if not fails(steps):
        print("---- it does not happen again in a history of its own", flush=True)
        return history
    size = len(steps) // 2
    while size >= 1:
        at = 0
        shorter = False
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fails(fewer):
                steps, shorter = fewer, True
            else:
                at += size
        if not shorter or size > 1:
            size //= 2
    return History(history.seed, history.blocking, steps)
