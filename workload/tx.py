"""What a handler sees, whoever coordinates its transaction."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Site", "Tx"]


class Site(Protocol):
    async def execute(self, sql: str, params: Any = None) -> int: ...
    async def fetch_one(self, sql: str, params: Any = None) -> Any: ...
    async def fetch_all(self, sql: str, params: Any = None) -> list[Any]: ...


class Tx(Protocol):
    @property
    def xid(self) -> str: ...
    def __getitem__(self, site: str) -> Site: ...
