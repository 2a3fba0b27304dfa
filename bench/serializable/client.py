"""Clients whose requests fail over: what pgbench has no words for. The statements' work is done by the server; here one
message is sent after another, by libpq itself, so that there is little else to measure.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from pgmip.xinst import new_xid
from psycopg import pq
from psycopg.conninfo import make_conninfo

__all__ = [
    "ACROSS_SITES", "COMMIT", "DEPENDENCIES", "FAILURES", "INSTANCE", "TWO_PHASE", "Attempt", "Client", "Ending",
    "Failed", "Session", "Tally", "Work", "driving", "pause", "perform",
]  # fmt: skip

FAILURES = DEPENDENCIES, ACROSS_SITES, CONCURRENT, DEADLOCK = (
    "dependencies", "dependencies_across_sites", "concurrent_update", "deadlock",
)  # fmt: skip
PAUSE = 0.001  # seconds before the first retry; twice as long before each further one, up to
LONGEST = 0.05
PATIENCE = "-c statement_timeout=60s"  # nobody waits that long unless something is wrong

Client = Callable[[Callable[[], bool]], None]  # works until it is told that it is over, which it asks between requests


class Failed(Exception):
    """A transaction that may be tried again: it has been rolled back."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Session:
    def __init__(self, conninfo: str) -> None:
        self._conninfo = make_conninfo(conninfo, options=PATIENCE).encode()
        self._connect()

    def _connect(self) -> None:
        self._conn = pq.PGconn.connect(self._conninfo)
        if self._conn.status != pq.ConnStatus.OK:
            raise RuntimeError(self._conn.error_message.decode())

    def send(self, *statements: str) -> bytes:
        """In one message; the last value that came of it. Raises Failed."""
        return self._read(self._conn.exec_("; ".join(statements).encode()))

    def ask(self, *statements: str) -> None:
        """The same, without waiting for it."""
        self._conn.send_query("; ".join(statements).encode())

    def answer(self) -> bytes:
        """What came of it. Raises Failed."""
        last = None
        while (result := self._conn.get_result()) is not None:
            last = result
        assert last is not None
        return self._read(last)

    def _read(self, result: pq.abc.PGresult) -> bytes:
        if result.status not in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            return (result.get_value(0, 0) if result.ntuples and result.nfields else None) or b""
        sqlstate, message = (
            (result.error_field(name) or b"").decode()
            for name in (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.MESSAGE_PRIMARY)
        )
        self.roll_back()
        if sqlstate == "40P01":
            raise Failed(DEADLOCK)
        if sqlstate == "40001":
            raise Failed(_why(message))
        raise RuntimeError(f"{sqlstate}: {message}")

    def roll_back(self) -> None:
        """What is open; no-op without."""
        if self._conn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
            self._conn.exec_(b"ROLLBACK")

    def give_up(self) -> None:
        """An attempt whose sibling has been committed: its session is lost where it still ran."""
        if self._conn.transaction_status == pq.TransactionStatus.IDLE:
            return
        if self._conn.exec_(b"ROLLBACK").status != pq.ExecStatus.COMMAND_OK:
            self.close()
            self._connect()

    def close(self) -> None:
        self._conn.finish()


def _why(message: str) -> str:
    if "read/write dependencies" not in message:
        return CONCURRENT
    return ACROSS_SITES if "across sites" in message else DEPENDENCIES


@dataclass(frozen=True)
class Work:
    """What a request does: its statements."""

    name: str
    statements: Sequence[str]
    only_reads: bool = False


@dataclass(frozen=True)
class Ending:
    """How a transaction begins and ends; `{xid}` and `{xinst}` stand for its names."""

    name: str
    begin: Sequence[str]
    end: str
    then: str | None = None


