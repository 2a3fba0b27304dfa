"""`pgmip replica diff`: what is the same is found to be the same while all write, and what is not is not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from test_cli import NOWHERE, OK, PROBLEMS, UNREACHABLE, USAGE, Cli
from test_cli_process import wait_until
from test_replica_site import DATABASE, TABLES, Connection, Site, settings_of, site, until_committed, written_to

from pgmip.replication import same_position
from pgmip.replication.same_position import at_same_position

pytestmark = pytest.mark.integration
__all__ = ["site"]

NAMES = [f"public.{table}" for table in sorted(TABLES)]


@pytest.fixture
def cli() -> Cli:
    return Cli({})


def at(site: Site, members: str = "abc") -> list[str]:
    return [site.replicas[member].conninfo(DATABASE) for member in members]


@contextmanager
def outside(site: Site, member: str) -> Iterator[Callable[[str], Any]]:
    """Its database without replication: what is done there is done there only."""
    cluster = site.replicas[member]
    cluster.configure({"mip.replicated_database": ""})
    cluster.restart()
    yield lambda sql: site.sql(member, sql)
    cluster.configure(settings_of(member))
    cluster.restart()


async def test_while_all_write(site: Site, cli: Cli) -> None:
    positions = []
    async with written_to(site, "abc") as tally:
        await until_committed(tally, 10)
        for _ in range(5):
            found = await asyncio.to_thread(cli.json, "replica", "diff", *at(site))
            assert found["differ"] == []
            assert list(found["tables"]) == NAMES
            for sums in found["tables"].values():
                assert list(sums) == ["a", "b", "c"]
                assert len(set(sums.values())) == 1
            assert len(set(found["histories"].values())) == 1
            positions.append(found["position"])
        known = len(tally.committed)
        await until_committed(tally, known + 1)
    assert positions == sorted(set(positions))
    site.check()


async def test_one_row_while_all_write(site: Site, cli: Cli) -> None:
    uuid = uuid4()
    with outside(site, "c") as sql:
        sql(f"INSERT INTO done VALUES ('{uuid}')")
    async with written_to(site, "abc") as tally:
        await until_committed(tally, 10)
        found = await asyncio.to_thread(cli.json, "replica", "diff", *at(site), code=PROBLEMS)
    sums = found["tables"]["public.done"]
    assert (found["exit_code"], found["differ"]) == (PROBLEMS, ["public.done"])
    assert sums["a"] == sums["b"] != sums["c"]
    said = (await asyncio.to_thread(cli, "replica", "diff", *at(site), code=PROBLEMS)).stdout
    assert "the same history" in said
    assert [line.split()[1] for line in said.splitlines()[3:]] == ["same", "differs", "same", "same"]
    with outside(site, "c") as sql:
        sql(f"DELETE FROM done WHERE transaction = '{uuid}'")


async def test_what_is_truncated_meanwhile(site: Site) -> None:
    """The snapshots do not show what was there. It does not count, and all is looked at again."""
    site.sql("a", "SELECT mip.replicate_ddl('CREATE TABLE brief (id int PRIMARY KEY) USING mip')")
    site.sql("a", "INSERT INTO brief VALUES (1)")
    site.catch_up()
    looks = 0
    read = asyncio.Event()

    async def look(conn: Connection, tables: Sequence[str]) -> int:
        """At first one replica is read before, and the other one behind it."""
        nonlocal looks
        looks += 1
        mine = looks
        if mine == 2:
            await read.wait()
            await asyncio.to_thread(site.sql, "a", "TRUNCATE brief")
            await asyncio.to_thread(site.catch_up)
        ((rows,),) = await (await conn.execute(b"SELECT count(*) FROM brief")).fetchall()
        if mine == 1:
            await conn.execute(b"COMMIT")
            read.set()
        return int(rows)

    async with asyncio.timeout(60):
        found = await at_same_position(at(site, "bc"), look, patience=60)
    assert list(found.seen) == [0, 0]
    assert looks > 2
    site.sql("a", "SELECT mip.replicate_ddl('DROP TABLE brief')")


async def test_what_is_created_meanwhile(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what has been locked, and before the snapshots."""
    create = "SELECT mip.replicate_ddl('CREATE TABLE late (id int PRIMARY KEY) USING mip')"
    once = asyncio.Lock()

    async def export(conn: Connection, first: int, seconds: float) -> Mapping[int, str]:
        async with once:
            if site.sql("a", "SELECT FROM pg_class WHERE relname = 'late'") == []:
                await asyncio.to_thread(site.sql, "a", create)
                await asyncio.to_thread(site.catch_up)
        return await real(conn, first, seconds)

    async def look(conn: Connection, tables: Sequence[str]) -> bool:
        return "public.late" in tables

    real = same_position._export
    monkeypatch.setattr(same_position, "_export", export)
    found = await at_same_position(at(site), look, patience=60)
    assert list(found.seen) == [True, True, True]
    site.sql("a", "SELECT mip.replicate_ddl('DROP TABLE late')")


