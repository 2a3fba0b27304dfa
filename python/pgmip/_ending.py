"""How an attempt ends, by what has become of its branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg

from ._branch import Branch, Interrupted, Lost, NotPrepared, Prepared, Vote
from ._sqlstate import is_protocol, is_retryable
from .decision import Entry, Mipts, highest
from .exceptions import Refuse

__all__ = ["Ended", "Ending", "NotTried"]


@dataclass
class Ended:
    """How an attempt ended. With an `error` it is not complete, as far as it knows."""

    mipts: Mipts
    error: BaseException | None = None
    reason: BaseException | None = None
    """What a site, or the way to it, has said, where the attempt failed for that. What a handler raises says nothing of
    the request but that it has failed: an error may be of a database that has nothing to do with it.
    """
    retry: bool = False
    left: bool = False
    """Whether the instance may be prepared somewhere, now or later."""
    stuck: bool = False
    """Whether it has waited for long for a lock, with a sibling in doubt that others may wait for."""
    by_handler: bool = False
    """Whether the handler has ended a transaction itself; should it have called mip.prepare, the MIPT shows it."""
    exposed: bool = False
    """Whether the instance has been prepared somewhere, as far as is known: others may have seen it there."""
    words: tuple[BaseException, ...] = ()
    """All that sites have said, the reason included."""
    adopts: bool = False
    """Whether it has been ended because its MIPTs name a winner, so that the request need not be worked again."""
    highest: int = field(init=False)

    def __post_init__(self) -> None:
        self.highest = highest(self.mipts)


class Ending:
    """What there is of an attempt: its branches, and the votes of those that have prepared, or not."""

    def __init__(self) -> None:
        self._branches: dict[str, Branch] = {}
        self._votes: dict[str, Vote] = {}

    @property
    def may_be_prepared(self) -> bool:
        """Whether it may be prepared somewhere, where `run` has not come to its end."""
        return any(not isinstance(vote, NotPrepared) for vote in self._votes.values())


    def _cause(self, raised: Exception) -> Exception:
        """Why the attempt fails whose handler has raised this."""
        failure = self._failure()
        if failure is None or isinstance(failure, Interrupted):
            return raised  # the handler's own time-out says more than that it has interrupted something
        # A refusal may be because of an error of the database, as long as that is about the request.
        final = not (is_retryable(failure) or is_protocol(failure) or self._ended_by_handler())
        return raised if isinstance(raised, Refuse) and final else failure

    def _failed(self, cause: BaseException, reason: BaseException | None) -> Ended:
        """We have prepared nothing, and will not: the transactions end with `close`."""
        by_handler = self._ended_by_handler()
        return Ended(
            {}, cause, reason, is_retryable(reason), by_handler=by_handler, exposed=by_handler, words=self._words()
        )

    def _words(self) -> tuple[BaseException, ...]:
        words = [vote.error for vote in self._votes.values()] + [branch.failure for branch in self._branches.values()]
        return tuple(word for word in words if word is not None)

    def _origin(self, error: BaseException) -> BaseException | None:
        """The error of one of our branches that the handler has let through, or says its own comes from."""
        branches = self._branches.values()
        return next((e for e in _sources(error) if any(branch.has_raised(e) for branch in branches)), None)

    def _ended_by_handler(self) -> bool:
        return any(branch.ended_by_handler for branch in self._branches.values())

    def _failure(self) -> psycopg.Error | None:
        failures = [branch.failure for branch in self._branches.values()]
        return min((f for f in failures if f is not None), key=_rank, default=None)

    async def _judge(self, votes: Mapping[str, Vote]) -> Ended:
        mipts: dict[str, Sequence[Entry] | None] = {
            site: vote.mipt if isinstance(vote, Prepared) else None for site, vote in votes.items()
        }
        refused = [vote for vote in votes.values() if isinstance(vote, NotPrepared)]
        lost = [vote for vote in votes.values() if isinstance(vote, Lost)]
        if not refused and not lost:
            return Ended(mipts)
        left = bool(lost)
        exposed = len(refused) < len(votes)
        if refused:
            # A definite refusal: this instance can never be complete, so its coordinator may take it back.
            maybe = [site for site, vote in votes.items() if not isinstance(vote, NotPrepared)]
            left |= not await self._take_back(maybe)
        refusals = [vote.error for vote in refused if not isinstance(vote.error, NotTried)]
        retry = all(map(is_retryable, refusals)) and all(vote.retry for vote in lost)
        error = next(iter([*refusals, *(vote.error for vote in lost)]), NotTried())
        return Ended(mipts, error, error, retry, left, exposed=exposed, words=self._words())

    async def _take_back(self, sites: Sequence[str]) -> bool:
        """Roll the prepared branches back; whether all of them are known to be gone."""
        raise NotImplementedError


def _rank(failure: psycopg.Error) -> tuple[bool, ...]:
    """What counts first: the extension's word, then what is retried, of that what a site has said; what the handler has
    interrupted, which may be because of one of the others, comes last.
    """
    return (
        isinstance(failure, Interrupted), not is_protocol(failure), not is_retryable(failure), failure.sqlstate is None
    )


def _sources(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised `from`, and so on; of a group, of each of its members.

    Not what it was merely raised beside (`__context__`): whoever handles an error and fails has failed by himself.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__] if one.__cause__ is not None else []
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


class NotTried(Exception):
    """Stands for the vote of a site that was not asked, because another one had refused."""
