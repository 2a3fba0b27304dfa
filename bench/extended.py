"""A load client that speaks the extended protocol, as drivers do. (pgbench cannot, with a PREPARE TRANSACTION of a name
that is a variable.)

    python -m bench.extended LOAD

One process with as many connections as are wanted, each in pipeline mode, and one loop that waits for all of them. A
message is its statements and a sync. Before the clock starts, what can be prepared is, and each connection does one
transaction: the first one pays for what a session has to look up. LOAD is a `Load` as JSON; prints a `Done`. Whatever
the server refuses ends it, with that error.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from .cases import SETTINGS, Statement, distinct, draw, messages

__all__ = ["Done", "Load", "run", "run_apart"]

SYNC = int(ExecStatus.PIPELINE_SYNC)
Sent = tuple[bytes | None, bytes, tuple[str, ...]]  # the name of what is prepared, its text, and its parameters
RIGHT = (int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK))


@dataclass(frozen=True)
class Load:
    """So many clients do a case's transactions for so many seconds."""

    conninfo: str
    case: str
    state: str
    scale: int
    clients: int
    seconds: float


@dataclass(frozen=True)
class Done:
    transactions: int
    seconds: float
    before: int = 0
    """transactions before the clock started"""


def run_apart(load: Load) -> Done:
    """In a process of its own, so that it shares its interpreter with nobody."""
    command = [sys.executable, "-m", "bench.extended", json.dumps(asdict(load))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench.extended failed:\n{done.stdout}{done.stderr}")
    return Done(**json.loads(done.stdout))


def run(load: Load) -> Done:
    with ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(load.conninfo, autocommit=True)) for _ in range(load.clients)]
        for conn in conns:
            _get_ready(conn, load)
        sessions = {conn.fileno(): Session(conn.pgconn, load) for conn in conns}
        before = _drive(sessions, until=0)
        start = time.monotonic()
        transactions = _drive(sessions, until=start + load.seconds)
        return Done(transactions, time.monotonic() - start, before)


def _get_ready(conn: psycopg.Connection[Any], load: Load) -> None:
    if load.case in SETTINGS:
        conn.execute(SETTINGS[load.case].encode())
    for statement in distinct(messages(load.case, load.state)):
        if not statement.names_xid:
            _check(conn.pgconn.prepare(statement.name.encode(), statement.text.encode()))
    conn.pgconn.enter_pipeline_mode()


def _drive(sessions: dict[int, Session], until: float) -> int:
    """How many transactions they do until then, each at least one; what has begun is ended."""
    done = 0
    steps = {fd: session.steps(until) for fd, session in sessions.items()}
    with select.epoll() as poll:
        for fd, session in steps.items():
            poll.register(fd, select.EPOLLIN)
            next(session)
        while steps:
            for fd, _event in poll.poll():
                try:
                    next(steps[fd])
                except StopIteration as end:
                    done += end.value
                    poll.unregister(fd)
                    del steps[fd]
    return done


class Session:
    """What one connection does: one transaction after another."""

    def __init__(self, conn: PGconn, load: Load) -> None:
        self._conn, self._scale = conn, load.scale
        self._messages = [[_sent(one) for one in message] for message in messages(load.case, load.state)]

    def steps(self, until: float) -> Generator[None, None, int]:
        """To be gone on with whenever the connection has something to read. Returns how many transactions it did."""
        done = 0
        while done == 0 or time.monotonic() < until:
            values = {name: str(value).encode() for name, value in draw(self._scale).items()}
            for message in self._messages:
                self._send(message, values)
                yield
                while not self._read():
                    yield
            done += 1
        return done

    def _send(self, message: list[Sent], values: dict[str, bytes]) -> None:
        """Into an empty socket, since all before it is answered: so it takes all at once."""
        conn = self._conn
        for name, text, parameters in message:
            if name is None:
                conn.send_query_params(text.replace(b"{xid}", values["xid"]), None)
            else:
                conn.send_query_prepared(name, [values[parameter] for parameter in parameters])
        conn.pipeline_sync()

    def _read(self) -> bool:
        """What there is of the results; whether that was all of the message's."""
        conn = self._conn
        conn.consume_input()
        while not conn.is_busy():
            result = conn.get_result()
            if result is None:  # the end of a statement's
                continue
            if result.status == SYNC:
                return True
            _check(result)
        return False


def _sent(statement: Statement) -> Sent:
    name = None if statement.names_xid else statement.name.encode()
    return name, statement.text.encode(), statement.parameters


def _check(result: PGresult) -> None:
    if result.status not in RIGHT:
        raise error_from_result(result)


def main() -> None:
    try:
        print(json.dumps(asdict(run(Load(**json.loads(sys.argv[1]))))))
    except psycopg.Error as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
