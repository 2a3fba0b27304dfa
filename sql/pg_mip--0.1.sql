/* pg_mip 0.1 */

-- complain if the script is sourced in psql rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_mip" to load this file. \quit

-- Whoever owns the schema could put functions beside ours, for superusers to
-- call. Names are qualified: nothing of theirs must be found here, either.
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_depend
			WHERE refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
				AND refobjid OPERATOR(pg_catalog.=) '@extschema@'::pg_catalog.regnamespace
				AND classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_extension'::pg_catalog.regclass)
	THEN
		RAISE EXCEPTION USING
			ERRCODE = 'object_not_in_prerequisite_state',
			MESSAGE = 'schema "mip" is not empty',
			HINT = 'Drop or move what is in it, then create the extension.';
	END IF;
	IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace n
			JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
			WHERE n.oid OPERATOR(pg_catalog.=) '@extschema@'::pg_catalog.regnamespace
				AND r.rolsuper)
	THEN
		RAISE EXCEPTION USING
			ERRCODE = 'insufficient_privilege',
			MESSAGE = 'schema "mip" does not belong to a superuser',
			HINT = 'Drop it, or use ALTER SCHEMA mip OWNER TO, then create the extension.';
	END IF;
END $$;

CREATE FUNCTION mip.tableam_handler(internal) RETURNS table_am_handler
	LANGUAGE C STRICT AS 'MODULE_PATHNAME', 'mip_tableam_handler';
CREATE ACCESS METHOD mip TYPE TABLE HANDLER mip.tableam_handler;
COMMENT ON ACCESS METHOD mip IS 'heap, with row versions for sibling instances of one request';

CREATE TYPE mip.state AS ENUM ('active', 'prepared', 'committed', 'aborted');

-- The MIPT. Written and read by the functions below only.
CREATE TABLE mip.mipt (
	xid text COLLATE "C" NOT NULL,
	xinst bigint NOT NULL,
	request text,
	result text,
	sites text[],
	owner regrole NOT NULL,
	since timestamptz NOT NULL,
	aborted boolean NOT NULL,
	links bytea,
	acknowledged boolean NOT NULL DEFAULT false,
	places bytea,
	PRIMARY KEY (xid, xinst)
) USING heap;
ALTER TABLE mip.mipt ALTER places SET STORAGE EXTERNAL;
COMMENT ON TABLE mip.mipt IS 'prepared, committed and aborted instances; read it with mip.instances';

-- XIDs with a time are found by the primary key when they are old.
CREATE FUNCTION mip.xid_time(xid text) RETURNS timestamptz
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'mip_xid_time_sql';
COMMENT ON FUNCTION mip.xid_time(text) IS
	'the time that an XID carries, if it is a version 7 UUID in lower case';
CREATE INDEX mipt_timeless ON mip.mipt (acknowledged, since) WHERE mip.xid_time(xid) IS NULL;

-- Prepared ones, until they are committed; what a crash has kept is found by it.
CREATE INDEX mipt_linked ON mip.mipt (xid) WHERE links IS NOT NULL OR places IS NOT NULL;

CREATE SEQUENCE mip.horizon MINVALUE 0 START 0;
COMMENT ON SEQUENCE mip.horizon IS
	'requests up to this time (milliseconds since 1970) have expired';

-- Every database has its own: publications FOR ALL TABLES name this table, but
-- nothing of it is sent (src/mipt/rows.c), and the initial copy is dropped here.
ALTER TABLE mip.mipt REPLICA IDENTITY NOTHING;
CREATE FUNCTION mip.ignore_replicated() RETURNS trigger
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_ignore_replicated';
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON mip.mipt
	FOR EACH ROW EXECUTE FUNCTION mip.ignore_replicated();
ALTER TABLE mip.mipt ENABLE REPLICA TRIGGER ignore_replicated;

-- A request that has committed must not run again in a restored database. Links and
-- places (positions of row versions) mean nothing there; and since mip.commit writes
-- to pages where links point, nobody but the extension itself may make any.
SELECT pg_catalog.pg_extension_config_dump('mip.mipt', '');
SELECT pg_catalog.pg_extension_config_dump('mip.horizon', '');
CREATE FUNCTION mip.keep_links() RETURNS trigger
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_keep_links';
CREATE TRIGGER keep_links BEFORE INSERT OR UPDATE ON mip.mipt
	FOR EACH ROW EXECUTE FUNCTION mip.keep_links();
