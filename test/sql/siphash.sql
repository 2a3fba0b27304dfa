-- The keyed hash of family locks, by the test vectors of its authors: the n bytes 00, 01, ... under
-- the key 00 to 0f. That of 15 bytes is the one in their paper.
CREATE FUNCTION siphash(key bytea, input bytea) RETURNS bigint
	LANGUAGE C STRICT AS 'pg_mip', 'mip_siphash_sql';
CREATE FUNCTION bytes(n int) RETURNS bytea LANGUAGE sql AS
	$$ SELECT coalesce(decode(string_agg(lpad(to_hex(i), 2, '0'), '' ORDER BY i), 'hex'), '') FROM generate_series(0, n - 1) i $$;
SELECT n, lpad(to_hex(siphash(bytes(16), bytes(n))), 16, '0') AS hash
FROM unnest('{0, 1, 7, 8, 9, 15, 16, 63}'::int[]) n;
SELECT count(DISTINCT siphash(key, 'an XID')) AS each_bit_of_the_key_counts
FROM generate_series(0, 127) bit, set_bit(bytes(16), bit, 1 - get_bit(bytes(16), bit)) key;
SELECT siphash('short', '');
DROP FUNCTION siphash, bytes;
