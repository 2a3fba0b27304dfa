"""The server that the histories are played on, and its life: crashes, cleaning,
and what must hold of the storage in the end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from generator import Generator
from history import History
from player import Difference, Inconclusive, Player, Pool
from server import Server
from tables import TABLES

SETTINGS = """
autovacuum = off
deadlock_timeout = 10ms
lock_timeout = 0
max_connections = 40
max_wal_size = 1GB
checkpoint_timeout = 30min
"""

# After so many histories the tables are checked and emptied. A crash takes long,
# so all of them that want one have it together.
BATCH = 150


class Parked:
    """A history that waits for the server to crash."""

    def __init__(self, history: History, player: Player, rest: Iterator[list]) -> None:
        self.history = history
        self.player = player
        self.rest = rest
        self.ended = False


class Laboratory:
    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.keep = False
        self.faults = 0  # found outside of any one history
        self.server = Server()

    def __enter__(self) -> Laboratory:
        self.server.create(SETTINGS)
        self.pool = Pool(f"host={self.server.work} user=soak dbname=postgres")
        schema = Path(__file__).with_name("schema.sql").read_text()
        self.pool.monitor.query(f"{schema}; SELECT 1")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.nullcontext() if error is None else contextlib.suppress(RuntimeError):
            self.server.stop()
        if self.keep or error:
            print(f"the server is kept: {self.server.work}")
        else:
            self.server.remove()

    # ---- histories

    def histories(self, seeds: Iterable[str]) -> Iterator[tuple[History, str | None]]:
        """Plays a new history for each seed; a text: the difference that was found."""
        parked: list[Parked] = []
        for number, seed in enumerate(seeds, 1):
            generator = Generator(seed)
            player = Player(self.pool, generator.blocking)
            one = Parked(History(seed, generator.blocking), player, generator.proposals(player))
            difference = self.go_on(one)
            if difference is None and not one.ended:
                parked.append(one)
            else:
                yield one.history, difference
            if number % BATCH == 0:
                yield from self.after_crash(parked)
                parked = []
                self.clean()
            elif parked and parked[-1] is one:
                player.park()
        yield from self.after_crash(parked)
        self.clean()

    def after_crash(self, parked: list[Parked]) -> Iterator[tuple[History, str | None]]:
        if not parked:
            return
        self.crash()
        for one in parked:
            one.player.crashed()
            yield one.history, self.go_on(one)

    def go_on(self, one: Parked) -> str | None:
        """Up to the next crash or the end."""
        try:
            for step in one.rest:
                if step[1] == "crash":
                    one.history.steps.append(step)
                    return None
                one.history.steps.append(step)
                if one.player.play(step):
                    self.counters[f"step {step[1]}"] += 1
                else:
                    one.history.steps.pop()
            one.player.finish()
        except Difference as error:
            self.recover(one.player)
            one.ended = True
            return str(error)
        except Inconclusive:
            self.recover(one.player)
            self.counters["given up"] += 1
        one.ended = True
        self.counters["histories"] += 1
        return None

    def replay(self, history: History) -> tuple[str | None, list[str]]:
        """Plays a history again; the difference, and what happened."""
        log: list[str] = []
        player = Player(self.pool, history.blocking, log)
        try:
            for step in history.steps:
                if step[1] == "crash":
                    log.append("-- the server crashes")
                    self.crash()
                    player.crashed()
                else:
                    player.play(step)
            player.finish()
        except Difference as error:
            self.recover(player)
            return str(error), log
        except Inconclusive:
            self.recover(player)
        return None, log

    # ---- the server

    def crash(self) -> None:
        self.server.crash()
        self.server.start()
        self.pool.reconnect()
        self.counters["crashes"] += 1

    def recover(self, player: Player) -> None:
        """Nothing of a history that went wrong stays; others may be parked."""
        try:
            self.pool.reset_all()
        except RuntimeError:  # the server itself went wrong
            self.pool.reconnect()
        for xid, xinst in self.pool.monitor.query(
            f"SELECT xid, xinst FROM mip.in_doubt WHERE xid ~ '^h{player.number}[AB]'"
        ):
            self.pool.monitor.query(f"SELECT mip.rollback('{xid}', {xinst})")

    def clean(self) -> None:
        """Between histories: checks what is on disk, and empties the tables."""
        for table in TABLES.values():
            for heap in table.heaps:
                self.check_heap(heap)
        self.pool.monitor.query(f"TRUNCATE {', '.join(TABLES)}; SELECT 1")
        self.counters["storage checked"] += 1

    def check_heap(self, heap: str) -> None:
        """One version a row, no chunk too many, sound indexes."""
        query = self.pool.monitor.query
        self.pool.monitor.call(f"VACUUM (FREEZE, INDEX_CLEANUP ON) {heap}")
        ((rows, versions),) = query(
            f"SELECT (SELECT count(*) FROM {heap}), (SELECT count(*)"
            f" FROM generate_series(0, pg_relation_size('{heap}') / 8192 - 1) b,"
            f" heap_page_items(get_raw_page('{heap}', b::int)) WHERE lp_flags = 1)"
        )
        if rows != versions:
            self.storage(f"table {heap}: {versions} versions of {rows} rows")
        ((toast,),) = query(f"SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '{heap}'::regclass")
        ((chunks, expected),) = query(
            f"SELECT (SELECT count(*) FROM {toast}),"
            f" (SELECT coalesce(sum((length(w) + 1995) / 1996), 0) FROM {heap} WHERE length(w) > 2000)"
        )
        if chunks != expected:
            self.storage(f"table {heap}: {chunks} out-of-line chunks, expected {expected}")
        for (index,) in query(
            "SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            f" JOIN pg_am m ON m.oid = c.relam WHERE i.indrelid = '{heap}'::regclass AND amname = 'btree'"
        ):
            reply = self.pool.monitor.call(f"SELECT bt_index_check('{index}', true)")
            if reply.sqlstate:
                self.storage(f"index {index}: {reply}")

    def storage(self, text: str) -> None:
        print(f"STORAGE: {text}", flush=True)
        self.faults += 1

    def check_log(self) -> None:
        """No internal error, whoever has got it."""
        for line in self.server.log.read_text(errors="replace").splitlines():
            if " PANIC: " in line or "TRAP:" in line or " XX" in line or "terminated by signal" in line:
                self.storage(f"server log: {line}")