ALTER TABLE mip.mipt ENABLE ALWAYS TRIGGER keep_links;

CREATE FUNCTION mip.begin(xid text, xinst bigint, sites text[] DEFAULT '{}', key text DEFAULT NULL,
	serializable text DEFAULT NULL) RETURNS void
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_begin';
COMMENT ON FUNCTION mip.begin(text, bigint, text[], text, text) IS
	'makes the transaction just begun instance <xid, xinst> of a request; with a key only its holder prepares or commits it';

CREATE FUNCTION mip.begin_beside(xid text, xinst bigint, sites text[] DEFAULT '{}', key text DEFAULT NULL,
	serializable text DEFAULT NULL) RETURNS bigint[]
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_begin_beside';
COMMENT ON FUNCTION mip.begin_beside(text, bigint, text[], text, text) IS
	'mip.begin; returns which instances of the request are prepared here, NULL where none is';

CREATE FUNCTION mip.start(xid text, xinst bigint, sites text[] DEFAULT '{}', key text DEFAULT NULL,
	serializable text DEFAULT NULL, isolation text DEFAULT NULL) RETURNS bigint[]
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_start';
COMMENT ON FUNCTION mip.start(text, bigint, text[], text, text, text) IS
	'BEGIN and mip.begin_beside in one; with an isolation only at this';

CREATE TYPE mip.instance AS (
	xinst bigint,
	state mip.state,
	request text,
	result text,
	sites text[],
	owner name,
	since timestamptz,
	acknowledged boolean
);
COMMENT ON TYPE mip.instance IS 'an entry of the MIPT';

CREATE FUNCTION mip.prepare(request text, result text, key text DEFAULT NULL) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_prepare';
COMMENT ON FUNCTION mip.prepare(text, text, text) IS
	'ends the MIP transaction as prepared; returns the MIPT';

CREATE FUNCTION mip.prepare_beside(request text, result text, key text DEFAULT NULL) RETURNS bigint[]
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_prepare_beside';
COMMENT ON FUNCTION mip.prepare_beside(text, text, text) IS
	'mip.prepare; returns which other instances of the request the MIPT has, NULL where none is';

CREATE FUNCTION mip.commit_one_phase(request text, result text, key text DEFAULT NULL) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_commit_one_phase';
COMMENT ON FUNCTION mip.commit_one_phase(text, text, text) IS
	'commits a MIP transaction that has this site only; returns the MIPT';

CREATE FUNCTION mip.commit_one_phase_beside(request text, result text, key text DEFAULT NULL) RETURNS bigint[]
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_commit_one_phase_beside';
COMMENT ON FUNCTION mip.commit_one_phase_beside(text, text, text) IS
	'mip.commit_one_phase; returns which other instances of the request the MIPT has, NULL where none is';

CREATE FUNCTION mip.commit(xid text, xinst bigint) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_commit';
COMMENT ON FUNCTION mip.commit(text, bigint) IS
	'commits a prepared instance and aborts its siblings; returns the MIPT';

CREATE FUNCTION mip.commit_beside(xid text, xinst bigint) RETURNS bigint[]
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_commit_beside';
COMMENT ON FUNCTION mip.commit_beside(text, bigint) IS
	'mip.commit; returns which other instances of the request the MIPT has, NULL where none is';

-- The same for CALL, which takes the server less than SELECT where statements are sent as texts, above all without output
CREATE PROCEDURE mip.do_begin(xid text, xinst bigint, sites text[] DEFAULT '{}', key text DEFAULT NULL,
	serializable text DEFAULT NULL)
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_begin';
COMMENT ON PROCEDURE mip.do_begin(text, bigint, text[], text, text) IS 'mip.begin';
CREATE PROCEDURE mip.do_start(xid text, xinst bigint, sites text[] DEFAULT '{}', key text DEFAULT NULL,
	serializable text DEFAULT NULL, isolation text DEFAULT NULL)
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_start';
COMMENT ON PROCEDURE mip.do_start(text, bigint, text[], text, text, text) IS 'BEGIN and mip.begin in one';
CREATE PROCEDURE mip.do_prepare(request text, result text, key text DEFAULT NULL, INOUT others bigint[] DEFAULT NULL)
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_prepare_beside';
COMMENT ON PROCEDURE mip.do_prepare(text, text, text, bigint[]) IS 'mip.prepare_beside';
CREATE PROCEDURE mip.do_commit_one_phase(request text, result text, key text DEFAULT NULL,
	INOUT others bigint[] DEFAULT NULL)
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_commit_one_phase_beside';
COMMENT ON PROCEDURE mip.do_commit_one_phase(text, text, text, bigint[]) IS 'mip.commit_one_phase_beside';
CREATE PROCEDURE mip.do_commit(xid text, xinst bigint)
	LANGUAGE C AS 'MODULE_PATHNAME', 'mip_commit_beside';
