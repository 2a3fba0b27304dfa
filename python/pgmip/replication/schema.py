"""The embedded log's tables and functions: schema `mip_log`."""

from __future__ import annotations

__all__ = [
    *("APPEND", "BEGIN", "BEGINNING", "CONFIRM", "END", "EXISTS", "LISTEN", "LOCK", "OPEN", "READ", "SCHEMA", "TRIM"),
    "VERSION",
]

VERSION = 3
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
# `stamp` tells an entry from whatever else has ever had its position, here or in another log. A log that goes back goes
# to what it was: so where an entry is that has been read, all before it is as it was read, too. Of one transaction all
# or nothing is there, so its entries may have one stamp.
#
# `confirmed` is the position up to which synchronous standbys, where there are any, are known to have the log. What is
# visible has usually been waited for. Where that wait was ended, by a crash or the end of the session, it is visible
# all the same, and who reads it waits himself. To set it costs no flush, and a crash, a restored backup and a promotion
# set it to 0. It says too much only where an operator has cancelled a wait (pg_cancel_backend): PostgreSQL takes that
# for his word that the standby need not have it.
#
# `stamp_before` is that of the entry in front of what was added. With it, and the `stamp`, whoever has appended knows
# what there is to be read; without one some of it was there already, or nothing was added.
#
# Messages are stored as they are: compressing them would make everybody wait who adds to the log.
SCHEMA = f"""
CREATE SCHEMA mip_log;
COMMENT ON SCHEMA mip_log IS 'the log of a replicated database, by pgmip replica';

CREATE TABLE mip_log.log (
    version integer NOT NULL,
    beginning uuid NOT NULL
);
COMMENT ON COLUMN mip_log.log.beginning IS 'what it was made for: the same for the same database and settings';

CREATE TABLE mip_log.message (
    "position" bigint PRIMARY KEY,
    id uuid NOT NULL UNIQUE,
    content bytea NOT NULL,
    stamp uuid NOT NULL DEFAULT gen_random_uuid()
);
ALTER TABLE mip_log.message ALTER content SET STORAGE EXTERNAL;

CREATE UNLOGGED SEQUENCE mip_log.confirmed MINVALUE 0 START 0;
COMMENT ON SEQUENCE mip_log.confirmed IS 'the position up to which synchronous standbys are known to have the log';

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

CREATE PROCEDURE mip_log.confirm() LANGUAGE plpgsql AS $$
DECLARE
    upto bigint;
BEGIN
    PERFORM mip_log.check_durable();
    SELECT max(m."position") INTO upto FROM mip_log.message m;
    -- What is written now comes behind all that is visible. And it lets only one session wait for long.
    UPDATE mip_log.log SET version = version;
    COMMIT;
    PERFORM setval('mip_log.confirmed', upto);
END $$;

CREATE PROCEDURE mip_log.append(
    ids uuid[], contents bytea[], known bigint, its_stamp uuid,
    OUT positions bigint[], OUT first bigint, OUT last bigint, OUT stamp_before uuid, OUT stamp uuid
) LANGUAGE plpgsql AS $$
DECLARE
    added integer;
BEGIN
    PERFORM mip_log.check_durable();
    PERFORM pg_advisory_xact_lock({_KEY});
    SELECT min(m."position"), max(m."position"),
           (SELECT m.stamp FROM mip_log.message m ORDER BY m."position" DESC LIMIT 1)
    INTO first, last, stamp_before
    FROM mip_log.message m;
    IF last IS NULL OR known IS NOT NULL AND NOT EXISTS (
        SELECT FROM mip_log.message m WHERE m."position" = known AND m.stamp = its_stamp
    ) THEN
        RETURN;
    END IF;
    stamp := gen_random_uuid();
    INSERT INTO mip_log.message ("position", id, content, stamp)
    SELECT last + row_number() OVER (ORDER BY n), id, content, append.stamp
    FROM unnest(ids, contents) WITH ORDINALITY AS new (id, content, n)
    WHERE (SELECT m."position" FROM mip_log.message m WHERE m.id = new.id) IS NULL;
    GET DIAGNOSTICS added = ROW_COUNT;
    last := last + added;
    IF added < cardinality(ids) THEN
        stamp := NULL;
        -- What was added before may be visible without having been waited for: what is written now makes this one wait.
        UPDATE mip_log.log SET version = version;
    END IF;
    positions := ARRAY(SELECT (SELECT m."position" FROM mip_log.message m WHERE m.id = given.id)
                       FROM unnest(ids) WITH ORDINALITY AS given (id, n) ORDER BY n);
    COMMIT;
    -- Not reached by a session that is ended while it waits for a standby. Readers are woken when they need not wait
    -- themselves; and nobody waits for a notification to be flushed.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM setval('mip_log.confirmed', last) WHERE cardinality(ids) > 0;
    PERFORM pg_notify('mip_log', last::text);
END $$;
""".encode()

# Not by to_regclass, which may have remembered that it was not there.
EXISTS = b"SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'mip_log')"
BEGIN = b"""
    WITH log AS (INSERT INTO mip_log.log VALUES (%s, %s))
    INSERT INTO mip_log.message ("position", id, content) VALUES (1, gen_random_uuid(), %b)
"""
BEGINNING = b"SELECT beginning FROM mip_log.log"

# A statement has to see what was committed while it waited for the lock. Plans are kept while the tables grow. Those
# without an index seem so dear then that they would be compiled.
OPEN = b"""
    SELECT version, mip_log.check_durable(), set_config('lock_timeout', %s, false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)
    FROM mip_log.log
"""
APPEND = b"CALL mip_log.append($1, $2, $3, $4, NULL, NULL, NULL, NULL, NULL)"
CONFIRM = b"CALL mip_log.confirm()"
LISTEN = b"LISTEN mip_log"
END = b'SELECT max("position") FROM mip_log.message'
# What is known of the log where it is read or trimmed, as in append: $1 is `known`, and $2 `its_stamp`.
_BOUNDS = """
    SELECT min("position") AS first, max("position") AS last,
           $1::bigint IS NULL OR EXISTS (SELECT FROM mip_log.message WHERE "position" = $1 AND stamp = $2) AS follows
    FROM mip_log.message
"""
READ = f"""
    SELECT bounds.first, bounds.last, bounds.follows,
           (SELECT coalesce(pg_sequence_last_value('mip_log.confirmed'), 0)) AS confirmed,
           next."position", next.stamp, next.content
    FROM ({_BOUNDS}) bounds
    LEFT JOIN (
        SELECT "position", stamp, content, row_number() OVER (ORDER BY "position") AS number,
               sum(octet_length(content)) OVER (ORDER BY "position") AS total
        FROM (
            SELECT "position", stamp, content FROM mip_log.message WHERE "position" > $3 ORDER BY 1 LIMIT $4
        ) behind
    ) next ON next.number = 1 OR next.total <= $5
    ORDER BY next."position"
""".encode()
TRIM = f"""
    WITH bounds AS ({_BOUNDS}), removed AS (
        DELETE FROM mip_log.message
        WHERE "position" <= $3 AND "position" < (SELECT last FROM bounds)
          AND "position" < (SELECT first FROM bounds) + $4 AND (SELECT follows FROM bounds)
        RETURNING "position"
    )
    SELECT bounds.first, bounds.last, bounds.follows, (SELECT count(*) FROM removed) FROM bounds
""".encode()
