/* pg_mip 0.1 */

-- complain if the script is sourced in psql rather than by CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_mip" to load this file. \quit

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
	owner oid NOT NULL,
	since timestamptz NOT NULL,
	aborted boolean NOT NULL,
	links bytea,
	PRIMARY KEY (xid, xinst)
) USING heap;
COMMENT ON TABLE mip.mipt IS 'prepared, committed and aborted instances; read it with mip.instances';

CREATE FUNCTION mip.begin(xid text, xinst bigint, sites text[] DEFAULT '{}') RETURNS void
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_begin';
COMMENT ON FUNCTION mip.begin(text, bigint, text[]) IS
	'makes the transaction just begun instance <xid, xinst> of a request';

CREATE TYPE mip.instance AS (
	xinst bigint,
	state mip.state,
	request text,
	result text,
	sites text[],
	owner name,
	since timestamptz
);
COMMENT ON TYPE mip.instance IS 'an entry of the MIPT';

CREATE FUNCTION mip.prepare(request text, result text) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_prepare';
COMMENT ON FUNCTION mip.prepare(text, text) IS
	'ends the MIP transaction as prepared; returns the MIPT';

CREATE FUNCTION mip.commit_one_phase(request text, result text) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_commit_one_phase';
COMMENT ON FUNCTION mip.commit_one_phase(text, text) IS
	'commits a MIP transaction that has this site only; returns the MIPT';

CREATE FUNCTION mip.commit(xid text, xinst bigint) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_commit';
COMMENT ON FUNCTION mip.commit(text, bigint) IS
	'commits a prepared instance and aborts its siblings; returns the MIPT';

CREATE FUNCTION mip.rollback(xid text, xinst bigint) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_rollback';
COMMENT ON FUNCTION mip.rollback(text, bigint) IS
	'aborts an instance that some site has definitely refused; returns the MIPT';

CREATE FUNCTION mip.instances(xid text) RETURNS SETOF mip.instance
	LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 2 AS 'MODULE_PATHNAME', 'mip_instances';
COMMENT ON FUNCTION mip.instances(text) IS 'the MIPT of a family';

CREATE FUNCTION mip.forget(xid text) RETURNS integer
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_forget';
COMMENT ON FUNCTION mip.forget(text) IS
	'deletes the MIPT of a decided family; returns the number of entries';

CREATE FUNCTION mip.prepared_instances(OUT xid text, OUT xinst bigint, OUT owner name,
	OUT since timestamptz, OUT request text, OUT sites text[]) RETURNS SETOF record
	LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_in_doubt';
COMMENT ON FUNCTION mip.prepared_instances() IS 'behind the view mip.in_doubt';

CREATE VIEW mip.in_doubt AS SELECT * FROM mip.prepared_instances();
COMMENT ON VIEW mip.in_doubt IS 'instances of this database that are prepared and not decided';

CREATE FUNCTION mip.enable(relation regclass) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_enable';
COMMENT ON FUNCTION mip.enable(regclass) IS
	'lets a table and its partitions opt in to sibling versions, in place';

CREATE FUNCTION mip.disable(relation regclass) RETURNS void
	LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'mip_disable';
COMMENT ON FUNCTION mip.disable(regclass) IS 'turns a table back into a heap table, in place';

-- Functions check ownership of families and tables themselves.
GRANT USAGE ON SCHEMA mip TO PUBLIC;
GRANT SELECT ON mip.in_doubt TO PUBLIC;