def test_where_there_is_nothing_to_compare(site: Site, cli: Cli) -> None:
    a, b = at(site, "ab")
    assert "nothing to compare" in cli("replica", "diff", a, code=USAGE).stderr
    assert "not a connection string" in cli("replica", "diff", a, "nonsense", code=USAGE).stderr
    assert "2 replicas are called a" in cli("replica", "diff", a, b, a, code=PROBLEMS).stderr
    assert "port=1: " in cli("replica", "diff", a, NOWHERE, code=UNREACHABLE).stderr
    other = site.replicas["b"].conninfo()
    assert "CREATE EXTENSION" in cli("replica", "diff", a, other, code=PROBLEMS).stderr


def sites_cli(site: Site, members: str) -> Cli:
    return Cli(dict(zip(members, at(site, members), strict=True)))


def documents(result: Any) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def shown_replicas(shown: str, many: int) -> list[list[str]]:
    """Their rows, by cells."""
    return [re.split(" {2,}", line.strip()) for line in shown[shown.index("Replicas") :].splitlines()[2 : 2 + many]]


async def test_status_and_top(site: Site) -> None:
    """Of those that are given all is told, of other members what they have told."""
    cli, two = sites_cli(site, "abc"), sites_cli(site, "ab")
    async with written_to(site, "abc") as tally:
        await until_committed(tally, 10)
        before, after = documents(await asyncio.to_thread(cli, "top", "--count=2", "--json", code=OK))
        shown = (await asyncio.to_thread(cli, "top", "--count=2", "--interval=0.5", code=OK)).stdout
    for name in "abc":
        first, last = (document["sites"][name]["replica"] for document in (before, after))
        assert (last["member"], last["applier_pid"] > 0) == (name, True)
        assert last["applied"] > first["applied"]
        assert last["committed"] + last["applied_here"] > first["committed"] + first["applied_here"]
        assert [member["member"] for member in last["members"]] == ["a", "b", "c"]
        assert all(member["silent"] < 60 for member in last["members"])
        assert all(0 <= member["lag"] < 60 <= 60 + member["behind_bytes"] for member in last["members"])
    assert "replica, per second" in shown
    site.catch_up()
    shown = (await asyncio.to_thread(two, "status", code=OK)).stdout
    rows = shown_replicas(shown, 3)
    assert [row[:2] for row in rows] == [["a", "a"], ["b", "b"], ["c", "-"]]
    applied = site.sql("a", "SELECT applied FROM mip.replication")[0][0]
    assert rows[0][2] == str(applied)
    assert "none" not in shown


def test_one_that_is_behind_and_one_that_has_diverged(site: Site, cli: Cli) -> None:
    """The last test: the replicas are of no use any more."""
    site.catch_up()
    for agent in site.agents.values():
        assert agent.end() == OK
    here = min(int(site.sql(member, "SELECT applied FROM mip.replication")[0][0]) for member in "abc")
    wait_until(
        lambda: not any(site.sql(member, "SELECT FROM mip.replication WHERE applier_pid > 0") for member in "abc")
    )
    for member in "abc":
        with outside(site, member) as sql:
            sql(f'DELETE FROM mip.applied WHERE "position" > {here - (member == "b")}')
            if member == "c":
                sql("UPDATE mip.applied SET history = history + 1; UPDATE counter SET n = n + 1 WHERE id = 1")
    shown = sites_cli(site, "ab")("status", code=OK).stdout
    rows = shown_replicas(shown, 2)
    assert [(row[2], row[6]) for row in rows] == [(str(here), "none"), (str(here - 1), "none")]
    said = cli("replica", "diff", *at(site), "--timeout=2", code=UNREACHABLE).stderr
    assert f"a has applied {here}, b has applied {here - 1}, c has" in said
    assert "no agent is at work at a, b, c" in said
    found = cli.json("replica", "diff", *at(site, "ac"), code=PROBLEMS)
    assert (found["position"], found["differ"]) == (here, ["public.counter"])
    assert found["histories"]["a"] + 1 == found["histories"]["c"]
    assert "other histories" in cli("replica", "diff", *at(site, "ac"), code=PROBLEMS).stdout
