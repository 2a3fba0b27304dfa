-- What sqlsmith writes statements for: every kind of index, constraint and
-- trigger, all of it on mip tables, with a few hundred rows.

CREATE EXTENSION pg_mip;
CREATE EXTENSION amcheck;
SET default_table_access_method = mip;

CREATE TABLE person (
	id int PRIMARY KEY,
	name text NOT NULL UNIQUE,
	born date,
	balance numeric(12, 2) NOT NULL DEFAULT 0 CHECK (balance > -1000000),
	tags text[],
	extra jsonb,
	place point,
	active boolean
);
CREATE INDEX person_hash ON person USING hash (born);
CREATE INDEX person_tags ON person USING gin (tags);
CREATE INDEX person_extra ON person USING gin (extra);
CREATE INDEX person_place ON person USING gist (place);
CREATE INDEX person_quad ON person USING spgist (place);
CREATE INDEX person_lower ON person (lower(name));
CREATE INDEX person_partial ON person (balance) WHERE active;
CREATE INDEX person_brin ON person USING brin (id);
INSERT INTO person SELECT i, 'p' || i, date '2000-01-01' + i, i * 10, ARRAY['t' || i % 7, 't' || i % 3],
	jsonb_build_object('a', i, 'b', ARRAY[i % 5]), point(i % 20, i / 20), i % 3 > 0
	FROM generate_series(1, 200) i;

CREATE TABLE booking (
	room int,
	during int4range NOT NULL,
	person int REFERENCES person ON UPDATE CASCADE ON DELETE SET NULL,
	EXCLUDE USING gist (during WITH &&, int4range(room, room, '[]') WITH &&)
);
CREATE INDEX booking_person ON booking (person);
INSERT INTO booking SELECT i % 5, int4range(i * 10, i * 10 + 5), i FROM generate_series(1, 100) i;

CREATE TABLE place (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	rank int NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED,
	twice int GENERATED ALWAYS AS (rank * 2) STORED,
	text text
);
ALTER TABLE place ALTER text SET STORAGE external;
INSERT INTO place (rank, text) SELECT i, repeat('x', i * 100) FROM generate_series(1, 60) i;

CREATE TABLE measurement (
	at int,
	value float8,
	person int REFERENCES person ON UPDATE CASCADE ON DELETE CASCADE,
	PRIMARY KEY (at)
) PARTITION BY RANGE (at);
CREATE TABLE measurement_1 PARTITION OF measurement FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE measurement_2 PARTITION OF measurement FOR VALUES FROM (100) TO (MAXVALUE);
INSERT INTO measurement SELECT i, random(), i % 200 + 1 FROM generate_series(1, 200) i;

CREATE TABLE base (id int PRIMARY KEY, word text);
CREATE TABLE derived (more int) INHERITS (base);
INSERT INTO base SELECT i, 'b' || i FROM generate_series(1, 50) i;
INSERT INTO derived SELECT i, 'd' || i, i FROM generate_series(51, 100) i;

CREATE TABLE history (who int, old text, new text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO history VALUES (coalesce(NEW.id, OLD.id), OLD::text, NEW::text);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON base FOR EACH ROW EXECUTE FUNCTION note();
CREATE FUNCTION polish() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.active := coalesce(NEW.active, true);
	RETURN NEW;
END $$;
CREATE TRIGGER polish BEFORE INSERT OR UPDATE ON person FOR EACH ROW EXECUTE FUNCTION polish();
CREATE FUNCTION total() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM count(*) FROM gone;
	RETURN NULL;
END $$;
CREATE TRIGGER total AFTER DELETE ON measurement_1 REFERENCING OLD TABLE AS gone
	FOR EACH STATEMENT EXECUTE FUNCTION total();

CREATE VIEW rich AS SELECT id, name, balance FROM person WHERE balance > 500;
CREATE VIEW visits AS SELECT b.room, b.during, p.name FROM booking b JOIN person p ON p.id = b.person;

ANALYZE;

CREATE ROLE smith LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO smith;
