-- What clients work with. Most of it has no key that would keep anything from being there twice: every transaction
-- leaves one row in effect, which says what it has done.
CREATE EXTENSION pg_mip;

CREATE TABLE effect (tx text NOT NULL, detail jsonb NOT NULL) USING mip;
CREATE INDEX ON effect (tx);

-- Transfers between them
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0)) USING mip;
INSERT INTO account SELECT n, 1000 FROM generate_series(1, 30) n;

-- Read, and written one higher
CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL) USING mip;
INSERT INTO counter SELECT n, 0 FROM generate_series(1, 8) n;

-- The same names are wanted at all replicas
CREATE TABLE name (name text PRIMARY KEY, owner text NOT NULL) USING mip;

-- Parents go beside their children's coming: those of one kind keep them, those of the other go with them
CREATE TABLE parent (id int PRIMARY KEY, owner text NOT NULL) USING mip;
CREATE TABLE child (tx text PRIMARY KEY, parent int NOT NULL REFERENCES parent) USING mip;
CREATE TABLE follower (tx text PRIMARY KEY, parent int NOT NULL REFERENCES parent ON DELETE CASCADE) USING mip;
-- How many followers there are of each kind of parent: by triggers, which a cascade fires as well
CREATE TABLE census (kind int PRIMARY KEY, n bigint NOT NULL) USING mip;
INSERT INTO census SELECT n, 0 FROM generate_series(0, 2) n;
CREATE FUNCTION count_follower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'INSERT' THEN
		UPDATE census SET n = n + 1 WHERE kind = NEW.parent % 3;
	ELSE
		UPDATE census SET n = n - 1 WHERE kind = OLD.parent % 3;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER census AFTER INSERT OR DELETE ON follower FOR EACH ROW EXECUTE FUNCTION count_follower();
CREATE INDEX ON child (parent);
CREATE INDEX ON follower (parent);
INSERT INTO parent SELECT n, '' FROM generate_series(1, 12) n;

-- No two at the same time
CREATE TABLE booking (tx text PRIMARY KEY, during int4range NOT NULL, EXCLUDE USING gist (during WITH &&)) USING mip;

-- Two change places, which no two may have at their COMMIT
CREATE TABLE seat (id int PRIMARY KEY, place int NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED) USING mip;
INSERT INTO seat SELECT n, n FROM generate_series(1, 20) n;

-- The rows of a group are changed together
CREATE TABLE part (id int PRIMARY KEY, of int NOT NULL, version bigint NOT NULL) USING mip;
INSERT INTO part SELECT n, n % 6, 0 FROM generate_series(0, 59) n;

-- Without a primary key: rows that are changed, and rows that are the same
CREATE TABLE tally (of int NOT NULL, n bigint NOT NULL) USING mip;
CREATE TABLE ticket (of int NOT NULL) USING mip;
INSERT INTO tally SELECT n, 0 FROM generate_series(0, 3) n;

-- Stored out of line, and compressed or not
CREATE TABLE document (id int PRIMARY KEY, revision bigint NOT NULL, digest text NOT NULL, body text NOT NULL,
	plain text NOT NULL) USING mip;
ALTER TABLE document ALTER plain SET STORAGE EXTERNAL;
INSERT INTO document SELECT n, 0, md5(''), '', '' FROM generate_series(1, 10) n;

-- Emptied now and then. Whoever has done that leaves the only mark.
CREATE TABLE note (tx text NOT NULL, mark boolean NOT NULL) USING mip;
INSERT INTO note VALUES ('', true);

-- They tell who has appended to them, in which order
CREATE TABLE list (id text PRIMARY KEY, elements text[] NOT NULL) USING mip;
