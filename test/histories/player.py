"""Plays a history: every step goes to the model and to the server.

A step is a list: session, operation, arguments. One that makes no sense in the
state that has been reached is passed over, so every sub-list of a history is a
history too, which is what shrinking needs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from model import STRENGTHS, Blocks, Error, Family, Level, Model, Outcome, Row, Rows, Skip, Statement, Stop, Txn
from session import Connection, Endless, Monitor, Reply
from tables import DOMAIN, ODD, SPAN, TABLES, TEXTS, Path, Table, Values, condition, settings, text_sql

Step = list[Any]
COLUMNS = "k, u, v, md5(w)"
SIBLINGS = ("A1", "A2", "A3", "B1", "B2")
OUTSIDERS = ("U1", "U2")
# Every session has plans that are made once.
PREPARATION = "SET plan_cache_mode = force_generic_plan; " + "; ".join(
    f"PREPARE p_{name}(int, int) AS SELECT {COLUMNS} FROM {name}"
    f" WHERE k BETWEEN $1 AND $2 OR k BETWEEN $1 + {ODD} AND $2 + {ODD}"
    for name in TABLES
) + "; SELECT 1"


class Difference(Exception):
    """The server and the model disagree."""


class Inconclusive(Exception):
    """The model does not know what comes next."""


@dataclass
class Command:
    sql: str
    run: Callable[[Txn, Statement], Rows | list[Outcome]]
    table: Table | None = None
    keys_only: bool = False
    may_wait: bool = True


@dataclass
class Waiting:
    """`between`: what it may have come to after losers had gone, and before their winner was committed."""

    command: Command
    statement: Statement
    between: list[Outcome] = field(default_factory=list)


class Session:
    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.connection = connection
        self.txn: Txn | None = None
        self.waiting: Waiting | None = None


class Pool:
    """Connections by name, kept from one history to the next."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.connections: dict[str, Connection] = {}
        self.monitor = Monitor(conninfo)
        self.number = 0

    def get(self, name: str) -> Connection:
        if name not in self.connections:
            self.connections[name] = Connection(self.conninfo)
            self.connections[name].query(PREPARATION)
        return self.connections[name]

    def reset(self, name: str) -> Connection:
        """Ends a session, whatever it waits for, and begins another one."""
        self.end([name])
        return self.get(name)

    def reset_all(self) -> None:
        self.end(list(self.connections))

    def end(self, names: list[str]) -> None:
        ended = [self.connections.pop(name) for name in names if name in self.connections]
        for connection in ended:
            connection.close()
        pids = [connection.pid for connection in ended]
        while pids and self.monitor.query(
            f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ({', '.join(map(str, pids))})"
        ):
            time.sleep(0.001)

    def reconnect(self) -> None:
        """The server is being restarted."""
        for connection in self.connections.values():
            connection.close()
        self.connections = {}
        self.monitor.close()
        for _ in range(600):
            with contextlib.suppress(RuntimeError):
                self.monitor = Monitor(self.conninfo)
                return
            time.sleep(0.1)
        raise RuntimeError("the server does not come back")


