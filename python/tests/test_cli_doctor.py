"""What the doctor makes of facts, without sites."""

from __future__ import annotations

from typing import Any

import pytest

from pgmip.cli import doctor
from pgmip.cli.doctor import AppServers, Finding, Level, _between_sites, _Facts, _foreign, _of_site
from pgmip.cli.sites import Failure, Kind

ONE = {
    "major": 15, "release": 150004, "version": "15.4 (Debian)", "database": "d", "role": "r", "superuser": False,
    "standby": False, "pid": 1, "database_oid": 5, "extension": "0.1", "available": "0.1", "usage": True, "prepared": 0,
    "launcher": True, "opted_in": 1, "decoded_by": 0, "system": "s", "finished": 0,
}  # fmt: skip
EIGHTEEN = {"major": 18, "version": "18.6", "decoded_by": 1}
SETTINGS = {
    "max_prepared_transactions": "100", "max_connections": "200", "wal_level": "replica", "fsync": "on",
    "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "",
    "default_table_access_method": "heap", "mip.site_name": "a", "mip.push_after": "10000", "mip.retention": "60",
    "mip.retention_timeless": "0",
}  # fmt: skip
SERVERS = AppServers(16, deadline=30.0)
STANDBY = {"name": "s", "sync": "sync", "state": "streaming"}
TABLE = {"name": "t", "method": "mip", "unlogged": False, "writes": 0}


def facts(
    one: dict[str, Any] | None = None,
    settings: dict[str, str] | None = None,
    tables: list[dict[str, Any]] | None = None,
    skew: float = 0.0,
    **others: Any,
) -> _Facts:
    known: dict[str, Any] = {"standbys": [], "related": [], "unused": [], "uncertain": 0.001, "pooled": False, **others}
    return _Facts(
        one={**ONE, **(one or {})}, settings={**SETTINGS, **(settings or {})}, tables=tables or [TABLE], skew=skew,
        **known,
    )  # fmt: skip


def bad(found: Any) -> list[tuple[str, Level]]:
    return [(it.check, it.level) for it in found if it.level in (Level.WARNING, Level.ERROR)]


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: "0.1.3")


def test_all_is_well() -> None:
    assert bad(_of_site("a", facts(), SERVERS)) == []
    assert bad(_between_sites({"a": facts(), "b": facts({"system": "other"})})) == []


@pytest.mark.parametrize(
    ("given", "check", "level"),
    [
        ({"one": {"major": 16}}, "connection", Level.ERROR),
        ({"one": {"standby": True}}, "connection", Level.ERROR),
        ({"pooled": True}, "connection", Level.WARNING),
        ({"one": {"extension": None}}, "extension", Level.ERROR),
        ({"one": {"extension": "0.1", "available": "0.2"}}, "extension", Level.WARNING),
        ({"one": {"extension": "0.2", "available": "0.2"}}, "extension", Level.WARNING),
        ({"one": {"usage": False}}, "permissions", Level.ERROR),
        ({"one": {"launcher": False}}, "launcher", Level.ERROR),
        ({"one": {"finished": 7}}, "acknowledgement", Level.WARNING),
        ({"one": {"prepared": 90}}, "max_prepared_transactions", Level.WARNING),
        ({"one": {"prepared": 100}}, "max_prepared_transactions", Level.ERROR),
        ({"settings": {"max_prepared_transactions": "15"}}, "max_prepared_transactions", Level.WARNING),
        ({"settings": {"max_prepared_transactions": "0"}}, "max_prepared_transactions", Level.ERROR),
        ({"settings": {"max_connections": "15"}}, "max_connections", Level.WARNING),
        ({"settings": {"fsync": "off"}}, "fsync", Level.ERROR),
        ({"settings": {"full_page_writes": "off"}}, "full_page_writes", Level.ERROR),
        ({"settings": {"wal_level": "minimal"}}, "wal_level", Level.WARNING),
        ({"settings": {"mip.site_name": ""}}, "mip.site_name", Level.WARNING),
        ({"settings": {"mip.site_name": "b"}}, "mip.site_name", Level.ERROR),
        ({"settings": {"mip.push_after": "0"}}, "mip.push_after", Level.WARNING),
        ({"settings": {"synchronous_standby_names": "x"}}, "replication", Level.ERROR),
        (
            {"settings": {"statement_timeout": "5000", "synchronous_standby_names": "s"}, "standbys": [STANDBY]},
            "statement_timeout",
            Level.WARNING,
        ),
        (
            {"settings": {"idle_in_transaction_session_timeout": "29000"}},
            "idle_in_transaction_session_timeout",
            Level.WARNING,
        ),
        ({"settings": {"transaction_timeout": "29000"}}, "transaction_timeout", Level.WARNING),
        ({"one": {**EIGHTEEN, "release": 180006}}, "logical replication", Level.WARNING),
        ({"tables": [{**TABLE, "unlogged": True}]}, "tables", Level.WARNING),
        ({"tables": [{**TABLE, "method": "heap"}]}, "tables", Level.WARNING),
        ({"related": [{"name": "x", "because": "t", "how": "is referenced by"}]}, "tables", Level.WARNING),
        ({"unused": [{"name": "x", "of": "t", "exclusion": False}]}, "indexes", Level.WARNING),
        ({"unused": [{"name": "x", "of": "t", "exclusion": True}]}, "indexes", Level.ERROR),
    ],
)
def test_one_thing_is_wrong(given: dict[str, Any], check: str, level: Level) -> None:
    assert bad(_of_site("a", facts(**given), SERVERS)) == [(check, level)]


