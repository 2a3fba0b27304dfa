"""Customers: each orders at a replica that answers, again and again under the order's own number until it is placed."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg

from .site import Replica

SESSIONS = 12
PATIENCE = 2.0  # seconds for an answer; then the next replica is asked
AWAY = 2.0  # seconds there, until the customer's own one is tried again

_ORDER = b"INSERT INTO orders VALUES (%(id)s, %(item)s, %(copies)s, %(at)s)"
_STOCK = b"UPDATE item SET stock = stock - %(copies)s WHERE id = %(item)s"


@dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    item: int
    copies: int


@dataclass(frozen=True, slots=True)
class Placed:
    """An order that its customer was told of."""

    order: Order
    at: str  # the replica
    began: float
    ended: float


class Customers:
    def __init__(self, replicas: list[Replica]) -> None:
        self.placed: list[Placed] = []
        self.refused = 0
        """How often somebody else was first (40001)."""
        self.lost = 0
        """How often the answer was."""
        self._replicas = replicas
        self._closed = False

    def close(self) -> None:
        """Nobody begins another order; those under way are placed first."""
        self._closed = True

    async def run(self) -> None:
        await asyncio.gather(*(self._shop(number) for number in range(SESSIONS)))

    async def _shop(self, number: int) -> None:
        chance = random.Random(number)
        customer = _Customer(self, self._replicas, number)
        try:
            while not self._closed:
                await customer.go_home()
                order = Order(uuid4(), 1 + int(500 * chance.random() ** 2), chance.randint(1, 3))
                began = time.monotonic()
                at = await customer.place(order)
                self.placed.append(Placed(order, at, began, time.monotonic()))
        finally:
            await customer.leave()


class _Customer:
    def __init__(self, all_of_them: Customers, replicas: list[Replica], number: int) -> None:
        self._all = all_of_them
        self._replicas = replicas
        self._home = self._at = number % len(replicas)
        self._left_home = 0.0  # time.monotonic()
        self._conn: psycopg.AsyncConnection | None = None

    async def place(self, order: Order) -> str:
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._try(order)
                return self._replicas[self._at].name
            except psycopg.errors.UniqueViolation:  # it has been placed, and the answer was lost
                return self._replicas[self._at].name
            except psycopg.errors.SerializationFailure:
                self._all.refused += 1
                await self._look_at_connection()
            except (psycopg.Error, TimeoutError):
                self._all.lost += 1
                await self.leave()
                self._at = (self._at + 1) % len(self._replicas)
                self._left_home = time.monotonic()
                await asyncio.sleep(0.05)

    async def go_home(self) -> None:
        """To the replica that is the nearest one, after a while elsewhere."""
        if self._at != self._home and time.monotonic() > self._left_home + AWAY:
            await self.leave()
            self._at = self._home

    async def _try(self, order: Order) -> None:
        if self._conn is None:
            conninfo = self._replicas[self._at].conninfo
            self._conn = await psycopg.AsyncConnection.connect(conninfo, application_name="customer")
        parameters = {"id": order.id, "item": order.item, "copies": order.copies, "at": self._replicas[self._at].name}
        async with self._conn.transaction():
            await self._conn.execute(_ORDER, parameters)
            await self._conn.execute(_STOCK, parameters)

    async def _look_at_connection(self) -> None:
        if self._conn is not None and self._conn.closed:
            await self.leave()

    async def leave(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()
