"""The embedded log's tables and functions: schema `mip_log`."""

from __future__ import annotations

__all__ = [
    *("APPEND", "BEGIN", "BEGINNING", "END", "EXISTS", "LISTEN", "LOCK", "OPEN", "READ", "SCHEMA", "TRIM", "VERSION"),
]

VERSION = 1
"""Of what is below."""

_KEY = "hashtextextended('mip_log', 0)"
LOCK = f"SELECT pg_advisory_xact_lock({_KEY})".encode()
"""Whoever adds to the log holds this until his transaction has become visible."""

# Positions are given out under the lock, and the next one who has it sees what was committed before: no gaps, and
# nobody sees a position before those below it. There is no counter, whose dead versions would pile up behind any long
# transaction. The lock is no table's, for which VACUUM would be ended.
#
# append is a procedure, which commits by itself: with a function, a client that is lost just before it says that it has
# asked for everything (Sync) would hold the lock until the server notices.
#
# Messages are stored as they are: compressing them would make everybody wait who adds to the log.
SCHEMA = f"""
CREATE SCHEMA mip_log;
COMMENT ON SCHEMA mip_log IS 'the log of a replicated database, by pgmip replica';

CREATE TABLE mip_log.log (
    version integer NOT NULL,
    beginning uuid NOT NULL
);
COMMENT ON COLUMN mip_log.log.beginning IS 'id of the first message';

CREATE TABLE mip_log.message (
    "position" bigint PRIMARY KEY,
    id uuid NOT NULL UNIQUE,
    content bytea NOT NULL
);
ALTER TABLE mip_log.message ALTER content SET STORAGE EXTERNAL;

CREATE FUNCTION mip_log.check_durable() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    weak text := concat_ws(', ',
        CASE WHEN current_setting('fsync') = 'off' THEN 'fsync = off' END,
        CASE WHEN current_setting('full_page_writes') = 'off' THEN 'full_page_writes = off' END,
        CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit = off'
             WHEN current_setting('synchronous_commit') = 'local' AND current_setting('synchronous_standby_names') <> ''
             THEN 'synchronous_commit = local, beside synchronous_standby_names' END);
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the log''s server is a standby'
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Connect to its primary.';
    END IF;
    IF weak <> '' THEN
        RAISE EXCEPTION 'a crash of the log''s server may lose messages: %', weak
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Change these settings.';
    END IF;
END $$;

CREATE PROCEDURE mip_log.append(ids uuid[], contents bytea[], OUT positions bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    added integer;
BEGIN
    PERFORM mip_log.check_durable();
    PERFORM pg_advisory_xact_lock({_KEY});
    INSERT INTO mip_log.message ("position", id, content)
    SELECT (SELECT coalesce(max(m."position"), 0) FROM mip_log.message m) + row_number() OVER (ORDER BY n), id, content
    FROM unnest(ids, contents) WITH ORDINALITY AS new (id, content, n)
    WHERE (SELECT m."position" FROM mip_log.message m WHERE m.id = new.id) IS NULL;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added < cardinality(ids) THEN
        -- What was added before may have been seen before a synchronous standby had it, where a session was ended that
        -- waited for that: what is written now makes this one wait.
        UPDATE mip_log.log SET version = version;
    END IF;
    PERFORM pg_notify('mip_log', '');
    positions := ARRAY(SELECT (SELECT m."position" FROM mip_log.message m WHERE m.id = given.id)
                       FROM unnest(ids) WITH ORDINALITY AS given (id, n) ORDER BY n);
    COMMIT;
END $$;
""".encode()

# Not by to_regclass, which may have remembered that it was not there.
EXISTS = b"SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'mip_log')"
BEGIN = b"""
    WITH log AS (INSERT INTO mip_log.log VALUES (%s, %s) RETURNING beginning)
    INSERT INTO mip_log.message SELECT 1, beginning, %b FROM log
"""
BEGINNING = b"SELECT beginning FROM mip_log.log"

# A statement has to see what was committed while it waited for the lock. And plans are kept while the tables grow.
OPEN = b"""
    SELECT version, mip_log.check_durable(), set_config('lock_timeout', %s, false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('enable_seqscan', 'off', false)
    FROM mip_log.log
"""
APPEND = b"CALL mip_log.append(%b, %b, NULL)"
LISTEN = b"LISTEN mip_log"
END = b'SELECT max("position") FROM mip_log.message'
READ = b"""
    SELECT bounds.first, bounds.last, next."position", next.content
    FROM (SELECT min("position") AS first, max("position") AS last FROM mip_log.message) bounds
    LEFT JOIN (
        SELECT "position", content, row_number() OVER (ORDER BY "position") AS number,
               sum(octet_length(content)) OVER (ORDER BY "position") AS total
        FROM (SELECT "position", content FROM mip_log.message WHERE "position" > %s ORDER BY 1 LIMIT %s) behind
    ) next ON next.number = 1 OR next.total <= %s
    ORDER BY next."position"
"""
TRIM = b"""
    DELETE FROM mip_log.message
    WHERE "position" <= %s AND "position" < (SELECT max("position") FROM mip_log.message)
      AND "position" < (SELECT min("position") FROM mip_log.message) + %s
"""
