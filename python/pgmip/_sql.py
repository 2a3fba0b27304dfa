"""All that is said to the extension: every statement of pgmip that names something of its schema `mip`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from .decision import Entry, State

__all__ = [
    "ACKNOWLEDGE",
    "BEGIN",
    "CHECKSUM",
    "COMMIT",
    "COMMIT_ONE_PHASE",
    "COUNTERS",
    "DISABLE",
    "DOUBTS",
    "ENABLE",
    "ENTRY",
    "EVENTS",
    "FINISHED",
    "FINISHED_COUNT",
    "FORGET",
    "HAS_EXPIRED",
    "INSTALLED",
    "INSTANCES",
    "IN_DOUBT",
    "LEFT",
    "LISTEN",
    "MIPT_DIGESTS",
    "MIPT_TEXTS",
    "OLD",
    "ORPHANED",
    "PREPARE",
    "PUSH_AFTER",
    "REFUSE",
    "REPLICATION",
    "REPLICA_APPLIED",
    "REPLICA_EXPORT",
    "REPLICA_FLUSH",
    "REPLICA_LEAVE",
    "REPLICA_LOAD",
    "REPLICA_MEMBERS",
    "REPLICA_RECEIVE",
    "REPLICA_SETTINGS",
    "REPLICA_START",
    "REPLICA_TAKE",
    "REPLICA_TRIM",
    "ROLLBACK",
    "SAYS_PUSH_AFTER",
    "START",
    "WAITING",
    "WAITS",
    "WRITESET_APPLY",
    "WRITESET_CHANGES",
    "WRITESET_INFO",
    "checked",
    "entries",
]

T = TypeVar("T")

# -- an instance and its MIPT ------------------------------------------------------------------------------------

ENTRY = ("xinst", "state", "request", "result", "sites", "acknowledged")
"""What makes an Entry."""
_COLUMNS = "xinst, state::text, request, result, sites, acknowledged"


def _mipt_of(call: str) -> bytes:
    return f"SELECT {_COLUMNS} FROM {call}".encode()


# What each transaction takes; see _direct.py.
START = b"SELECT mip.start($1, $2, $3, $4, $5, $6)"
BEGIN = b"SELECT mip.begin_beside($1, $2, $3, $4, $5)"
PREPARE = b"SELECT mip.prepare_beside($1, $2, $3)"
COMMIT_ONE_PHASE = b"SELECT mip.commit_one_phase_beside($1, $2, $3)"
COMMIT = b"SELECT mip.commit_beside($1, $2)"
INSTANCES = _mipt_of("mip.instances(%s)")
ROLLBACK = _mipt_of("mip.rollback(%s, %s)")
REFUSE = b"SELECT mip.refuse(%s, %s, %s)"
# NULL where it is committed. Which the caller has found nowhere; but another replica may have answered him.
HAS_EXPIRED = b"""
    SELECT CASE WHEN NOT EXISTS (SELECT FROM mip.instances(%s) WHERE state = 'committed') THEN mip.has_expired(%s) END
"""
ORPHANED = b"""
    SELECT NOT EXISTS (
        SELECT FROM mip.instances(%s) JOIN pg_catalog.pg_roles ON rolname = owner WHERE state <> 'aborted')
