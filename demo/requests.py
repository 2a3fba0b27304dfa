"""What the customers ask for: 1,000 Buy Confirm requests, the same in every run."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from workload.buy_confirm import choices

from . import generate


@dataclass(frozen=True, slots=True)
class Request:
    """One customer's wish. All of its transmissions carry the same key and the same body."""

    number: int
    key: str
    body: dict[str, Any]

    @property
    def cart(self) -> int:
        return int(self.body["cart"])

    @property
    def customer(self) -> int:
        return int(self.body["customer"])


def requests(count: int = generate.CARTS) -> list[Request]:
    rng = random.Random(f"{generate.SEED} requests")
    return [_request(rng, number) for number in range(1, count + 1)]


def _request(rng: random.Random, number: int) -> Request:
    body = {"cart": number, "customer": rng.randint(1, generate.SIZE.customers), **choices(rng)}
    return Request(number, str(uuid.UUID(int=rng.getrandbits(128), version=4)), body)
