"""What a log is to a replica: four verbs. An engine carries them out; `pgmip.replication.embedded` is one.

A log is one sequence of messages, the same for everybody: positions 1, 2, 3, ... without a gap, each with bytes that
never change. Whoever has read position p has been able to read all before it, and everybody who reads p later reads the
same. A log begins with the message it was made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

__all__ = [
    "Engine",
    "Entry",
    "Forked",
    "LogError",
    "Message",
    "NoLog",
    "Place",
    "Refused",
    "Trimmed",
    "Unavailable",
    "WentBack",
]


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be appended. The id is the same for all attempts at appending it, and of no other message."""

    id: UUID
    content: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of a log, as it is told from whatever else has ever had its position, in this log or in another one."""

    position: int
    stamp: UUID


@dataclass(frozen=True, slots=True)
class Entry:
    """What has been appended."""

    position: int
    content: bytes
    place: Place | None = field(default=None, compare=False, repr=False)
    """What has been read has one."""


class Engine(Protocol):
    """A log. One caller at a time for each verb; the verbs beside each other.

    Whatever goes wrong is a LogError. A cancellation of `append` leaves its answer unknown, that of the others does
    nothing.

    A log may come back as it was earlier, or its address come to be another log's, between any two calls. So whoever
    has read says what: with `known` a call does nothing where the log has not got that entry, and all before it as it
    was read. It raises WentBack then, Forked, or Trimmed where that cannot be seen any more. What it does it does to
    the very log that has it: what is appended comes behind `known` in any case.
    """

    @property
    def max_message(self) -> int:
        """The longest message that can be appended, in bytes."""

    async def append(self, messages: Sequence[Message], known: Place | None = None) -> Sequence[int]:
        """Add messages behind the end, in this order, all or none of them, and return their positions. They are durable
        then: no crash of the log loses them.

        Idempotent by id: a message that is in the log already is not added again, and its position is the one it has.
        So whoever does not know what has come of an append does it again, with the same messages. That holds for all
        that has not been trimmed; see `trim`. The ids of one call differ.

        Raises Unavailable where it is not known whether they have been added, or will be; Refused where they have not
        been and will not be. What is raised because of `known` speaks of this attempt only.
        """

    async def read(self, after: int, max_bytes: int, *, wait: float, known: Place | None = None) -> Sequence[Entry]:
        """The entries behind position `after`, in order and without a gap: at least one, and otherwise no more bytes
        than that. Where there is none yet, wait for it; nothing after `wait` seconds without one.

        What is returned is as durable as what `append` has returned the position of. What is not yet is waited for, or
        Unavailable raised.

        Raises Trimmed where the next one is gone, WentBack where the log ends before `after`, Unavailable, Refused.
        """

    async def end(self) -> int:
        """The position of the last entry, which may not be durable yet, and is not read before. Raises WentBack where
        there is none at all, Unavailable or Refused.
        """

    async def trim(self, upto: int, known: Place | None = None) -> None:
        """Remove the entries up to this position; the last one of the log stays in any case. Reading them raises
        Trimmed from then on.

        The caller leaves what any member has not made durable, and at least the last `window` positions (of the log's
        settings): an append that was thought lost may arrive after its message has been added by another, and trimmed.
        It is added again then; but what it was made from is older than the window, so that every replica refuses it.

        Raises Unavailable where not all of it may be removed: trim again. Raises Refused.
        """


class LogError(Exception):
    """Base of all that a log raises."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        """What an operator can do."""


class Unavailable(LogError):
    """The log has not answered: it is out of reach, or busy. To be tried again."""


class Refused(LogError):
    """The log has refused, and nothing has happened: it is not safe, not there, or does not take such a message."""


class NoLog(Refused):
    """There is none where one was looked for."""


class Trimmed(LogError):
    """The next entry has been removed from the log: who has not read it yet cannot follow the log any more."""


class WentBack(LogError):
    """The log ends before what has been read from it: it has lost entries, or is another one."""


class Forked(LogError):
    """The log has another entry in the place of one that has been read: it is another one, or has gone back, and on
    from there. Reading it again shows whether it says the same all the same, as where that was appended again.
    """
