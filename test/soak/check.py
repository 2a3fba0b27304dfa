"""What must always hold, and what must hold in the end."""

from __future__ import annotations

import time

import psycopg
from family import commit, read
from server import Server
from shared import Soak, is_stock

TABLES = ["account", "item", "orders", "line", "tally", "ticket", "visit"]

# Each yields one row that is true, in any snapshot.
INVARIANTS = {
    "money is conserved": "SELECT sum(balance) = 16000 FROM account",
    "every account once": "SELECT count(*) = 16 AND count(DISTINCT id) = 16 FROM account",
    "every item once": "SELECT count(*) = 6 AND count(DISTINCT id) = 6 FROM item",
    "stock and lines agree": "SELECT sum(stock) + (SELECT count(*) FROM line) = 6000000 FROM item",
    "every request is counted once":
        "SELECT coalesce(sum(requests), 0) = (SELECT count(*) FROM orders) FROM tally",
    "every request has one order": "SELECT count(*) = count(DISTINCT request) FROM orders",
    "every order has lines":
        "SELECT count(*) = 0 FROM orders o WHERE NOT EXISTS (SELECT FROM line WHERE request = o.request)",
    "every line has its order":
        "SELECT count(*) = 0 FROM line l WHERE NOT EXISTS (SELECT FROM orders WHERE request = l.request)",
    "every ticket number once": "SELECT count(*) = 20 AND count(DISTINCT number) = 20 FROM ticket",
    "every visit has its account":
        "SELECT count(*) = 0 FROM visit v WHERE NOT EXISTS (SELECT FROM account WHERE id = v.account)",
    "one instance of a family at most is committed":
        "SELECT count(*) = 0 FROM (SELECT FROM mip.mipt WHERE NOT aborted"
        " GROUP BY xid HAVING count(*) > 1) f",
}  # fmt: skip

PLANS = [
    "SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off",
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off",
]


def invariants(soak: Soak, connection: psycopg.Connection) -> int:
    """Checks them all, in one snapshot for each way to read; how many hold."""
    holding = 0
    for plan in PLANS:
        connection.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {plan}")
        for name, query in INVARIANTS.items():
            row = connection.execute(query).fetchone()
            if row == (True,):
                holding += 1
            else:
                soak.violation(f"{name}: {row} ({plan})")
        connection.execute("COMMIT")
    return holding


# Who waits for which transaction, and whose that is: active instances have
# their name in application_name, prepared ones in the gid.
WAITS = """
WITH named AS (
    SELECT l.transactionid, split_part(a.application_name, ' ', 1) AS request,
        a.application_name || ' ' || a.state || ' ' || left(a.query, 60) AS holder
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'transactionid' AND l.granted AND a.application_name ~ '^r[0-9]+-[0-9]+ '
    UNION ALL
    SELECT transaction, split_part(gid, ':', 4), gid FROM pg_prepared_xacts
)
SELECT a.application_name, left(a.query, 80), n.holder, l.transactionid, l.waitstart
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
JOIN named n ON n.transactionid = l.transactionid
    AND n.request = split_part(a.application_name, ' ', 1)
WHERE l.locktype IN ('transactionid', 'spectoken') AND NOT l.granted
    AND l.waitstart < clock_timestamp() - interval '100 ms'
"""


def sibling_waits(soak: Soak, connection: psycopg.Connection) -> None:
    """
    No instance waits for a sibling. A transaction that has ended may keep the
    lock on its own id for a moment, and the samples of a view's parts are not
    of the same moment: what has lasted and is seen twice counts.
    """
    first = set(connection.execute(WAITS).fetchall())
    soak.count("samples of waits")
    if first:
        time.sleep(0.05)
        for wait in first & set(connection.execute(WAITS).fetchall()):
            soak.violation(f"an instance waits for a sibling: {wait}")
    time.sleep(0.02)


def indexes(soak: Soak, connection: psycopg.Connection) -> int:
    rows = connection.execute(
        "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_am m ON m.oid = c.relam WHERE m.amname = 'mip' OR c.oid = 'mip.mipt'::regclass"
    ).fetchall()
    sound = 0
    for (name,) in rows:
        try:
            connection.execute("SELECT bt_index_check(%s, true)", (name,))
            sound += 1
        except psycopg.Error as error:
            if error.sqlstate != "XX002":
                raise
            soak.violation(f"index {name}: {error} {error.diag.message_detail}")
    return sound


def watch(soak: Soak, connection: psycopg.Connection) -> None:
    soak.counters["invariants checked"] += invariants(soak, connection)
    soak.counters["indexes checked"] += indexes(soak, connection)
    time.sleep(0.5)


