"""Workers: each runs an instance of some open request, ends it, and decides."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import psycopg
from shared import Soak, is_away, is_stock

# How many requests are open at a time; with more workers than that, several
# instances of a request run at once.
WIDTH = 4

# A refusal after which the request is tried again as a new instance.
RETRY = {"40001", "40P01", "55P03"}


ACCOUNTS = range(1, 17)


class Entry(NamedTuple):
    xinst: int
    state: str


def mipt(soak: Soak, request: str, rows: list[tuple]) -> list[Entry]:
    """The rows of a MIPT, of which at most one is committed."""
    entries = [Entry(row[0], row[1]) for row in rows]
    committed = [entry.xinst for entry in entries if entry.state == "committed"]
    if len(committed) > 1:
        soak.violation(f"{request}: two are committed: {rows}")
    for winner in committed:
        soak.decided(request, winner, "a MIPT")
    if [entry.xinst for entry in entries] != sorted({entry.xinst for entry in entries}):
        soak.violation(f"{request}: MIPT not in order: {rows}")
    return entries


def decision(entries: list[Entry]) -> int | None:
    """On one site: the committed instance, else the smallest prepared one."""
    for state in ("committed", "prepared"):
        for entry in entries:
            if entry.state == state:
                return entry.xinst
    return None


def read(soak: Soak, connection: psycopg.Connection, request: str) -> list[Entry]:
    rows = connection.execute("SELECT xinst, state FROM mip.instances(%s)", (request,)).fetchall()
    return mipt(soak, request, rows)


def commit(soak: Soak, connection: psycopg.Connection, request: str, entries: list[Entry]) -> None:
    """Commits whoever has won, if that is known."""
    winner = decision(entries)
    if winner is None:
        return
    try:
        rows = connection.execute("SELECT xinst, state FROM mip.commit(%s, %s)", (request, winner)).fetchall()
    except psycopg.Error as error:
        if error.sqlstate == "MP001":
            # somebody rolled back a lower one, or read another MIPT: never
            soak.violation(f"{request}: commit({winner}) of {entries}: {error} {error.diag.message_detail}")
            return
        if error.sqlstate in RETRY:
            return
        raise
    soak.count("commits")
    entries = mipt(soak, request, rows)
    if decision(entries) != winner:
        soak.violation(f"{request}: commit({winner}) returned {rows}")
    left = [entry for entry in entries if entry.state == "prepared"]
    if left:
        soak.violation(f"{request}: commit({winner}) left {left}")


class Attempt:
    """One instance: its statements, in random order and number."""

    def __init__(self, soak: Soak, rng: random.Random, connection: psycopg.Connection) -> None:
        self.soak = soak
        self.rng = rng
        self.connection = connection
        self.request = soak.take(rng, WIDTH)
        self.xinst = soak.next_xinst()
        # the same for all instances, mostly: siblings meet on the same rows
        self.plan = random.Random(self.request if rng.random() < 0.8 else f"{rng.random()}")

    def execute(self, sql: str, *arguments: object) -> list[tuple]:
        cursor = self.connection.execute(sql, arguments)
        return cursor.fetchall() if cursor.description else []

    def begin(self) -> None:
        isolation = self.rng.choice(["READ COMMITTED"] * 4 + ["REPEATABLE READ"])
        name = f"{self.request} {self.xinst}"
        self.connection.execute(
            f"BEGIN ISOLATION LEVEL {isolation}; SET LOCAL application_name = '{name}';"
            f" SELECT mip.begin('{self.request}', {self.xinst})"
        )

    def work(self) -> None:
        plan = self.plan
        steps = [self.transfer, self.order, self.tally]
        for step in (self.lock, self.tickets, self.rewrite, self.undone, self.read):
            if plan.random() < 0.4:
                steps.append(step)
        if plan.random() < 0.3:
            plan.shuffle(steps)
        for step in steps:
            step()

    def transfer(self) -> None:
        # mostly in one order, or there is little else than deadlocks
        a, b = self.plan.sample(ACCOUNTS, 2)
        if self.plan.random() < 0.8:
            a, b = min(a, b), max(a, b)
        amount = self.plan.randint(1, 50)
        for account, change in ((a, -amount), (b, amount)):
            self.execute("UPDATE account SET balance = balance + %s WHERE id = %s", change, account)

    def order(self) -> None:
        account = self.plan.choice(ACCOUNTS)
        text = "o" * self.plan.choice([10, 3000, 20000])
        self.execute("INSERT INTO orders VALUES (%s, %s, %s, %s)", self.request, self.xinst, account, text)
        for no in range(self.plan.randint(1, 3)):
            item = self.plan.randint(1, 6)
            self.execute("INSERT INTO line VALUES (%s, %s, %s)", self.request, no, item)
            self.execute("UPDATE item SET stock = stock - 1 WHERE id = %s", item)

    def tally(self) -> None:
        self.execute(
            "INSERT INTO tally VALUES (%s, 1) ON CONFLICT (bucket) DO UPDATE SET requests = tally.requests + 1",
            self.plan.randint(1, 5),
        )

    def lock(self) -> None:
        strength = self.plan.choice(["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
        self.execute(f"SELECT * FROM account WHERE id = %s FOR {strength}", self.plan.choice(ACCOUNTS))

    def tickets(self) -> None:
        """A row goes and comes back with another key: unique numbers remain."""
        number = self.plan.randint(1, 20)
        how = self.plan.randint(1, 3)
        if how == 1:
            # nothing, if somebody else has just done the same
            if self.execute("DELETE FROM ticket WHERE number = %s RETURNING id", number):
                self.execute("INSERT INTO ticket VALUES (%s, %s)", self.xinst * 100 + number, number)
        elif how == 2:
            self.execute("UPDATE ticket SET id = %s WHERE number = %s", self.xinst * 100 + number, number)
        else:
            self.execute("UPDATE ticket SET number = number WHERE number = %s", number)

    def rewrite(self) -> None:
        """Out-of-line values: replaced, kept."""
        item = self.plan.randint(1, 6)
        if self.plan.random() < 0.5:
            self.execute("UPDATE item SET text = repeat('t', 5000) WHERE id = %s", item)
        else:
            self.execute("UPDATE item SET stock = stock WHERE id = %s", item)

    def undone(self) -> None:
        """Savepoints: everything after one is undone."""
        self.execute("SAVEPOINT s")
        self.transfer()
        if self.plan.random() < 0.5:
            self.execute("DELETE FROM ticket WHERE number = %s", self.plan.randint(1, 20))
        self.execute("ROLLBACK TO s")
        if self.plan.random() < 0.5:
            self.execute("RELEASE s")
            self.execute("SAVEPOINT s")
            self.transfer()
        self.execute("RELEASE s")

    def read(self) -> None:
        """What an instance sees is consistent, its own writes included."""
        rows = self.execute("SELECT count(*), count(DISTINCT id) FROM account")
        if rows != [(16, 16)]:
            self.soak.violation(f"{self.request} {self.xinst} sees accounts {rows}")
        rows = self.execute("SELECT count(*), count(DISTINCT number) FROM ticket")
        if rows != [(20, 20)]:
            self.soak.violation(f"{self.request} {self.xinst} sees tickets {rows}")

    def end(self) -> list[Entry]:
        function = "prepare"
        if self.rng.random() < 0.15:
            function = "commit_one_phase"
        rows = self.execute(f"SELECT xinst, state FROM mip.{function}(%s, %s)", "request", f"result {self.xinst}")
        self.soak.count(f"mip.{function}")
        return mipt(self.soak, self.request, rows)

    def refused(self, error: psycopg.Error) -> None:
        """Takes a refusal for what it says; the request stays open or not."""
        state = error.sqlstate or ""
        self.soak.count(f"refused {state}")
        self.connection.execute("ROLLBACK")
        if state == "MP001":
            detail = json.loads(error.diag.message_detail or "{}")
            self.soak.decided(self.request, detail["xinst"], "MP001")
            return
        if state not in RETRY | {"MP002", "MP005"} and not is_stock(str(error)):
            self.soak.violation(f"{self.request} {self.xinst}: {state} {error} {error.diag.message_detail}")
        if self.rng.random() < 0.3:
            # definitely refused: its own coordinator may roll it back
            rows = self.connection.execute(
                "SELECT xinst, state FROM mip.rollback(%s, %s)", (self.request, self.xinst)
            ).fetchall()
            mipt(self.soak, self.request, rows)
        entries = read(self.soak, self.connection, self.request)
        if state == "MP005" and decision(entries) is None:
            # given up by mip.rollback, or by a one-phase commit that failed
            self.soak.count("lost to nobody")
        if state in ("MP002", "MP005"):
            commit(self.soak, self.connection, self.request, entries)

    def run(self) -> None:
        try:
            try:
                self.begin()
                self.work()
                entries = self.end()
            except psycopg.Error as error:
                if is_away(error):
                    self.soak.count("connections lost")
                    raise
                self.refused(error)
                return
            if self.rng.random() < 0.1:
                self.soak.count("abandoned")
                return
            commit(self.soak, self.connection, self.request, entries)
        finally:
            self.over()

    def over(self) -> None:
        if not self.soak.give_back(self.request) or self.rng.random() < 0.5:
            return
        # the client has its answer: the MIPT may go
        try:
            self.connection.execute("SELECT mip.forget(%s)", (self.request,))
        except psycopg.Error as error:
            # an active loser of a lost connection may still be there
            if not is_away(error) and error.sqlstate not in {"MP006", "40001"}:
                self.soak.violation(f"mip.forget({self.request}): {error}")


def start(soak: Soak, number: int) -> None:
    for i in range(number):
        rng = soak.rng(f"worker {i}")
        soak.run(f"worker {i}", lambda connection, rng=rng: Attempt(soak, rng, connection).run())
