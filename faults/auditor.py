"""The auditor: whether every request took effect exactly once, at all of its sites or at none, and whether those at
SERIALIZABLE have a serial order.

It looks at the databases and at the clients' logs, and at nothing else. It shares no code with what it audits, nor
with the rest of the run; what the requests are and where they belong it knows by itself.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from . import serial

__all__ = ["CHECKS", "Effect", "Finding", "Log", "Site", "audit", "over_sites", "read_logs", "read_site"]

ALL = ("ash", "birch", "cedar")
SITES_OF = {
    "order": ALL,
    "transfer_ash_birch": ("ash", "birch"),
    "transfer_birch_cedar": ("birch", "cedar"),
    "transfer_ash_cedar": ("ash", "cedar"),
    "level": ALL,
    "shift_ash": ("ash",),
    "shift_birch": ("birch",),
    "shift_cedar": ("cedar",),
    "restock": ("ash",),
    "waver": ALL,
    "waver_birch": ("birch",),
    "lists": ALL,
    "lists_ash_birch": ("ash", "birch"),
    "lists_birch_cedar": ("birch", "cedar"),
    "lists_cedar": ("cedar",),
}
FIRST_BALANCE, FIRST_STOCK, ACCOUNTS = 1000, 200, 40
NEVER = {"NothingHappened": "failed", "Cancelled": "cancelled", "KeyReused": "key-reused"}
"""What says that the request has no effect, and will have none unless somebody submits it anew: to a client's caller,
and in an answer's `type`."""
LATE = 120.0
"""Seconds after which a request that was sent is known to a site, or never will be: no fault holds it up for longer."""


# Facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    number: int
    nonce: str
    part: Any
    begun: float = field(default=0.0, compare=False)
    """When the site learned of the attempt, by its clock."""


@dataclass
class Site:
    """What a site's database holds."""

    effects: dict[str, list[Effect]] = field(default_factory=lambda: defaultdict(list))
    entries: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """Per key: how much each account has changed."""
    balances: dict[int, int] = field(default_factory=dict)
    stocks: dict[int, int] = field(default_factory=dict)
    tally: int = 0
    lists: dict[int, list[str]] = field(default_factory=dict)
    everywhere: bool = False
    """Whether its SERIALIZABLE transactions are so together with those of other sites."""
    winners: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Per key: the instances whose entry says that they were not aborted."""
    left: list[str] = field(default_factory=list)
    """What should not be there any more when everything has come to rest."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of each table, here and at the standby."""
    standby_digests: dict[str, str] = field(default_factory=dict)


@dataclass
class Transmission:
    """Times by the clock that the sites go by, too."""

    call: str
    sent: float
    answered: float | None = None

    def may_come_after(self, time: float) -> bool:
        """Whether it may have reached a server, or a server's request a site, only then."""
        return self.sent > time or (self.sent > time - LATE and (self.answered is None or self.answered > time))


@dataclass
class Span:
    """Of a request, by the clock that never jumps: it had not begun before, and was over by then."""

    began: float = math.inf
    ended: float = math.inf


@dataclass(frozen=True)
class Denial:
    """Somebody was told that the request has no effect."""

    words: str
    since: float
    """It was said after this."""
    numbers: frozenset[str]
    """Of the transmissions that it answers."""


@dataclass
class Log:
    """What the clients wrote down, by key."""

    names: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    sent: Counter[str] = field(default_factory=Counter)
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Bodies of the answers with status 200."""
    statuses: Counter[int] = field(default_factory=Counter)
    told: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Results that a client's caller was given."""
    transmissions: dict[str, dict[str, Transmission]] = field(default_factory=lambda: defaultdict(dict))
    """By number."""
    denials: dict[str, list[Denial]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, Span] = field(default_factory=lambda: defaultdict(Span))


