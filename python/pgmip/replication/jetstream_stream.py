"""The stream that is a log: how it is set up, and whether it and its servers lose nothing.

What is here is refused rather than repaired: a stream that has been able to lose messages may have done so.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .engine import Refused, Unavailable
from .jetstream_address import Address

__all__ = [
    *("BEGINNING", "Bounds", "bounds_of", "check_servers", "check_stream", "is_followed", "settings", "subjects_of"),
    "wake_subject",
]

VERSION = "1"
"""Of the settings below, and of what is in an entry."""
BEGINNING = "pgmip-beginning"
_VERSION = "pgmip-version"

_REPLICAS = 3
_OLDEST = (2, 15)
"""The first release that was tried while its servers were killed. Some before it are known to lose messages."""
_LOOK = 2.0  # seconds for a server to say how it is set up
_AWAY = 3.0  # seconds without a word to the stream's leader, which usually hears each server every second
_NANOSECONDS = 10**9

# Settings that could make a position go, or come twice; and what each has to be. Where there is none it is the first.
_NEEDED: Mapping[str, tuple[Any, ...]] = {
    "retention": ("limits",),
    "storage": ("file",),
    "max_msgs": (-1,),
    "max_bytes": (-1,),
    "max_age": (0,),
    "max_msgs_per_subject": (-1,),
    "max_msg_size": (-1,),
    "discard": ("new",),
    "deny_delete": (True,),
    "deny_purge": (False, None),
    "allow_atomic": (True,),
    "allow_direct": (True,),
    "allow_rollup_hdrs": (False, None),
    "allow_msg_ttl": (False, None),
    "no_ack": (False, None),
    "sealed": (False, None),
    "persist_mode": (None, "", "default"),
    "mirror": (None,),
    "sources": (None, []),
    "subject_transform": (None,),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The positions of the first and the last entry."""

    first: int | None
    last: int | None
    """None, as the first one: there is no entry."""
    ever: int
    """The last position that was given out."""
    holes: int
    """How many positions from the first one on have no entry."""
    deleted: Sequence[int]
    """Which these are, where that was asked for."""


def settings(stream: str, incarnation: UUID, beginning: UUID) -> dict[str, Any]:
    """Of a new one. Its subjects are its own: what is published to another one of that name does not come here."""
    needed = {name: values[0] for name, values in _NEEDED.items() if values[0] is not None}
    return {
        **needed,
        "name": stream,
        "description": "the log of a replicated database, by pgmip replica",
        "subjects": [f"pgmip.log.{stream}.{incarnation.hex}.*"],
        "num_replicas": _REPLICAS,
        "republish": {"src": ">", "dest": wake_subject(stream), "headers_only": True},
        "metadata": {_VERSION: VERSION, BEGINNING: str(beginning)},
    }


def subjects_of(config: Mapping[str, Any]) -> str:
    """What the subjects of all its entries begin with; the id of each follows."""
    (subjects,) = config["subjects"]
    return str(subjects).removesuffix("*")


def wake_subject(stream: str) -> str:
    """Where the stream's leader tells of each entry once it is there to be read."""
    return f"pgmip.wake.{stream}.>"


def bounds_of(info: Mapping[str, Any]) -> Bounds:
    state = info["state"]
    first, ever, count = int(state["first_seq"]), int(state["last_seq"]), int(state["messages"])
    if not count:
        return Bounds(None, None, ever, 0, ())
    return Bounds(first, ever, ever, ever - first + 1 - count, state.get("deleted") or ())


def is_followed(info: Mapping[str, Any], within: float) -> bool:
    """Whether that is of a leader, and it has heard a majority of the servers, itself among them, within so many
    seconds before.
    """
    cluster = info.get("cluster") or {}
    others = cluster.get("replicas") or []
    # `active` is 0, too, where it has never heard that one. Whoever answers is not among the others.
    heard = [peer for peer in others if 0 < peer["active"] < within * _NANOSECONDS]
    leads = bool(cluster.get("leader")) and all(peer["name"] != cluster["leader"] for peer in others)
    return leads and 2 * (1 + len(heard)) > 1 + len(others)


