"""The plan of a run at a replicated site: kinds of faults, and whom they befall."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from workload.replicas import LOG

from ..plan import LINKS, NETWORK, Fault, common_details, draw

__all__ = ["MEMBERS", "PARTS", "agent", "agents", "clients", "kinds", "links", "make"]

MEMBERS = ("a", "b", "c")
PARTS = {"postgresql": (LOG,), "jetstream": ("n1", "n2", "n3")}
"""What a log is of, by what it is kept in."""

# How often, compared with each other
_KINDS = {
    "kill replica": 4,
    "kill postmaster": 4,
    "kill backend": 4,
    "end backend": 6,
    "kill agent": 12,
    "replace agent": 5,
    "kill client": 3,
    "pause replica": 5,
    "pause backend": 8,
    "pause agent": 8,
    "pause client": 2,
    "clock jump": 5,
    "cut": 12,
    **LINKS,
}
_OF_THE_LOG = {
    "postgresql": {"kill log": 3, "pause log": 3, "disk full": 3},
    "jetstream": {"kill log": 6, "pause log": 5, "change leader": 5},
}


def kinds(log: str) -> dict[str, int]:
    """Of faults, where the log is kept in this."""
    return {**_KINDS, **_OF_THE_LOG[log]}


def make(seed: int, seconds: float, log: str = "postgresql") -> list[Fault]:
    """The same for the same arguments, always."""
    rng = random.Random(f"replicated {seed}")
    return draw(rng, kinds(log), seconds, lambda rng, kind: _target(rng, kind, log), _details)


def agent(member: str) -> str:
    return f"agent-{member}"


def agents() -> list[str]:
    return list(map(agent, MEMBERS))


def clients() -> list[str]:
    """The processes of clients, one for each replica."""
    return [f"clients-{member}" for member in MEMBERS]


def links(log: str) -> Iterator[str]:
    """Clients reach a replica over one link, and an agent its replica and each part of the log over its own."""
    yield from (f"clients>{member}" for member in MEMBERS)
    yield from (f"{agent(member)}>{to}" for member in MEMBERS for to in (member, *PARTS[log]))


def _target(rng: random.Random, kind: str, log: str) -> str:
    if kind in (*NETWORK, "link down"):
        return rng.choice(list(links(log)))
    if kind.endswith("agent"):
        return rng.choice(agents())
    if kind.endswith("client") or kind == "clock jump":
        return rng.choice(clients())
    if kind.endswith(("postmaster", "backend")):
        return rng.choice([*MEMBERS, LOG] if log == "postgresql" else MEMBERS)
    return rng.choice(PARTS[log] if kind in _OF_THE_LOG[log] else MEMBERS)


def _details(rng: random.Random, kind: str) -> dict[str, Any]:
    """Shorter ones than elsewhere: where the log or an agent is away, nothing is committed."""
    if kind == "replace agent":
        return {"beside": round(rng.uniform(0.1, 2), 2), "alone": round(rng.uniform(0.1, 2), 2)}
    details = common_details(rng, kind)
    if "back" in details:
        details["back"] = round(rng.uniform(0.1, 2), 2)
    elif "hold" in details or kind == "disk full":
        details["hold"] = round(rng.choice((0.1, 0.3, 1, 6)) * rng.uniform(0.5, 1), 2)
    if kind.endswith("backend"):
        details["which"] = round(rng.random(), 4)
    return details
