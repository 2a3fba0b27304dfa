"""The tables of schema.sql as the model sees them, and the ways to read them.

Every history has a range of values of its own: what the model calls 0..7 is
base..base+7 in the database. So histories share tables and never meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

DOMAIN = 8
SPAN = 16  # distance between the bases of two histories
ODD = 1_000_000_000  # where table part keeps odd keys


class Values(NamedTuple):
    k: int
    u: int
    v: int
    w: int


def text(w: int) -> str:
    """Every third text is stored out of line, in three chunks."""
    return f"w{w}." * (1500 if w % 3 == 2 else 1)


def text_sql(w: int) -> str:
    return f"repeat('w{w}.', {1500 if w % 3 == 2 else 1})"


TEXTS = {hashlib.md5(text(w).encode()).hexdigest(): w for w in range(DOMAIN)}


@dataclass(frozen=True)
class Constraint:
    """At most one of two rows for which `clash` is true."""

    column: str
    clash: Callable[[int, int], bool]
    sqlstate: str
    at_end: bool = False  # checked at the end of the statement

    def touched(self, old: Values, new: Values) -> bool:
        return bool(getattr(old, self.column) != getattr(new, self.column))


UNIQUE_K = Constraint("k", lambda a, b: a == b, "23505")


@dataclass(frozen=True)
class Path:
    """A condition on rows: {x} is an argument of it. `index`: the only index that fits."""

    name: str
    sql: str
    match: Callable[[Values, int], bool]
    index: str = ""
    bitmap: bool | None = None  # must be bitmap / must not; None: both


@dataclass(frozen=True)
class Table:
    name: str
    constraints: tuple[Constraint, ...]
    paths: tuple[Path, ...]
    parts: tuple[str, ...] = ()
    parent: str = ""
    children: str = ""
    cascade: bool = False
    keys: str = "k"  # columns of unique indexes

    @property
    def heaps(self) -> tuple[str, ...]:
        return self.parts or (self.name,)

    def by_key(self, path: int) -> bool:
        """Does the condition hold for a row's next version as well? Not if it names TIDs."""
        return self.paths[path % len(self.paths)] is not TIDS

    def k_sql(self, base: int, k: int) -> str:
        return str(base + k + (ODD if self.parts and k % 2 else 0))

    def k_back(self, base: int, k: int) -> int:
        return (k - ODD if k >= ODD else k) - base


K = Path("k", "k = {k}", lambda r, x: r.k == x, "{t}_pkey", False)
K_BITMAP = Path("k bitmap", "k = {k}", lambda r, x: r.k == x, "{t}_pkey", True)
ALL = Path("all", "k BETWEEN {base} AND {base} + 7", lambda r, x: True)
ALL_INDEX = Path("all by index", "k BETWEEN {base} AND {base} + 7", lambda r, x: True, "{t}_pkey", False)
ALL_BITMAP = Path("all by bitmap", "k BETWEEN {base} AND {base} + 7", lambda r, x: True, "{t}_pkey", True)
TID = Path("tid range", "ctid >= '(0,0)' AND k BETWEEN {base} AND {base} + 7", lambda r, x: True)
TIDS = Path(
    "tids",
    "ctid = ANY (ARRAY(SELECT ctid FROM {t} WHERE k BETWEEN {base} AND {base} + 7))",
    lambda r, x: True,
)
V = Path("v", "k BETWEEN {base} AND {base} + 7 AND v = {v}", lambda r, x: r.v == x)

COMMON = (K, K_BITMAP, ALL, ALL_INDEX, ALL_BITMAP, TID, TIDS, V)
_EVERY_PART = "k BETWEEN {base} AND {base} + 7 OR k BETWEEN {base} + 1000000000 AND {base} + 1000000007"
PART = (
    K,
    Path("all", _EVERY_PART, lambda r, x: True),
    Path("all by bitmap", _EVERY_PART, lambda r, x: True, "{t}", True),
    Path("v", f"({_EVERY_PART}) AND v = {{v}}", lambda r, x: r.v == x),
)
MANY = (
    Path("hash", "v = {v}", lambda r, x: r.v == x, "many_hash", False),
    Path("hash bitmap", "v = {v}", lambda r, x: r.v == x, "many_hash", True),
    Path("gin", "ARRAY[v] && ARRAY[{v}, {v} + 1]", lambda r, x: r.v in (x, x + 1), "many_gin", True),
    Path("gist", "int4range(v, v, '[]') && int4range({v}, {v} + 2)", lambda r, x: r.v in (x, x + 1), "many_gist"),
    Path(
        "spgist",
        "point(u, v) <@ box(point({base}, {v}), point({base} + 7, {v} + 1))",
        lambda r, x: r.v in (x, x + 1),
        "many_spgist",
    ),
    Path("brin", "u BETWEEN {u} AND {u} + 1", lambda r, x: r.u in (x, x + 1), "many_brin", True),
    Path("partial", "u + 0 = {u} AND v % 2 = 0", lambda r, x: r.u == x and r.v % 2 == 0, "many_partial"),
    Path("expression", "u + v = 2 * {base} + {x}", lambda r, x: r.u + r.v == x, "many_expression"),
)
U = Path("u", "u = {u}", lambda r, x: r.u == x, "{t}_u")
LATER_U = Path("u", "u = {u}", lambda r, x: r.u == x, "later_u_key", False)
LATER_U_BITMAP = Path("u bitmap", "u = {u}", lambda r, x: r.u == x, "later_u_key", True)
OVERLAP = Path(
    "overlap", "int4range(u, u + 2) && int4range({u}, {u} + 1)", lambda r, x: r.u in (x - 1, x), "apart_int4range_excl"
)

TABLES = {
    t.name: t
    for t in (
        Table("plain", (UNIQUE_K,), COMMON),
        Table("many", (UNIQUE_K,), (K, ALL_INDEX, ALL_BITMAP, *MANY)),
        Table(
            "later",
            (UNIQUE_K, Constraint("u", lambda a, b: a == b, "23505", at_end=True)),
            (*COMMON, LATER_U, LATER_U_BITMAP),
            keys="ku",
        ),
        Table("apart", (UNIQUE_K, Constraint("u", lambda a, b: abs(a - b) < 2, "23P01")), (*COMMON, OVERLAP)),
        Table("part", (UNIQUE_K,), PART, parts=("part_even", "part_odd")),
        Table("parent", (UNIQUE_K,), COMMON, children="child"),
        Table("child", (UNIQUE_K,), (*COMMON, U), parent="parent"),
        Table("owner", (UNIQUE_K,), COMMON, children="pet", cascade=True),
        Table("pet", (UNIQUE_K,), (*COMMON, U), parent="owner", cascade=True),
    )
}


def condition(table: Table, path: Path, base: int, x: int) -> str:
    return path.sql.format(t=table.name, base=base, x=x, k=table.k_sql(base, x), u=base + x, v=base + x)


def settings(path: Path, rng_bit: int) -> str:
    """Makes the planner take the path; where both are possible, rng_bit chooses."""
    bitmap = path.bitmap if path.bitmap is not None else bool(rng_bit)
    seq = path.index == ""
    return (
        f"SET LOCAL enable_seqscan = {'on' if seq else 'off'}; "
        f"SET LOCAL enable_bitmapscan = {'on' if bitmap and not seq else 'off'}; "
        f"SET LOCAL enable_indexscan = {'off' if bitmap or seq else 'on'}; "
    )
