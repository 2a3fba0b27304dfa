"""Databases that behave to an agent as replicated ones do, without the extension: the same functions, in PL/pgSQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pgmip.testing import Cluster

__all__ = ["REPLICA", "Replica"]

REPLICA = """
CREATE SCHEMA mip;
CREATE TABLE mip.waiting (n serial, id uuid PRIMARY KEY, message bytea, taker integer);
CREATE TABLE mip.applied ("position" bigint PRIMARY KEY, message bytea);
CREATE TABLE mip.failures ("position" bigint, sqlstate text);

CREATE FUNCTION mip.replica_settings(size integer DEFAULT 100000) RETURNS bytea LANGUAGE sql AS
$$ SELECT convert_to(format('S %s %s', size, gen_random_uuid()), 'UTF8') $$;

CREATE FUNCTION mip.replica_start(OUT member text, OUT applied bigint, OUT read_after bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_lock(7) THEN
        RAISE 'there is an applier' USING ERRCODE = '55006';
    END IF;
    member := 'one';
    SELECT coalesce(max("position"), 0), greatest(coalesce(max("position"), 0) - 2, 0)
    FROM mip.applied INTO applied, read_after;
    PERFORM set_config('fake.last', read_after::text, false);
END $$;

CREATE FUNCTION mip.replica_receive("position" bigint, message bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    failure text;
    known bytea;
BEGIN
    IF replica_receive."position" <> current_setting('fake.last')::bigint + 1 THEN
        RAISE 'not the next one' USING ERRCODE = '22023';
    END IF;
    SELECT sqlstate FROM mip.failures f WHERE f."position" = replica_receive."position" INTO failure;
    IF failure IS NOT NULL THEN
        RAISE 'as it was told' USING ERRCODE = failure;
    END IF;
    PERFORM set_config('fake.last', replica_receive."position"::text, false);
    SELECT a.message FROM mip.applied a WHERE a."position" = replica_receive."position" INTO known;
    IF known = message THEN
        RETURN 'loaded';
    ELSIF known IS NOT NULL THEN
        RAISE 'another log' USING ERRCODE = 'MP030', HINT = 'Look at the logs.';
    END IF;
    INSERT INTO mip.applied VALUES (replica_receive."position", message);
    DELETE FROM mip.waiting w WHERE w.message = replica_receive.message;
    RETURN CASE WHEN FOUND THEN 'committed' WHEN replica_receive."position" = 1 THEN 'settings' ELSE 'applied' END;
END $$;

CREATE FUNCTION mip.replica_load("position" bigint, messages bytea[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    n integer := 0;
BEGIN
    WHILE n < cardinality(messages)
        AND EXISTS (SELECT FROM mip.applied a WHERE a."position" = replica_load."position" + n)
    LOOP
        PERFORM mip.replica_receive(replica_load."position" + n, messages[n + 1]);
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

CREATE FUNCTION mip.replica_take(max_bytes integer, timeout_ms integer, max_message bigint DEFAULT 2147483647)
RETURNS TABLE (id uuid, message bytea)
LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + timeout_ms * interval '1 ms';
BEGIN
    LOOP
        RETURN QUERY
        WITH next AS (
            SELECT w.id FROM mip.waiting w
            WHERE taker IS NULL OR NOT EXISTS (SELECT FROM pg_stat_get_activity(taker)) ORDER BY n LIMIT 10
            FOR UPDATE SKIP LOCKED
        ), taken AS (
            UPDATE mip.waiting w SET taker = pg_backend_pid() FROM next WHERE w.id = next.id
            RETURNING w.n, w.id, w.message
        )
        SELECT taken.id, taken.message FROM taken ORDER BY n;
        EXIT WHEN FOUND OR clock_timestamp() > until;
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$;

CREATE TABLE mip.trim (upto bigint);
CREATE FUNCTION mip.replica_trim() RETURNS bigint LANGUAGE sql AS 'SELECT coalesce(max(upto), 0) FROM mip.trim';

CREATE TABLE mip.members (
    member text, applied bigint, behind bigint, behind_bytes bigint, lag interval, heard timestamptz
);
INSERT INTO mip.members VALUES
    ('one', 0, 0, 0, '0', now()), ('at work', 1, 2, 200, '2 s', NULL), ('gone', 3, 4, 400, '1 day', NULL);
CREATE TABLE mip.refusals (relation regclass, reason text, refused bigint);
INSERT INTO mip.refusals VALUES ('mip.members', 'conflict', 3), (NULL, 'definition', 1);
CREATE FUNCTION mip.replica_leave(name text) RETURNS void LANGUAGE sql AS
$$ DELETE FROM mip.members WHERE member = name AND name <> 'at work' $$;

CREATE VIEW mip.replication AS
SELECT 'one'::text AS member, (SELECT coalesce(max("position"), 0) FROM mip.applied) AS applied,
       (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS applier_pid,
       (SELECT count(*) FROM mip.waiting) AS waiting;
"""


class Replica:
    """Such a database."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.conninfo = cluster.conninfo(name)
        cluster.create_database(name)
        self.sql(REPLICA)

    def sql(self, sql: str) -> list[tuple[Any, ...]]:
        return self.cluster.run_sql(sql, dbname=self.name)

    def commit(self, *contents: bytes) -> None:
        """As if so many transactions were at their COMMIT."""
        rows = ", ".join(f"('{uuid4()}', '\\x{content.hex()}')" for content in contents)
        self.sql(f"INSERT INTO mip.waiting (id, message) VALUES {rows}")

    @property
    def waiting(self) -> int:
        return int(self.sql("SELECT count(*) FROM mip.waiting")[0][0])

    @property
    def applied(self) -> list[bytes]:
        """What has been applied, behind the settings, without a gap."""
        rows = self.sql('SELECT "position", message FROM mip.applied ORDER BY 1')
        assert [position for position, _ in rows] == list(range(1, len(rows) + 1))
        return [message for _, message in rows[1:]]
