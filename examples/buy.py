"""A customer: `python -m examples.buy TOKEN ITEM QUANTITY SERVER...`, any HTTP client would do.

The same request, with the same key, goes to one server after another until one has answered.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

import httpx
from pgmip.xinst import new_xid


def post(servers: list[str], token: str, item: int, quantity: int) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f'"{new_xid()}"'}
    for number, server in enumerate(itertools.cycle(servers)):
        try:
            response = httpx.post(f"{server}/orders", json={"item": item, "quantity": quantity}, headers=headers)
            if response.status_code < 500:
                return response
        except httpx.TransportError:
            pass  # it may or may not have been done: ask again
        time.sleep(random.uniform(0, min(1.0, 0.05 * 2 ** min(number, 5))))
    raise AssertionError("cycle does not end")


if __name__ == "__main__":
    token, item, quantity, *servers = sys.argv[1:]
    answer = post(servers, token, int(item), int(quantity))
    print(answer.status_code, answer.text)
