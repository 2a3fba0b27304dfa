"""One random history across sites: families over one to three of them, siblings, and outsiders at each.

The serial order has to be that of real time as well: who begins when another is over comes behind him.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from checker import Transaction, serial_order
from server import Server
from statements import KEYS, Statement, Table, blind, read, wide, write

SITES = ("a", "b", "c")
# Some by index, so that what is read is a row, and not the table.
PLANS = ("SET LOCAL enable_seqscan = off", "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off", "")
EXPECTED = ("40001", "40P01", "55P03", "23505", "MP001", "MP002", "MP004", "MP005", "MP006", "57P01")
Step = tuple[str, Callable[[random.Random], Statement]]  # where, and what


def at(site: str, statement: Statement) -> Statement:
    """The same, of the tables of all sites."""
    return Statement(statement.sql, lambda tables: statement.serially(tables[site]))


def read_key(k: int) -> Callable[[random.Random], Statement]:
    def answer(table: Table) -> list[tuple[Any, ...]]:
        return [(table[k],)] if k in table else []

    return lambda _: Statement(f"SELECT v FROM r WHERE k = {k}", answer)


def set_key(k: int) -> Callable[[random.Random], Statement]:
    return lambda rng: blind(rng, k, rng.randrange(1000))


@dataclass
class Player:
    """An instance of a family, or an outsider; it does one transaction."""

    name: str
    family: str | None
    xinst: int
    plan: list[Step]
    read_only: bool = False
    transaction: Transaction | None = None
    over: bool = False
    steps: int = 0
    begun: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)

    @property
    def sites(self) -> list[str]:
        return sorted({site for site, _ in self.plan})


class Programs:
    """What the players are to do, in some style that is known to go wrong."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def all(self) -> list[list[Step]]:
        return self.rng.choice((self._free, self._ring, self._ring, self._reader, self._skew))()

    def _free(self) -> list[list[Step]]:
        """Anything, of which one kind only changes rows that it has not read."""
        rng = self.rng
        several = [rng.sample(SITES, rng.randint(1, 3)) for _ in range(rng.randint(2, 3))]
        one = [[rng.choice(SITES)] for _ in range(rng.randint(1, 3))]
        kinds = (read, wide, read_key(rng.randrange(KEYS)), write, set_key(rng.randrange(KEYS)))
        return [[(site, rng.choice(kinds)) for site in at for _ in range(rng.randint(1, 2))] for at in several + one]

    def _ring(self) -> list[list[Step]]:
        """Each replaces, at another site, what the next one reads."""
        rng = self.rng
        places = [(rng.choice(SITES), rng.randrange(KEYS)) for _ in range(rng.randint(2, 3))]
        plans = []
        for (site, k), (other, n) in zip(places, [*places[1:], places[0]], strict=True):
            plans.append([(site, self._reading(k)), (other, set_key(n))])
        return plans + self._watchers(places)

    def _reading(self, k: int) -> Callable[[random.Random], Statement]:
        return read_key(k) if self.rng.random() < 0.8 else wide

    def _watchers(self, places: Sequence[tuple[str, int]]) -> list[list[Step]]:
        """They only read, at one site."""
        watched = self.rng.sample(SITES, self.rng.randint(0, 2))
        return [[(site, read_key(k)) for at, k in places if at == site] or [(site, wide)] for site in watched]

    def _reader(self) -> list[list[Step]]:
        """One of two sites, one who has seen it at the second and writes at the first, and who reads there."""
        first, second = self.rng.sample(SITES, 2)
        x, y, z = self.rng.sample(range(KEYS), 3)
        return [
            [(first, set_key(x)), (second, set_key(z))],
            [(second, self._reading(z)), (first, set_key(y))],
            [(first, self._reading(x)), (first, self._reading(y))],
            [(first, self._reading(y)), (first, self._reading(x))],
        ]

    def _skew(self) -> list[list[Step]]:
        """All read at all sites, and each replaces a row of its own."""
        rng = self.rng
        sites = rng.sample(SITES, rng.randint(1, 2))
        plans = []
        for i in range(rng.randint(2, 3)):
            plans.append([(site, self._reading(rng.randrange(KEYS))) for site in sites])
            plans[-1].append((rng.choice(sites), set_key(i)))
        return plans