COMMENT ON PROCEDURE mip.do_commit(text, bigint) IS 'mip.commit, which returns nothing';

CREATE FUNCTION mip.rollback(xid text, xinst bigint) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_rollback';
COMMENT ON FUNCTION mip.rollback(text, bigint) IS
	'aborts an instance that some site has definitely refused; returns the MIPT';

CREATE FUNCTION mip.refuse(xid text, xinst bigint, sites text[]) RETURNS boolean
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_refuse';
COMMENT ON FUNCTION mip.refuse(text, bigint, text[]) IS
	'sees to it that an instance is never prepared here; false if it has been';

CREATE FUNCTION mip.instances(xid text) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_instances';
COMMENT ON FUNCTION mip.instances(text) IS 'the MIPT of a family';

CREATE FUNCTION mip.has_expired(xid text) RETURNS boolean
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_has_expired';
COMMENT ON FUNCTION mip.has_expired(text) IS
	'whether what was known of a request may have been removed here because of its age';

CREATE FUNCTION mip.forget(xid text) RETURNS integer
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_forget';
COMMENT ON FUNCTION mip.forget(text) IS
	'deletes the MIPT of a decided family; returns the number of entries';

CREATE FUNCTION mip.acknowledge(xid text) RETURNS void
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_acknowledge';
COMMENT ON FUNCTION mip.acknowledge(text) IS
	'gives up the result of a request that is committed at every site';

CREATE FUNCTION mip.expire() RETURNS bigint
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_expire';
COMMENT ON FUNCTION mip.expire() IS
	'removes families older than mip.retention, or mip.retention_timeless; returns how many, call it until that is 0';
REVOKE ALL ON FUNCTION mip.expire() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION mip.expire() TO pg_database_owner;

CREATE FUNCTION mip.finished(older_than interval DEFAULT NULL, at_most integer DEFAULT 1000,
	OUT xid text, OUT xinst bigint, OUT sites text[], OUT owner name,
	OUT since timestamptz) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_finished';
COMMENT ON FUNCTION mip.finished(interval, integer) IS
	'committed requests over several sites, of that age, that wait for mip.acknowledge';

CREATE FUNCTION mip.prepared_instances(OUT xid text, OUT xinst bigint, OUT owner name,
	OUT since timestamptz, OUT request text, OUT sites text[]) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'mip_prepared_instances';
COMMENT ON FUNCTION mip.prepared_instances() IS 'behind the view mip.in_doubt';

CREATE VIEW mip.in_doubt AS SELECT * FROM mip.prepared_instances();
COMMENT ON VIEW mip.in_doubt IS 'instances of this database that are prepared and not decided';

CREATE FUNCTION mip.waiting_sessions(OUT pid integer, OUT xid text, OUT xinst bigint,
	OUT blocked_by integer[], OUT blocked_by_instances text[], OUT relation regclass,
	OUT waiting_since timestamptz) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'mip_waits';
COMMENT ON FUNCTION mip.waiting_sessions() IS 'behind the view mip.waits';

CREATE VIEW mip.waits AS SELECT * FROM mip.waiting_sessions();
COMMENT ON VIEW mip.waits IS
	'sessions of this database that wait for a lock; for which sessions and instances (''xid/xinst'', prepared ones included)';

CREATE FUNCTION mip.counters(OUT begun bigint, OUT begun_beside_siblings bigint, OUT prepared bigint,
	OUT committed bigint, OUT committed_unflushed bigint, OUT committed_in_one_phase bigint,
	OUT rolled_back bigint, OUT failed bigint, OUT doomed bigint, OUT refused_committed bigint, OUT refused_superseded bigint,
	OUT refused_expired bigint, OUT hand_overs bigint, OUT rows_handed_over bigint,
	OUT waits_for_outsiders bigint, OUT outsiders_cancelled bigint, OUT acknowledged bigint,
	OUT expired bigint, OUT pushes bigint, OUT since timestamptz) RETURNS record
	LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'mip_stats';