"""
ACKNOWLEDGE = b"SELECT mip.acknowledge(%s)"
WAITING = b"SELECT EXISTS (SELECT FROM mip.waits WHERE xid = %s AND xinst = %s)"


def checked(value: object, kind: type[T]) -> T:
    """A value of an answer. Raises TypeError where it is of another type, as of a loader that is registered for all
    connections.
    """
    if not isinstance(value, kind):
        raise TypeError(f"a site's answer {value!r} is no {kind.__name__}: is a loader registered for all connections?")
    return value


def entries(rows: Iterable[Sequence[Any]]) -> tuple[Entry, ...]:
    """The MIPT that was returned as these rows of ENTRY."""
    return tuple(
        Entry(int(xinst), State(state), request, result, tuple(checked(sites or [], list)), checked(acknowledged, bool))
        for xinst, state, request, result, sites, acknowledged in rows
    )


# -- what is left behind -----------------------------------------------------------------------------------------

PUSH_AFTER = 10.0
"""Seconds, where a site does not say it."""
SAYS_PUSH_AFTER = "(SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'mip.push_after')"
"""The same as the site has it. NULL where the library is not loaded."""
_AGE = "extract(epoch FROM clock_timestamp() - since)::float8"
_LIMIT = f"coalesce(%s, nullif({SAYS_PUSH_AFTER}, 0), %s)"
"""From which age, in seconds, an instance counts as left behind: as asked for, or as the site has it."""

LISTEN = b"LISTEN mip_in_doubt"
OLD = f"SELECT xid FROM mip.in_doubt GROUP BY xid HAVING max({_AGE}) >= {_LIMIT}".encode()
LEFT = f"""
    SELECT max({_AGE}), coalesce(min({_AGE}) >= {_LIMIT}, true)
    FROM mip.instances(%s) WHERE state IN ('active', 'prepared')
""".encode()
FINISHED = b"SELECT xid, sites FROM mip.finished()"
FINISHED_COUNT = b"SELECT count(*) AS finished FROM mip.finished()"

# -- what is counted, and shown to people ------------------------------------------------------------------------

EVENTS = b"SELECT to_jsonb(stats) - 'since' FROM mip.stats"
COUNTERS = b"SELECT * FROM mip.stats"
IN_DOUBT = b"SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0) FROM mip.in_doubt"
INSTALLED = b"SELECT FROM mip.in_doubt"
"""Fails where the extension is not there, as other statements would."""

_SHOWN_AGE = f"greatest(0, {_AGE})"
DOUBTS = f"""
    SELECT xid, xinst, owner::text AS owner, sites, {_SHOWN_AGE} AS age FROM mip.in_doubt ORDER BY since
""".encode()
# Texts can be long, and the decision compares them only.
_MIPTS = f"""
    SELECT x.xid, xinst, state::text AS state, {{request}} AS request, {{result}} AS result, sites, acknowledged,
           owner::text AS owner, {_SHOWN_AGE} AS age
    FROM unnest(%s::text[]) AS x (xid) CROSS JOIN LATERAL mip.instances(x.xid)
"""
MIPT_DIGESTS = _MIPTS.format(request="md5(request)", result="md5(result)").encode()
MIPT_TEXTS = _MIPTS.format(request="request", result="result").encode()
# Who waits here. Of prepared transactions mip.waits names the instances; the others are looked for as the transaction
# waited for, or as a holder of the relation.
WAITS = b"""
    SELECT m.pid, m.xid, m.xinst, a.usename::text AS role, a.application_name AS application,
           left(a.query, 200) AS query,
           greatest(0, extract(epoch FROM clock_timestamp() - coalesce(m.waiting_since, a.query_start)))::float8 AS age,
           w.locktype AS lock, m.relation::text AS relation, m.blocked_by AS pids, m.blocked_by_instances AS instances,
           ARRAY(SELECT DISTINCT p.gid
                 FROM pg_prepared_xacts p JOIN pg_locks o ON o.transactionid = p.transaction AND o.pid IS NULL
                 WHERE p.gid !~ '^mip:'
                   AND (p.transaction = w.transactionid
                        OR EXISTS (SELECT FROM pg_locks h
                                   WHERE h.granted AND h.pid IS NULL AND h.virtualtransaction = o.virtualtransaction
                                     AND w.locktype = 'relation' AND h.locktype = 'relation'
                                     AND h.database = w.database AND h.relation = w.relation))) AS prepared
    FROM mip.waits m JOIN pg_stat_activity a ON a.pid = m.pid JOIN pg_locks w ON w.pid = m.pid AND NOT w.granted
    ORDER BY age DESC