COMMIT = Ending("COMMIT", (), "COMMIT")
TWO_PHASE = Ending("2PC", (), "PREPARE TRANSACTION '{xid}'", "COMMIT PREPARED '{xid}'")
INSTANCE = Ending(
    "instance", ("SELECT mip.begin('{xid}', {xinst})",),
    """SELECT * FROM mip.prepare('{{"request": 1}}', '{{"done": true}}')""",
    "SELECT * FROM mip.commit('{xid}', {xinst})",
)  # fmt: skip


class Attempt:
    """One of a request's: a transaction in a session, message by message."""

    def __init__(self, session: Session, level: str, ending: Ending, work: Work, xid: str, xinst: int) -> None:
        self.session = session
        self._ending = ending
        self._names = {"xid": xid, "xinst": xinst}
        begin = f"BEGIN ISOLATION LEVEL {level}{' READ ONLY' if work.only_reads else ''}"
        first, *others = work.statements
        self.messages = [[begin, *map(self._named, ending.begin), first], *([one] for one in others)]

    def _named(self, statement: str) -> str:
        return statement.format(**self._names)

    def work(self) -> None:
        """All of it, up to where it ends. Raises Failed, as the following do."""
        for message in self.messages:
            self.session.send(*message)

    def end(self) -> None:
        self.session.send(self._named(self._ending.end))

    def decide(self) -> None:
        if self._ending.then is not None:
            self.session.send(self._named(self._ending.then))


@dataclass
class Tally:
    """What clients of a kind have been through: requests that were committed, of which kind; attempts, and why they
    failed; and requests of which two attempts had been prepared.
    """

    committed: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    both_prepared: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.committed + other.committed, self.attempts + other.attempts, self.failed + other.failed,
            self.both_prepared + other.both_prepared,
        )  # fmt: skip

    @property
    def requests(self) -> int:
        return self.committed.total()

    @property
    def by_dependencies(self) -> float:
        """Failures by dependencies, of each committed request."""
        return self.failed[DEPENDENCIES] / max(1, self.requests)


def pause(failures: int) -> None:
    """Before a retry, by how often it has failed."""
    time.sleep(random.uniform(0.5, 1) * min(LONGEST, PAUSE * 2**failures))


def perform(
    sessions: Sequence[Session], level: str, ending: Ending, work: Work, tally: Tally, think: float = 0
) -> None:
    """A request, with an attempt in each of these sessions side by side, until one is committed. An attempt's client
    thinks after each message that does some work, for so many seconds at most in all.
    """
    failures = 0
    while True:
        xid = new_xid()
        attempts = [Attempt(session, level, ending, work, xid, n) for n, session in enumerate(sessions, 1)]
        tally.attempts += len(attempts)
        messages = len(attempts[0].messages)
        for number in range(messages):
            attempts = [one for one in attempts if _send(one, number, tally)]
            time.sleep(random.uniform(0, think / messages))
        prepared = [one for one in attempts if _end(one, tally)]
        if prepared:
            prepared[-1].decide()
            tally.both_prepared += len(prepared) > 1
            tally.committed[work.name] += 1
            return
        pause(failures)
        failures += 1


def _send(attempt: Attempt, number: int, tally: Tally) -> bool:
    try:
        attempt.session.send(*attempt.messages[number])
    except Failed as error:
        tally.failed[error.kind] += 1
        return False
    return True


def _end(attempt: Attempt, tally: Tally) -> bool:
    try:
        attempt.end()
    except Failed as error:
        tally.failed[error.kind] += 1
        return False
    return True


@contextmanager
def driving(clients: Sequence[Client]) -> Iterator[None]:
    """These clients at work, each in a thread of its own, as long as the block takes. Raises what the first one has
    that fails; the others may have failed for that.
    """
    over = threading.Event()
    errors: list[Exception] = []

    def run(client: Client) -> None:
        try:
            client(over.is_set)
        except Exception as error:
            errors.append(error)
            over.set()

    with ThreadPoolExecutor(len(clients)) as pool:
        for client in clients:
            pool.submit(run, client)
        try:
            yield
        finally:
            over.set()
    if errors:
        raise errors[0]
