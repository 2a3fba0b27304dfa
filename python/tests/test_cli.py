"""The command line against two real sites: what it shows, what it does, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shop import BUY, Shop, kill_server_at, make_app
from test_sweeper import in_doubt, prepare_at
from typer.testing import CliRunner

from pgmip import Cancelled, _sql
from pgmip._sql import PUSH_AFTER
from pgmip.cli import demo as demo_module
from pgmip.cli import survey
from pgmip.cli.commands import app as commands
from pgmip.cli.status import verdict
from pgmip.cli.survey import RequestInDoubt, Survey
from pgmip.testing import Cluster
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

OK, PROBLEMS, USAGE, UNREACHABLE, UNKNOWN_XID = range(5)
NOWHERE = "host=127.0.0.1 port=1 password=s3cret"
STRANGER = "stranger"


class Cli:
    """Runs commands with the sites of the shop, and others."""

    def __init__(self, conninfos: dict[str, str]) -> None:
        self.conninfos = conninfos

    def __call__(self, *words: str, code: int | None = None, **sites: str) -> Any:
        """The result of a command. Neither a traceback nor a password is ever shown."""
        options = [f"--site={name}={conninfo}" for name, conninfo in {**self.conninfos, **sites}.items() if conninfo]
        result = CliRunner().invoke(commands, [*words, *options])
        assert isinstance(result.exception, SystemExit | None), result.exception
        assert "Traceback" not in result.output
        assert "s3cret" not in result.output
        assert code in (None, result.exit_code), result.output
        return result

    def json(self, *words: str, code: int = OK, **sites: str) -> Any:
        result = self(*words, "--json", code=code, **sites)
        assert result.stderr == ""
        return json.loads(result.stdout)


@pytest.fixture
def cli(shop: Shop) -> Cli:
    return Cli(shop.conninfos())


@pytest.fixture
def stranger(shop: Shop) -> Iterator[dict[str, str]]:
    """How an ordinary role without any rights reaches the sites."""
    for site in shop.clusters:
        shop.sql(site, f"CREATE ROLE {STRANGER} LOGIN")
    yield {site: cluster.conninfo(user=STRANGER) for site, cluster in shop.clusters.items()}
    for site in shop.clusters:
        shop.sql(site, f"DROP OWNED BY {STRANGER}; DROP ROLE {STRANGER}")


@contextmanager
def waiting(shop: Shop, site: str, sql: str) -> Iterator[int]:
    """A session that runs this, and waits for a lock; its pid."""

    def execute() -> None:
        with suppress(psycopg.errors.QueryCanceled):
            conn.execute(sql.encode())

    with psycopg.connect(shop.clusters[site].conninfo(), autocommit=True) as conn:
        thread = threading.Thread(target=execute)
        thread.start()
        for _ in range(500):
            if shop.sql(site, f"SELECT FROM pg_locks WHERE pid = {conn.info.backend_pid} AND NOT granted"):
                break
            time.sleep(0.02)
        else:
            raise AssertionError("does not wait")
        try:
            yield conn.info.backend_pid
        finally:
            shop.sql(site, f"SELECT pg_cancel_backend({conn.info.backend_pid})")
            thread.join(60)
            conn.rollback()  # an instance cannot be ended otherwise


@contextmanager
def pushing(shop: Shop, after: str) -> Iterator[None]:
    """With another `mip.push_after` at all sites."""

    def switch(sql: str) -> None:
        for site in shop.clusters:
            before = shop.sql(site, "SHOW mip.push_after")
            shop.sql(site, sql)
            shop.sql(site, "SELECT pg_reload_conf()")
            for _ in range(500):
                if shop.sql(site, "SHOW mip.push_after") != before:
                    break
                time.sleep(0.01)

    switch(f"ALTER SYSTEM SET mip.push_after = '{after}'")
    try:
        yield
    finally:
        switch("ALTER SYSTEM RESET mip.push_after")


def prepare_and_lock(shop: Shop, xid: str) -> None:
    shop.sql(
        "store",
        f"BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); UPDATE item SET stock = stock WHERE i_id = 1;"
        "SELECT * FROM mip.prepare('{}', '{}')",
    )


# -- status and top ----------------------------------------------------------------------------------------------


def test_status_of_nothing(cli: Cli) -> None:
    assert "Nothing is in doubt" in cli("status", code=OK).stdout
    document = cli.json("status")
    assert (document["command"], document["exit_code"], document["in_doubt"]) == ("status", 0, 0)
    assert list(document["sites"]) == ["store", "bank"]
    assert document["sites"]["bank"]["error"] is None
    assert document["families"] == document["waits"] == []


def test_status_shows_who_waits_for_what(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_and_lock(shop, xid)
    update = "UPDATE item SET stock = stock WHERE i_id = 1"
    with waiting(shop, "store", update) as first, waiting(shop, "store", update) as second:
        document = cli.json("status")
        text = cli("status").stdout
        assert cli("resolve", xid, "--cancel", "--yes").exit_code == OK
    (family,) = document["families"]
    assert (family["xid"], family["sites"], family["rule"]) == (xid, ["bank", "store"], "undecided")
    assert family["instances"] == [{"xinst": 1, "states": {"store": "prepared"}}]
    assert family["blocks"] == [{"site": "store", "pid": first}]
    waits = {wait["pid"]: wait["blocked_by"] for wait in document["waits"]}
    assert waits[first]["instances"] == [{"xid": xid, "xinst": 1}]
    assert waits[second]["pids"] == [first]
    assert "missing at bank" in text
    assert f"request {xid} (instance 1)" in text


def test_status_knows_who_holds_a_table(cli: Cli, shop: Shop) -> None:
    """Of prepared transactions PostgreSQL does not say which one is in the way; also after a restart."""
    xid = new_xid()
    prepare_and_lock(shop, xid)
    for restarted in (False, True):
        if restarted:
            shop.clusters["store"].restart()
        with waiting(shop, "store", "BEGIN; LOCK TABLE item") as pid:
            (wait,) = cli.json("status")["waits"]
            assert (wait["pid"], wait["relation"]) == (pid, "item")
            assert wait["blocked_by"]["instances"] == [{"xid": xid, "xinst": 1}]
    assert cli("resolve", xid, "--cancel", "--yes").exit_code == OK


def test_status_shows_instances_that_wait(cli: Cli, shop: Shop) -> None:
    """For another request's, and for a prepared transaction that is none."""
    holder, waiter = new_xid(), new_xid()
    prepare_and_lock(shop, holder)
    shop.sql("store", "BEGIN; UPDATE item SET stock = stock WHERE i_id = 2; PREPARE TRANSACTION 'other'")
    try:
        update = f"BEGIN; SELECT mip.begin('{waiter}', 7); UPDATE item SET stock = stock WHERE i_id = "
        with waiting(shop, "store", f"{update} 1") as pid:
            (wait,) = cli.json("status")["waits"]
            assert wait["instance"] == {"xid": waiter, "xinst": 7}
            assert f"{pid} (request {waiter})" in cli("status").stdout
        with waiting(shop, "store", f"{update} 2"):
            (wait,) = cli.json("status")["waits"]
            assert wait["blocked_by"] == {"pids": [], "instances": [], "prepared": ["other"]}
            assert "prepared transaction other" in cli("status").stdout
    finally:
        shop.sql("store", "ROLLBACK PREPARED 'other'")


