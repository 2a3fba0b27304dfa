"""What a log begins with: the settings that all replicas have in common."""

from __future__ import annotations

from uuid import UUID, uuid5

from .. import _sql
from .._connection import cut_after
from .engine import Message
from .session import session

__all__ = ["beginning"]

_NAMESPACE = UUID("e2a1e8f0-54d5-4c0b-9f6b-3a0c6d4b7c21")


async def beginning(database: str, window: int, *, patience: float = 30.0) -> Message:
    """The first message of a log for this database (a connection string): what the database says, under an id that is
    the same wherever it is asked for with the same `window` (a number of positions), at any copy of its cluster.

    `patience`: how many seconds to wait for an answer. Raises psycopg.Error.
    """
    async with session(database, "pgmip replica", patience) as conn:
        with cut_after(conn, patience):
            ((settings, system, name),) = await (await conn.execute(_sql.REPLICA_SETTINGS, (window,))).fetchall()
    return Message(uuid5(_NAMESPACE, f"{system} {name} {window}"), settings)