class AcrossHistory:
    def __init__(
        self, server: Server, connections: dict[str, Any], seed: str, counters: Counter[str], everywhere: bool = True
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.server = server
        self.connections = connections
        self.counters = counters
        self.everywhere = everywhere
        self.log = [f"---- seed {seed}"]
        self.committed: list[Transaction] = []
        self.xid = {family: f"{seed}-{family}-{rng.randrange(10**9)}" for family in "ABCDEF"}
        self.winner: dict[str, Player] = {}
        self.todo: dict[str, list[str]] = {}  # where the winner is not committed yet
        self.clock = itertools.count()
        self.crash = rng.random() < 0.006
        self.players = [player for i, plan in enumerate(Programs(rng).all()) for player in self._cast(i, plan)]

    def _cast(self, i: int, plan: list[Step]) -> list[Player]:
        rng = self.rng
        if len({site for site, _ in plan}) == 1 and rng.random() < 0.8:
            return [Player(f"U{i}", None, 0, plan, read_only=rng.random() < 0.5 and not writes(plan))]
        family = "ABCDEF"[i]
        xinst = rng.randint(1, 9)
        first = Player(f"{family}1", family, xinst, plan)
        if rng.random() < 0.75:
            return [first]
        return [first, Player(f"{family}2", family, xinst + rng.randint(1, 9), self._varied(plan))]

    def _varied(self, plan: list[Step]) -> list[Step]:
        """A sibling does the same, or something else at the same sites."""
        if self.rng.random() < 0.6:
            return plan
        rng = self.rng
        return [(site, set_key(rng.randrange(KEYS)) if rng.random() < 0.3 else do) for site, do in plan]

    # ---- the server

    def connection(self, name: str, site: str) -> psycopg.Connection[Any]:
        connection = self.connections.get(f"{name}@{site}")
        if connection is None or connection.closed:
            connection = self.connections[f"{name}@{site}"] = self.server.connect(site)
            connection.prepare_threshold = None
        return connection

    def sql(self, player: Player, site: str, sql: str) -> list[tuple[Any, ...]] | None:
        """Its rows; None if it fails, and with it the transaction."""
        connection = self.connection(player.name, site)
        try:
            cursor = connection.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if error.sqlstate not in EXPECTED and not connection.closed:
                raise
            self.counters[f"error {error.sqlstate or 'connection lost'}"] += 1
            if "across sites" in str(error):
                why = str(error.diag.message_detail).replace("_", " ").rpartition("which is in doubt,")[2]
                self.counters[f"across: {' '.join(why.split()[-6:])}"] += 1
            self.log.append(f"{player.name}@{site}: {sql} -> {error.sqlstate} {' '.join(str(error).splitlines()[:2])}")
            self.give_up(player)
            return None
        self.log.append(f"{player.name}@{site}: {sql} -> {rows}")
        return rows

    def give_up(self, player: Player) -> None:
        """Some site has refused it, or has lost it: it is never prepared there."""
        player.over = True
        for site in player.sites:
            connection = self.connections.get(f"{player.name}@{site}")
            if connection is not None and not connection.closed:
                with contextlib.suppress(psycopg.OperationalError):
                    connection.execute("ROLLBACK")
        for site in player.prepared:
            if player.family not in self.winner:
                self.decider(site).execute(
                    "SELECT FROM mip.rollback(%s, %s)", (self.xid[player.family or ""], player.xinst)
                )
        player.prepared = []

    def decider(self, site: str) -> psycopg.Connection[Any]:
        connection = self.connection("decider", site)
        flush = self.rng.choice(("on", "off"))
        connection.execute(f"SET lock_timeout = 0; SET mip.synchronous_commit_prepared = {flush}")
        return connection

    # ---- steps

    def begin(self, player: Player, site: str) -> bool:
        mode = "READ ONLY" if player.read_only else "READ WRITE"
        begin = f"BEGIN ISOLATION LEVEL SERIALIZABLE, {mode}; {self.rng.choice(PLANS)}"
        if self.sql(player, site, begin) is None:
            return False
        if player.family is None:
            return not player.read_only or self.analyze(player, site)
        several = len(player.sites) > 1
        promise = ", serializable => 'everywhere'" if several and self.everywhere else ""
        sites = "{" + ",".join(player.sites) + "}"
        call = f"SELECT mip.begin('{self.xid[player.family]}', {player.xinst}, '{sites}'{promise})"
        return self.sql(player, site, call) is not None

    def analyze(self, player: Player, site: str) -> bool:
        """It takes its snapshot; the first statement may come when all who were writing then are over."""
        if self.rng.random() < 0.5:
            self.connection(player.name, site).pgconn.prepare(b"", b"SELECT v FROM r WHERE k = 0")
            self.log.append(f"{player.name}@{site}: analyzes a statement")
            self.counters["analyzed first"] += 1
            return False  # the next step goes on
        return True

    def statement(self, player: Player) -> None:
        site, do = player.plan[player.steps]
        statement = do(self.rng)
        if player.transaction is None:
            player.transaction = Transaction(player.name, began=next(self.clock))
        if site not in player.begun:
            player.begun.append(site)
            if not self.begin(player, site):
                return
        if player.read_only and " FOR " in statement.sql:
            statement = read_key(0)(self.rng)
        rows = self.sql(player, site, statement.sql)
        if rows is not None:
            player.transaction.done.append((at(site, statement), rows, True))
            player.steps += 1

    def finish(self, player: Player) -> None:
        """One more site; and what comes of it."""
        assert player.transaction
        if player.family is None:
            if self.sql(player, player.sites[0], "COMMIT") is not None:
                self.commit(player)
                player.over = True
            return
        left = [site for site in player.sites if site not in player.prepared]
        site = self.rng.choice(left)
        if self.sql(player, site, "SELECT state FROM mip.prepare(NULL, NULL)") is None:
            return
        self.counters["prepared"] += 1
        player.prepared.append(site)
        if len(left) == 1:
            player.over = True
            self.complete(player)

    def complete(self, player: Player) -> None:
        """The smallest one that is wins: none below is prepared behind it."""
        family = player.family or ""
        if family in self.winner:
            return
        siblings = [p for p in self.players if p.family == family and set(p.prepared) == set(p.sites)]
        winner = min(siblings, key=lambda p: p.xinst)
        self.winner[family] = winner
        self.todo[family] = list(winner.sites)
        self.commit(winner)

    def commit(self, player: Player) -> None:
        assert player.transaction
        player.transaction.over = next(self.clock)
        self.committed.append(player.transaction)
        self.counters[f"committed, {'outsiders' if player.family is None else 'instances'}"] += 1

    def tell(self, family: str) -> None:
        """Commit the winner at one more site."""
        site = self.rng.choice(self.todo[family])
        self.todo[family].remove(site)
        winner = self.winner[family]
        self.log.append(f"-- commit {winner.name} at {site}")
        self.decider(site).execute("SELECT FROM mip.commit(%s, %s)", (self.xid[family], winner.xinst))

    def step(self, player: Player) -> None:
        if player.over:
            return
        if player.family in self.winner:
            self.give_up(player)
        elif player.steps < len(player.plan):
            self.statement(player)
        elif not self.is_behind(player):
            self.finish(player)

    def is_behind(self, player: Player) -> bool:
        """Is there a lower sibling, which could not be prepared any more?"""
        return player.family is not None and any(
            p.family == player.family and p.xinst < player.xinst and not p.over for p in self.players
        )

    def die(self) -> None:
        self.log.append("-- the server crashes")
        self.counters["crashes"] += 1
        self.server.crash()
        self.server.start()
        self.connections.clear()
        for player in self.players:
            if player.transaction and not player.over:
                self.give_up(player)
        for family, winner in self.winner.items():  # its commit may have been lost
            self.todo[family] = list(winner.sites)

    def play(self) -> bool:
        before = {site: {k: k for k in range(KEYS)} for site in SITES}
        for site, table in before.items():
            rows = ", ".join(f"({k}, {v})" for k, v in table.items())
            self.connection("decider", site).execute(f"TRUNCATE r; INSERT INTO r VALUES {rows}")
        self.interleave()
        end = {
            site: dict(self.connection("decider", site).execute("SELECT k, v FROM r").fetchall()) for site in SITES
        }
        self.counters["histories"] += 1
        order = serial_order(before, self.committed, end)
        self.log.append(f"before {before}, after {end}, committed {[t.name for t in self.committed]}: {order}")
        return order is not None

    def interleave(self) -> None:
        """Some steps of everybody, and then the rest of each."""
        rng = self.rng
        lazy = rng.choice((0.02, 0.3))  # how soon who has won is committed
        length = 8 * len(self.players)
        player = rng.choice(self.players)
        for i in range(length):
            if self.crash and i == length // 2:
                self.die()
            told = [family for family, sites in self.todo.items() if sites]
            if told and rng.random() < lazy:
                self.tell(rng.choice(told))
                continue
            if player.over or rng.random() < 0.4:
                player = rng.choice(self.players)
            self.step(player)
        for player in sorted(self.players, key=lambda player: player.xinst):
            while not player.over:
                self.step(player)
        for family, sites in self.todo.items():
            while sites:
                self.tell(family)


def writes(plan: Sequence[Step]) -> bool:
    """May it?"""
    rng = random.Random(0)
    return any(do is write or not do(rng).sql.startswith("SELECT") for _, do in plan)
