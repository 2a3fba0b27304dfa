"""`pgmip doctor`: is everything set up as it has to be?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Annotated, Any

import psycopg
import typer
from rich.text import Text

from .. import _sql
from .config import load
from .errors import ExitCode
from .judge import judge
from .options import ConfigOption, JsonOption, SiteOption, TimeoutOption, run
from .output import STYLES, Output, age, visible
from .sites import Connection, Failure, Kind, ask
from .survey import rows_of, survey

__all__ = ["Finding", "Level", "doctor"]

MAJORS = (15, 17, 18)
_SKEW = 1.0  # seconds between clocks that nobody needs to care about
_STRAY_ABORTS = range(180000, 180007)  # releases with PostgreSQL's bug #19616
_LONG = 600.0  # seconds in doubt after which nobody seems to care
_FOREIGN_LONG = 3600.0  # the same of others' prepared transactions


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says of one site, or of all (None)."""

    site: str | None
    check: str
    level: Level
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class AppServers:
    """What they ask of a site: so many transactions at a time, each of which may take so many seconds."""

    transactions: int
    deadline: float


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a site says of its set-up, and when it said it by our clock."""

    one: Mapping[str, Any]
    settings: Mapping[str, str]
    standbys: list[dict[str, Any]]
    tables: list[dict[str, Any]]
    related: list[dict[str, Any]]
    unused: list[dict[str, Any]]
    skew: float
    uncertain: float
    pooled: bool


def doctor(
    pool_size: Annotated[int, typer.Option("--pool-size", min=1, help="App(pool_size=...) of each app server.")] = 16,
    servers: Annotated[int, typer.Option("--servers", min=1, help="How many app servers there are.")] = 1,
    deadline: Annotated[float, typer.Option("--deadline", min=0.1, help="App(deadline=...), in seconds.")] = 30.0,
    strict: Annotated[bool, typer.Option("--strict", help="Count warnings as problems, too.")] = False,
    site: SiteOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 5.0,
    json: JsonOption = False,
) -> None:
    """Check settings, versions, replication, opt-ins, clocks, permissions and what is in doubt, at every site.

    Exit code 0 where there is no error (with --strict: no warning, either), 1 where there is, 3 where a site cannot
    be asked.
    """

    async def body(output: Output) -> ExitCode:
        sites = load(site, config).required()
        facts = await ask(sites, _facts, timeout=timeout)
        findings = list(_between_sites(facts))
        for name, answer in facts.items():
            findings += _of_site(name, answer, AppServers(pool_size * servers, deadline))
        findings += await _in_doubt(sites, timeout)
        order = {name: number for number, name in enumerate(sites)}
        findings.sort(key=lambda finding: order.get(finding.site or "", -1))
        code = _verdict(findings, facts, strict)
        if output.json:
            output.document(
                {"command": "doctor", "exit_code": int(code), "findings": [asdict(finding) for finding in findings]}
            )
        else:
            _print(output, findings)
        return code

    run("doctor", json, body)


def _verdict(findings: Iterable[Finding], facts: Mapping[str, Any], strict: bool) -> ExitCode:
    if any(isinstance(answer, Failure) and answer.kind is Kind.UNREACHABLE for answer in facts.values()):
        return ExitCode.UNREACHABLE
    bad = (Level.ERROR, Level.WARNING) if strict else (Level.ERROR,)
    return ExitCode.PROBLEMS if any(finding.level in bad for finding in findings) else ExitCode.OK


def _print(output: Output, findings: Iterable[Finding]) -> None:
    where: str | None = ""
    for finding in findings:
        if finding.site != where:
            where = finding.site
            output.line(Text("all sites" if where is None else visible(where), "bold"))
        output.line("  ", Text(f"{finding.level:<8}", STYLES[finding.level]), f"{finding.check}: {finding.message}")
        if finding.hint:
            output.line(" " * 10, Text(visible(finding.hint), STYLES["info"]))


# -- what a site says --------------------------------------------------------------------------------------------

_ONE = b"""
    SELECT current_setting('server_version_num')::int AS release, current_setting('server_version') AS version,
           current_setting('server_version_num')::int / 10000 AS major,
           current_database() AS database, current_user AS role,
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
           pg_is_in_recovery() AS standby, pg_backend_pid() AS pid,
           (SELECT oid FROM pg_database WHERE datname = current_database())::bigint AS database_oid,
           (SELECT extversion FROM pg_extension WHERE extname = 'pg_mip') AS extension,
           (SELECT default_version FROM pg_available_extensions WHERE name = 'pg_mip') AS available,
           has_schema_privilege((SELECT oid FROM pg_namespace WHERE nspname = 'mip'), 'USAGE') AS usage,
           (SELECT count(*) FROM pg_prepared_xacts) AS prepared,
           CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE')
                THEN EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'pg_mip launcher') END AS launcher,
           (SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
            WHERE a.amname = 'mip' AND c.relkind = 'r') AS opted_in,
           (SELECT count(*) FROM pg_replication_slots
            WHERE slot_type = 'logical' AND database = current_database()) AS decoded_by
