"""What this process has appended itself: its own reader need not ask the log for it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from .engine import Entry, Message, Place

__all__ = ["Appended", "that_fit"]


class Appended:
    """What was appended last, until it is read, or others' messages have been read in its place.

    It counts as read only if the entry in front of it, when the log took it, is the one that was read last: then it is
    what the log would say. Where somebody was faster, or the log is not what it was, the log is asked.
    """

    def __init__(self) -> None:
        self._before: Place | None = None
        self._entries: Sequence[Entry] = ()

    def put(self, before: Place, stamp: UUID, messages: Sequence[Message]) -> None:
        """These are the entries behind `before`, all with that stamp, and as durable as what is read."""
        positions = enumerate(messages, before.position + 1)
        self._before = before
        self._entries = [Entry(number, each.content, Place(number, stamp)) for number, each in positions]

    def take(self, known: Place | None, max_bytes: int) -> list[Entry]:
        """The entries behind `known`, as `Engine.read` returns them, if they are here."""
        if self._before is None or (known is not None and known.position < self._before.position):
            return []
        found = that_fit(self._entries, max_bytes) if known == self._before else []
        self._before, self._entries = None, ()
        return found


def that_fit(entries: Sequence[Entry], max_bytes: int) -> list[Entry]:
    """One, and as many behind it as there are not more bytes."""
    total, fitting = 0, list[Entry]()
    for entry in entries:
        total += len(entry.content)
        if fitting and total > max_bytes:
            break
        fitting.append(entry)
    return fitting