_LEFT = """
    SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts
    UNION ALL SELECT format('advisory lock of %s', pid) FROM pg_locks WHERE locktype = 'advisory'
    UNION ALL SELECT format('links of %s, %s', xid, xinst) FROM mip.mipt WHERE links IS NOT NULL
    UNION ALL SELECT format('open transaction of %s (%s): %s', application_name, state, query) FROM pg_stat_activity
        WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TABLES = ("account", "entry", "item", "effect", "list", "tally", "mip.mipt")


def read_site(conninfo: str, standby: str | None = None) -> Site:
    """What the primary holds, and what a standby that has caught up does."""
    site = Site()
    with psycopg.connect(conninfo, autocommit=True) as conn:
        query = "SELECT e_key, e_id, e_nonce, e_part, extract(epoch FROM e_begun)::float8 FROM effect ORDER BY e_id"
        for key, *effect in conn.execute(query):
            site.effects[key].append(Effect(*effect))
        for key, account, change in conn.execute("SELECT n_key, n_account, n_change FROM entry"):
            site.entries[key][account] += change
        site.balances = dict(conn.execute("SELECT a_id, a_balance FROM account").fetchall())
        site.stocks = dict(conn.execute("SELECT i_id, i_stock FROM item").fetchall())
        site.tally = conn.execute("SELECT sum(t_count)::bigint FROM tally").fetchall()[0][0]
        site.lists = dict(conn.execute("SELECT l_id, l_elements FROM list").fetchall())
        site.everywhere = conn.execute("SELECT current_setting('mip.serializable') = 'everywhere'").fetchall()[0][0]
        for key, xinst in conn.execute("SELECT xid, xinst FROM mip.mipt WHERE NOT aborted"):
            site.winners[key].append(xinst)
        site.left = [row[0] for row in conn.execute(_LEFT)]
        site.digests = site.standby_digests = _digests(conn)
    if standby is not None:
        with psycopg.connect(standby, autocommit=True) as conn:
            site.standby_digests = _digests(conn)
    return site


def _digests(conn: psycopg.Connection[Any]) -> dict[str, str]:
    digests = {}
    for table in _TABLES:
        query = f"SELECT md5(coalesce(string_agg(t::text, ';' ORDER BY t::text COLLATE \"C\"), '')) FROM {table} t"
        digests[table] = conn.execute(query.encode()).fetchall()[0][0]
    return digests


def read_logs(folder: Path) -> Log:
    log = Log()
    for path in sorted(folder.glob("*.requests")):
        for line in path.read_text().splitlines():
            _note(log, json.loads(line))
    return log


def _note(log: Log, event: Mapping[str, Any]) -> None:
    key = event["key"]
    match event["event"]:
        case "send" if key:
            log.names[key] = event["path"].strip("/")
            log.bodies[key].add(event["body"])
            log.sent[key] += 1
            log.spans[key].began = min(log.spans[key].began, event["time"])
            log.transmissions[key][event["number"]] = Transmission(event["call"], event["clock"])
        case "answer" if key:
            log.statuses[event["status"]] += 1
            transmission = log.transmissions[key][event["number"]]
            transmission.answered = event["clock"]
            if event["status"] == 200:
                log.answers[key].append(event["body"])
                log.spans[key].ended = min(log.spans[key].ended, event["time"])
            elif (words := _problem(event["body"])) in NEVER.values():
                log.denials[key].append(Denial(words, transmission.sent, frozenset({event["number"]})))
        case "told" if key and "result" in event:
            log.told[key].append(event["result"])
        case "told" if key and event["error"] in NEVER:
            own = {n: it.sent for n, it in log.transmissions[key].items() if it.call == event["call"]}
            since = min(own.values(), default=event["clock"])
            log.denials[key].append(Denial(event["error"], since, frozenset(own)))


def _problem(body: str) -> str:
    """The last word of a problem's type, if it is one."""
    try:
        return str(json.loads(body)["type"]).rpartition(":")[2]
    except (ValueError, TypeError, LookupError):
        return ""


# Checks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    check: str
    violations: tuple[str, ...]


def audit(sites: Mapping[str, Site], log: Log) -> list[Finding]:
    """Every check with its violations; none of them is what everybody hopes for."""
    return [Finding(words, tuple(check(sites, log))) for words, check in CHECKS.items()]