class Player:
    def __init__(self, pool: Pool, blocking: bool, log: list[str] | None = None) -> None:
        self.pool = pool
        pool.number += 1
        self.number = pool.number
        self.base = self.number * SPAN
        self.blocking = blocking
        self.log = log
        self.model = Model()
        self.sessions = {name: Session(name, pool.get(name)) for name in (*SIBLINGS, *OUTSIDERS, "X")}
        self.families: dict[str, Family] = {}
        self.past: list[Family] = []
        self.used: set[str] = set()
        self.cursors = 0

    # ---- what happened, for those who read a failure

    def note(self, session: str, sql: str, reply: object = "") -> None:
        if self.log is not None:
            self.log.append(f"{session}: {sql}" + (f"   -> {reply}" if str(reply) else ""))

    def difference(self, session: str, text: str) -> Difference:
        self.note(session, "", f"DIFFERENCE: {text}")
        return Difference(f"{session}: {text}")

    # ---- one statement

    def evaluate(self, txn: Txn, command: Command, statement: Statement) -> list[Outcome] | None:
        """The effects are in a level of their own; None: there is none, pass over the step."""
        txn.levels.append(Level())
        try:
            result = command.run(txn, statement)
        except Stop as stop:
            return stop.outcomes
        except Skip:
            self.model.drop_level(txn)
            return None
        return result if isinstance(result, list) else [result]

    def evaluate_again(self, txn: Txn, what: Waiting) -> list[Outcome] | None:
        """The same of what has been waiting since."""
        self.model.drop_level(txn)
        return self.evaluate(txn, what.command, what.statement)

    def execute(self, session: Session, command: Command) -> bool:
        txn = session.txn
        if txn is None or txn.failed or session.waiting:
            return False
        statement = Statement(self.model.time)
        outcomes = self.evaluate(txn, command, statement)
        if outcomes is None:
            return False
        if any(isinstance(o, Blocks) for o in outcomes) and not (command.may_wait and self.may_block()):
            self.model.drop_level(txn)
            return False
        session.connection.send(command.sql)
        self.settle(session, Waiting(command, statement), outcomes)
        return True

    def may_block(self) -> bool:
        return self.blocking and not any(session.waiting for session in self.sessions.values())

    def settle(self, session: Session, what: Waiting, outcomes: list[Outcome]) -> None:
        """Waits until one of the outcomes has come, and takes it over into the model."""
        txn = session.txn
        assert txn
        expected = [outcome for outcome in outcomes if isinstance(outcome, Blocks)]
        pids = self.look(session, what.command.sql, bool(expected), len(outcomes) > len(expected))
        again = "still " if session.waiting else ""
        session.waiting = None
        txn.awaits = None
        if pids is not None:
            self.note(session.name, what.command.sql, f"{again}waits for {pids}")
            if not expected:
                raise self.difference(session.name, f"waits for {self.describe(pids)}, expected {outcomes}")
            known = {self.pid(holder) for outcome in expected for holder in outcome.on}
            if not set(pids) <= known:
                raise self.difference(
                    session.name, f"waits for {self.describe(pids)}, expected some of {sorted(known)}"
                )
            session.waiting = what
            txn.awaits = what.statement.targets[0] if what.statement.targets else None
            return
        reply = session.connection.reply()
        self.note(session.name, what.command.sql, reply if reply.rows is None else reply.rows)
        for outcome in outcomes:
            if self.fits(reply, outcome, what.command):
                if isinstance(outcome, Error):
                    self.model.drop_level(txn)
                    self.model.fail(txn)
                else:
                    txn.merge()
                return
        raise self.difference(session.name, f"{reply} {self.back(reply, what.command)}, expected {outcomes}")

    def look(self, session: Session, sql: str, expected: bool, unsure: bool) -> list[int] | None:
        try:
            return self.pool.monitor.waits(session.connection, expected, unsure)
        except Endless:
            self.note(session.name, sql, "does not end")
            raise self.difference(session.name, f"neither ends nor waits: {sql}") from None

    def pid(self, txn: Txn) -> int:
        return 0 if txn.prepared else self.sessions[txn.session].connection.pid

    def describe(self, pids: list[int]) -> str:
        names = {s.connection.pid: s.name for s in self.sessions.values()}
        return ", ".join(names.get(pid, "a prepared transaction" if pid == 0 else str(pid)) for pid in pids)

    def back(self, reply: Reply, command: Command) -> list[tuple[int, ...]] | None:
        """The rows of a reply as the model has them."""
        if reply.rows is None or command.table is None:
            return None
        if command.keys_only:
            return sorted((command.table.k_back(self.base, int(row[0])),) for row in reply.rows)  # type: ignore[arg-type]
        return sorted(
            (
                command.table.k_back(self.base, int(k)),  # type: ignore[arg-type]
                int(u) - self.base,  # type: ignore[arg-type]
                int(v) - self.base,  # type: ignore[arg-type]
                TEXTS.get(str(w), -1),
            )
            for k, u, v, w in reply.rows
        )

    def fits(self, reply: Reply, outcome: Outcome, command: Command) -> bool:
        if isinstance(outcome, Blocks) or reply.lost:
            return False
        if isinstance(outcome, Error):
            return reply.sqlstate == outcome.sqlstate
        if reply.sqlstate:
            return False
        if outcome.rows is not None:
            rows = [row[:1] for row in outcome.rows] if command.keys_only else outcome.rows
            return self.back(reply, command) == sorted(rows)
        return outcome.count is None or outcome.count == reply.count

    def simple(self, session: Session, sql: str) -> Reply:
        """A statement that nothing stands in the way of."""
        session.connection.send(sql)
        pids = self.look(session, sql, False, False)
        if pids is not None:
            self.note(session.name, sql, f"waits for {pids}")
            raise self.difference(session.name, f"{sql} waits for {self.describe(pids)}")
        reply = session.connection.reply()
        self.note(session.name, sql, reply if reply.rows is None else reply.rows)
        return reply

    def expect(self, session: Session, sql: str, sqlstate: str | None = None) -> Reply:
        reply = self.simple(session, sql)
        if reply.lost or reply.sqlstate != sqlstate:
            raise self.difference(session.name, f"{sql}: {reply}, expected {sqlstate or 'success'}")
        return reply

    # ---- steps

    def play(self, step: Step) -> bool:
        """False: passed over."""
        session = self.sessions[step[0]]
        done = bool(getattr(self, "step_" + step[1].replace(" ", "_"))(session, *step[2:]))
        if done:
            self.look_after_waiting()
        return done

    def look_after_waiting(self) -> None:
        for session in self.sessions.values():
            if session.waiting and session.txn:
                outcomes = self.evaluate_again(session.txn, session.waiting)
                if outcomes is None:
                    raise Inconclusive
                outcomes += session.waiting.between
                session.waiting.between = []
                self.settle(session, session.waiting, outcomes)

    def look_between(self, family: Family, winner: Txn) -> None:
        """Losers are rolled back before the winner is committed: who waits only for them goes on beside its changes."""
        losers = [txn for txn in (*family.active, *family.prepared) if txn is not winner]
        everybody = self.model.txns
        self.model.txns = [txn for txn in everybody if txn not in losers]
        for session in self.sessions.values():
            if session.waiting and session.txn in self.model.txns:
                outcomes = self.evaluate_again(session.txn, session.waiting)
                if outcomes is None:
                    session.txn.levels.append(Level())  # which is dropped when it is looked at again
                session.waiting.between = [outcome for outcome in outcomes or () if isinstance(outcome, Rows)]
        self.model.txns = everybody

    # reading and writing

    def path(self, table: Table, number: int, x: int, bit: int) -> tuple[str, str, Callable[[Values], bool]]:
        path: Path = table.paths[number % len(table.paths)]
        return settings(path, bit), condition(table, path, self.base, x), lambda r: path.match(r, x)

    def values_sql(self, table: Table, values: Values) -> str:
        k, u, v = table.k_sql(self.base, values.k), self.base + values.u, self.base + values.v
        return f"({k}, {u}, {v}, {text_sql(values.w)})"

    def step_rows(self, session: Session, name: str, many: list[list[int]]) -> bool:
        """Committed rows to begin with."""
        table = TABLES[name]
        values = [Values(*v) for v in many]
        parents = {v.k for _, v in self.model.view(None, table.parent)} if table.parent else set()
        if table.parent and any(v.u not in parents for v in values):
            return False
        txn = self.model.begin("X", False)
        for v in values:
            row = Row(name)
            self.model.rows[name].append(row)
            self.model.write(txn, row, v, 3)
        self.model.commit(txn)
        self.used.add(name)
        self.expect(session, f"INSERT INTO {name} VALUES " + ", ".join(self.values_sql(table, v) for v in values))
        return True

    def step_insert(self, session: Session, name: str, many: list[list[int]]) -> bool:
        table = TABLES[name]
        values = [Values(*v) for v in many]
        sql = f"INSERT INTO {name} VALUES " + ", ".join(self.values_sql(table, v) for v in values)
        return self.execute(
            session,
            Command(
                f"{sql} RETURNING {COLUMNS}", lambda txn, st: self.model.do_insert(txn, st, table, values), table
            ),
        )

    def step_conflict(self, session: Session, name: str, one: list[int], update: bool) -> bool:
        table = TABLES[name]
        values = Values(*one)
        action = "UPDATE SET v = excluded.v RETURNING t.k, t.u, t.v, md5(t.w)"
        sql = (
            f"INSERT INTO {name} AS t VALUES {self.values_sql(table, values)} ON CONFLICT (k) DO "
            + (action if update else f"NOTHING RETURNING {COLUMNS}")
        )
        return self.execute(
            session,
            Command(sql, lambda txn, st: self.model.do_insert_on_conflict(txn, st, table, values, update), table),
        )

    def change(self, table: Table, change: list[Any]) -> tuple[str, Callable[[Values], Values]]:
        match change:
            case ["k", n]:
                return f"k = {table.k_sql(self.base, n)}", lambda r: r._replace(k=n)
            case ["u" | "v" as column, n]:
                return f"{column} = {self.base + n}", lambda r: r._replace(**{column: n})
            case ["w", n]:
                return f"w = {text_sql(n)}", lambda r: r._replace(w=n)
            case ["v+"]:
                return (
                    f"v = {self.base} + (v - {self.base} + 1) % {DOMAIN}",
                    lambda r: r._replace(v=(r.v + 1) % DOMAIN),
                )
            case ["u^"]:
                return f"u = 2 * {self.base} + 7 - u", lambda r: r._replace(u=7 - r.u)
            case ["same"]:
                return "v = v, k = k", lambda r: r
        raise ValueError(change)

    def step_update(self, session: Session, name: str, path: int, x: int, bit: int, change: list[Any]) -> bool:
        table = TABLES[name]
        prefix, where, match = self.path(table, path, x, bit)
        assignment, make = self.change(table, change)
        sql = f"{prefix}UPDATE {name} SET {assignment} WHERE {where} RETURNING {COLUMNS}"

        def run(txn: Txn, st: Statement) -> Rows:
            targets = self.model.find(txn, st, table, match)
            if change[0] in ("k", "u") and len(targets) > 1:
                raise Skip  # unique values one after the other
            return self.model.do_update(txn, st, table, targets, match, make)

        return self.execute(session, Command(sql, run, table, may_wait=table.by_key(path)))

    def step_delete(self, session: Session, name: str, path: int, x: int, bit: int) -> bool:
        table = TABLES[name]
        prefix, where, match = self.path(table, path, x, bit)
        sql = f"{prefix}DELETE FROM {name} WHERE {where} RETURNING {COLUMNS}"

        def run(txn: Txn, st: Statement) -> Rows:
            return self.model.do_delete(txn, st, table, self.model.find(txn, st, table, match), match)

        return self.execute(session, Command(sql, run, table, may_wait=table.by_key(path)))

    def step_merge(self, session: Session, name: str, one: list[int], delete: bool) -> bool:
        table = TABLES[name]
        values = Values(*one)
        action = "DELETE" if delete else "UPDATE SET v = s.v"
        sql = (
            f"MERGE INTO {name} t USING (VALUES {self.values_sql(table, values)}) s (k, u, v, w) ON t.k = s.k"
            f" WHEN MATCHED THEN {action} WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.u, s.v, s.w)"
        )
        return self.execute(session, Command(sql, lambda txn, st: self.model.do_merge(txn, st, table, values, delete)))

    def step_select(self, session: Session, name: str, path: int, x: int, bit: int, keys_only: bool) -> bool:
        table = TABLES[name]
        prefix, where, match = self.path(table, path, x, bit)
        sql = f"{prefix}SELECT {'k' if keys_only else COLUMNS} FROM {name} WHERE {where}"

        def run(txn: Txn, st: Statement) -> Rows:
            return Rows([tuple(v) for _, v in self.model.view(txn, name) if match(v)])

        return self.execute(session, Command(sql, run, table, keys_only))

    def step_generic(self, session: Session, name: str) -> bool:
        """A plan that was made long ago."""

        def run(txn: Txn, st: Statement) -> Rows:
            return Rows([tuple(v) for _, v in self.model.view(txn, name)])

        return self.execute(session, Command(f"EXECUTE p_{name}({self.base}, {self.base + 7})", run, TABLES[name]))

    def step_lock(
        self, session: Session, name: str, path: int, x: int, bit: int, strength: int, policy: str
    ) -> bool:
        table = TABLES[name]
        prefix, where, match = self.path(table, path, x, bit)
        sql = f"{prefix}SELECT {COLUMNS} FROM {name} WHERE {where} FOR {STRENGTHS[strength]} {policy}".rstrip()

        def run(txn: Txn, st: Statement) -> list[Outcome]:
            return self.model.do_lock(txn, st, self.model.find(txn, st, table, match), match, strength, policy)

        return self.execute(session, Command(sql, run, table, may_wait=table.by_key(path)))

    def step_cursor(self, session: Session, name: str, k: int) -> bool:
        """A cursor on one row, for WHERE CURRENT OF."""
        txn = session.txn
        if txn is None or txn.failed or session.waiting or txn.cursor:
            return False
        table = TABLES[name]
        if table.parts:  # WHERE CURRENT OF does not get along with pruning
            return False
        found = [(row, v) for row, v in self.model.view(txn, name) if v.k == k]
        if len(found) != 1:  # one deleted since the snapshot, and another of one's own
            return False
        where = condition(table, table.paths[0], self.base, k)
        sql = f"DECLARE c CURSOR FOR SELECT {COLUMNS} FROM {name} WHERE {where}; FETCH c"

        def run(txn: Txn, st: Statement) -> Rows:
            txn.levels[-1].cursor = found[0][0]
            return Rows([tuple(found[0][1])])

        return self.execute(session, Command(sql, run, table))

    def step_current(self, session: Session, change: list[Any] | None) -> bool:
        txn = session.txn
        row = txn.cursor if txn else None
        if txn is None or row is None:
            return False
        table = TABLES[row.table]
        if change:
            assignment, make = self.change(table, change)
            sql = f"UPDATE {table.name} SET {assignment} WHERE CURRENT OF c RETURNING {COLUMNS}"
        else:
            sql = f"DELETE FROM {table.name} WHERE CURRENT OF c RETURNING {COLUMNS}"

        def run(txn: Txn, st: Statement) -> Rows:
            targets = [r for r, _ in self.model.view(txn, table.name) if r is row]
            if st.targets is None:
                st.targets = targets
            if change:
                return self.model.do_update(txn, st, table, st.targets, lambda r: True, make)
            return self.model.do_delete(txn, st, table, st.targets, lambda r: True)

        return self.execute(session, Command(sql, run, table))

    # savepoints

    def step_savepoint(self, session: Session) -> bool:
        txn = session.txn
        if txn is None or txn.failed or session.waiting or len(txn.levels) > 3:
            return False
        self.expect(session, f"SAVEPOINT s{len(txn.levels)}")
        txn.levels.append(Level())
        return True

    def step_rollback_to(self, session: Session) -> bool:
        txn = session.txn
        if txn is None or session.waiting or len(txn.levels) < 2:
            return False
        self.expect(session, f"ROLLBACK TO s{len(txn.levels) - 1}")
        self.model.drop_level(txn)
        txn.levels.append(Level())
        txn.failed = False
        return True

    def step_release(self, session: Session) -> bool:
        txn = session.txn
        if txn is None or txn.failed or session.waiting or len(txn.levels) < 2:
            return False
        self.expect(session, f"RELEASE s{len(txn.levels) - 1}")
        txn.merge()
        return True

    # transactions

    def family(self, session: Session) -> Family:
        letter = session.name[0]
        if letter not in self.families:
            generation = sum(f.xid.startswith(f"h{self.number}{letter}") for f in self.past)
            self.families[letter] = Family(f"h{self.number}{letter}{generation}")
        return self.families[letter]

    def step_begin(self, session: Session, repeatable: bool, xinst: int) -> bool:
        if session.txn:
            return False
        level = " ISOLATION LEVEL REPEATABLE READ" if repeatable else ""
        if session.name in OUTSIDERS:
            self.expect(session, f"BEGIN{level}; SELECT 1")
            session.txn = self.model.begin(session.name, repeatable)
            return True
        family = self.family(session)
        if any(t.xinst == xinst for t in family.active):
            return False
        sqlstate = None
        if family.winner is not None:
            sqlstate = "MP001"
        elif family.states.get(xinst) == "prepared":
            sqlstate = "MP004"
        elif any(t.xinst > xinst for t in family.prepared):
            sqlstate = "MP002"
        elif xinst in family.states:
            sqlstate = "MP004"
        self.expect(session, f"BEGIN{level}; SELECT mip.begin('{family.xid}', {xinst})", sqlstate)
        if sqlstate:
            self.expect(session, "ROLLBACK")
            return True
        session.txn = self.model.begin(session.name, repeatable)
        session.txn.family = family
        session.txn.xinst = xinst
        family.active.append(session.txn)
        return True

    def check_mipt(self, session: Session, reply: Reply, family: Family, extra: dict[int, str] | None = None) -> None:
        states = {**family.states, **{t.xinst: "active" for t in family.active}, **(extra or {})}
        got = [(int(str(x)), state) for x, state in reply.rows or []]
        if got != [entry for entry in sorted(states.items()) if entry in got or entry[0] not in family.perhaps]:
            raise self.difference(session.name, f"the MIPT is {got}, expected {sorted(states.items())}")

    def step_prepare(self, session: Session) -> bool:
        return self.end(session, "mip.prepare")

    def step_one_phase(self, session: Session) -> bool:
        return self.end(session, "mip.commit_one_phase")

    def end(self, session: Session, function: str) -> bool:
        txn = session.txn
        if txn is None or txn.failed or session.waiting or txn.family is None:
            return False
        family = txn.family
        one_phase = function != "mip.prepare"
        sqlstate = None
        if len(txn.levels) > 1:
            sqlstate = "MP006"
        elif any(t.xinst > txn.xinst or one_phase for t in family.prepared):
            sqlstate = "MP002"
        reply = self.expect(session, f"SELECT xinst, state FROM {function}('request', 'result')", sqlstate)
        if sqlstate:
            self.model.fail(txn)
            return True
        if one_phase:
            losers = {t.xinst: "aborted" for t in family.active if t is not txn}
            self.check_mipt(session, reply, family, {**losers, txn.xinst: "committed"})
            session.txn = None
            self.look_between(family, txn)
            self.model.commit(txn)
            family.states.update({**losers, txn.xinst: "committed"})
            self.lose_active(family)
        else:
            self.check_mipt(session, reply, family, {txn.xinst: "prepared"})
            family.states[txn.xinst] = "prepared"
            family.active.remove(txn)
            family.prepared.append(txn)
            txn.prepared = True
            session.txn = None
        return True

    def step_commit(self, session: Session) -> bool:
        txn = session.txn
        if txn is None or txn.failed or session.waiting or txn.family:
            return False
        self.expect(session, "COMMIT")
        self.model.commit(txn)
        session.txn = None
        return True

    def step_rollback(self, session: Session) -> bool:
        txn = session.txn
        if txn is None or session.waiting:
            return False
        self.expect(session, "ROLLBACK")
        self.model.abort(txn)
        session.txn = None
        return True

    # deciding

    def lose_active(self, family: Family) -> None:
        for txn in list(family.active):
            self.lose(self.sessions[txn.session])

    def lose(self, session: Session) -> None:
        """A loser's wait and its next statement fail, or its session is gone."""
        assert session.txn
        if session.waiting:
            answer = session.connection.reply()
            self.note(session.name, "", answer)
            if answer.sqlstate != "MP005":
                raise self.difference(session.name, f"a loser's wait ends with {answer}, expected MP005")
            session.waiting = None
        reply = self.simple(session, "SELECT 1")
        if not reply.lost and reply.sqlstate not in ("MP005", "25P02"):
            raise self.difference(session.name, f"a loser goes on: {reply}")
        if reply.lost:
            session.connection = self.pool.reset(session.name)
        else:
            self.expect(session, "ROLLBACK")
        self.model.abort(session.txn)
        session.txn = None

    def step_decide(self, session: Session, letter: str, xinst: int, overlap: bool) -> bool:
        """mip.commit. With overlap losers send a statement while it runs."""
        family = self.families.get(letter)
        winner = next((t for t in family.prepared if t.xinst == xinst), None) if family else None
        if family is None or winner is None:
            return False
        sql = f"SELECT xinst, state FROM mip.commit('{family.xid}', {xinst})"
        session.connection.send(sql)
        asked: list[tuple[Session, Command, list[Outcome]]] = []
        for txn in family.active if overlap and self.used else []:
            loser = self.sessions[txn.session]
            if not loser.waiting and not txn.failed:
                asked.append(self.ask(loser))
        reply = session.connection.reply()
        self.note("X", sql, reply if reply.rows is None else reply.rows)
        if reply.lost or reply.sqlstate:
            raise self.difference("X", f"{sql}: {reply}")
        for loser, command, outcomes in asked:
            answer = loser.connection.reply()
            self.note(loser.name, command.sql + " (meanwhile)", answer if answer.rows is None else answer.rows)
            if not (
                answer.lost or answer.sqlstate == "MP005" or any(self.fits(answer, o, command) for o in outcomes)
            ):
                raise self.difference(
                    loser.name, f"a loser reads {self.back(answer, command)} {answer}, expected {outcomes} or MP005"
                )
        family.noted = {t.xinst for t in (*family.active, *family.prepared) if t is not winner}
        self.look_between(family, winner)
        self.model.commit(winner)
        for txn in list(family.prepared):
            self.model.abort(txn)
        for x in family.states:
            family.states[x] = "committed" if x == xinst else "aborted"
        for txn in family.active:
            family.states[txn.xinst] = "aborted"
        self.check_mipt(session, reply, Family("", family.states))
        self.lose_active(family)
        return True

    def ask(self, loser: Session) -> tuple[Session, Command, list[Outcome]]:
        name = sorted(self.used)[0]
        table = TABLES[name]
        everything = next(i for i, p in enumerate(table.paths) if p.name.startswith("all"))
        prefix, where, _ = self.path(table, everything, 0, 0)
        txn = loser.txn
        assert txn
        rows = Rows([tuple(v) for _, v in self.model.view(txn, name)])
        command = Command(f"{prefix}SELECT {COLUMNS} FROM {name} WHERE {where}", lambda t, s: rows, table)
        loser.connection.send(command.sql)
        return loser, command, [rows]

    def step_give_up(self, session: Session, letter: str, xinst: int) -> bool:
        """mip.rollback, of a prepared instance or an active one."""
        family = self.families.get(letter)
        if family is None or family.winner is not None:
            return False
        txn = next((t for t in [*family.prepared, *family.active] if t.xinst == xinst), None)
        if txn is None:
            return False
        reply = self.expect(session, f"SELECT xinst, state FROM mip.rollback('{family.xid}', {xinst})")
        family.states[xinst] = "aborted"
        self.check_mipt(session, reply, family, {xinst: "aborted"})
        if txn.prepared:
            self.model.abort(txn)
            return True
        self.lose(self.sessions[txn.session])
        return True

    def step_next(self, session: Session, letter: str) -> bool:
        """From now on the letter's siblings work on another request."""
        family = self.families.get(letter)
        if family is None or family.winner is None or family.active:
            return False
        self.past.append(self.families.pop(letter))
        return True

    # the server

    def step_vacuum(self, session: Session, name: str, options: str) -> bool:
        # it would wait for who keeps a page pinned
        if any(s.waiting or (s.txn and s.txn.cursor) for s in self.sessions.values()):
            return False
        self.expect(session, f"VACUUM {options} {name}")
        return True

    def step_checkpoint(self, session: Session) -> bool:
        self.expect(session, "CHECKPOINT")
        return True

    def park(self) -> None:
        """Ends what is running, before other histories share a crash with this one."""
        for session in self.sessions.values():
            if session.waiting:
                session.connection = self.pool.reset(session.name)
                session.waiting = None
            elif session.txn:
                self.expect(session, "ROLLBACK")
            if session.txn:
                self.model.abort(session.txn)
                session.txn = None

    def crashed(self) -> None:
        """Only what was prepared is left, and not what is noted without waiting for it."""
        for family in (*self.past, *self.families.values()):
            family.perhaps |= family.noted
        for session in self.sessions.values():
            session.waiting = None
            if session.txn:
                self.model.abort(session.txn)
                session.txn = None
            session.connection = self.pool.get(session.name)

    # ---- the end

    def finish(self) -> None:
        self.note("", "-- the end: decide, and read everything in every way that there is")
        for session in self.sessions.values():
            if session.waiting:  # whoever it waits for ends first
                self.end_others(session)
        for session in self.sessions.values():
            self.step_rollback(session)
        for letter, family in list(self.families.items()):
            if family.prepared:
                self.step_decide(self.sessions["X"], letter, family.prepared[0].xinst, False)
        self.check_all()
        x = self.sessions["X"]
        for family in [*self.past, *self.families.values()]:
            self.check_mipt(x, self.expect(x, f"SELECT xinst, state FROM mip.instances('{family.xid}')"), family)
            self.expect(x, f"SELECT mip.forget('{family.xid}')")

    def end_others(self, session: Session) -> None:
        """A wait ends when everybody else has."""
        for other in self.sessions.values():
            if other is not session and not other.waiting and self.step_rollback(other):
                self.look_after_waiting()
        for letter, family in list(self.families.items()):
            if session.waiting and family.prepared:
                self.step_decide(self.sessions["X"], letter, family.prepared[0].xinst, False)
                self.look_after_waiting()
        if session.waiting:
            raise self.difference(session.name, "still waits, for nobody")

    def check_all(self) -> None:
        """All ways to read, in one message."""
        session = self.sessions["U1"]
        reads: list[tuple[Command, Rows]] = []
        for name in sorted(self.used):
            table = TABLES[name]
            for number, path in enumerate(table.paths):
                for x in (0,) if path.name.startswith("all") else (0, 1, 2):
                    prefix, where, match = self.path(table, number, x, 0)
                    rows = Rows([tuple(v) for _, v in self.model.view(None, name) if match(v)])
                    sql = f"{prefix}SELECT {COLUMNS} FROM {name} WHERE {where}"
                    reads.append((Command(sql, lambda t, s: Rows(), table), rows))
        reply = session.connection.call("BEGIN; " + "; ".join(command.sql for command, _ in reads) + "; COMMIT")
        if reply.lost or reply.sqlstate:
            raise self.difference("U1", f"in the end: {reply}")
        for (command, rows), table_rows in zip(reads, reply.tables, strict=True):
            one = Reply(rows=table_rows)
            if not self.fits(one, rows, command):
                raise self.difference(
                    "U1", f"in the end {command.sql}: {self.back(one, command)}, expected {sorted(rows.rows or [])}"
                )