"""
_SETTINGS = b"""
    SELECT name, setting FROM pg_settings
    WHERE name IN ('max_prepared_transactions', 'max_connections', 'wal_level', 'fsync', 'full_page_writes',
                   'synchronous_commit', 'synchronous_standby_names', 'shared_preload_libraries',
                   'default_table_access_method', 'mip.site_name', 'mip.push_after', 'mip.retention',
                   'mip.retention_timeless', 'mip.serializable', 'statement_timeout',
                   'idle_in_transaction_session_timeout', 'transaction_timeout', 'idle_session_timeout')
"""
_STANDBYS = b"""
    SELECT application_name AS name, sync_state AS sync, state FROM pg_stat_replication
    WHERE pid NOT IN (SELECT active_pid FROM pg_replication_slots
                      WHERE slot_type = 'logical' AND active_pid IS NOT NULL)
"""
# Tables that instances write to must have opted in, and a foreign key makes a neighbour of a table one of those.
_RELATED = b"""
    SELECT DISTINCT other.oid::regclass::text AS name, mine.oid::regclass::text AS because,
           CASE WHEN k.conrelid = other.oid THEN 'has a foreign key to' ELSE 'is referenced by' END AS how
    FROM pg_constraint k
    JOIN pg_class mine ON mine.oid IN (k.conrelid, k.confrelid)
    JOIN pg_class other ON other.oid IN (k.conrelid, k.confrelid) AND other.oid <> mine.oid
    JOIN pg_am am ON am.oid = mine.relam AND am.amname = 'mip'
    JOIN pg_am ao ON ao.oid = other.relam AND ao.amname <> 'mip'
    WHERE k.contype = 'f'
  UNION
    SELECT other.oid::regclass::text, mine.oid::regclass::text, 'shares a partitioned table or parent with'
    FROM pg_inherits i JOIN pg_inherits j ON j.inhparent = i.inhparent
    JOIN pg_class mine ON mine.oid = i.inhrelid JOIN pg_class other ON other.oid = j.inhrelid
    JOIN pg_am am ON am.oid = mine.relam AND am.amname = 'mip'
    JOIN pg_am ao ON ao.oid = other.relam AND ao.amname <> 'mip'
    ORDER BY 1, 2
"""
_TABLES = b"""
    SELECT c.oid::regclass::text AS name, a.amname AS method, c.relpersistence = 'u' AS unlogged,
           coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0) AS writes
    FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE c.relkind = 'r' AND c.relpersistence <> 't'
      AND n.nspname <> 'mip' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                      AND d.refclassid = 'pg_extension'::regclass)
    ORDER BY 1
"""
# Set aside at a replica, as it cannot take in a row of another one; or CREATE INDEX CONCURRENTLY has failed.
_UNUSED = b"""
    SELECT i.indexrelid::regclass::text AS name, i.indrelid::regclass::text AS of, i.indisexclusion AS exclusion
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
    JOIN pg_am a ON a.oid = t.relam
    WHERE a.amname = 'mip' AND NOT i.indisvalid AND c.relkind = 'i'
      AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid)
    ORDER BY 1
