"""One connection, spoken to without waiting: a statement may block."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field

import psycopg
from psycopg import pq

TUPLES = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE)
PATIENCE = 30.0  # for a server that is merely slow
INSISTENCE = 1.0  # how long an unexpected wait has to last


@dataclass
class Reply:
    """The last rows that a message gave, and the last count."""

    rows: list[tuple[str | None, ...]] | None = None
    tables: list[list[tuple[str | None, ...]]] = field(default_factory=list)  # the rows of each statement
    count: int | None = None
    sqlstate: str | None = None
    text: str = ""
    lost: bool = False

    def __str__(self) -> str:
        if self.lost:
            return "connection lost"
        if self.sqlstate:
            return f"{self.sqlstate} {self.text}"
        return "ok" if self.rows is None else f"{len(self.rows)} row(s)"


class Endless(Exception):
    """A statement that neither ends nor waits for a lock."""


class Connection:
    def __init__(self, conninfo: str) -> None:
        self.conn = pq.PGconn.connect(conninfo.encode())
        if self.conn.status != pq.ConnStatus.OK:
            raise RuntimeError(self.conn.error_message.decode())
        self.pid = self.conn.backend_pid
        self.gone = False

    def send(self, sql: str) -> None:
        """If the connection has gone the reply will tell."""
        try:
            self.conn.send_query(sql.encode())
            self.conn.flush()
        except psycopg.OperationalError:
            self.gone = True

    def ready(self, seconds: float) -> bool:
        """Has the reply come within that time?"""
        end = time.monotonic() + seconds
        while not self.gone and self.conn.is_busy():
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.conn.socket], [], [], left)[0]:
                return False
            try:
                self.conn.consume_input()
            except psycopg.OperationalError:
                return True
        return True

    def reply(self) -> Reply:
        if not self.gone and not self.ready(PATIENCE):
            raise RuntimeError("the server does not answer")
        reply = Reply()
        while not self.gone:
            try:
                result = self.conn.get_result()
            except psycopg.OperationalError:
                self.gone = True
                break
            if result is None:
                return reply
            if result.status == pq.ExecStatus.FATAL_ERROR:
                code = result.error_field(pq.DiagnosticField.SQLSTATE)
                if code is None or code.startswith(b"57P"):
                    self.gone = True
                    break
                detail = result.error_field(pq.DiagnosticField.MESSAGE_DETAIL)
                reply.sqlstate = code.decode()
                reply.text = result.error_message.decode().strip() + (f" DETAIL: {detail.decode()}" if detail else "")
            else:
                if result.status in TUPLES:
                    reply.rows = [
                        tuple(
                            None if (value := result.get_value(i, j)) is None else value.decode()
                            for j in range(result.nfields)
                        )
                        for i in range(result.ntuples)
                    ]
                    reply.tables.append(reply.rows)
                reply.count = result.command_tuples
        return Reply(lost=True)

    def call(self, sql: str) -> Reply:
        self.send(sql)
        return self.reply()

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        reply = self.call(sql)
        if reply.sqlstate or reply.lost or reply.rows is None:
            raise RuntimeError(f"{sql}: {reply} {reply.text}")
        return reply.rows

    def close(self) -> None:
        self.conn.finish()


class Monitor(Connection):
    def blockers(self, pid: int) -> list[int] | None:
        """The processes (0: a prepared transaction) that pid waits for; None if it does not wait."""
        rows = self.query(
            f"SELECT array_to_string(pg_blocking_pids({pid}), ' ') FROM pg_locks WHERE pid = {pid} AND NOT granted"
        )
        return None if not rows else [int(word) for word in (rows[0][0] or "").split()]

    def waits(self, connection: Connection, expected: bool, unsure: bool) -> list[int] | None:
        """
        Waits until the connection has its reply (None) or waits for a lock. An
        unexpected wait has to last, so that a short one of the server's own is
        not taken for it.
        """
        if connection.ready(0.001 if expected and not unsure else 0.02):
            return None
        since = time.monotonic()
        end = since + PATIENCE
        while True:
            blockers = self.blockers(connection.pid)
            if connection.ready(0.0005):
                return None
            if time.monotonic() > end:
                raise Endless
            if blockers is None:
                since = time.monotonic()
            elif expected or time.monotonic() - since > INSISTENCE:
                return blockers
            if connection.ready(0.005):
                return None
