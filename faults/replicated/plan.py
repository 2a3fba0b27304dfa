"""The plan of a run at a replicated site: kinds of faults, and whom they befall."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from workload.replicas import LOG

from ..plan import LINKS, NETWORK, Fault, common_details, draw

__all__ = ["KINDS", "MEMBERS", "SERVERS", "agent", "agents", "clients", "links", "make"]

MEMBERS = ("a", "b", "c")
SERVERS = (*MEMBERS, LOG)

KINDS = {
    # how often, compared with each other
    "kill replica": 4,
    "kill postmaster": 4,
    "kill log": 3,
    "kill backend": 4,
    "end backend": 6,
    "kill agent": 12,
    "replace agent": 5,
    "kill client": 3,
    "pause replica": 5,
    "pause log": 3,
    "pause backend": 8,
    "pause agent": 8,
    "pause client": 2,
    "cut": 12,
    **LINKS,
    "disk full": 3,
}


def make(seed: int, seconds: float) -> list[Fault]:
    """The same for the same arguments, always."""
    return draw(random.Random(f"replicated {seed}"), KINDS, seconds, _target, _details)


def agent(member: str) -> str:
    return f"agent-{member}"


def agents() -> list[str]:
    return list(map(agent, MEMBERS))


def clients() -> list[str]:
    """The processes of clients, one for each replica."""
    return [f"clients-{member}" for member in MEMBERS]


def links() -> Iterator[str]:
    """Clients reach a replica over one link, and each agent its replica and the log over one of its own."""
    yield from (f"clients>{member}" for member in MEMBERS)
    yield from (f"{agent(member)}>{server}" for member in MEMBERS for server in (member, LOG))


def _target(rng: random.Random, kind: str) -> str:
    if kind in (*NETWORK, "link down"):
        return rng.choice(list(links()))
    if kind.endswith("agent"):
        return rng.choice(agents())
    if kind.endswith("client"):
        return rng.choice(clients())
    if kind.endswith(("postmaster", "backend")):
        return rng.choice(SERVERS)
    return LOG if kind in ("kill log", "pause log", "disk full") else rng.choice(MEMBERS)


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