@pytest.mark.parametrize(
    "settings",
    [
        {"statement_timeout": "5000"},
        {"idle_session_timeout": "60000"},
        {"idle_in_transaction_session_timeout": "30000"},
        {"transaction_timeout": "30000"},
    ],
)
def test_timeouts_that_do_no_harm(settings: dict[str, str]) -> None:
    found = list(_of_site("a", facts(settings=settings), SERVERS))
    assert bad(found) == []
    told = {it.check for it in found if it.level is Level.INFO}
    assert told & settings.keys() == settings.keys() & {"statement_timeout", "idle_session_timeout"}


def test_what_others_have_prepared() -> None:
    young, old = ("x", "app", 10.0), ("y", "app", 3600.0)
    assert _foreign("a", [young]).level is Level.INFO
    assert _foreign("a", [old, young]).level is Level.WARNING
    assert "'y' of app for 60 min, and 1 more" in _foreign("a", [old, young]).message


@pytest.mark.parametrize(
    "one",
    [
        {**EIGHTEEN, "release": 180006, "decoded_by": 0},
        {**EIGHTEEN, "release": 180007},
        {"major": 17, "release": 170012, "decoded_by": 1},
    ],
)
def test_logical_replication_is_no_matter_elsewhere(one: dict[str, Any]) -> None:
    assert bad(_of_site("a", facts(one), SERVERS)) == []


def test_a_library_that_is_not_loaded() -> None:
    given = facts()
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("mip.")}
    unloaded = _Facts(given.one, settings, [], [TABLE], [], [], 0, 0, False)
    assert bad(_of_site("a", unloaded, SERVERS)) == [("library", Level.ERROR)]


@pytest.mark.parametrize(
    ("skew", "uncertain", "wrong"), [(0.9, 0, False), (1.5, 0, True), (-90.0, 0, True), (1.5, 2.0, False)]
)
def test_clocks(skew: float, uncertain: float, wrong: bool) -> None:
    """What the network may have made of it is not held against a site."""
    sites = {"a": facts(skew=skew, uncertain=uncertain), "b": facts({"system": "other"})}
    found = list(_between_sites(sites))
    assert bad(found) == ([("clock", Level.WARNING)] if wrong else [])
    if wrong:
        assert ("ahead" if skew > 0 else "behind") in found[0].message


def test_sites_that_do_not_fit_together() -> None:
    same = list(_between_sites({"a": facts(), "b": facts()}))
    assert bad(same) == [("sites", Level.ERROR)]
    unlike = list(
        _between_sites(
            {
                "a": facts(settings={"mip.serializable": "site"}),
                "b": facts(
                    {"system": "o", "extension": "0.2"}, {"mip.retention": "0", "mip.serializable": "everywhere"}
                ),
            }
        )
    )
    differ = ("extension", "mip.retention", "mip.serializable")
    assert bad(unlike) == [(name, Level.WARNING) for name in differ]


@pytest.mark.parametrize(
    ("seconds", "levels"), [("0", [Level.INFO]), ("61", [Level.INFO]), ("59", [Level.INFO, Level.WARNING])]
)
def test_keys_without_a_time(seconds: str, levels: list[Level]) -> None:
    """What becomes of them is told, and what is asking for trouble."""
    found = list(_of_site("a", facts(settings={"mip.retention_timeless": seconds}), SERVERS))
    mine = [finding for finding in found if finding.check == "mip.retention_timeless"]
    assert [finding.level for finding in mine] == levels
    assert ("for ever" if seconds == "0" else "run again") in mine[0].message


def test_a_site_that_cannot_be_asked() -> None:
    failure = Failure(Kind.UNREACHABLE, "gone", "call somebody")
    assert list(_of_site("a", failure, SERVERS)) == [
        Finding("a", "connection", Level.ERROR, "unreachable: gone", "call somebody")
    ]
    assert bad(_between_sites({"a": failure, "b": facts()})) == []
