"""What the threads of the soak share."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import psycopg

# Errors that mean "not now": the connection or the server went away.
AWAY = ("08", "57P", "53300")


def is_away(error: psycopg.Error) -> bool:
    return error.sqlstate is None or error.sqlstate.startswith(AWAY)


class Soak:
    """Counters, violations, the open requests and what became of each one."""

    def __init__(self, seed: int, connect: Callable[[], psycopg.Connection]) -> None:
        self.seed = seed
        self.connect = connect
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.violations: list[str] = []
        self.winners: dict[str, int] = {}
        self._pool: list[str] = []
        self._users: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._xinsts = itertools.count(1)

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def count(self, what: str) -> None:
        with self.lock:
            self.counters[what] += 1

    def violation(self, text: str) -> None:
        with self.lock:
            self.violations.append(text)
        print(f"{time.strftime('%X')} VIOLATION: {text}", file=sys.stderr, flush=True)

    # ---- requests: a worker takes one, runs an instance of it, gives it back

    def take(self, rng: random.Random, width: int) -> str:
        with self.lock:
            while len(self._pool) < width:
                self._pool.append(f"r{self.seed}-{next(self._numbers)}")
            request = rng.choice(self._pool)
            self._users[request] += 1
            return request

    def give_back(self, request: str) -> bool:
        """True if the request is decided and nobody works on it any more."""
        with self.lock:
            self._users[request] -= 1
            if request not in self.winners or self._users[request] > 0:
                return False
            del self._users[request]
            return True

    def next_xinst(self) -> int:
        with self.lock:
            return next(self._xinsts)

    def decided(self, request: str, winner: int, source: str) -> None:
        """Somebody has learnt who won; everybody must learn the same."""
        with self.lock:
            known = self.winners.setdefault(request, winner)
            if request in self._pool:
                self._pool.remove(request)
        if known != winner:
            self.violation(f"{request}: {source} says {winner} has won, not {known}")

    # ---- threads

    def run(self, name: str, body: Callable[[psycopg.Connection], None]) -> threading.Thread:
        """A thread that calls body again and again, with a connection."""

        def loop() -> None:
            connection: psycopg.Connection | None = None
            while not self.stop.is_set():
                try:
                    if connection is None:
                        connection = self.connect()
                    body(connection)
                except psycopg.Error as error:
                    if not is_away(error):
                        self.violation(f"{name}: {error.sqlstate} {error}")
                    if connection is not None:
                        connection.close()
                    connection = None
                    time.sleep(0.05)
                except Exception as error:  # a bug in the soak itself
                    self.violation(f"{name}: {error!r}")
                    raise
            if connection is not None:
                connection.close()

        thread = threading.Thread(target=loop, name=name, daemon=True)
        thread.start()
        return thread


def is_stock(text: str) -> bool:
    """Whether this is an error that heap tables raise as well: an update that meets one which is just being aborted,
    beside a lock, has an instant in which the log of transactions calls that aborted and the list of running ones does
    not (DoesMultiXactIdConflict and MultiXactIdExpand disagree). The statement fails, and nothing else.
    """
    return "new multixact has more than one updating member" in text
