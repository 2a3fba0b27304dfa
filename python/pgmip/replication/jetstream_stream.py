"""The stream that is a log: how it is set up, and whether it and its servers lose nothing.

What is here is refused rather than repaired: a stream that has been able to lose messages may have done so.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .engine import Refused, Unavailable
from .jetstream_address import Address

__all__ = [
    *("BEGINNING", "Bounds", "bounds_of", "check_servers", "check_stream", "settings", "subjects_of"),
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

# Settings that could make a position go, or come twice; and what each has to be. Where there is none it is the first.
_NEEDED: Mapping[str, tuple[Any, ...]] = {
    "retention": ("limits",),
    "storage": ("file",),
    "max_msgs": (-1,),
    "max_bytes": (-1,),
    "max_age": (0,),
    "max_msgs_per_subject": (-1,),
    "discard": ("new",),
    "deny_delete": (True,),
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
    ever = int(state["last_seq"])
    return Bounds(int(state["first_seq"]), ever, ever) if state["messages"] else Bounds(None, None, ever)


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
    if len(config.get("subjects") or ()) != 1:
        weak.append(f"subjects = {json.dumps(config.get('subjects'))}")
    if config["num_replicas"] < _REPLICAS:
        weak.insert(0, f"num_replicas = {config['num_replicas']}")
    if weak:
        raise Refused(
            f"stream {name} may lose messages: {', '.join(weak)}",
            hint="it is to be as pgmip replica init makes it, with three replicas or more; what it has lost by now is "
            "not known",
        )


async def check_servers(address: Address, info: Mapping[str, Any] | None) -> None:
    """Raise Refused where a server of the stream says that it does not flush what it acknowledges, or is too old;
    Unavailable where less than a majority has answered. A server that does not answer is looked at when it is there
    again. Without `info`, where there is no stream yet, any server that answers is looked at.
    """
    answers = await asyncio.gather(*(asyncio.to_thread(_look, place) for place in address.monitors))
    found = {str(answer["server_name"]): answer for answer in answers if answer is not None}
    peers = list(found) if info is None else _peers(info)
    needed = _REPLICAS // 2 + 1 if info is None else len(peers) // 2 + 1
    looked_at = [peer for peer in peers if peer in found]
    for peer in looked_at:
        _check_server(peer, found[peer])
    if len(looked_at) >= needed:
        return
    if None not in answers:
        raise Refused(
            f"of the stream's servers {', '.join(sorted(peers))} the address has only: {', '.join(sorted(looked_at))}",
            hint="name all servers of the cluster in --log, and where each is monitored (?monitor=...)",
        )
    silent = [place for place, answer in zip(address.monitors, answers, strict=True) if answer is None]
    raise Unavailable(
        f"too few servers say whether they flush; no answer from {', '.join(silent)}",
        hint="each server needs a monitoring port (http_port), which is 8222 unless --log says ?monitor=...",
    )


def _check_server(name: str, told: Mapping[str, Any]) -> None:
    if not told.get("jetstream", {}).get("config", {}).get("sync_always", False):
        raise Refused(
            f"a crash of NATS server {name} may lose messages: it does not flush what it acknowledges",
            hint="set sync_interval: always in its block jetstream, and restart it",
        )
    version = str(told["version"])
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < _OLDEST:
        raise Refused(
            f"NATS server {name} has version {version}, which may lose messages",
            hint=f"take {'.'.join(map(str, _OLDEST))} or newer",
        )


def _peers(info: Mapping[str, Any]) -> Sequence[str]:
    """The names of its servers."""
    cluster = info.get("cluster") or {}
    names = [peer["name"] for peer in cluster.get("replicas") or []]
    if cluster.get("leader"):
        names.append(cluster["leader"])
    if len(names) < _REPLICAS:
        raise Unavailable(f"the stream has {len(names)} servers so far, and not {_REPLICAS}")
    return names


def _look(place: str) -> dict[str, Any] | None:
    """How the server that is monitored there is set up."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{place}/varz", timeout=_LOOK) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return None
    return told

