"""What is decided of an XID, for people: of each of the requests that have it, which are over different sites."""

from __future__ import annotations

from dataclasses import dataclass

from ..decision import Explanation, Mipts, Rule, declared, explain, in_doubt, over
from .survey import family_sites

__all__ = ["Judgement", "judge"]


_GRAVEST_FIRST = (Rule.VIOLATION, Rule.UNREAD, Rule.UNDECIDED, Rule.COMPLETE, Rule.COMMITTED)


@dataclass(frozen=True, slots=True)
class _Request:
    sites: tuple[str, ...]
    explanation: Explanation
    lost_to: tuple[str, ...]
    """The sites that it shares with one that has won."""
    in_doubt: bool

    @property
    def is_finished(self) -> bool:
        if self.lost_to:
            return not self.in_doubt
        winner = self.explanation.winner
        return winner is not None and winner.committed >= set(self.sites)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision over all of them. There is no one winner where none has won, or several, at sites that they do not
    share.
    """

    explanation: Explanation
    is_finished: bool
    """Whether nothing is left to be done of what the sites that have been read know of."""


def judge(mipts: Mipts) -> Judgement:
    """What these MIPTs say of an XID. A site that is not among them has not been read."""
    sets = sorted(declared(mipts), key=sorted)
    if len(sets) < 2:
        sites = family_sites(mipts) or tuple(mipts)
        request = _Request(sites, explain({site: mipts.get(site) for site in sites}), (), False)
        return Judgement(request.explanation, request.is_finished)
    alone = [(tuple(sorted(one)), explain(over(one, mipts))) for one in sets]
    won = {site for sites, explanation in alone if explanation.winner is not None for site in sites}
    requests = [
        _Request(
            sites,
            explanation,
            tuple(sorted(won.intersection(sites))) if explanation.winner is None else (),
            bool(in_doubt(over(sites, mipts))),
        )
        for sites, explanation in alone
    ]
    return Judgement(_together(requests), all(request.is_finished for request in requests))


def _together(requests: list[_Request]) -> Explanation:
    winners = [request.explanation.winner for request in requests if request.explanation.winner is not None]
    rules = {request.explanation.rule for request in requests if not request.lost_to}
    rule = next(rule for rule in _GRAVEST_FIRST if rule in rules)
    each = " ".join(f"Over {', '.join(request.sites)}: {_reason(request)}" for request in requests)
    reason = f"{len(requests)} requests over different sites have this XID. {each}"
    return Explanation(winners[0] if len(winners) == 1 else None, rule, reason)


def _reason(request: _Request) -> str:
    if not request.lost_to:
        return request.explanation.reason
    left = "What is prepared is to be rolled back." if request.in_doubt else "Nothing of it is left."
    return f"Lost: another one has won at {', '.join(request.lost_to)}. {left}"