"""

# -- writesets, and what differs ---------------------------------------------------------------------------------

WRITESET_INFO = b"SELECT to_jsonb(i) AS info FROM mip.writeset_info(%b) i"
WRITESET_CHANGES = b"SELECT number, op::text, relation, identity, row FROM mip.writeset_changes(%b) ORDER BY number"
WRITESET_APPLY = b"SELECT mip.writeset_apply(%b) AS changes"
CHECKSUM = b"SELECT mip.relation_checksum(to_regclass(%s)) AS checksum"

# -- a replicated database ---------------------------------------------------------------------------------------

REPLICA_SETTINGS = b"""
    SELECT mip.replica_settings(%s) AS settings, system_identifier, current_database() AS database
    FROM pg_control_system()
"""
REPLICA_APPLIED = b"SELECT applied FROM mip.replication"
REPLICA_START = b"SELECT member, applied, read_after FROM mip.replica_start()"
# What is applied when they have been taken: no message knows of more.
REPLICA_TAKE = b"""
    SELECT id, message, (SELECT applied FROM mip.replication) AS applied FROM mip.replica_take($1, $2, $3)
"""
REPLICA_LOAD = b"SELECT mip.replica_load(%s, %b)"
REPLICA_RECEIVE = b"SELECT mip.replica_receive($1, $2)"
# Whatever `synchronous_commit` says: what has been written before is durable then.
REPLICA_FLUSH = b"SELECT pg_switch_wal()"
REPLICA_TRIM = b"SELECT mip.replica_trim()"
REPLICA_LEAVE = b"SELECT mip.replica_leave(%s)"
# As tight as it can be: a position may last for less than a millisecond. The snapshot is that of the statement, which
# says in the same breath what it sees.
REPLICA_EXPORT = """
    DO $$
    DECLARE
        until timestamptz := clock_timestamp() + {seconds} * interval '1 s';
        taken jsonb := '{{}}';
        last bigint := 0;
        here bigint;
        name text;
    BEGIN
        LOOP
            SELECT max(a.position) INTO here FROM mip.applied a;
            IF here > last THEN
                SELECT m.last, pg_export_snapshot() INTO last, name
                FROM (SELECT max(a.position) AS last FROM mip.applied a) m;
                taken := taken || jsonb_build_object(last, name);
            END IF;
            EXIT WHEN clock_timestamp() > until OR last >= {upto};
        END LOOP;
        PERFORM set_config('pgmip.taken', taken::text, true);
    END $$
"""
REPLICA_MEMBERS = b"SELECT to_json(m) AS member FROM mip.members m ORDER BY m.member"
REPLICATION = b"SELECT to_jsonb(r) AS replication FROM mip.replication r"
REPLICA_REFUSALS = b"""
    SELECT json_build_object('relation', r.relation::text, 'reason', r.reason, 'refused', r.refused) AS refusal
    FROM mip.refusals r ORDER BY r.refused DESC, r.relation::text, r.reason
"""
REPLICA_SILENCE = b"""
    SELECT jsonb_build_object('member', m.member, 'applied', m.applied, 'behind', m.behind,
                              'behind_bytes', m.behind_bytes, 'lag', extract(epoch FROM m.lag)::float8, 'silent',
                              CASE WHEN m.heard IS NOT NULL THEN  -- or it would be 0
                                  greatest(0, extract(epoch FROM clock_timestamp() - m.heard))::float8
                              END) AS member
    FROM mip.members m ORDER BY m.member
"""
REPLICA_WAIT_FOR = b"SELECT mip.wait_for(%s)"
REPLICA_LAST = b"SELECT a.position, a.history FROM mip.applied a ORDER BY a.position DESC LIMIT 1"
"""The position at which the snapshot is."""
REPLICA_TABLES = b"""
    SELECT format('%I.%I', n.nspname, c.relname) AS name
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE a.amname = 'mip' AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY 1
"""
REPLICA_IDENTITY = b"""
    SELECT r.member, r.applied, r.applier_pid, to_jsonb(l) AS log
    FROM mip.replication r LEFT JOIN mip.log l ON true
"""

# -- what an operator does ---------------------------------------------------------------------------------------

ENABLE = b"SELECT mip.enable(%s::regclass)"
DISABLE = b"SELECT mip.disable(%s::regclass)"
FORGET = b"SELECT mip.forget(xid) FROM unnest(%s::text[]) xid"
