"""One XID for several requests, over different sites that overlap: where they meet one wins, and all of them end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from conftest import Clusters
from test_sweeper import eager
from typer.testing import CliRunner

from pgmip import App, Cancelled, Decided, Expired, KeyReused, Refuse, Refused, Resolution, SubmitError, Tx, Unknown
from pgmip._json import canonical
from pgmip._sql import entries
from pgmip.cli.commands import app as commands
from pgmip.cli.judge import Judgement, judge
from pgmip.decision import Rule
from pgmip.sweeper import EventName

pytestmark = pytest.mark.integration

DATABASES = ("store", "bank", "depot")


class Trio:
    """Three sites: databases of one cluster, which may be."""

    def __init__(self, clusters: Clusters) -> None:
        self._cluster = clusters["store"]
        self.conninfos = {site: self._cluster.conninfo(f"trio_{site}") for site in DATABASES}

    def sql(self, site: str, sql: str) -> list[tuple[Any, ...]]:
        return self._cluster.run_sql(sql, dbname=f"trio_{site}")

    def create(self) -> None:
        for site in DATABASES:
            self._cluster.create_database(f"trio_{site}")
            self._cluster.run_sql(f"ALTER DATABASE trio_{site} SET mip.site_name = {site}")
            self.sql(site, "CREATE EXTENSION pg_mip; CREATE TABLE done (xid text, xinst bigint) USING mip")

    def drop(self) -> None:
        for site in DATABASES:
            self._cluster.run_sql(f"DROP DATABASE trio_{site} WITH (FORCE)")

    def begin(self, xid: str, xinst: int, sites: tuple[str, ...]) -> str:
        return (
            f"BEGIN; SELECT mip.begin('{xid}', {xinst}, '{{{','.join(sites)}}}');"
            f"INSERT INTO done VALUES ('{xid}', {xinst});"
        )

    def prepare(self, xid: str, xinst: int, sites: tuple[str, ...], *at: str) -> None:
        request = canonical({"transaction": "_".join(sites), "request": None})
        for site in at:
            self.sql(site, f"{self.begin(xid, xinst, sites)} SELECT * FROM mip.prepare('{request}', '{xinst}')")

    def commit(self, xid: str, xinst: int, *at: str) -> None:
        for site in at:
            self.sql(site, f"SELECT mip.commit('{xid}', {xinst})")

    def in_doubt(self) -> list[tuple[Any, ...]]:
        return [(site, *row) for site in DATABASES for row in self.sql(site, "SELECT xid, xinst FROM mip.in_doubt")]

    def committed(self, xid: str) -> dict[tuple[str, ...], set[str]]:
        """For each site set of which an instance is committed, where it is."""
        found: dict[tuple[str, ...], set[str]] = {}
        for site in DATABASES:
            for (sites,) in self.sql(site, f"SELECT sites FROM mip.instances('{xid}') WHERE state = 'committed'"):
                found.setdefault(tuple(sites), set()).add(site)
        return found

    def assert_over(self, xid: str) -> None:
        """Nothing is in doubt, and what has won has done so at all of its sites, and no other one at one of these."""
        assert self.in_doubt() == []
        committed = self.committed(xid)
        for sites, at in committed.items():
            assert at == set(sites)
        assert sum(map(len, committed)) == len(set().union(*committed, ()))


@pytest.fixture(scope="module")
def databases(clusters: Clusters) -> Iterator[Trio]:
    trio = Trio(clusters)
    trio.create()
    yield trio
    trio.drop()


@pytest.fixture
def trio(databases: Trio) -> Iterator[Trio]:
    yield databases
    for site, xid, xinst in databases.in_doubt():  # what a failed test has left
        databases.sql(site, f"SELECT mip.rollback('{xid}', {xinst})")


@pytest.fixture
async def app(trio: Trio) -> AsyncIterator[App]:
    async with App(trio.conninfos) as app:
        yield app


S, B, D = ("store",), ("bank",), ("depot",)
SB, BD, DS, ALL = ("bank", "store"), ("bank", "depot"), ("depot", "store"), ("bank", "depot", "store")

# What is prepared where, what of it is committed where, and who has to win, where that is known.
Left = tuple[list[tuple[tuple[str, ...], tuple[str, ...]]], dict[int, tuple[str, ...]], set[tuple[str, ...]] | None]
LEFT: dict[str, Left] = {
    "one is committed": ([(SB, S), (BD, BD)], {2: BD}, {BD}),
    "one is committed at the site that is not shared": ([(SB, S), (BD, BD)], {2: D}, {BD}),
    "one is committed at the site that is shared": ([(SB, S), (BD, BD)], {2: B}, {BD}),
    "one is complete": ([(SB, S), (BD, BD)], {}, {BD}),
    "one is within the other, and complete": ([(ALL, D), (SB, SB)], {}, {SB}),
    "one is within the other, and committed": ([(ALL, D), (SB, SB)], {2: S}, {SB}),
    "one has one site": ([(ALL, BD), (S, S)], {2: S}, {S}),
    "the larger one is complete": ([(ALL, ALL)], {}, {ALL}),
    "one has room": ([(SB, S), (BD, B)], {}, None),
    "each is in the way of the other": ([(SB, S), (ALL, B)], {}, None),
    "in a circle": ([(SB, S), (BD, B), (DS, D)], {}, None),
    "they share nothing": ([(SB, S), (D, D)], {}, {SB, D}),
    "one wins, and one shares nothing with it": ([(SB, SB), (D, D)], {1: S}, {SB, D}),
    "two win, and one loses to both": ([(S, S), (D, D), (ALL, B)], {1: S, 2: D}, {S, D}),
}


def leave(trio: Trio, xid: str, name: str) -> None:
    prepared, committed, _ = LEFT[name]
    for number, (sites, at) in enumerate(prepared, 1):
        trio.prepare(xid, number, sites, *at)
    for number, at in committed.items():
        trio.commit(xid, number, *at)


TRIED = [(name, by) for name in LEFT for by in ("settle", "resolve")] + [
    (name, by)
    for name in ("one is committed", "each is in the way of the other", "they share nothing")
    for by in ("sweep", "pgmip resolve", "one of them")
]


@pytest.mark.parametrize(("name", "by"), TRIED)
async def test_all_of_it_ends(trio: Trio, app: App, name: str, by: str) -> None:
    xid = f"{name}, by {by}"
    leave(trio, xid, name)
    sets = list(dict.fromkeys(sites for sites, _ in LEFT[name][0]))
    for sites in sets if by == "settle" else ():
        _register(app, sites)
    if by in ("settle", "resolve"):
        disjoint = len(LEFT[name][2] or ()) > 1
        with pytest.raises(Unknown, match="several requests") if disjoint else contextlib.nullcontext():
            resolution = await getattr(app, by)(xid)
            assert (resolution is not None) == (len(trio.committed(xid)) == 1)
    elif by == "sweep":
        events = await eager(app, cancel_unknown_after=0).sweep()
        assert len(trio.committed(xid)) > 1 or not [event for event in events if event.name is EventName.FAILED]
    elif by == "pgmip resolve":
        words = ["resolve", xid, "--cancel", "--yes"]
        options = [f"--site={site}={conninfo}" for site, conninfo in trio.conninfos.items()]
        result = await asyncio.to_thread(CliRunner().invoke, commands, [*words, *options])
        assert result.exit_code == int(len(trio.committed(xid)) > 1), result.output
    else:
        for sites in sets:
            with contextlib.suppress(SubmitError, ValueError):  # as where another one has won
                await app.settle(xid, sites=sites)
    trio.assert_over(xid)
    assert LEFT[name][2] in (None, set(trio.committed(xid)))


def _register(app: App, sites: tuple[str, ...]) -> None:
    @app.transaction(sites=sites, name="_".join(sites))
    async def handler(tx: Tx, request: Any) -> Any:
        for site in sites:
            await tx[site].execute("INSERT INTO done VALUES (%s, %s)", (tx.xid, tx.xinst))
        return tx.xinst


@pytest.mark.parametrize("name", LEFT)
async def test_each_caller_is_told_of_his_own_request(trio: Trio, app: App, name: str) -> None:
    xid = f"told, {name}"
    leave(trio, xid, name)
    sets = list(dict.fromkeys(sites for sites, _ in LEFT[name][0]))
    for sites in sets:
        _register(app, sites)
    for rest in (True, False):
        for sites in sets:
            try:
                await app.submit("_".join(sites), None, xid=xid)
            except KeyReused:
                assert sites not in trio.committed(xid)
            except Unknown:
                assert rest, "nothing is in doubt"
            else:
                assert trio.committed(xid)[sites] == set(sites)
        if rest:
            await eager(app).sweep()
            trio.assert_over(xid)
    won = set(trio.committed(xid))
    assert LEFT[name][2] in (None, won)
    for sites in sets:
        for call in (app.settle, app.resolve, app.acknowledge):
            try:
                told = await call(xid, sites=sites)
            except (KeyReused, ValueError):
                assert sites not in won
            else:
                assert sites in won
                assert told is None or told == Resolution(False, told.result)


async def test_acknowledge_what_has_won(trio: Trio, app: App) -> None:
    """At all of its sites, and nowhere else; what has lost still ends."""
    leave(trio, "acknowledged", "one is committed")
    with pytest.raises(ValueError, match="is over the sites"):
        await app.acknowledge("acknowledged", sites=B)
    with pytest.raises(KeyReused):
        await app.acknowledge("acknowledged", sites=SB)
    await app.acknowledge("acknowledged")
    seen = {site: trio.sql(site, "SELECT acknowledged FROM mip.instances('acknowledged')") for site in BD}
    assert seen == {"bank": [(True,)], "depot": [(True,)]}
    await eager(app).sweep()
    trio.assert_over("acknowledged")


async def test_acknowledge_names_one(trio: Trio, app: App) -> None:
    leave(trio, "two won", "two win, and one loses to both")
    with pytest.raises(ValueError, match="name the sites of one"):
        await app.acknowledge("two won")
    for sites in (S, D):
        await app.acknowledge("two won", sites=sites)
    assert [trio.sql(site, "SELECT acknowledged FROM mip.instances('two won') WHERE state = 'committed'")
            for site in ("store", "depot")] == [[(True,)]] * 2  # fmt: skip
    assert await app.settle("two won") is None
    trio.assert_over("two won")


async def test_one_that_is_still_being_worked_on(trio: Trio, app: App) -> None:
    """What it is in the way of gives way, and a retransmission of that runs, or is told that the other one has won."""
    _register(app, SB)
    trio.prepare("worked on", 1, SB, "store")
    async with await psycopg.AsyncConnection.connect(trio.conninfos["bank"], autocommit=True) as other:
        await other.execute(trio.begin("worked on", 2, BD).encode())
        with pytest.raises(Unknown):
            await app.settle("worked on")
        assert trio.in_doubt() == []
        with pytest.raises(Unknown):
            await app.submit("bank_store", None, xid="worked on")
        await other.execute("ROLLBACK")
    await app.submit("bank_store", None, xid="worked on")
    trio.assert_over("worked on")


async def test_sites_that_the_app_does_not_know(trio: Trio) -> None:
    """It ends what it knows; and says so where there is more."""
    known = {site: trio.conninfos[site] for site in SB}
    async with App(known) as app:
        leave(trio, "partly known", "one is committed")
        await app.settle("partly known")
        trio.assert_over("partly known")
        leave(trio, "partly known too", "one has room")
        with pytest.raises(ValueError, match="depot"):
            await app.settle("partly known too")
        assert trio.in_doubt() == [("bank", "partly known too", 2)]


def judged(trio: Trio, xid: str, *but: str) -> Judgement:
    """What people are told who read all sites, `but` these."""
    columns = "xinst, state::text, request, result, sites, acknowledged"
    return judge({
        site: entries(trio.sql(site, f"SELECT {columns} FROM mip.instances('{xid}')"))
        for site in DATABASES if site not in but
    })  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
async def test_what_people_are_told(trio: Trio, app: App, name: str) -> None:
    """A winner is said to have won from then on, by whatever sites; and an end is where nothing is left to be done."""
    xid = f"judged, {name}"
    leave(trio, xid, name)
    sets = {number: sites for number, (sites, _) in enumerate(LEFT[name][0], 1)}
    before = {but: judged(trio, xid, *but) for but in [(), *((site,) for site in DATABASES)]}
    complete = {sites for sites, at in LEFT[name][0] if set(at) == set(sites)}
    undecided = [sites for sites in sets.values() if not any({*sites} & {*winning} for winning in complete)]
    assert not before[()].is_finished
    assert (before[()].explanation.winner is None) == (len(complete) != 1)
    assert (before[()].explanation.rule is Rule.UNDECIDED) == bool(undecided)
    with contextlib.suppress(Unknown):
        await app.resolve(xid)
    trio.assert_over(xid)
    won = trio.committed(xid)
    after = {but: judged(trio, xid, *but) for but in before}
    assert (after[()].is_finished, after[()].explanation.rule) == (True, Rule.COMMITTED)
    for judgement in (*before.values(), *after.values()):
        winner = judgement.explanation.winner
        if winner is not None and winner.xinst in sets:
            assert sets[winner.xinst] in won
    assert (after[()].explanation.winner is None) == (len(won) > 1)
    for (site,) in [but for but in after if but]:
        if any(site in sites and len(sites) > 1 for sites in won):  # so that another site knows of it
            assert not after[site,].is_finished, "nobody has asked there"


# -- a transaction whose sites have changed, without a new name ------------------------------------------------------

SetOf = Callable[[tuple[str, ...]], App]


@pytest.fixture
async def deployed(trio: Trio) -> AsyncIterator[SetOf]:
    """Servers of which each has the transactions `book` and `decline` over sites of its own, and knows no others."""
    async with contextlib.AsyncExitStack() as stack:

        def deploy(sites: tuple[str, ...]) -> App:
            app = App({site: trio.conninfos[site] for site in sites})
            stack.push_async_callback(app.close)

            @app.transaction(sites=sites)
            async def book(tx: Tx, request: Any) -> Any:
                for site in sites:
                    await tx[site].execute("INSERT INTO done VALUES (%s, %s)", (tx.xid, tx.xinst))
                return {"xinst": tx.xinst}

            @app.transaction(sites=sites)
            async def decline(tx: Tx, request: Any) -> Any:
                raise Refuse({"of": tx.xid})

            return app

        yield deploy


CHANGES = [(SB, ALL), (ALL, SB), (SB, S), (S, SB), (SB, BD)]
"""The sites by which a request was decided, and those of the server that is asked again."""


def done(trio: Trio, xid: str) -> dict[str, list[tuple[Any, ...]]]:
    return {site: trio.sql(site, f"SELECT xinst FROM done WHERE xid = '{xid}'") for site in DATABASES}


@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_the_same_request_over_other_sites(
    trio: Trio, deployed: SetOf, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """It has taken effect; who is told that the key is another request's would pay a second time."""
    old, new, xid = deployed(before), deployed(after), f"changed from {before} to {after}".replace("'", "")
    result = await old.submit("book", 1, xid=xid)
    was = done(trio, xid)
    for _ in range(2):
        if set(before) <= set(after):
            assert await new.submit("book", 1, xid=xid) == result
        else:
            with pytest.raises(Decided) as caught:
                await new.submit("book", 1, xid=xid)
            assert (caught.value.result, set(caught.value.unfinished)) == (result, set(before) - set(after))
    for name, request in [("book", 2), ("decline", 1)]:
        with pytest.raises(KeyReused):
            await new.submit(name, request, xid=xid)
    await old.acknowledge(xid)
    with pytest.raises(Expired):
        await new.submit("book", 1, xid=xid)
    assert done(trio, xid) == was
    trio.assert_over(xid)


