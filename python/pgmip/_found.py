"""What the sites know of an XID, for whoever settles it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._asking import Asking
from .decision import Mipts, declared, explain, in_doubt, live, over
from .exceptions import Unknown
from .xinst import xid_time

__all__ = ["Found", "find"]


@dataclass(frozen=True, slots=True)
class Found:
    """What the sites know of a family, whoever began it."""

    sites: tuple[str, ...]
    mipts: Mipts

    @property
    def is_in_doubt(self) -> bool:
        """Whether an instance over these sites is prepared somewhere."""
        return bool(in_doubt(over(self.sites, self.mipts)))

    @property
    def is_decided(self) -> bool:
        """Whether one of them has won, as far as can be told."""
        return explain(over(self.sites, self.mipts)).winner is not None

    @property
    def request(self) -> str | None:
        """The request that is in doubt: that of its oldest prepared instance, of one that is not empty if there is one.
        What was aborted may have been another one, that nobody is to repeat.
        """
        prepared = in_doubt(over(self.sites, self.mipts))
        oldest = min(prepared, key=lambda entry: (entry.result is None, entry.xinst), default=None)
        return oldest.request if oldest is not None else None


async def find(asking: Asking, sites: Sequence[str] | None) -> list[Found]:
    """Look the XID up at `sites`, or at those that its instances declare: what is known over each of these sets.
    Nothing where nobody knows more of it than aborted instances. More than one where it has been given to several
    requests; what has won comes first, as it ends what shares a site with it.

    Raises Unknown where its sites cannot be found out; ValueError where these are others than `sites`, as who decides a
    family from some of its sites only commits half of it, and where an aborted instance names one that has not been
    asked, which may know more.
    """
    xid = asking.phase.xid
    mipts, why = await asking.read(sites or tuple(asking.pools))
    named = declared(mipts)
    if sites is not None:
        if named and frozenset(sites) not in named:
            if why is not None and xid_time(xid) is None:  # these may have forgotten what that one has not
                raise Unknown(f"not all sites could be asked: {why}", xid=xid) from why
            what = " and ".join(", ".join(sorted(one)) for one in named)
            raise ValueError(f"the request {xid!r} is over the sites {what}, not {', '.join(sorted(sites))}")
        return [Found(tuple(sites), mipts)]
    if not named:
        if why is not None:
            raise Unknown(f"not all sites could be asked: {why}", xid=xid) from why
        if live(mipts):
            raise Unknown("the request is being worked on, and its sites are not known yet", xid=xid)
        unasked = {site for mipt in mipts.values() for entry in mipt or () for site in entry.sites} - set(mipts)
        if unasked:
            raise ValueError(f"the request {xid!r} has sites that this App does not know: {sorted(unasked)}")
        return []
    found = [Found(tuple(sorted(one)), {site: mipts.get(site) for site in one}) for one in named]
    return sorted(found, key=lambda one: (not one.is_decided, one.sites))