def check_stream(info: Mapping[str, Any]) -> None:
    """Raise Refused where it is no log, another release's, or may lose messages."""
    config = info["config"]
    known = config.get("metadata") or {}
    name = config["name"]
    if _VERSION not in known or BEGINNING not in known:
        raise Refused(f"stream {name} is not a log", hint="give another name")
    if known[_VERSION] != VERSION:
        raise Refused(f"the log has version {known[_VERSION]}, and not {VERSION}: it is another release's")
    weak = [
        f"{setting} = {json.dumps(config.get(setting))}"
        for setting, values in _NEEDED.items()
        if config.get(setting) not in values
    ]
    if not _are_those_of_a_log(config.get("subjects"), name):
        weak.append(f"subjects = {json.dumps(config.get('subjects'))}")
    if config["num_replicas"] < _REPLICAS:
        weak.insert(0, f"num_replicas = {config['num_replicas']}")
    if weak:
        raise Refused(
            f"stream {name} may lose messages: {', '.join(weak)}",
            hint="it is to be as pgmip replica init makes it, with three replicas or more; what it has lost by now is "
            "not known",
        )


def _are_those_of_a_log(subjects: Any, name: str) -> bool:
    """Whether they are as `settings` makes them: with others what is appended would not come to it."""
    pattern = rf"pgmip\.log\.{re.escape(name)}\.[0-9a-f]{{32}}\.\*"
    return isinstance(subjects, list) and len(subjects) == 1 and re.fullmatch(pattern, subjects[0]) is not None


async def check_servers(address: Address, info: Mapping[str, Any] | None) -> None:
    """Raise Refused where a server of the stream says that it does not flush what it acknowledges, or is too old, or
    is none of those that the address names; Unavailable where less than a majority has answered, or one has not that is
    at work. A server that is away is looked at when it is there again. Without `info`, where there is no stream yet,
    any server that answers is looked at.
    """
    answers = await asyncio.gather(*(asyncio.to_thread(_look, place) for place in address.monitors))
    found = {str(answer["server_name"]): answer for answer in answers if answer is not None}
    peers = dict.fromkeys(found, True) if info is None else _peers(info)
    needed = _REPLICAS // 2 + 1 if info is None else len(peers) // 2 + 1
    looked_at = [peer for peer in peers if peer in found]
    for peer in looked_at:
        _check_server(peer, found[peer])
    enough = len(looked_at) >= needed
    if enough and len(looked_at) == len(peers):
        return
    if None not in answers:
        raise Refused(
            f"of the stream's servers {', '.join(sorted(peers))} the address has only: {', '.join(sorted(looked_at))}",
            hint="name all servers of the cluster in --log, and where each is monitored (?monitor=...)",
        )
    silent = [place for place, answer in zip(address.monitors, answers, strict=True) if answer is None]
    at_work = [peer for peer, works in peers.items() if works and peer not in found]
    if not enough or at_work:
        who = f"{', '.join(sorted(at_work))} does not say" if enough else "too few servers say"
        raise Unavailable(
            f"{who} whether what is acknowledged is flushed; no answer from {', '.join(silent)}",
            hint="each server needs a monitoring port (http_port), which is 8222 unless --log says ?monitor=...",
        )


def _check_server(name: str, told: Mapping[str, Any]) -> None:
    if not _flushes(told):
        raise Refused(
            f"a crash of NATS server {name} may lose messages: it does not flush what it acknowledges",
            hint="set sync_interval: always in its block jetstream, and restart it",
        )
    version = str(told.get("version"))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < _OLDEST:
        raise Refused(
            f"NATS server {name} has version {version}, which may lose messages",
            hint=f"take {'.'.join(map(str, _OLDEST))} or newer",
        )


def _flushes(told: Mapping[str, Any]) -> bool:
    match told:
        case {"jetstream": {"config": {"sync_always": True}}}:
            return True
    return False


def _peers(info: Mapping[str, Any]) -> Mapping[str, bool]:
    """The names of its servers, and whether each is at work as far as the leader knows."""
    cluster = info.get("cluster") or {}
    peers = {peer["name"]: not _is_away(peer) for peer in cluster.get("replicas") or []}
    if cluster.get("leader"):
        peers[cluster["leader"]] = True
    if len(peers) < _REPLICAS:
        raise Unavailable(f"the stream has {len(peers)} servers so far, and not {_REPLICAS}")
    return peers


def _is_away(peer: Mapping[str, Any]) -> bool:
    """By what the leader says. One that a new leader has not heard yet is not current, and has been active for 0."""
    active = peer.get("active", 0)
    unheard = active == 0 and not peer.get("current")
    return bool(peer.get("offline")) or unheard or active >= _AWAY * _NANOSECONDS


def _look(place: str) -> dict[str, Any] | None:
    """How the server that is monitored there is set up; None where it does not say so."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{place}/varz", timeout=_LOOK) as answer:
            told = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):  # such as one that was killed while it answered
        return None
    return told if isinstance(told, dict) and told.get("server_name") else None