COMMENT ON FUNCTION mip.counters() IS 'behind the view mip.stats';

CREATE VIEW mip.stats AS SELECT * FROM mip.counters();
COMMENT ON VIEW mip.stats IS 'what has happened in this database since the server started, or mip.stats_reset';

CREATE FUNCTION mip.stats_reset() RETURNS void
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_stats_reset';
COMMENT ON FUNCTION mip.stats_reset() IS 'starts counting again in this database';
REVOKE ALL ON FUNCTION mip.stats_reset() FROM PUBLIC;

CREATE FUNCTION mip.enable(relation regclass) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_enable';
COMMENT ON FUNCTION mip.enable(regclass) IS
	'lets a table with its partitions and inheritance children opt in to sibling versions, in place';

CREATE FUNCTION mip.disable(relation regclass) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_disable';
COMMENT ON FUNCTION mip.disable(regclass) IS 'turns a table back into a heap table, in place';

-- Writesets: what a transaction has changed, as bytes.
CREATE FUNCTION mip.writeset(after bigint DEFAULT 0, max_bytes bigint DEFAULT NULL) RETURNS bytea
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_writeset';
COMMENT ON FUNCTION mip.writeset(bigint, bigint) IS
	'what this transaction has changed, if mip.capture_writeset is on: changes numbered above after, in parts of max_bytes';

CREATE FUNCTION mip.writeset(xid text, xinst bigint, after bigint DEFAULT 0, max_bytes bigint DEFAULT NULL) RETURNS bytea
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_writeset_prepared';
COMMENT ON FUNCTION mip.writeset(text, bigint, bigint, bigint) IS
	'what a prepared instance has changed: changes numbered above after, in parts of max_bytes';

CREATE FUNCTION mip.writeset_info(writeset bytea, OUT version integer, OUT first bigint,
		OUT last bigint, OUT changes bigint, OUT inserted bigint, OUT updated bigint,
		OUT deleted bigint, OUT truncated bigint, OUT keys bigint, OUT relations bigint)
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'mip_writeset_info';
COMMENT ON FUNCTION mip.writeset_info(bytea) IS 'what a writeset has, counted';

CREATE FUNCTION mip.writeset_changes(writeset bytea)
	RETURNS TABLE (number bigint, op "char", relation text, identity jsonb, "row" jsonb)
	LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'mip_writeset_changes';
COMMENT ON FUNCTION mip.writeset_changes(bytea) IS
	'the changes in a writeset: op is I, U, D or T; the row of U has the changed columns';

CREATE FUNCTION mip.writeset_conflicts(a bytea, b bytea) RETURNS boolean
	LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'mip_writeset_conflicts';
COMMENT ON FUNCTION mip.writeset_conflicts(bytea, bytea) IS
	'could transactions with these writesets not both have run, knowing nothing of each other?';

CREATE FUNCTION mip.writeset_compact(VARIADIC writesets bytea[]) RETURNS bytea
	LANGUAGE C IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'mip_writeset_compact_sql';
COMMENT ON FUNCTION mip.writeset_compact(bytea[]) IS
	'one writeset that does what these do one after the other, and is in conflict with what any of them is';

CREATE FUNCTION mip.writeset_apply(writeset bytea) RETURNS bigint
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_writeset_apply';
COMMENT ON FUNCTION mip.writeset_apply(bytea) IS
	'makes the changes of a writeset in this database; returns how many there were';

CREATE FUNCTION mip.relation_writeset(relation regclass, max_bytes bigint DEFAULT NULL) RETURNS SETOF bytea
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_relation_writeset';
COMMENT ON FUNCTION mip.relation_writeset(regclass, bigint) IS
	'the rows of a table, or of all its partitions, as insertions; in parts of max_bytes';

CREATE FUNCTION mip.relation_checksum(relation regclass) RETURNS text
	LANGUAGE C STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'mip_relation_checksum';
COMMENT ON FUNCTION mip.relation_checksum(regclass) IS
	'the number of rows of a table, or of all its partitions, and a checksum, whatever their order';

