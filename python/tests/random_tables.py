"""Random tables of every built-in type, and random statements that change them."""

from __future__ import annotations

from random import Random

TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["0", "-32768", "32767"],
    "integer": ["0", "-2147483648", "2147483647"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807"],
    "real": ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e+38", "0.1"],
    "double precision": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e+308", "0.1"],
    "numeric": ["NaN", "Infinity", "-Infinity", "0", "1.0", "1.00", "-0.000", "1e100", "123456789012345678901.5"],
    "numeric(10,2)": ["0", "-1.5", "99999999.99", "NaN"],
    "money": ["0", "-1234.56", "92233720368547758.07"],
    "text": ["", "x", "it's \\ \"odd\"", "\n\t", "äöü 漢字 🙂", "NULL", "x" * 300],
    "character varying(10)": ["", "ten chars.", "ü"],
    "character(5)": ["", "a", "abcde"],
    '"char"': ["", "a", "\\"],
    "name": ["", "a name", "x" * 63],
    "bytea": ["", "\\x00ff5c27", "\\x" + "ab" * 100],
    "date": ["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "2026-02-28"],
    "time without time zone": ["00:00", "24:00", "12:34:56.789012"],
    "time with time zone": ["00:00+15:59", "24:00-15:59", "12:34:56.789012+01"],
    "timestamp without time zone": ["infinity", "-infinity", "4713-01-01 00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamp with time zone": ["infinity", "-infinity", "2026-03-29 02:30+01", "1970-01-01 UTC"],
    "timestamp(0) with time zone": ["2026-03-29 02:30:00.6+01"],
    "interval": ["0", "-1 year 2 mons -3 days +04:05:06.789", "178000000 years", "-00:00:00.000001"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-4fff-bfff-ffffffffffff"],
    "inet": ["127.0.0.1", "10.0.0.1/8", "::1", "2001:db8::/32"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(5)": ["10101", "00000"],
    "bit varying": ["", "1", "0101010101"],
    "point": ["(0,-0)", "(NaN,Infinity)", "(1e300,1e-300)"],
    "line": ["{1,2,3}", "{0,-1,0.1}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1),(2,0))"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1>", "<(1,-1),0>"],
    "json": ['{"a":1,"a":2}', ' [1, null, "ü"] ', "null"],
    "jsonb": ['{"a":1,"b":[1.0,1.00]}', "null", '"\\u00fc"'],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "tsvector": ["'a':1A 'b':2,3C", ""],
    "tsquery": ["'a' & !'b' <2> 'c':*", ""],
    "int4range": ["empty", "[1,5)", "(,)", "[3,)"],
    "numrange": ["[1.0,1.00]", "(,5.5)", "empty"],
    "daterange": ["[2026-01-01,infinity)", "empty"],
    "tstzrange": ['["2026-01-01 00:00+01",infinity]', "(,)"],
    "int4multirange": ["{}", "{[1,2),[5,9)}"],
    "nummultirange": ["{[1.0,2),(3,)}"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "oid": ["0", "4294967295"],
    "xid": ["3", "4294967295"],
    "xid8": ["18446744073709551615"],
    "cid": ["7"],
    "tid": ["(0,1)", "(4294967294,65535)"],
    "regclass": ["pg_catalog.pg_class", "odd.\"T 0\"", "-"],
    "regtype": ["odd.mood", "integer[]", "timestamp with time zone"],
    "regproc": ["pg_catalog.now"],
    "regrole": ["postgres"],
    "pg_snapshot": ["10:20:10,14,15"],
    "oidvector": ["1 2 3"],
    "int2vector": ["1 -2 3"],
    "integer[]": ["{}", "{1,NULL,3}", "[2:3]={1,2}", "{{1,2},{3,4}}"],
    "text[]": ["{}", '{NULL,"NULL","a \\"b\\"","{}"}'],
    "numeric[]": ["{1.0,1.00,NaN}"],
    "timestamp with time zone[]": ["{infinity,2026-01-01 00:00+01}"],
    "odd.mood": ["sad", "it's ok"],
    "odd.mood[]": ["{sad,\"it's ok\"}", "{}"],
    'odd."a Pair"': ["(sad,2026-01-02)", "(,)", '("it\'s ok",infinity)'],
    'odd."a Pair"[]': ['{"(sad,2026-01-02)",NULL}'],
    "odd.positive": ["1", "77"],
    "odd.label": ["a", "b c"],
    "odd.spans": ["[1.5,2.5)", "empty"],
}

SETUP = """
CREATE SCHEMA odd;
CREATE TYPE odd.mood AS ENUM ('sad', 'it''s ok');
CREATE TYPE odd."a Pair" AS ("Mood" odd.mood, d date);
CREATE DOMAIN odd.positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN odd.label AS text CHECK (VALUE <> '');
CREATE TYPE odd.spans AS RANGE (subtype = float8);
"""
NAMES = ["a", "B", "select", 'quo"ted', "ünï", "with space", "%s", "x.y", "_"]
KEYS = ["integer", "bigint", "text", "numeric", "timestamp with time zone", "double precision", "uuid"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


class Table:
    """A random one: `ddl` makes it. `virtual`: perhaps with a virtual generated column, which 18 has."""

    def __init__(self, random: Random, number: int, virtual: bool = False) -> None:
        self.random = random
        self.virtual = virtual
        self.name = f"odd.{quoted(f'T {number}')}"
        names = random.sample(NAMES, random.randint(1, 7))
        self.columns = {name: random.choice(list(TYPES)) for name in names}
        self.kind = random.choice(["plain", "plain", "partitioned", "parent"])
        self.keys: list[str] = []
        self.ddl = self._ddl()

    def _key(self) -> str:
        """PRIMARY KEY, of one column or two, deferred or not; a replica identity; or none."""
        how = self.random.choice(["none", "key", "key", "two", "deferrable", "identity"])
        if how == "none":
            return ""
        self.keys = ["k1", "k2"][: 2 if how == "two" else 1]
        for key in self.keys:
            self.columns[key] = self.random.choice(KEYS)
        if how == "identity":
            return f", UNIQUE ({', '.join(self.keys)})"
        deferrable = " DEFERRABLE" if how == "deferrable" else ""
        return f", PRIMARY KEY ({', '.join(self.keys)}){deferrable}"

    def _ddl(self) -> str:
        key = self._key() if self.kind != "partitioned" else ""
        columns = [f"{quoted(name)} {kind}" for name, kind in self.columns.items()]
        columns += [f"{quoted(key)} {self.columns[key]} NOT NULL" for key in self.keys]
        columns = [c for c in columns if not any(c == f"{quoted(k)} {self.columns[k]}" for k in self.keys)]
        if self.random.random() < 0.3:
            columns.append("always integer GENERATED ALWAYS AS IDENTITY")
        columns.append("n integer")
        if self.random.random() < 0.4:
            columns.append("twice integer GENERATED ALWAYS AS (n * 2) STORED")
        if self.virtual and self.random.random() < 0.4:
            columns.append("thrice integer GENERATED ALWAYS AS (n * 3) VIRTUAL")
        body = f"({', '.join(columns)}{key})"
        if self.kind == "partitioned":
            parts = "".join(
                f"CREATE TABLE odd.{quoted(f'{self.name[5:-1]} {i}')} PARTITION OF {self.name} "
                f"FOR VALUES {bounds} USING mip;\n"
                for i, bounds in enumerate(["FROM (MINVALUE) TO (0)", "FROM (0) TO (MAXVALUE)"])
            )
            return f"CREATE TABLE {self.name} {body} PARTITION BY RANGE (n);\n{parts}"
        ddl = f"CREATE TABLE {self.name} (gone text, {body[1:]} USING mip;\nALTER TABLE {self.name} DROP gone;\n"
        if ", UNIQUE" in key:
            index = f"(SELECT conname FROM pg_constraint WHERE conrelid = '{self.name}'::regclass AND contype = 'u')"
            ddl += (
                f"DO $$ BEGIN EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX %I', "
                f"{literal(self.name)}, {index}); END $$;\n"
            )
        if self.kind == "parent":
            ddl += f"CREATE TABLE {self.name[:-1]} child\" (more text) INHERITS ({self.name}) USING mip;\n"
        return ddl

    def value(self, column: str) -> str:
        kind = self.columns[column]
        if column in self.keys:
            number = self.random.randint(1, 30)
            of = {
                "timestamp with time zone": f"timestamptz 'epoch' + {number} * interval '1 day'",
                "text": f"'key {number}'",
                "uuid": f"('00000000-0000-0000-0000-0000000000' || {number + 10})::uuid",
            }
            return of.get(kind, str(number))
        value = None if self.random.random() < 0.2 else self.random.choice(TYPES[kind])
        return f"{literal(value)}::{kind}"

    def condition(self) -> str:
        """Some rows, in no order of theirs."""
        return f"abs(hashtext(ctid::text || {self.random.randint(0, 99)})) % {self.random.randint(1, 5)} = 0"

    def insert(self) -> str:
        target = self.name
        if self.kind == "parent" and self.random.random() < 0.3:
            target = f'{self.name[:-1]} child"'
        names = [*self.columns, "n"]
        rows = ", ".join(
            f"({', '.join([*(self.value(c) for c in self.columns), str(self.random.randint(-9, 9))])})"
            for _ in range(self.random.randint(1, 6))
        )
        conflict = " ON CONFLICT DO NOTHING" if self.random.random() < 0.5 else ""
        return f"INSERT INTO {target} ({', '.join(map(quoted, names))}) VALUES {rows}{conflict}"

    def update(self) -> str:
        column = self.random.choice([*self.columns, "n", "n"])
        value = f"n * -1 + {self.random.randint(-3, 3)}" if column == "n" else self.value(column)
        return f"UPDATE {self.name} SET {quoted(column)} = {value} WHERE {self.condition()}"

    def statement(self) -> str:
        kind = self.random.random()
        if kind < 0.45:
            return self.insert()
        if kind < 0.8:
            return self.update()
        if kind < 0.97:
            return f"DELETE FROM {self.name} WHERE {self.condition()}"
        return f"TRUNCATE {self.name}"
