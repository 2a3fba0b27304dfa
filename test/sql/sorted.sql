-- An XID that sorts behind all others in the MIPT has no entry there, and is not searched for: rows that
-- have been found to be none, before the family lock. [looked-once]
\set VERBOSITY terse
CREATE FUNCTION ask(xid text) RETURNS text LANGUAGE sql AS
	$$ SELECT coalesce(string_agg(xinst || ' ' || state, ', '), 'nothing') FROM mip.instances(xid) $$;
CREATE FUNCTION put(xid text) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO mip.mipt (xid, xinst, owner, since, aborted) VALUES (xid, 1, current_user::regrole, now(), false) $$;

-- There is nothing, or what sorts before it
SELECT ask('sorted m');
SELECT put('sorted m');
SELECT ask('sorted m'), ask('sorted a'), ask('sorted z'), ask('sorted m.'), ask('sorted ');
-- The last one, again
BEGIN;
SELECT mip.begin('sorted m', 2);
ROLLBACK;
BEGIN;
SELECT mip.begin('sorted z', 1);
SELECT mip.commit_one_phase_beside(NULL, 'z');
BEGIN;
SELECT mip.begin('sorted z', 2);
ROLLBACK;
-- Two of one request in its place, and one behind it that has been rolled back
BEGIN;
SELECT mip.begin('sorted z1', 1);
SELECT mip.prepare_beside(NULL, NULL);
SELECT ask('sorted z1'), ask('sorted z2');
SELECT xinst, state FROM mip.rollback('sorted z1', 1);
SELECT ask('sorted z1'), ask('sorted z'), ask('sorted z2');
-- Several pages; the last ones emptied
SELECT count(put('sorted z3 ' || lpad(i::text, 100, '0'))) FROM generate_series(1, 500) i;
SELECT ask('sorted z3 ' || lpad('500', 100, '0')), ask('sorted z3 ' || lpad('501', 100, '0'));
DELETE FROM mip.mipt WHERE xid > 'sorted z3 ' || lpad('10', 100, '0');
VACUUM mip.mipt;
SELECT ask('sorted z3 ' || lpad('10', 100, '0')), ask('sorted z3 ' || lpad('500', 100, '0'));
DELETE FROM mip.mipt WHERE xid LIKE 'sorted%';
DROP FUNCTION ask, put;