@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_the_same_refusal_over_other_sites(
    trio: Trio, deployed: SetOf, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    old, new, xid = deployed(before), deployed(after), f"refused from {before} to {after}".replace("'", "")
    for app in (old, new):
        with pytest.raises(Refused) as caught:
            await app.submit("decline", 1, xid=xid)
        assert caught.value.result == {"of": xid}
    trio.assert_over(xid)


@pytest.mark.parametrize("after", [ALL, DS])
async def test_the_same_request_half_told_over_other_sites(
    trio: Trio, deployed: SetOf, after: tuple[str, ...]
) -> None:
    """What can be told of the winner is; and what was prepared over the new sites meanwhile goes."""
    xid, new = f"half told, {after}".replace("'", ""), deployed(after)
    request = canonical({"transaction": "book", "request": 1})
    for site in SB:
        trio.sql(site, f"{trio.begin(xid, 1, SB)} SELECT * FROM mip.prepare('{request}', '{{\"xinst\":1}}')")
    with pytest.raises(Unknown):
        await new.submit("book", 1, xid=xid)
    trio.commit(xid, 1, "store")
    if "depot" in after:
        trio.prepare(xid, 2, after, "depot")
    with contextlib.nullcontext() if after == ALL else pytest.raises(Decided, match="bank"):
        assert await new.submit("book", 1, xid=xid) == {"xinst": 1}
    assert trio.in_doubt() == ([] if after == ALL else [("bank", xid, 1)])
    trio.commit(xid, 1, "bank")
    trio.assert_over(xid)


async def test_the_same_request_cancelled_over_other_sites(trio: Trio, deployed: SetOf) -> None:
    xid, old, new = "cancelled, and changed", deployed(SB), deployed(ALL)
    request = canonical({"transaction": "book", "request": 1})
    trio.sql("store", f"{trio.begin(xid, 1, SB)} SELECT * FROM mip.prepare('{request}', '1')")
    assert await old.resolve(xid) == Resolution(True, None)
    with pytest.raises(Cancelled):
        await new.submit("book", 1, xid=xid)
    trio.assert_over(xid)
