"""One random history."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import psycopg
from checker import Transaction, serial_order
from server import Server
from statements import KEYS, blind, read, wide, write

PLANS = ("", "SET LOCAL enable_seqscan = off", "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off",
         "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")  # fmt: skip
# 57P01: a sibling of this one, which was idle, has been committed
EXPECTED = ("40001", "40P01", "55P03", "23505", "MP001", "MP002", "MP004", "MP005", "MP006", "57P01")


class Session:
    """A participant: an instance of a family, or an outsider; it does one transaction."""

    def __init__(self, name: str, connection: psycopg.Connection[Any]) -> None:
        self.name = name
        self.family = name[0] if name[0] in "AB" else None
        self.connection = connection
        self.transaction: Transaction | None = None
        self.undone = False  # what it does now is rolled back with its savepoint
        self.over = False
        self.read_only = False
        self.xinst = 0


class History:
    def __init__(self, server: Server, connections: dict[str, Any], seed: str, counters: Counter[str]) -> None:
        self.rng = random.Random(seed)
        self.server = server
        self.connections = connections
        self.counters = counters
        self.log = [f"---- seed {seed}"]
        self.committed: list[Transaction] = []
        self.last_xinst = 0
        self.prepared: dict[str, dict[int, Transaction]] = {"A": {}, "B": {}}
        self.decided: set[str] = set()
        names = ["A1", "A2"] + (["A3"] if self.rng.random() < 0.4 else [])
        names += ["B1", "B2"] if self.rng.random() < 0.3 else []
        names += [f"U{i}" for i in range(1, self.rng.randint(1, 3) + 1)]
        self.rng.shuffle(names)
        # All read much, and each, or each family, writes a row of its own: write skew.
        self.skew = self.rng.random() < 0.6
        # Likewise, and hardly anything else: a read, a write, and the end.
        self.duel = self.skew and self.rng.random() < 0.6
        if self.duel:
            names = ["A1", "A2", "U1"] + (["U2"] if self.rng.random() < 0.3 else [])
        self.crash = self.rng.random() < 0.004
        self.sessions = [Session(name, self.connect(name)) for name in names]
        self.xid = {family: f"{seed}-{family}-{self.rng.randrange(10**9)}" for family in "AB"}

    # ---- the server

    def connect(self, name: str) -> psycopg.Connection[Any]:
        connection = self.connections.get(name)
        if connection is None or connection.closed:
            connection = self.connections[name] = self.server.connect()
            connection.prepare_threshold = None
        return connection

    def sql(self, session: Session, sql: str) -> list[tuple[Any, ...]] | None:
        """Its rows; None if it fails, and with it the transaction."""
        try:
            cursor = session.connection.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if error.sqlstate not in EXPECTED and not session.connection.closed:
                raise
            self.counters[f"error {error.sqlstate or 'connection lost'}"] += 1
            if error.sqlstate == "40001" and "dependencies" in str(error):
                self.counters[f"dependencies, {'an outsider' if session.family is None else 'an instance'}"] += 1
            self.log.append(f"{session.name}: {sql} -> {error.sqlstate} {str(error).splitlines()[0]}")
            self.end(session)
            return None
        self.log.append(f"{session.name}: {sql} -> {rows}")
        return rows

    def end(self, session: Session) -> None:
        session.transaction = None
        session.over = True
        if not session.connection.closed:
            with contextlib.suppress(psycopg.OperationalError):
                session.connection.execute("ROLLBACK")

    # ---- steps

    def begin(self, session: Session) -> None:
        rng = self.rng
        session.transaction = Transaction(session.name)
        session.read_only = rng.random() < (0.0 if self.duel else 0.25 if session.family is None else 0.05)
        mode = "READ ONLY" if session.read_only else "READ WRITE"
        if self.sql(session, f"BEGIN ISOLATION LEVEL SERIALIZABLE, {mode}; {rng.choice(PLANS)}") is None:
            return
        if session.family:
            self.last_xinst += rng.randint(1, 3)
            session.xinst = self.last_xinst if rng.random() < 0.95 else rng.randint(1, 9)
            if self.sql(session, f"SELECT mip.begin('{self.xid[session.family]}', {session.xinst})") is None:
                return
        else:
            self.sql(session, "SELECT 1")

    def statement(self, session: Session) -> None:
        rng = self.rng
        assert session.transaction
        writes = not session.read_only and rng.random() < 0.5
        if self.duel and session.transaction.done:
            writes = session.transaction.done[0][0].sql.startswith("SELECT")
        if self.skew and writes:
            statement = blind(rng, self.own_key(session))
        elif self.duel:
            statement = wide(rng)
        else:
            statement = (write if writes else read)(rng)
        if session.read_only and " FOR " in statement.sql:
            return
        undone = rng.random() < 0.08 and not self.duel
        if undone and self.sql(session, "SAVEPOINT s") is None:
            return
        rows = self.sql(session, statement.sql)
        if rows is not None:
            session.transaction.done.append((statement, rows, not undone))
            if undone:
                self.sql(session, "ROLLBACK TO s; RELEASE s")

    def finish(self, session: Session) -> None:
        rng = self.rng
        transaction = session.transaction
        assert transaction
        if rng.random() < 0.08 and not self.duel:
            self.end(session)
            return
        if session.family is None:
            if self.sql(session, "COMMIT") is not None:
                self.commit(transaction)
        elif rng.random() < 0.95 and not session.read_only:
            if self.sql(session, "SELECT state FROM mip.prepare(NULL, NULL)") is not None:
                self.prepared[session.family][session.xinst] = transaction
                self.counters["prepared"] += 1
                if len(self.prepared[session.family]) > 1:
                    self.counters["prepared beside a sibling"] += 1
        elif self.sql(session, "SELECT state FROM mip.commit_one_phase(NULL, NULL)") is not None:
            self.commit(transaction)
            self.decided.add(session.family)
        session.transaction = None
        session.over = True

    def commit(self, transaction: Transaction) -> None:
        self.committed.append(transaction)
        self.counters[f"committed, {'outsiders' if transaction.name[0] == 'U' else 'instances'}"] += 1

    def decide(self, family: str) -> None:
        prepared = self.prepared[family]
        if family in self.decided or not prepared:
            return
        winner = self.rng.choice([*sorted(prepared), max(prepared)])
        with self.server.connect() as connection:
            connection.execute("SET lock_timeout = 0")
            connection.execute("SELECT FROM mip.commit(%s, %s)", (self.xid[family], winner))
        self.log.append(f"-- commit {family} {winner}: {prepared[winner].name}")
        self.decided.add(family)
        self.commit(prepared[winner])

    def own_key(self, session: Session) -> int:
        owners = sorted({other.family or other.name for other in self.sessions})
        return owners.index(session.family or session.name) % KEYS

    def is_behind(self, session: Session) -> bool:
        """Is there a lower sibling, which could not be prepared any more?"""
        return session.family is not None and any(
            other.family == session.family and other.transaction and other.xinst < session.xinst
            for other in self.sessions
        )

    def step(self, session: Session) -> None:
        if session.over:
            return
        if session.transaction is None:
            self.begin(session)
        elif len(session.transaction.done) >= 2 and self.rng.random() < (0.6 if self.duel else 0.35):
            if not self.is_behind(session) or self.rng.random() < 0.2:
                self.finish(session)
        else:
            self.statement(session)

    def die(self) -> None:
        self.log.append("-- the server crashes")
        self.counters["crashes"] += 1
        self.server.crash()
        self.server.start()
        for session in self.sessions:
            if session.transaction:
                session.over = True
                session.transaction = None
        self.connections.clear()
        for session in self.sessions:
            session.connection = self.connect(session.name)

    def play(self) -> bool:
        rng = self.rng
        with self.server.connect() as connection:
            connection.execute("TRUNCATE r")
            before = {k: rng.randrange(3) for k in range(KEYS) if rng.random() < 0.85}
            for k, v in before.items():
                connection.execute(f"INSERT INTO r VALUES ({k}, {v})")
            if rng.random() < 0.5:
                connection.execute("VACUUM r")
            length = 8 * len(self.sessions)
            for i in range(length):
                if self.crash and i == length // 2:
                    self.die()
                    connection = self.server.connect()
                what = rng.random()
                if what < 0.04:
                    self.decide(rng.choice("AB"))
                elif what < 0.07:
                    connection.execute("VACUUM (TRUNCATE false) r")
                else:
                    self.step(rng.choice(self.sessions))
        for session in self.sessions:
            if session.transaction and not session.over:
                self.finish(session)
        for family in "AB":
            self.decide(family)
        with self.server.connect() as connection:
            end = dict(connection.execute("SELECT k, v FROM r").fetchall())
        self.counters["histories"] += 1
        order = serial_order(before, self.committed, end)
        self.log.append(f"before {before}, after {end}, committed {[t.name for t in self.committed]}: {order}")
        return order is not None
