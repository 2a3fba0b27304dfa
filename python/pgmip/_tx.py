"""A transaction as its handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from ._branch import Branch, Instance, Site

__all__ = ["Handler", "SitesByName", "Tx"]

S = TypeVar("S")


class SitesByName(Generic[S]):
    """One of the sites of a transaction is `tx.store`, or `tx["store"]`."""

    def __init__(self, sites: Mapping[str, S]) -> None:
        self._sites = sites

    def __getitem__(self, site: str) -> S:
        return self._sites[site]

    def __getattr__(self, site: str) -> S:
        try:
            return self.__dict__["_sites"][site]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"the transaction declares no site {site!r}") from None


class Tx(SitesByName[Site]):
    """One attempt of a transaction, as its handler sees it: `tx.store` or `tx["store"]` is a site.

    A handler runs once per attempt, possibly at several servers at once. What it does outside `tx` is not undone.
    """

    def __init__(self, instance: Instance, branches: Mapping[str, Branch]) -> None:
        super().__init__({name: Site(branch) for name, branch in branches.items()})
        self.xid = instance.xid
        self.xinst = instance.xinst


Handler = Callable[[Tx, Any], Awaitable[Any]]