def _same_answers(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key, bodies in log.answers.items():
        if len(set(bodies)) > 1:
            yield f"{key}: {sorted(set(bodies))}"
        if len(log.bodies[key]) > 1:
            yield f"{key}: the clients sent different requests: {sorted(log.bodies[key])}"


def _told_as_answered(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key, results in log.told.items():
        answers = [json.loads(body) for body in log.answers[key]]
        for result in results:
            if result not in answers:
                yield f"{key}: {result}, but answered was {answers}"


def _answered_is_done(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key, bodies in log.answers.items():
        answer = json.loads(bodies[0])
        if set(answer["parts"]) != set(SITES_OF[log.names[key]]):
            yield f"{key}: an answer over other sites: {bodies[0]}"
        for site in SITES_OF[log.names[key]]:
            part = dict(answer["parts"].get(site, {}))
            expected = [Effect(part.pop("effect", 0), answer["nonce"], part)]
            if sites[site].effects.get(key, []) != expected:
                yield f"{key}: answered {bodies[0]}, but at {site}: {sites[site].effects.get(key)}"


def _all_or_nothing(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key in _keys(sites):
        if key not in log.names:
            yield f"{key}: nobody has asked for this"
            continue
        found = {site: sites[site].effects[key] for site in sites if sites[site].effects.get(key)}
        if set(found) != set(SITES_OF[log.names[key]]):
            yield f"{key} ({log.names[key]}): in effect at {sorted(found)} only"
        if any(len(effects) > 1 for effects in found.values()):
            yield f"{key}: more than once: {found}"
        if len({effect.nonce for effects in found.values() for effect in effects}) > 1:
            yield f"{key}: different attempts: {found}"


def _never_is_never(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key in _keys(sites):
        begun = min(effect.begun for site in sites.values() for effect in site.effects.get(key, []))
        for denial in log.denials.get(key, []):
            others = [it for number, it in log.transmissions[key].items() if number not in denial.numbers]
            anew = any(other.may_come_after(denial.since) for other in others)
            if begun < denial.since or not anew or denial.words in ("Cancelled", "cancelled"):
                yield f"{key}: told {denial.words!r} of what was sent at {denial.since:.3f}, but in effect"


def _balances(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        change: Counter[int] = Counter()
        for entries in site.entries.values():
            change.update(entries)
        for account, balance in site.balances.items():
            if balance != FIRST_BALANCE + change[account]:
                yield f"account {account} at {name}: {balance}, but its entries give {FIRST_BALANCE + change[account]}"


def _entries_as_told(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        for key in {*site.entries, *site.effects}:
            told: Counter[int] = Counter()
            for effect in site.effects.get(key, []):
                told.update({int(account): change for account, change in effect.part.get("changes", {}).items()})
            if told != site.entries.get(key, Counter()):
                yield f"{key} at {name}: entries {dict(site.entries[key])}, effects {dict(told)}"


def _money(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    there = sum(balance for site in sites.values() for balance in site.balances.values())
    if there != FIRST_BALANCE * ACCOUNTS * len(sites):
        yield f"{there}, but {FIRST_BALANCE * ACCOUNTS * len(sites)} in the beginning"


def _stocks(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        taken: Counter[int] = Counter()
        for effects in site.effects.values():
            for effect in effects:
                if "item" in effect.part:
                    taken[effect.part["item"]] += effect.part["taken"]
        for item, stock in site.stocks.items():
            if stock != FIRST_STOCK - taken[item]:
                yield f"item {item} at {name}: {stock}, but {FIRST_STOCK - taken[item]} by what was taken"


def _tallies(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        effects = sum(map(len, site.effects.values()))
        if site.tally != effects:
            yield f"{name}: counted {site.tally} requests, but {effects} have left effects"


def _winners(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for key in {key for site in sites.values() for key in site.winners}:
        winners = {name: site.winners[key] for name, site in sites.items() if site.winners.get(key)}
        if any(len(xinsts) > 1 for xinsts in winners.values()) or len({tuple(x) for x in winners.values()}) > 1:
            yield f"{key}: committed are {winners}"


def _serial_order(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    """That of real time, where it is one of all sites."""
    if all(site.everywhere for site in sites.values()):
        yield from over_sites(sites, log)
    else:
        for name, site in sites.items():
            yield from _order({name: site}, log, real_time=False)


def over_sites(sites: Mapping[str, Site], log: Log) -> list[str]:
    """What keeps the requests at SERIALIZABLE from having a serial order over all sites, and in real time."""
    return _order(sites, log, real_time=True)


def _order(sites: Mapping[str, Site], log: Log, *, real_time: bool) -> list[str]:
    history = [_transaction(sites, log, key) for key in sorted(_keys(sites))]
    lists = {f"{name}/{number}": them for name, site in sites.items() for number, them in site.lists.items() if them}
    return serial.check([transaction for transaction in history if transaction.steps], lists, real_time=real_time)


def _transaction(sites: Mapping[str, Site], log: Log, key: str) -> serial.Transaction:
    steps: list[serial.Append | serial.Read] = []
    for name, site in sites.items():
        for effect in site.effects.get(key, []):
            for kind, number, what in effect.part.get("steps", []):
                of = f"{name}/{number}"
                steps.append(serial.Append(of, what) if kind == "append" else serial.Read(of, tuple(what)))
    span = log.spans.get(key, Span(-math.inf))
    return serial.Transaction(key, tuple(steps), span.began, span.ended)


def _nothing_left(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        for what in site.left:
            yield f"{name}: {what}"


def _standbys(sites: Mapping[str, Site], log: Log) -> Iterator[str]:
    for name, site in sites.items():
        for table in site.digests:
            if site.digests[table] != site.standby_digests.get(table):
                yield f"{name}: table {table}"


CHECKS = {
    "every answer of a request is the same, byte for byte": _same_answers,
    "callers are told what was answered": _told_as_answered,
    "what was answered is in effect once at each of its sites, with that result": _answered_is_done,
    "whatever is in effect is so once, at all of its sites, by one attempt": _all_or_nothing,
    "what was said not to have happened has not": _never_is_never,
    "balances are the sum of their entries": _balances,
    "entries are what their requests say": _entries_as_told,
    "no money was made or lost": _money,
    "stocks are what was not taken": _stocks,
    "hot rows have counted every request": _tallies,
    "one instance of a request is committed, the same everywhere": _winners,
    "what was SERIALIZABLE has a serial order": _serial_order,
    "nothing is left behind": _nothing_left,
    "standbys hold the same": _standbys,
}


def _keys(sites: Mapping[str, Site]) -> set[str]:
    return {key for site in sites.values() for key, effects in _nonempty(site.effects.items())}


def _nonempty(items: Iterable[tuple[str, list[Effect]]]) -> Iterator[tuple[str, list[Effect]]]:
    return ((key, effects) for key, effects in items if effects)