"""
_IDENTITY = b"SELECT system_identifier::text AS system FROM pg_control_system()"


async def _facts(site: str, conn: Connection) -> _Facts:
    before = time.time()
    (clock,) = await rows_of(conn, b"SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    after = time.time()
    (one,) = await rows_of(conn, _ONE)
    try:
        (identity,) = await rows_of(conn, _IDENTITY)
    except psycopg.Error:
        identity = {"system": None}  # not for everybody
    try:
        (finished,) = await rows_of(conn, _sql.FINISHED_COUNT)
    except psycopg.Error:
        finished = {"finished": None}  # not installed, or not loaded, which others tell
    return _Facts(
        {**one, **identity, **finished},
        {row["name"]: row["setting"] for row in await rows_of(conn, _SETTINGS)},
        await rows_of(conn, _STANDBYS),
        await rows_of(conn, _TABLES),
        await rows_of(conn, _RELATED),
        await rows_of(conn, _UNUSED),
        clock["now"] - (before + after) / 2,
        (after - before) / 2,
        conn.info.backend_pid != one["pid"],
    )


# -- what that means ---------------------------------------------------------------------------------------------

Check = Callable[[str, _Facts, AppServers], Iterator[Finding]]


def _of_site(site: str, facts: _Facts | Failure, wanted: AppServers) -> Iterator[Finding]:
    if isinstance(facts, Failure):
        yield Finding(site, "connection", Level.ERROR, f"{facts.kind}: {facts.message}", facts.hint)
        return
    checks: tuple[Check, ...] = (
        _connection, _library, _extension, _prepared, _durability, _replication, _timeouts, _decoding, _name, _cleaning,
        _opted_in, _indexes,
    )  # fmt: skip
    for check in checks:
        yield from check(site, facts, wanted)


def _connection(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    one = facts.one
    if one["standby"]:
        yield Finding(
            site, "connection", Level.ERROR, "this is a standby, which takes no requests",
            "connect to the primary: target_session_attrs=read-write",
        )  # fmt: skip
    elif one["major"] not in MAJORS:
        known = ", ".join(map(str, MAJORS))
        yield Finding(site, "connection", Level.ERROR, f"PostgreSQL {one['major']} is not supported", f"use {known}")
    else:
        what = f"PostgreSQL {one['version'].split()[0]}, database {one['database']}, role {one['role']}"
        yield Finding(site, "connection", Level.OK, what)
    if facts.pooled:
        yield Finding(
            site, "connection", Level.WARNING, "a connection pooler is in between",
            "in transaction mode sweepers get no notifications, and only look from time to time",
        )  # fmt: skip
    if one["superuser"]:
        yield Finding(
            site, "permissions", Level.INFO, f"{one['role']} is a superuser",
            "let app servers connect as an ordinary role: requests belong to the role that begins them",
        )  # fmt: skip


def _library(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    if "mip.site_name" in facts.settings:
        yield Finding(site, "library", Level.OK, "pg_mip is loaded")
        return
    yield Finding(
        site, "library", Level.ERROR, "pg_mip was not loaded when the server started",
        "add pg_mip to shared_preload_libraries and restart the server",
    )  # fmt: skip


def _extension(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    installed, available = facts.one["extension"], facts.one["available"]
    library = version("pgmip")
    if installed is None:
        yield Finding(
            site, "extension", Level.ERROR, "the extension is not in this database",
            "CREATE EXTENSION pg_mip" if available else "make install on the server, then CREATE EXTENSION pg_mip",
        )  # fmt: skip
        return
    if not facts.one["usage"]:
        what = f"{facts.one['role']} may not use the schema mip"
        yield Finding(site, "permissions", Level.ERROR, what, "GRANT USAGE ON SCHEMA mip TO this role")
    if available is not None and installed != available:
        what = f"version {installed} is in this database, {available} on the server"
        yield Finding(site, "extension", Level.WARNING, what, "ALTER EXTENSION pg_mip UPDATE")
    elif _release(installed) != _release(library):
        what = f"the extension is version {installed}, the library pgmip {library}"
        yield Finding(site, "extension", Level.WARNING, what, "use the same release of both")
    else:
        yield Finding(site, "extension", Level.OK, f"version {installed}")


def _release(number: str) -> tuple[str, ...]:
    return tuple(number.split(".")[:2])


def _prepared(site: str, facts: _Facts, servers: AppServers) -> Iterator[Finding]:
    wanted = servers.transactions
    most = int(facts.settings["max_prepared_transactions"])
    used = int(facts.one["prepared"])
    hint = f"set max_prepared_transactions to {2 * wanted} or more, also on standbys, and restart the server"
    if most == 0:
        yield Finding(site, "max_prepared_transactions", Level.ERROR, "is 0: nothing can be prepared", hint)
    elif used >= most:
        what = f"all {most} are taken: nothing more can be prepared"
        yield Finding(site, "max_prepared_transactions", Level.ERROR, what, "see what is in doubt: pgmip status")
    elif most < wanted:
        what = f"is {most}, but {wanted} requests can be in flight"
        yield Finding(site, "max_prepared_transactions", Level.WARNING, what, hint)
    elif used > 0.8 * most:
        what = f"{used} of {most} are taken"
        yield Finding(site, "max_prepared_transactions", Level.WARNING, what, "see what is in doubt: pgmip status")
    else:
        yield Finding(site, "max_prepared_transactions", Level.OK, f"{most}, {used} taken")
    connections = int(facts.settings["max_connections"])
    if connections < wanted:
        what = f"is {connections}, but app servers may open {wanted} and more"
        yield Finding(site, "max_connections", Level.WARNING, what, "use smaller pools, or a pooler")


def _durability(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    bad = [name for name in ("fsync", "full_page_writes") if facts.settings[name] == "off"]
    for name in bad:
        what = "is off: a crash of the machine can lose what was prepared, and so break requests apart"
        yield Finding(site, name, Level.ERROR, what, f"set {name} = on")
    if not bad:
        yield Finding(site, "durability", Level.OK, "fsync and full_page_writes are on")


def _replication(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    if facts.settings["wal_level"] == "minimal":
        what = "is minimal: this site can have no standby and no archive, so losing its disk loses what was prepared"
        yield Finding(site, "wal_level", Level.WARNING, what, "set wal_level = replica")
    names = facts.settings.get("synchronous_standby_names")
    synchronous = [row for row in facts.standbys if row["sync"] in ("sync", "quorum")]
    if names and facts.settings["synchronous_commit"] in ("off", "local"):
        what = (
            f"standbys are synchronous, but synchronous_commit = {facts.settings['synchronous_commit']} waits for none"
        )
        yield Finding(site, "replication", Level.WARNING, what, "set synchronous_commit = on for this role")
    elif names and not synchronous and any(row["sync"] is not None for row in facts.standbys):
        what = f"synchronous_standby_names = {names!r}, but none of these is connected: every prepare waits"
        yield Finding(site, "replication", Level.ERROR, what, "bring a standby back, or change the setting")
    elif names and not facts.standbys:
        what = f"synchronous_standby_names = {names!r}, but no standby is connected: every prepare waits"
        yield Finding(site, "replication", Level.ERROR, what, "bring a standby back, or change the setting")
    elif facts.standbys and not names:
        what = f"{len(facts.standbys)} standby(s), none of them synchronous: promoting one can lose what was prepared"
        yield Finding(site, "replication", Level.WARNING, what, "set synchronous_standby_names, or never promote one")
    elif synchronous:
        what = ", ".join(f"{row['name']} is {row['sync']}" for row in synchronous)
        yield Finding(site, "replication", Level.OK, what)
    else:
        yield Finding(site, "replication", Level.INFO, "no standby is connected")


def _timeouts(site: str, facts: _Facts, servers: AppServers) -> Iterator[Finding]:
    """Those of this role, database and connection string. PostgreSQL counts in milliseconds; 0 is none."""

    def limit(name: str) -> float:
        return int(facts.settings.get(name, 0)) / 1000  # 15 does not have all of them

    statement = limit("statement_timeout")
    if statement and facts.settings.get("synchronous_standby_names"):
        what = (
            f"is {age(statement)}, and also ends the wait of a prepare or a commit for a synchronous standby, which"
            " PostgreSQL then reports as done"
        )
        hint = "set statement_timeout = 0 for the app servers' role; lock_timeout may bound what handlers wait for"
        yield Finding(site, "statement_timeout", Level.WARNING, what, hint)
    elif statement:
        what = f"is {age(statement)}: a handler's statement that takes longer fails, and so does its attempt"
        hint = "set it to 0 before a standby becomes synchronous: it ends the wait for that, too"
        yield Finding(site, "statement_timeout", Level.INFO, what, hint)
    for name, meant in (
        ("idle_in_transaction_session_timeout", "that does not use this site for longer"),
        ("transaction_timeout", "that takes longer"),
    ):
        if 0 < limit(name) < servers.deadline:
            what = f"is {age(limit(name))}: an attempt {meant} loses its connection, and so does each that follows"
            hint = f"set it above App(deadline=...), here {age(servers.deadline)}, or to 0"
            yield Finding(site, name, Level.WARNING, what, hint)
    if idle := limit("idle_session_timeout"):
        what = f"is {age(idle)}: the server closes connections that pools keep for longer, and sweepers' between looks"
        hint = "they connect again; App(pool_max_idle=...) closes idle connections without that"
        yield Finding(site, "idle_session_timeout", Level.INFO, what, hint)


def _decoding(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    if facts.one["decoded_by"] and facts.one["release"] in _STRAY_ABORTS:
        what = (
            f"PostgreSQL {facts.one['version'].split()[0]} crashes subscribers, whether they take streams or not, by"
            " large transactions with savepoints, other than requests, that were rolled back (its bug #19616)"
        )
        hint = "use a later release; until then, a logical_decoding_work_mem that is larger than such transactions"
        yield Finding(site, "logical replication", Level.WARNING, what, hint)


def _name(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    name = facts.settings.get("mip.site_name")
    if name is None:
        return
    if not name:
        what = "is not set, so a connection string that leads elsewhere is not noticed"
        yield Finding(site, "mip.site_name", Level.WARNING, what, f"set mip.site_name = '{site}'")
    elif name != site:
        what = f"this database calls itself {name!r}: wrong connection string, or wrong setting"
        yield Finding(site, "mip.site_name", Level.ERROR, what, "requests that name this site are refused there")
    else:
        yield Finding(site, "mip.site_name", Level.OK, name)


def _cleaning(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    if facts.settings.get("mip.push_after") == "0":
        what = "is 0: nobody is notified of what is in doubt"
        yield Finding(
            site, "mip.push_after", Level.WARNING, what, "set it, or rely on sweepers that look by themselves"
        )
    elif facts.one["launcher"] is False and "mip.push_after" in facts.settings and not facts.one["standby"]:
        what = "the background worker pg_mip launcher is not running: nobody is notified of what is in doubt"
        yield Finding(site, "launcher", Level.ERROR, what, "raise max_worker_processes, and see the server's log")
    if facts.one["finished"]:
        what = f"{facts.one['finished']} requests older than mip.retention are not acknowledged, so their entries stay"
        yield Finding(site, "acknowledgement", Level.WARNING, what, "run a sweeper: it acknowledges them")
    if facts.settings.get("mip.retention") == "0":
        what = "is 0: entries of requests stay for ever, unless they are acknowledged"
        yield Finding(site, "mip.retention", Level.INFO, what)
    yield from _timeless(site, facts.settings.get("mip.retention_timeless"), facts.settings.get("mip.retention"))


def _timeless(site: str, seconds: str | None, retention: str | None) -> Iterator[Finding]:
    name = "mip.retention_timeless"
    if seconds is None or retention is None:
        return
    if seconds == "0":
        what = "is 0: of requests whose XID is no version 7 UUID a bare row stays for ever"
        yield Finding(site, name, Level.INFO, what)
        return
    what = f"requests whose XID is no version 7 UUID run again when they are sent again after {seconds} s"
    yield Finding(site, name, Level.INFO, what)
    if int(seconds) < int(retention):
        what = "is shorter than mip.retention, within which others may be sent again"
        yield Finding(site, name, Level.WARNING, what, "make it longer than any client, queue or backup can be late")


def _opted_in(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    mine = [row for row in facts.tables if row["method"] == "mip"]
    others = [row for row in facts.tables if row["method"] != "mip"]
    if not mine:
        what = "no table has opted in: requests cannot write to any"
        yield Finding(site, "tables", Level.WARNING, what, "pgmip enable TABLE")
        return
    yield Finding(site, "tables", Level.OK, f"{len(mine)} have opted in")
    for row in mine:
        if row["unlogged"]:
            what = f"{row['name']} is unlogged: requests cannot write to it"
            yield Finding(site, "tables", Level.WARNING, what, f"ALTER TABLE {row['name']} SET LOGGED")
    told = set()
    for row in facts.related:
        if row["name"] not in told:
            told.add(row["name"])
            what = f"{row['name']} has not opted in, but {row['how']} {row['because']}, which has"
            yield Finding(site, "tables", Level.WARNING, what, f"pgmip enable {row['name']}, if requests write to it")
    written = [row["name"] for row in others if row["writes"] and row["name"] not in told]
    if written:
        what = f"written to, but not opted in: {', '.join(written[:10])}{' ...' if len(written) > 10 else ''}"
        yield Finding(site, "tables", Level.INFO, what, "fine, unless requests write to them (that fails with MP006)")
    if facts.settings["default_table_access_method"] != "mip" and any(
        "partition" in row["how"] for row in facts.related
    ):
        what = "is not mip, so new partitions do not opt in by themselves"
        yield Finding(site, "default_table_access_method", Level.INFO, what)


def _indexes(site: str, facts: _Facts, _: AppServers) -> Iterator[Finding]:
    for row in facts.unused:
        hint = f"REINDEX INDEX {row['name']}; if that fails, remove the rows that it does not take in"
        if row["exclusion"]:
            what = f"{row['name']} of {row['of']} is not enforced, and rows are refused"
            yield Finding(site, "indexes", Level.ERROR, what, hint)
        else:
            yield Finding(site, "indexes", Level.WARNING, f"{row['name']} of {row['of']} is not used", hint)


# -- what sites say together -------------------------------------------------------------------------------------


def _between_sites(answers: Mapping[str, _Facts | Failure]) -> Iterator[Finding]:
    facts = {site: answer for site, answer in answers.items() if not isinstance(answer, Failure)}
    same: dict[tuple[Any, Any], list[str]] = {}
    for site, fact in facts.items():
        if fact.one["system"] is not None:
            same.setdefault((fact.one["system"], fact.one["database_oid"]), []).append(site)
    for names in same.values():
        if len(names) > 1:
            what = f"{' and '.join(names)} are the same database"
            yield Finding(None, "sites", Level.ERROR, what, "an instance cannot be prepared twice in one database")
    yield from _clocks(facts)
    for what, values in (
        ("extension", {site: fact.one["extension"] for site, fact in facts.items()}),
        *(
            (name, {site: fact.settings.get(name) for site, fact in facts.items()})
            for name in ("mip.retention", "mip.retention_timeless", "mip.serializable")
        ),
    ):
        if len({value for value in values.values() if value is not None}) > 1:
            listed = ", ".join(f"{site} {value}" for site, value in values.items())
            yield Finding(None, what, Level.WARNING, f"differs between the sites: {listed}", "use the same everywhere")


def _clocks(facts: Mapping[str, _Facts]) -> Iterator[Finding]:
    """As far as the network lets us see; our own clock is one of those that make XINSTs and XIDs."""
    off = {site: fact.skew for site, fact in facts.items() if abs(fact.skew) > _SKEW + fact.uncertain}
    for site, skew in off.items():
        what = f"the clock is {age(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this machine's"
        yield Finding(site, "clock", Level.WARNING, what, "use NTP: XIDs and XINSTs carry times, and expire by them")
    if facts and not off:
        yield Finding(None, "clocks", Level.OK, f"within {_SKEW:g} s of this machine's")


async def _in_doubt(sites: Mapping[str, str], timeout: float) -> list[Finding]:
    found = await survey(sites, limit=1000, timeout=timeout)
    findings = []
    for family in found.families:
        if family.age >= found.push_after:
            level = Level.ERROR if family.age >= _LONG else Level.WARNING
            what = f"request {family.xid} for {age(family.age)}. {judge(family.known).explanation.reason}"
            findings.append(Finding(None, "in doubt", level, what, f"run a sweeper, or: pgmip resolve {family.xid}"))
    for site, state in found.sites.items():
        if isinstance(state, Failure):
            continue
        if state.foreign:
            findings.append(_foreign(site, state.foreign))
        if state.hidden:
            what = f"{state.hidden} instances belong to roles that {state.role} has not the privileges of"
            findings.append(Finding(site, "permissions", Level.INFO, what))
    if not any(finding.check == "in doubt" for finding in findings) and not found.failed:
        findings.append(Finding(None, "in doubt", Level.OK, "nothing for longer than mip.push_after"))
    return findings


def _foreign(site: str, prepared: Sequence[tuple[str, str, float]]) -> Finding:
    """Of prepared transactions that are no instances, the oldest first."""
    gid, owner, seconds = prepared[0]
    others = f", and {len(prepared) - 1} more" if len(prepared) > 1 else ""
    what = f"prepared transaction {gid!r} of {owner} for {age(seconds)}{others}: no request, and no sweeper's business"
    hint = "whoever prepared it has to finish it; it holds locks, and holds VACUUM up"
    level = Level.WARNING if seconds >= _FOREIGN_LONG else Level.INFO
    return Finding(site, "prepared by others", level, what, hint)
