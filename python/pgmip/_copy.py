"""A COPY from or to a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg

__all__ = ["Copy"]


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a COPY has no proper end whose connection has been closed, which is how an attempt ends what its handler
    has left.
    """
    copy = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return not (isinstance(copy, psycopg.AsyncCopy) and copy.connection.closed)


logging.getLogger("psycopg").addFilter(_is_news)


class Copy:
    """The rows of a COPY, to be written or read as with psycopg: one by one, or in blocks as the server has them."""

    def __init__(self, rows: psycopg.AsyncCopy, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """`turn`: to be entered for each step, which it refuses once the COPY is over."""
        self._rows = rows
        self._turn = turn

    def set_types(self, types: Sequence[int | str]) -> None:
        """The types of the columns, in their order: what `read_row` converts to, and `write_row` in binary format."""
        self._rows.set_types(types)

    async def write_row(self, row: Sequence[Any]) -> None:
        """Write one row."""
        async with self._turn():
            await self._rows.write_row(row)

    async def write(self, block: bytes | str) -> None:
        """Write any part of the data."""
        async with self._turn():
            await self._rows.write(block)

    async def read_row(self) -> tuple[Any, ...] | None:
        """Read a row, of str unless `set_types` says otherwise. None: there are no more."""
        async with self._turn():
            return await self._rows.read_row()

    async def read(self) -> bytes:
        """Read some data. Empty: there are no more."""
        async with self._turn():
            return bytes(await self._rows.read())
