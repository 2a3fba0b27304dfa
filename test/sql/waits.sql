-- Who waits for whom, as mip.waits shows it.
\getenv srcdir PG_ABS_SRCDIR
\set steps :srcdir '/sql/include/steps.psql'
\set sessions :srcdir '/sql/include/sessions.psql'
\set ECHO none
\i :sessions
\i :steps
\set ECHO all
CREATE TABLE w (id int PRIMARY KEY, v int) USING mip;
INSERT INTO w VALUES (1, 0), (2, 0), (3, 0);
SELECT test.open('a', 'b', 'u', 'v', 'x');
SELECT test.run(name, 'SET lock_timeout = ''60s''') FROM test.session;
CREATE FUNCTION who(pids int[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(coalesce(s.name, 'somebody'), ' ' ORDER BY s.name)
	FROM unnest(pids) AS p (pid) LEFT JOIN test.session s USING (pid)
$$;
CREATE VIEW waits AS
	SELECT who(ARRAY[pid]) AS session, xid, xinst, who(blocked_by) AS blocked_by,
		ARRAY(SELECT unnest(blocked_by_instances) ORDER BY 1) AS blocked_by_instances, relation,
		waiting_since <= clock_timestamp() AS since
	FROM mip.waits ORDER BY 1;
GRANT SELECT ON waits TO PUBLIC;
GRANT USAGE ON SCHEMA test TO PUBLIC;
GRANT SELECT ON test.session TO PUBLIC;
SELECT * FROM waits;

-- u waits for instance 1, which is prepared; v stands in line behind u; the
-- retry waits for x, which has the other row.
SELECT test.steps($$
	a: MIP w1 1
	a: UPDATE w SET v = 1 WHERE id = 1
	a: SELECT count(*)::text FROM mip.prepare(NULL, NULL)
	x: BEGIN
	x: UPDATE w SET v = 2 WHERE id = 2
	u& UPDATE w SET v = 3 WHERE id = 1
	u? waits
	v& UPDATE w SET v = 4 WHERE id = 1
	v? waits
	b: MIP w1 2
	b: UPDATE w SET v = 5 WHERE id = 1
	b& UPDATE w SET v = 6 WHERE id = 2
	b? waits
$$);
SELECT * FROM waits;
-- Two instances at once are in the way of who wants the table; so are others.
SELECT test.steps($$
	a& DROP TABLE w
	a? waits
$$);
SELECT * FROM waits WHERE session = 'a';
-- Names of instances are for those who may see them.
CREATE ROLE mip_waiting;
SET ROLE mip_waiting;
SELECT * FROM waits WHERE session IN ('b', 'u');
RESET ROLE;
GRANT pg_read_all_stats TO mip_waiting;
SET ROLE mip_waiting;
SELECT * FROM waits WHERE session IN ('b', 'u');
RESET ROLE;
-- A database shows its own sessions only.
CREATE DATABASE mip_waits;
SELECT dblink_connect('elsewhere', format('host=%s port=%s dbname=mip_waits user=%I',
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), session_user));
SELECT dblink_exec('elsewhere', 'CREATE EXTENSION pg_mip');
SELECT * FROM dblink('elsewhere', 'SELECT count(*) FROM mip.waits') AS t (waits int);
SELECT dblink_disconnect('elsewhere');
DROP DATABASE mip_waits;

SELECT test.steps($$
	x: ROLLBACK
	b? result
	b: ROLLBACK
	x: SELECT count(*)::text FROM mip.rollback('w1', 1)
	u? result
	v? result
	a? result
	x: SELECT mip.forget('w1')::text
$$);
SELECT * FROM waits;
DROP VIEW waits;
DROP FUNCTION who;
DROP ROLE mip_waiting;
SELECT test.close('a', 'b', 'u', 'v', 'x');