def start(soak: Soak) -> None:
    soak.run("invariants", lambda connection: watch(soak, connection))
    soak.run("sibling waits", lambda connection: sibling_waits(soak, connection))


# ---- the end


def finish_in_doubt(soak: Soak, connection: psycopg.Connection) -> None:
    for (request,) in connection.execute("SELECT DISTINCT xid FROM mip.in_doubt").fetchall():
        commit(soak, connection, request, read(soak, connection, request))


def heap(soak: Soak, connection: psycopg.Connection, table: str) -> bool:
    """verify_heapam insists on heap, which a mip table is on disk."""
    connection.execute("SELECT mip.disable(%s)", (table,))
    rows = connection.execute("SELECT blkno, offnum, msg FROM verify_heapam(%s)", (table,)).fetchall()
    connection.execute("SELECT mip.enable(%s)", (table,))
    for row in rows:
        soak.violation(f"table {table}: {row}")
    return not rows


def versions(soak: Soak, connection: psycopg.Connection, table: str) -> bool:
    """After VACUUM FREEZE there is one version a row."""
    connection.execute(f"VACUUM (FREEZE) {table}")
    row = connection.execute(
        f"SELECT (SELECT count(*) FROM {table}), (SELECT count(*)"
        f" FROM generate_series(0, pg_relation_size('{table}') / 8192 - 1) b,"
        f" heap_page_items(get_raw_page('{table}', b::int)) WHERE lp_flags = 1)"
    ).fetchone()
    assert row is not None
    if row[0] != row[1]:
        soak.violation(f"table {table}: {row[1]} versions of {row[0]} rows")
    return bool(row[0] == row[1])


def winners(soak: Soak, connection: psycopg.Connection) -> bool:
    """Every decided request left its winner's order, and nothing else did."""
    found: dict[str, int] = dict(connection.execute("SELECT request, xinst FROM orders").fetchall())
    wrong = {r: (w, found.get(r)) for r, w in soak.winners.items() if found.get(r) != w}
    unknown = found.keys() - soak.winners.keys()
    # decided by a commit whose answer was lost: the MIPT knows
    for request in list(unknown):
        row = connection.execute("SELECT xinst FROM mip.instances(%s) WHERE state = 'committed'", (request,)).fetchone()
        if row == (found[request],):
            unknown.discard(request)
    for request, (winner, order) in wrong.items():
        soak.violation(f"{request}: {winner} has won, but the order is of {order}")
    for request in unknown:
        soak.violation(f"{request}: the order is of {found[request]}, which nobody committed")
    return not wrong and not unknown


def chunks(soak: Soak, connection: psycopg.Connection) -> bool:
    """
    Replaced out-of-line values are gone. A session that is lost in the middle of
    mip.commit may leave one row's, 3 chunks, behind.
    """
    (toast,) = connection.execute(
        "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 'item'"
    ).fetchall()[0]
    ((leaked,),) = connection.execute(
        f"SELECT (SELECT count(*) FROM {toast}) - sum((length(text) + 1995) / 1996) FROM item"
    ).fetchall()
    soak.counters["chunks left behind"] = int(leaked)
    if not 0 <= leaked <= 3 * soak.counters["connections lost"]:
        soak.violation(f"{leaked} out-of-line chunks left behind")
        return False
    return True


def server_log(soak: Soak, server: Server) -> bool:
    """No internal error, whoever has got it, but for one of PostgreSQL's own."""
    bad = [
        line
        for line in server.log.read_text(errors="replace").splitlines()
        if " PANIC: " in line
        or "TRAP:" in line
        or (" XX" in line and (" ERROR: " in line or " FATAL: " in line) and not is_stock(line))
    ]
    for line in bad[:20]:
        soak.violation(f"server log: {line}")
    return not bad


def final(soak: Soak, server: Server) -> int:
    """All the checks of the end; returns how many passed."""
    passed = 0
    if not soak.winners:
        soak.violation("no request was done")
    with server.connect() as connection:
        finish_in_doubt(soak, connection)
        for what in ("mip.in_doubt", "pg_prepared_xacts"):
            rows = connection.execute(f"SELECT * FROM {what}").fetchall()
            if rows:
                soak.violation(f"{what} is not empty: {rows}")
            passed += not rows
        passed += invariants(soak, connection)
        passed += winners(soak, connection)
        for table in TABLES:
            passed += versions(soak, connection, table)
            passed += heap(soak, connection, table)
        passed += invariants(soak, connection)
        passed += indexes(soak, connection)
        passed += chunks(soak, connection)
    passed += server_log(soak, server)
    return passed