def test_a_decided_request_is_said_to_be_decided(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store", "bank")
    (family,) = cli.json("status")["families"]
    assert (family["winner"], family["rule"]) == (1, "complete")


def test_status_counts_all_and_shows_the_oldest(cli: Cli, shop: Shop) -> None:
    xids = [new_xid() for _ in range(5)]
    for xid in xids:
        prepare_at(shop, xid, "store")
    document = cli.json("status", "--limit", "2")
    assert document["in_doubt"] == 5
    assert [family["xid"] for family in document["families"]] == xids[:2]
    assert "the oldest 2" in cli("status", "--limit", "2").stdout


def test_what_is_older_than_the_sites_say_is_a_problem(cli: Cli, shop: Shop) -> None:
    prepare_at(shop, new_xid(), "store")
    assert cli.json("status")["push_after"] == 10
    with pushing(shop, "1ms"):
        document = cli.json("status", code=PROBLEMS)
        assert document["push_after"] == 0.001
        assert "In doubt" in cli("status", code=PROBLEMS).stdout
        assert findings(cli.json("doctor", code=PROBLEMS))["in doubt"][0] == "warning"
    with pushing(shop, "0"):
        assert findings(cli.json("doctor", code=PROBLEMS), "bank")["mip.push_after"][0] == "warning"


def test_top_counts(cli: Cli, shop: Shop) -> None:
    """Rates are of what happened between two looks."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            xid = new_xid()
            shop.sql("store", f"BEGIN; SELECT mip.begin('{xid}', 1); SELECT * FROM mip.commit_one_phase(NULL, NULL)")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        text = cli("top", "--count", "2", "--interval", "1", code=OK).stdout
        looks = cli("top", "--count", "2", "--interval", "1", "--json").stdout.splitlines()
    finally:
        done.set()
        thread.join()
    titles, store, bank = (line.split() for line in text.splitlines()[-3:])
    assert titles[:4] == ["per", "second", "begun", "siblings"]
    assert (store[0], bank[0]) == ("store", "bank")
    assert float(store[1]) > 0
    assert float(bank[1]) == 0
    before, after = (json.loads(look)["sites"]["store"]["counters"]["committed_in_one_phase"] for look in looks)
    assert after > before


def test_what_is_old_is_a_problem() -> None:
    def of(*ages: float) -> Survey:
        return Survey({}, [RequestInDoubt("x", "o", ("a",), age) for age in ages], len(ages))

    assert verdict(of()) == verdict(of(PUSH_AFTER - 1)) == OK
    assert verdict(of(PUSH_AFTER + 1, 0)) == PROBLEMS


def test_a_site_that_cannot_be_asked(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    document = cli.json("status", code=UNREACHABLE, bank=NOWHERE)
    assert document["sites"]["bank"]["error"]["kind"] == "unreachable"
    assert document["sites"]["store"]["in_doubt"] == 1
    assert document["families"][0]["rule"] == "unread"
    text = cli("status", code=UNREACHABLE, bank=NOWHERE).stdout
    assert "unreachable" in text
    assert "could not be read" in text


def test_a_site_that_does_not_answer(cli: Cli, shop: Shop) -> None:
    """It accepts connections, and then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"host=127.0.0.1 port={silent.getsockname()[1]}"
        document = cli.json("status", "--timeout", "0.3", code=UNREACHABLE, bank=nowhere)
    assert "0.3 s" in document["sites"]["bank"]["error"]["message"]


def test_a_site_that_answers_too_late(cli: Cli, shop: Shop) -> None:
    """It is not said to have closed the connection: it has not."""
    with psycopg.connect(shop.conninfos()["bank"]) as conn:
        conn.execute("LOCK TABLE pg_extension")
        document = cli.json("status", "--timeout", "0.3", code=UNREACHABLE)
    assert document["sites"]["bank"]["error"]["message"] == "no answer within 0.3 s"


def test_no_look_is_compiled(shop: Shop) -> None:
    """By the JIT: it would take seconds, for a few rows."""
    for look in (_sql.DOUBTS, _sql.WAITS, _sql.COUNTERS, _sql.REPLICATION, _sql.REPLICA_SILENCE):
        (((plan,),),) = shop.sql("bank", f"EXPLAIN (FORMAT json) {look.decode()}")
        assert plan["Plan"]["Total Cost"] < 0.2 * float(shop.sql("bank", "SHOW jit_above_cost")[0][0])


def test_a_database_without_the_extension(cli: Cli, shop: Shop) -> None:
    shop.clusters["bank"].create_database("bare")
    try:
        bare = shop.clusters["bank"].conninfo("bare")
        for words in (["status"], ["show", "x"], ["resolve", "x"]):
            result = cli(*words, code=UNREACHABLE, bank=bare)
            assert "mip" in result.output
            assert "CREATE EXTENSION pg_mip" in result.output
    finally:
        shop.sql("bank", "DROP DATABASE bare")


def test_other_roles_requests_are_counted_only(cli: Cli, shop: Shop, stranger: dict[str, str]) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    document = cli.json("status", **stranger)
    assert document["families"] == []
    assert document["sites"]["store"]["hidden"] == 1
    shown = cli("status", **stranger).stdout
    assert "belong to roles" in shown
    assert "Nothing is in doubt" not in shown
    swept = cli("sweep", "--once", "--older-than", "0", **stranger).stdout
    assert "1 in doubt" in swept
    assert "nothing is in doubt" not in swept
    assert xid not in cli("status", **stranger).stdout
    for command in (["show"], ["resolve"], ["resolve", "--cancel", "--yes"]):
        result = cli(*command, xid, code=UNREACHABLE, **stranger)
        assert "another role" in result.stderr
    assert in_doubt(shop) == [1, 0]


def test_a_role_that_is_gone_hides_nothing(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    shop.sql("store", "CREATE ROLE leaves LOGIN SUPERUSER")
    try:
        with psycopg.connect(shop.clusters["store"].conninfo(user="leaves"), autocommit=True) as conn:
            conn.execute("BEGIN")
            conn.execute(f"SELECT mip.begin('{xid}', 1, '{{bank,store}}')".encode())
            conn.execute("SELECT mip.prepare('request', 'result')")
    finally:
        shop.sql("store", "DROP ROLE leaves")
    document = cli.json("status")
    assert [family["xid"] for family in document["families"]] == [xid]
    assert document["sites"]["store"]["hidden"] == 0


def test_what_is_prepared_meanwhile_is_not_hidden(cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of, late = survey.rows_of, iter([new_xid()])

    async def rows(conn: Any, sql: bytes) -> list[dict[str, Any]]:
        if sql == survey._PREPARED:
            for xid in late:
                await asyncio.to_thread(prepare_at, shop, xid, "store", "bank")
        return await rows_of(conn, sql)

    monkeypatch.setattr(survey, "rows_of", rows)
    document = cli.json("status")
    assert in_doubt(shop) == [1, 1]
    assert [site["hidden"] for site in document["sites"].values()] == [0, 0]


def test_another_roles_request_hides_no_other(cli: Cli, shop: Shop, stranger: dict[str, str]) -> None:
    """At one site somebody else has taken the name of our request."""
    taken, ours = new_xid(), new_xid()
    with psycopg.connect(stranger["store"], autocommit=True) as conn:
        for xid in (taken, ours):
            conn.execute("BEGIN")
            conn.execute(f"SELECT mip.begin('{xid}', 1, '{{bank,store}}')".encode())
            conn.execute("SELECT * FROM mip.prepare('{}', '{}')")
    prepare_at(shop, taken, "bank")
    families = {family["xid"]: family for family in cli.json("status", **stranger)["families"]}
    for xid in (taken, ours):
        shop.sql("store", f"SELECT mip.rollback('{xid}', 1)")
        shop.sql("store", f"SELECT mip.forget('{xid}')")
    assert families[taken]["rule"] == "unread"
    assert families[ours]["rule"] == "undecided"


def test_a_database_without_an_encoding(cli: Cli, shop: Shop) -> None:
    bank = shop.clusters["bank"]
    bank.run_sql("CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        bank.run_sql("CREATE EXTENSION pg_mip", dbname="bytes")
        bytes_only = bank.conninfo("bytes")
        assert "Nothing is in doubt" in cli("status", code=OK, bank=bytes_only).stdout
        cli("doctor", code=PROBLEMS, bank=bytes_only)
        cli("bench", "--seconds", "0.1", code=OK, bank=bytes_only)
        cli("show", "x", code=UNKNOWN_XID, bank=bytes_only)
    finally:
        bank.run_sql("DROP DATABASE bytes")


def test_names_cannot_write_to_the_terminal(cli: Cli, shop: Shop) -> None:
    xid = "\x1b[2J[red]"
    prepare_at(shop, xid, "store")
    for words in (["status"], ["show", xid], ["resolve", xid, "--cancel", "--yes"]):
        output = cli(*words).output
        assert "\x1b" not in output
        assert "\\x1b[2J[red]" in output


def test_top_looks_again_and_again(cli: Cli, shop: Shop) -> None:
    lines = cli("top", "--count", "3", "--interval", "0.1", "--json", code=OK).stdout.splitlines()
    assert [json.loads(line)["command"] for line in lines] == ["top"] * 3
    assert cli("top", "--count", "2", "--interval", "0.1", code=OK).stdout.count("Nothing is in doubt") == 2


# -- show --------------------------------------------------------------------------------------------------------


def test_show(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    document = cli.json("show", xid, code=PROBLEMS)
    assert (document["sites"], document["rule"], document["winner"]) == (["bank", "store"], "undecided", None)
    assert document["mipts"]["bank"] == []
    (entry,) = document["mipts"]["store"]
    assert (entry["xinst"], entry["state"], entry["result"]) == (1, "prepared", '"of 1"')
    assert json.loads(entry["request"])["transaction"] == "buy"
    prepare_at(shop, xid, "bank")
    assert cli.json("show", xid, code=PROBLEMS)["rule"] == "complete"
    text = cli("show", xid, code=PROBLEMS).stdout
    assert "prepared for" in text
    assert '"of 1"' in text
    shop.sql("bank", f"SELECT mip.commit('{xid}', 1)")
    assert cli.json("show", xid, code=PROBLEMS)["winner"] == 1
    assert "Still to be told: store" in cli("show", xid).stdout
    shop.sql("store", f"SELECT mip.commit('{xid}', 1)")
    assert cli.json("show", xid)["rule"] == "committed"
    for site in shop.clusters:
        shop.sql(site, f"SELECT mip.acknowledge('{xid}')")
    assert "acknowledged, and dropped" in cli("show", xid, code=OK).stdout
    assert cli.json("show", xid)["mipts"]["bank"][0]["acknowledged"]


def test_several_requests(cli: Cli, shop: Shop) -> None:
    """One has won at the store, over that alone, and another one is prepared at the bank: that is not the winner's."""
    xid = new_xid()
    begin = "BEGIN; SELECT mip.begin('{}', {}, '{{{}}}'); "
    shop.sql("bank", begin.format(xid, 1, "bank,store") + "SELECT * FROM mip.prepare('lost', '1')")
    shop.sql("store", begin.format(xid, 2, "depot,store") + "SELECT * FROM mip.prepare('other', '2')")
    document = cli.json("show", xid, code=UNREACHABLE)
    assert (document["rule"], document["winner"]) == ("unread", None)
    assert "Over bank, store: No instance is prepared at every site: 1 is missing at store" in document["reason"]
    assert "Over depot, store: No instance was seen committed, and depot could not be read" in document["reason"]
    shop.sql("store", f"SELECT mip.rollback('{xid}', 2)")
    shop.sql("store", begin.format(xid, 3, "store") + "SELECT * FROM mip.commit_one_phase('won', '3')")
    document = cli.json("show", xid, code=PROBLEMS)
    assert (document["sites"], document["rule"], document["winner"]) == (["bank", "store"], "committed", 3)
    reason = "Over bank, store: Lost: another one has won at store. What is prepared is to be rolled back. Over store: "
    assert document["reason"].endswith(f"{reason}Instance 3 is committed at store: only a winner is ever committed.")
    assert "won" in cli("show", xid).stdout.split("request")[-1]
    (family,) = cli.json("status")["families"]
    assert (family["rule"], family["winner"], family["reason"]) == ("committed", 3, document["reason"])
    cli("resolve", xid, code=OK)
    assert cli.json("show", xid, code=OK)["winner"] == 3


def test_show_shortens(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    shop.sql(
        "store",
        f"BEGIN; SELECT mip.begin('{xid}', 1, '{{store}}'); SELECT * FROM mip.commit_one_phase(repeat('x', 5000), '1')",
    )
    assert "x" * 5000 not in cli("show", xid, code=OK).stdout
    assert "5000 characters; --full" in cli("show", xid).stdout
    assert "x" * 5000 in cli("show", xid, "--full").stdout
    assert cli.json("show", xid)["mipts"]["store"][0]["request"] == "x" * 5000


def test_show_of_what_nobody_knows(cli: Cli) -> None:
    assert "no site knows" in cli("show", "never", code=UNKNOWN_XID).stderr
    document = cli.json("show", "never", code=UNKNOWN_XID)
    assert document == {
        "command": "show",
        "error": {"message": "no site knows the request 'never'", "hint": None, "exit_code": UNKNOWN_XID},
    }
    assert "'bank' cannot be asked" in cli("show", "never", code=UNREACHABLE, bank=NOWHERE).stderr


def test_show_while_a_site_is_down(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store", "bank")
    document = cli.json("show", xid, code=UNREACHABLE, bank=NOWHERE)
    assert document["mipts"]["bank"] is None
    assert document["rule"] == "unread"
    assert "unreachable" in cli("show", xid, code=UNREACHABLE, bank=NOWHERE).stdout


# -- resolve -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_name", ["prepared-all", "committed-first-site"])
def test_resolve_completes_what_is_decided(cli: Cli, shop: Shop, step_name: str) -> None:
    """Without any app server, and without asking."""
    xid = new_xid()
    asyncio.run(kill_server_at(shop, step_name, xid))
    document = cli.json("resolve", xid)
    assert document["outcome"] == "committed"
    shop.assert_once(xid, document["result"])
    assert cli.json("resolve", xid) == document, "again is harmless"
    shop.assert_clean()


def test_resolve_cancels_only_if_told_to(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    asyncio.run(kill_server_at(shop, "prepared-first-site", xid))
    result = cli("resolve", xid, code=PROBLEMS)
    assert "missing at bank" in result.stderr
    assert "--cancel" in result.stderr
    result = cli("resolve", xid, "--cancel", code=PROBLEMS)
    assert "may be working on" in result.stderr, "it is young, and there is nobody to ask"
    assert "working on" in cli.json("resolve", xid, "--cancel", code=PROBLEMS)["error"]["message"]
    assert in_doubt(shop) == [1, 0]
    assert cli.json("resolve", xid, "--cancel", "--yes")["outcome"] == "cancelled"
    assert "the request is cancelled" in cli("show", xid, code=OK).stdout
    shop.assert_never(xid)
    shop.assert_clean()

    async def submit() -> None:
        async with make_app(shop.conninfos()) as app:
            with pytest.raises(Cancelled):
                await app.submit("buy", BUY, xid=xid)

    asyncio.run(submit())


def test_resolve_cancels_what_is_old_without_asking(cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")

    async def soon(*_: Any, **__: Any) -> float:
        return 0.0

    monkeypatch.setattr("pgmip.cli.resolve.push_after", soon)
    assert cli.json("resolve", xid, "--cancel")["outcome"] == "cancelled"


def test_cancel_does_not_cancel_what_is_decided(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store", "bank")
    document = cli.json("resolve", xid, "--cancel")
    assert (document["outcome"], document["result"]) == ("committed", "of 1")


def test_resolve_needs_all_sites(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store", "bank")
    result = cli("resolve", xid, "--cancel", "--yes", code=USAGE, bank="")
    assert "'bank'" in result.stderr
    result = cli("resolve", xid, "--cancel", "--yes", code=UNREACHABLE, bank=NOWHERE)
    assert "'bank' cannot be asked" in result.stderr
    assert in_doubt(shop) == [1, 1]


def test_resolve_tells_the_sites_that_are_there(cli: Cli, shop: Shop) -> None:
    """Decided is decided: a site that is down is told later."""
    xid = new_xid()
    prepare_at(shop, xid, "store", "bank")
    shop.sql("store", f"SELECT mip.commit('{xid}', 1)")
    result = cli("resolve", xid, code=UNREACHABLE, bank=NOWHERE)
    assert "not finished at bank" in result.stderr
    assert in_doubt(shop) == [0, 1]
    assert cli.json("resolve", xid)["outcome"] == "committed"
    assert in_doubt(shop) == [0, 0]


def test_resolve_does_not_say_that_what_is_cancelled_has_an_effect(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    for site in ("store", "bank"):
        shop.sql(site, f"BEGIN; SELECT mip.begin('{xid}', 1, '{{bank,store}}'); SELECT * FROM mip.prepare('q', NULL)")
    shop.sql("store", f"SELECT mip.commit('{xid}', 1)")
    result = cli("resolve", xid, code=UNREACHABLE, bank=NOWHERE)
    assert "cancelled, but not finished at bank" in result.stderr
    assert "has no effect, and never will" in " ".join(result.stderr.split())
    assert cli.json("resolve", xid)["outcome"] == "cancelled"
    assert in_doubt(shop) == [0, 0]


def test_resolve_of_what_nobody_knows(cli: Cli) -> None:
    cli("resolve", "never", code=UNKNOWN_XID)
    cli("resolve", "never", "--cancel", "--yes", code=UNREACHABLE, bank=NOWHERE)


def test_resolve_of_what_was_aborted(cli: Cli, shop: Shop) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    shop.sql("store", f"SELECT mip.rollback('{xid}', 1)")
    assert cli.json("resolve", xid)["outcome"] == "nothing"
    cli("resolve", xid, code=UNREACHABLE, bank=NOWHERE)  # who knows what is there


def test_resolve_beside_another_request_with_the_xid(cli: Cli, shop: Shop) -> None:
    """One over other sites, long ago: what it has left says nothing of the sites of this one."""
    xid = new_xid()
    shop.sql("store", f"SELECT mip.refuse('{xid}', 2, '{{depot,store}}')")
    prepare_at(shop, xid, "bank")
    assert cli.json("resolve", xid, "--cancel", "--yes")["outcome"] == "cancelled"


def test_resolve_of_what_has_just_begun(cli: Cli, shop: Shop) -> None:
    """Nothing is prepared yet; whoever is at it has lost."""
    xid = new_xid()
    with psycopg.connect(shop.clusters["store"].conninfo(), autocommit=True) as conn:
        conn.execute("BEGIN")
        conn.execute(f"SELECT mip.begin('{xid}', 1, '{{bank,store}}')".encode())
        cli("resolve", xid, code=PROBLEMS)
        cli("resolve", xid, "--cancel", code=PROBLEMS)
        assert cli.json("resolve", xid, "--cancel", "--yes")["outcome"] == "cancelled"
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT * FROM mip.prepare('', '')")
    assert cli.json("show", xid)["rule"] == "committed"


def test_keys_that_scripts_rely_on(cli: Cli, shop: Shop) -> None:
    """As docs/reference/cli.md has them."""

    def keys(document: Any) -> str:
        return " ".join(sorted(document))

    xid = new_xid()
    prepare_and_lock(shop, xid)
    with waiting(shop, "store", "UPDATE item SET stock = stock WHERE i_id = 1"):
        status = cli.json("status")
        show = cli.json("show", xid, code=PROBLEMS)
        resolve = cli.json("resolve", xid, "--cancel", "--yes")
    assert keys(status) == "command exit_code families in_doubt push_after sites waits"
    assert keys(status["sites"]["store"]) == (
        "counters database error extension foreign_prepared hidden in_doubt oldest replica role server standby"
    )
    assert keys(status["families"][0]) == "age blocks instances owner reason rule sites winner xid"
    assert keys(status["waits"][0]) == "age application blocked_by instance lock pid query relation role site"
    assert keys(status["waits"][0]["blocked_by"]) == "instances pids prepared"
    assert keys(show) == "command errors exit_code mipts owner reason rule sites winner xid"
    assert keys(show["mipts"]["store"][0]) == "acknowledged age request result sites state xinst"
    assert keys(resolve) == "command exit_code outcome result xid"
    doctor = cli.json("doctor", code=PROBLEMS)
    assert keys(doctor) == "command exit_code findings"
    assert keys(doctor["findings"][0]) == "check hint level message site"
    assert keys(cli.json("bench", "--seconds", "0.1")) == (
        "clients command failed failures p50_ms p99_ms per_second requests retries seconds sites"
    )
    failed = cli.json("show", "never", code=UNKNOWN_XID)
    assert keys(failed) == "command error"
    assert keys(failed["error"]) == "exit_code hint message"


# -- sweep -------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop_app(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`--app` for a module in the current folder."""
    (tmp_path / "its_app.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from shop import make_app\napp = make_app({shop.conninfos()!r})\nother = 5\n"
        "from pgmip.sync import App\nfrom test_sync import buy\n"
        f"twin = App({shop.conninfos()!r})\ntwin.transaction(sites=('store', 'bank'))(buy)\n"
    )
    (tmp_path / "broken_app.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "its_app:app"
    sys.modules.pop("its_app", None)


def events(result: Any) -> list[tuple[str, str | None]]:
    return [(event["event"], event["xid"]) for event in map(json.loads, result.stdout.splitlines())]


def test_sweep_once_with_an_app(cli: Cli, shop: Shop, shop_app: str) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    none = CliRunner().invoke(commands, ["sweep", "--app", shop_app, "--once"])
    looking, said = none.output.splitlines()
    assert none.exit_code == OK
    assert looking == "looking at store, bank"
    assert said.startswith("nothing to attend to; in doubt: 1 request, with an instance younger than 10 s")
    sys.modules.pop("its_app")
    words = ["sweep", "--app", shop_app, "--once", "--older-than", "0", "--json"]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == OK, result.output
    assert events(result) == [("committed", xid)]
    assert shop.effects(xid) != ([], [])


def test_sweep_once_with_a_sync_app(shop: Shop, shop_app: str) -> None:
    xid = new_xid()
    prepare_at(shop, xid, "store")
    words = ["sweep", "--app", "its_app:twin", "--once", "--older-than", "0", "--json"]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == OK, result.output
    assert events(result) == [("committed", xid)]
    assert shop.effects(xid) != ([], [])


def test_sweep_once_without_handlers(cli: Cli, shop: Shop) -> None:
    undecided, decided = new_xid(), new_xid()
    prepare_at(shop, undecided, "store")
    prepare_at(shop, decided, "store", "bank")
    result = cli("sweep", "--once", "--older-than", "0", "--json", code=PROBLEMS)
    assert sorted(events(result)) == sorted([("committed", decided), ("failed", undecided)])
    assert in_doubt(shop) == [1, 0]
    result = cli("sweep", "--once", "--older-than", "0", "--cancel-unknown", code=OK)
    assert f"request {undecided}" in result.stdout
    assert "cancelled" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 request attended to; nothing is in doubt"
    assert in_doubt(shop) == [0, 0]
    assert cli("sweep", "--once").stdout.splitlines()[1:] == ["nothing to attend to; nothing is in doubt"]
    assert cli("sweep", "--once", "--json").stdout == "", "a document per event"


def test_sweep_while_a_site_is_down(cli: Cli) -> None:
    said = cli("sweep", "--once", code=UNREACHABLE, bank=NOWHERE).stdout
    assert "lost" in said
    assert "not known of all sites" in said


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("its_app", "MODULE:ATTRIBUTE"),
        ("no_such_module:app", "cannot import"),
        ("broken_app:app", "ZeroDivisionError"),
        ("its_app:nothing", "no attribute"),
        ("its_app:other", "no pgmip.App"),
    ],
)
def test_apps_that_are_none(shop_app: str, name: str, what: str) -> None:
    result = CliRunner().invoke(commands, ["sweep", "--once", "--app", name])
    assert result.exit_code == USAGE
    assert what in result.stderr


# -- enable and disable ------------------------------------------------------------------------------------------


@pytest.fixture
def plain(shop: Shop) -> Iterator[Callable[[], list[str]]]:
    """Two tables at the store, and which of them have opted in."""
    shop.sql("store", 'CREATE TABLE plain (n int); CREATE TABLE "Odd name" (n int)')
    yield lambda: [
        name
        for (name,) in shop.sql(
            "store",
            "SELECT c.relname::text FROM pg_class c JOIN pg_am a ON a.oid = c.relam "
            "WHERE relname IN ('plain', 'Odd name') AND amname = 'mip' ORDER BY 1",
        )
    ]
    shop.sql("store", 'DROP TABLE plain, "Odd name"')


def test_enable_and_disable(cli: Cli, plain: Callable[[], list[str]]) -> None:
    assert "plain: enabled" in cli("enable", "--at", "store", "plain", code=OK).stdout
    document = cli.json("enable", "--at", "store", "plain", '"Odd name"')
    assert document == {
        "command": "enable",
        "site": "store",
        "tables": [{"table": "plain", "changed": False}, {"table": '"Odd name"', "changed": True}],
        "error": None,
    }
    assert plain() == ["Odd name", "plain"]
    assert "plain: disabled" in cli("disable", "--at", "store", "plain", code=OK).stdout
    assert plain() == ["Odd name"]


def test_tables_that_cannot_be_changed(
    cli: Cli, shop: Shop, plain: Callable[[], list[str]], stranger: dict[str, str]
) -> None:
    cli("enable", "plain", code=USAGE)  # at which site?
    cli("enable", "--at", "nowhere", "plain", code=USAGE)
    cli("enable", "--at", "bank", "plain", code=UNREACHABLE, bank=NOWHERE)
    assert "no table 'nothing'" in cli("enable", "--at", "store", "nothing", code=PROBLEMS).stderr
    assert "owner" in cli("enable", "--at", "store", "plain", code=PROBLEMS, **stranger).stderr
    document = cli.json("enable", "--at", "store", "plain", "nothing", '"Odd name"', code=PROBLEMS)
    assert [table["table"] for table in document["tables"]] == ["plain"], "those before stay changed"
    assert "nothing" in document["error"]["message"]
    assert plain() == ["plain"]
    with psycopg.connect(shop.clusters["store"].conninfo()) as conn:
        conn.execute("LOCK TABLE plain")
        result = cli("disable", "--at", "store", "plain", "--lock-timeout", "0.1", code=PROBLEMS)
    assert "still in use" in result.stderr
    assert plain() == ["plain"]


# -- bench -------------------------------------------------------------------------------------------------------


def leftovers(shop: Shop) -> list[Any]:
    sql = """
        SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'pgmip%'
        UNION ALL SELECT xid FROM mip.mipt WHERE xid LIKE 'pgmip%'
        UNION ALL SELECT gid FROM pg_prepared_xacts
    """
    return [row for site in shop.clusters for row in shop.sql(site, sql)]


def test_bench_measures_and_leaves_nothing(cli: Cli, shop: Shop) -> None:
    document = cli.json("bench", "--seconds", "0.5", "--clients", "2")
    assert document["requests"] > 0
    assert document["failed"] == 0
    assert document["p50_ms"] <= document["p99_ms"]
    assert leftovers(shop) == []
    assert "requests per second" in cli("bench", "--seconds", "0.1", code=OK).stdout
    one = cli.json("bench", "--seconds", "0.1", bank="")
    assert one["sites"] == ["store"]
    assert leftovers(shop) == []


def test_bench_refuses_politely(cli: Cli, shop: Shop, stranger: dict[str, str]) -> None:
    result = cli("bench", "--seconds", "0.1", code=PROBLEMS, **stranger)
    assert "GRANT CREATE ON DATABASE" in result.stderr
    cli("bench", "--seconds", "0.1", code=UNREACHABLE, bank=NOWHERE)
    assert leftovers(shop) == []


# -- demo --------------------------------------------------------------------------------------------------------


def test_demo() -> None:
    result = CliRunner().invoke(commands, ["demo", "--json"])
    assert result.exit_code == OK, result.output
    document = json.loads(result.stdout)
    assert document["exactly_once"]
    assert [(act["killed_at"], act["in_doubt"]) for act in document["acts"]] == [
        ("prepared-first-site", 1),
        ("prepared-all", 1),
    ]


def test_demo_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "extension_installed", lambda: False)
    result = CliRunner().invoke(commands, ["demo"])
    assert result.exit_code == PROBLEMS
    assert "make install" in result.stderr
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = CliRunner().invoke(commands, ["demo", "--json"])
    assert result.exit_code == PROBLEMS
    assert "root" in json.loads(result.stdout)["error"]["message"]


# -- doctor ------------------------------------------------------------------------------------------------------


def findings(document: Any, site: str | None = None) -> dict[str, tuple[str, str]]:
    return {it["check"]: (it["level"], it["message"]) for it in document["findings"] if it["site"] == site}


def test_doctor(cli: Cli, shop: Shop) -> None:
    document = cli.json("doctor", code=PROBLEMS)  # the clusters of tests do without fsync
    bad = [it for it in document["findings"] if it["level"] in ("warning", "error")]
    assert {it["check"] for it in bad} == {"fsync"}
    assert findings(document, "store")["mip.site_name"] == ("ok", "store")
    assert findings(document)["clocks"][0] == "ok"
    text = cli("doctor", code=PROBLEMS).stdout
    assert "set fsync = on" in text


def test_doctor_sees_what_is_wrong_between_sites(cli: Cli, shop: Shop) -> None:
    store = shop.clusters["store"].conninfo()
    document = cli.json("doctor", "--pool-size", "40", "--servers", "2", code=PROBLEMS, bank=store)
    assert "same database" in findings(document)["sites"][1]
    level, message = findings(document, "bank")["mip.site_name"]
    assert level == "error"
    assert "'store'" in message
    assert findings(document, "store")["max_prepared_transactions"] == (
        "warning",
        "is 64, but 80 requests can be in flight",
    )


def test_doctor_sees_tables_that_should_opt_in(cli: Cli, shop: Shop) -> None:
    shop.sql(
        "store",
        """
        CREATE TABLE part_of (i_id int REFERENCES item);
        CREATE TABLE log (what text); INSERT INTO log VALUES ('x');
        CREATE TABLE split (n int) PARTITION BY LIST (n);
        CREATE TABLE split1 PARTITION OF split FOR VALUES IN (1);
        CREATE TABLE split2 PARTITION OF split FOR VALUES IN (2);
        SELECT mip.enable('split1');
        """,
    )
    try:
        said = [it["message"] for it in cli.json("doctor", code=PROBLEMS)["findings"] if it["check"] == "tables"]
    finally:
        shop.sql("store", "DROP TABLE part_of, log, split")
    assert any(message.startswith("part_of has not opted in, but has a foreign key to item") for message in said)
    assert any(message.startswith("split2 has not opted in, but shares") for message in said)


def test_doctor_sees_indexes_that_are_not_used(cli: Cli, shop: Shop) -> None:
    shop.sql("store", "CREATE TABLE doubled (n int) USING mip; INSERT INTO doubled VALUES (1), (1)")
    try:
        with pytest.raises(psycopg.errors.UniqueViolation):
            shop.sql("store", "CREATE UNIQUE INDEX CONCURRENTLY doubled_n ON doubled (n)")
        level, message = findings(cli.json("doctor", code=PROBLEMS), "store")["indexes"]
    finally:
        shop.sql("store", "DROP TABLE doubled")
    assert (level, message) == ("warning", "doubled_n of doubled is not used")
    assert "indexes" not in findings(cli.json("doctor", code=PROBLEMS), "store")


def test_doctor_sees_time_limits(cli: Cli, shop: Shop) -> None:
    """Those of the connection string, too, as an app server has them."""
    limits = {"statement_timeout": "7s", "idle_in_transaction_session_timeout": "20s", "idle_session_timeout": "1h"}
    options = " ".join(f"-c{name}={value}" for name, value in limits.items())
    bank = f"{shop.clusters['bank'].conninfo()} options='{options}'"
    found = findings(cli.json("doctor", code=PROBLEMS, bank=bank), "bank")
    assert {name: found[name][0] for name in limits} == {
        "statement_timeout": "info",
        "idle_in_transaction_session_timeout": "warning",
        "idle_session_timeout": "info",
    }
    assert not findings(cli.json("doctor", code=PROBLEMS), "bank").keys() & limits.keys()
    found = findings(cli.json("doctor", "--deadline", "10", code=PROBLEMS, bank=bank), "bank")
    assert "idle_in_transaction_session_timeout" not in found, "it is longer than any attempt"


def test_doctor_sees_what_is_prepared(cli: Cli, shop: Shop) -> None:
    shop.sql("bank", "BEGIN; SELECT 1; PREPARE TRANSACTION 'somebody''s'")
    try:
        level, message = findings(cli.json("doctor", code=PROBLEMS), "bank")["prepared by others"]
        assert level == "info"
        assert "somebody's" in message
        assert cli.json("status")["sites"]["bank"]["foreign_prepared"] == 1
        assert "prepared transactions of others" in cli("status").stdout
    finally:
        shop.sql("bank", "ROLLBACK PREPARED 'somebody''s'")


def test_doctor_of_a_database_that_is_not_set_up() -> None:
    settings = {"fsync": True, "wal_level": "minimal", "max_wal_senders": 0, "synchronous_standby_names": ""}
    with Cluster("raw", preload=(), max_prepared_transactions=0, settings=settings) as raw:
        cli = Cli({"raw": raw.conninfo()})
        found = findings(cli.json("doctor", code=PROBLEMS), "raw")
        assert found["library"][0] == found["extension"][0] == found["max_prepared_transactions"][0] == "error"
        assert found["wal_level"][0] == "warning"
        assert found["tables"][0] == "warning"
        assert "launcher" not in found, "which would say the same once more"
        raw.run_sql("CREATE EXTENSION pg_mip")
        found = findings(cli.json("doctor", code=PROBLEMS), "raw")
        assert found["extension"][0] == "ok"
        # And the other commands do not stumble over it.
        result = cli("status", code=UNREACHABLE)
        assert "shared_preload_libraries" in result.stdout
        cli("show", "x", code=UNREACHABLE)
        cli("bench", "--seconds", "0.1", code=PROBLEMS)


def test_doctor_while_a_site_is_down(cli: Cli) -> None:
    document = cli.json("doctor", code=UNREACHABLE, bank=NOWHERE)
    assert findings(document, "bank")["connection"][0] == "error"
    assert findings(document, "store")["connection"][0] == "ok"


def test_doctor_as_an_ordinary_role(cli: Cli, stranger: dict[str, str]) -> None:
    document = cli.json("doctor", code=PROBLEMS, **stranger)
    assert findings(document, "store")["library"][0] == "ok"


def test_doctor_and_replication() -> None:
    """An asynchronous standby, a synchronous one, one that is not there; and the standby itself."""
    with Cluster("primary", settings={"mip.site_name": "a"}) as primary:
        primary.run_sql("CREATE EXTENSION pg_mip")
        cli = Cli({"a": primary.conninfo()})

        def replication() -> tuple[str, str]:
            return findings(cli.json("doctor", code=PROBLEMS), "a")["replication"]

        def becomes(level: str) -> str:
            for _ in range(500):
                found = replication()
                if found[0] == level:
                    return found[1]
                time.sleep(0.05)
            raise AssertionError(f"{found}, not {level}")

        assert replication()[0] == "info"
        with Cluster("follower", standby_of=primary) as standby:
            assert "none of them synchronous" in becomes("warning")
            primary.configure({"synchronous_standby_names": "follower"})
            assert becomes("ok") == "follower is sync"
            primary.configure({"synchronous_commit": "local"})
            assert "synchronous_commit = local waits for none" in becomes("warning")
            primary.configure({"synchronous_commit": "on"})
            becomes("ok")
            there = Cli({"a": standby.conninfo()})
            found = findings(there.json("doctor", code=PROBLEMS), "a")
            assert found["connection"][0] == "error"
            assert "standby" in found["connection"][1]
            there("status")  # whatever it can say
            standby.stop()
            assert "every prepare waits" in becomes("error")
            primary.configure({"synchronous_standby_names": ""})
