"""Which engine keeps a log, by where it is: a connection string for PostgreSQL, or an address of JetStream."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from psycopg.conninfo import conninfo_to_dict

from . import embedded
from .engine import Engine, Message
from .jetstream_address import is_address, parse_address

__all__ = ["check", "create", "opened"]


def check(log: str) -> None:
    """Raise ValueError or psycopg.ProgrammingError where it says nothing, ModuleNotFoundError where a package is needed
    that is not there.
    """
    if is_address(log):
        parse_address(log)
        from . import jetstream  # noqa: F401 - not everybody has installed what it needs
    else:
        conninfo_to_dict(log)


def opened(log: str, *, patience: float = 30.0) -> AbstractAsyncContextManager[Engine]:
    """The log, which is connected to where that is needed. `patience`: for how many seconds to wait for it."""
    if is_address(log):
        from .jetstream import JetStreamLog

        return JetStreamLog(log, patience=patience)
    return embedded.EmbeddedLog(log, patience=patience)


async def create(log: str, beginning: Message, *, new: bool = True, patience: float = 30.0) -> bool:
    """Make the log that begins with this message, or see that it is that one; see each engine's `create`."""
    if is_address(log):
        from . import jetstream

        return await jetstream.create(log, beginning, new=new, patience=patience)
    return await embedded.create(log, beginning, new=new, patience=patience)