-- A replicated site: this database as one of its replicas. What is known of it is known
-- of this copy only, so it is neither dumped nor sent to subscribers.
CREATE TABLE mip.applied (
	position bigint PRIMARY KEY,
	certified boolean NOT NULL,
	history bigint NOT NULL,
	bytes bigint NOT NULL,
	applied_at timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE mip.applied IS
	'positions of the log that have been applied here, those that its window has; certified: or have they been refused?';
COMMENT ON COLUMN mip.applied.bytes IS 'of transactions and definitions in the log up to here';
CREATE TABLE mip.log (
	window_positions bigint NOT NULL,
	window_keys bigint NOT NULL,
	system_identifier bigint NOT NULL
) USING heap;
COMMENT ON TABLE mip.log IS 'the settings of the log that this database follows';
CREATE TABLE mip.replicas (
	member text NOT NULL,
	applied bigint NOT NULL
) USING heap;
COMMENT ON TABLE mip.replicas IS 'the members of the site, and the position that each has told last';
ALTER TABLE mip.applied REPLICA IDENTITY NOTHING;
ALTER TABLE mip.replicas REPLICA IDENTITY NOTHING;
ALTER TABLE mip.log REPLICA IDENTITY NOTHING;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON mip.applied
	FOR EACH ROW EXECUTE FUNCTION mip.ignore_replicated();
ALTER TABLE mip.applied ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON mip.replicas
	FOR EACH ROW EXECUTE FUNCTION mip.ignore_replicated();
ALTER TABLE mip.replicas ENABLE REPLICA TRIGGER ignore_replicated;
CREATE TRIGGER ignore_replicated BEFORE INSERT OR UPDATE OR DELETE ON mip.log
	FOR EACH ROW EXECUTE FUNCTION mip.ignore_replicated();
ALTER TABLE mip.log ENABLE REPLICA TRIGGER ignore_replicated;

CREATE FUNCTION mip.replica_settings(positions integer DEFAULT 100000) RETURNS bytea
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_settings';
COMMENT ON FUNCTION mip.replica_settings(integer) IS
	'the message that a new log begins with: so many positions are remembered';
REVOKE ALL ON FUNCTION mip.replica_settings(integer) FROM PUBLIC;

CREATE FUNCTION mip.replica_start(OUT member text, OUT applied bigint, OUT read_after bigint)
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_start';
COMMENT ON FUNCTION mip.replica_start() IS
	'makes this session the one that applies the log, which is to be read behind read_after';
REVOKE ALL ON FUNCTION mip.replica_start() FROM PUBLIC;

CREATE FUNCTION mip.replica_receive("position" bigint, message bytea) RETURNS text
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_receive';
COMMENT ON FUNCTION mip.replica_receive(bigint, bytea) IS
	'the next message of the log, in a transaction of its own; returns what has become of it';
REVOKE ALL ON FUNCTION mip.replica_receive(bigint, bytea) FROM PUBLIC;

CREATE FUNCTION mip.replica_load("position" bigint, messages bytea[]) RETURNS integer
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_load';
COMMENT ON FUNCTION mip.replica_load(bigint, bytea[]) IS
	'reads the next messages of the log, as far as they have been applied before; how many these were';
REVOKE ALL ON FUNCTION mip.replica_load(bigint, bytea[]) FROM PUBLIC;

CREATE FUNCTION mip.replica_take(max_bytes bigint DEFAULT 1048576, timeout_ms integer DEFAULT 1000,
		max_message bigint DEFAULT 2147483647, OUT id uuid, OUT message bytea) RETURNS SETOF record
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_take';
COMMENT ON FUNCTION mip.replica_take(bigint, integer, bigint) IS
	'messages of transactions that are at their COMMIT here, to be appended to the log';
REVOKE ALL ON FUNCTION mip.replica_take(bigint, integer, bigint) FROM PUBLIC;

CREATE FUNCTION mip.replica_trim() RETURNS bigint
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_trim';
COMMENT ON FUNCTION mip.replica_trim() IS
	'the position up to which no replica needs the log any more';

CREATE FUNCTION mip.replicate_ddl(command text) RETURNS bigint
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replicate_ddl';
COMMENT ON FUNCTION mip.replicate_ddl(text) IS
	'changes definitions at all replicas of the site, and waits until that is done here; the position at which it is';
REVOKE ALL ON FUNCTION mip.replicate_ddl(text) FROM PUBLIC;

CREATE FUNCTION mip.replica_leave(member text) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_leave';
COMMENT ON FUNCTION mip.replica_leave(text) IS
	'tells all replicas that this one has left: the log is not kept for it any more';
REVOKE ALL ON FUNCTION mip.replica_leave(text) FROM PUBLIC;

CREATE FUNCTION mip.replica_skip("position" bigint) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_replica_skip';
COMMENT ON FUNCTION mip.replica_skip(bigint) IS
	'leaves out the definition at this position, which fails here; to be called at every replica, as none may execute it';
REVOKE ALL ON FUNCTION mip.replica_skip(bigint) FROM PUBLIC;

CREATE FUNCTION mip.wait_for("position" bigint) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_wait_for';
COMMENT ON FUNCTION mip.wait_for(bigint) IS 'waits until this position of the log has been applied here';

CREATE FUNCTION mip.last_position() RETURNS bigint
	LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'mip_last_position_sql';
COMMENT ON FUNCTION mip.last_position() IS
	'the position in the log of what this session has committed last';

CREATE FUNCTION mip.replication_state(OUT member text, OUT applied bigint, OUT history bigint,
	OUT applier_pid integer, OUT waiting integer, OUT committed bigint, OUT applied_here bigint,
	OUT refused bigint, OUT ended bigint, OUT slowed bigint, OUT stopped bigint)
	LANGUAGE C VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'mip_replication_state';
COMMENT ON FUNCTION mip.replication_state() IS 'behind the view mip.replication';

CREATE FUNCTION mip.replication_members(OUT member text, OUT applied bigint, OUT behind bigint,
	OUT heard timestamptz) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10 AS 'MODULE_PATHNAME', 'mip_replication_members';
COMMENT ON FUNCTION mip.replication_members() IS 'behind the view mip.members';

-- What a member has not applied is what this replica has behind that position; of those that are forgotten, the oldest.
CREATE VIEW mip.members AS
	SELECT m.member, m.applied, m.behind, greatest(here.bytes - its.bytes, 0) AS behind_bytes,
		greatest(clock_timestamp() - missing.applied_at, '0') AS lag, m.heard
	FROM mip.replication_members() m
		LEFT JOIN LATERAL (SELECT bytes FROM mip.applied ORDER BY position DESC LIMIT 1) here ON true
		LEFT JOIN LATERAL (SELECT bytes FROM mip.applied WHERE position >= m.applied ORDER BY position LIMIT 1) its ON true
		LEFT JOIN LATERAL (
			SELECT applied_at FROM mip.applied WHERE position > m.applied AND bytes > its.bytes ORDER BY position LIMIT 1
		) missing ON true;
COMMENT ON VIEW mip.members IS
	'the replicas of this site, how far each was when it was heard last, and how far behind this one it was by now: in
positions, in bytes of the log, and since when there is something that it had not applied';

CREATE FUNCTION mip.replication_refusals(OUT relation regclass, OUT reason text, OUT refused bigint) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10 AS 'MODULE_PATHNAME', 'mip_replication_refusals';
COMMENT ON FUNCTION mip.replication_refusals() IS 'behind the view mip.refusals';

CREATE VIEW mip.refusals AS SELECT * FROM mip.replication_refusals();
COMMENT ON VIEW mip.refusals IS
	'what has been refused, of any member, since the server started: why, and because of a change of which table';

CREATE VIEW mip.replication AS SELECT * FROM mip.replication_state() WHERE member IS NOT NULL;
COMMENT ON VIEW mip.replication IS
	'this replica of a site: how far it is, who applies the log, and what has happened since the server started';

-- Not an error: a dump has to be restorable before the server's settings are made.
DO $$
DECLARE
	hint text;
BEGIN
	PERFORM mip.counters();
EXCEPTION WHEN SQLSTATE 'MP006' THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RAISE WARNING USING MESSAGE = SQLERRM, HINT = hint;
END $$;

-- Functions check ownership of families and tables themselves.
GRANT USAGE ON SCHEMA mip TO PUBLIC;
GRANT SELECT ON mip.in_doubt, mip.waits, mip.stats, mip.replication, mip.members, mip.refusals TO PUBLIC;
GRANT SELECT ON SEQUENCE mip.horizon TO PUBLIC;
