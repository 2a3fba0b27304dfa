"""The plan of a run: what happens when, and to whom. The seed says all of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .handlers import SITES
from .proxy import Mode

__all__ = [
    *("CLIENTS", "KINDS", "LINKS", "NETWORK", "STEPS", "Fault"),
    *("clients", "common_details", "compare", "draw", "links", "make", "servers", "sweepers", "write"),
]

SERVERS, SWEEPERS = 3, 2
CLIENTS, CLIENT_PROCESSES = 16, 4
STEPS = ("begun", "prepared-first-site", "prepared-all", "committed-first-site")

LINKS = {"tear": 4, "deaf": 6, "mute": 6, "stall": 6, "delay": 8, "link down": 5}
"""What befalls a link, and how often, as in KINDS."""
KINDS = {
    # how often, compared with each other
    "kill server": 8,
    "kill server at step": 12,
    "kill sweeper": 5,
    "kill client": 3,
    "kill backend": 3,
    "kill postmaster": 2,
    "kill cluster": 3,
    "kill standby": 2,
    "pause server": 6,
    "pause sweeper": 3,
    "pause client": 2,
    "pause backend": 5,
    "pause site": 3,
    "pause standby": 3,
    "cut": 10,
    **LINKS,
    "clock jump": 6,
    "fail over": 3,
    "fail over behind": 1,
}
NETWORK = tuple(mode.value for mode in Mode)
RATE = 1.5
"""Faults per second, on average."""


@dataclass(frozen=True, slots=True)
class Fault:
    number: int
    at: float
    """Seconds since the beginning."""
    kind: str
    target: str
    """A site, a process, or a link."""
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        details = " ".join(f"{name}={value}" for name, value in self.details.items())
        return f"{self.number:4} {self.at:7.2f} s  {self.kind:19} {self.target:18} {details}".rstrip()


def make(seed: int, seconds: float) -> list[Fault]:
    """The same for the same arguments, always. Every kind comes up early, in random order, then they are drawn."""
    return draw(random.Random(f"faults {seed}"), KINDS, seconds, _target, _details)


def draw(
    rng: random.Random,
    kinds: Mapping[str, int],
    seconds: float,
    target: Callable[[random.Random, str], str],
    details: Callable[[random.Random, str], dict[str, Any]],
) -> list[Fault]:
    """Of these kinds, so often compared with each other, at random intervals."""
    once = sorted(kinds)
    rng.shuffle(once)
    drawn = once + rng.choices(list(kinds), list(kinds.values()), k=round(seconds * RATE))
    plan, at = [], 1.0
    for number, kind in enumerate(drawn):
        at += rng.expovariate(RATE)
        if at >= seconds:
            break
        plan.append(Fault(number, round(at, 3), kind, target(rng, kind), details(rng, kind)))
    return plan


def compare(seed: int, seconds: float) -> list[Fault]:
    """App servers die at every step of the protocol, one after another, and nothing else happens."""
    rng = random.Random(f"compare {seed}")
    plan: list[Fault] = []
    at = 1.0
    while at < seconds:
        back = round(rng.uniform(1, 3), 2)
        details = {"step": rng.choice(STEPS), "after": 0, "back": back}
        plan.append(Fault(len(plan), round(at, 3), "kill server at step", rng.choice(servers()), details))
        at += back + rng.uniform(0.5, 1.5)
    return plan


def write(plan: list[Fault], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(fault)) + "\n" for fault in plan))


def servers() -> list[str]:
    return [f"server-{number}" for number in range(SERVERS)]


def sweepers() -> list[str]:
    return [f"sweeper-{number}" for number in range(SWEEPERS)]


def clients() -> list[str]:
    return [f"clients-{number}" for number in range(CLIENT_PROCESSES)]


def links() -> Iterator[str]:
    """Clients reach a server over one link, and every process a site over one of its own."""
    yield from (f"clients>{server}" for server in servers())
    yield from (f"{process}>{site}" for process in servers() + sweepers() for site in SITES)


def _target(rng: random.Random, kind: str) -> str:
    if kind in (*NETWORK, "link down"):
        return rng.choice(list(links()))
    if "sweeper" in kind:
        return rng.choice(sweepers())
    if "client" in kind:
        return rng.choice(clients())
    if "server" in kind or kind == "clock jump":
        return rng.choice(servers())
    return rng.choice(SITES)


def _details(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind == "kill server at step":
        return {"step": rng.choice(STEPS), "after": rng.randrange(4), "back": round(rng.uniform(0.2, 4), 2)}
    if kind == "fail over behind":
        return {"behind": round(rng.uniform(0.3, 5), 2), "alone": round(rng.uniform(0.5, 5), 2)}
    return common_details(rng, kind)


def common_details(rng: random.Random, kind: str) -> dict[str, Any]:
    """Of messages that are struck, links that are down, clocks, and what is killed or paused."""
    if kind == "clock jump":
        return {"seconds": round(rng.choice((-1, 1)) * 10 ** rng.uniform(-2, 5.5), 3)}
    if kind in NETWORK:
        return {
            "direction": rng.choice(("request", "reply")),
            "number": rng.randrange(40),
            "hold": round(rng.choice((0.2, 1, 3, 8)) * rng.uniform(0.5, 1), 2),
        }
    if kind == "link down" or kind.startswith("pause"):
        return {"hold": round(rng.choice((0.3, 1, 3, 8)) * rng.uniform(0.5, 1), 2)}
    if kind.startswith("kill"):
        return {"back": round(rng.uniform(0.2, 4), 2), "which": round(rng.random(), 4)}
    return {}
