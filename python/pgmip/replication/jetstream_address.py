"""Where a log in JetStream is: `nats://HOST:PORT,HOST:PORT,.../STREAM`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Address", "is_address", "parse_address"]

_SCHEMES = ("nats", "tls")
_PORT, _MONITORING_PORT = 4222, 8222
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPTIONS = {"monitor", "credentials"}


@dataclass(frozen=True, slots=True)
class Address:
    """What an address says."""

    stream: str
    servers: tuple[str, ...]
    """URLs."""
    monitors: tuple[str, ...]
    """HOST:PORT of each server's monitoring: there it says whether it flushes."""
    credentials: str | None = None
    """A file."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """In place of the two."""


def is_address(log: str) -> bool:
    """Whether that is what it is meant to be, and not a connection string for PostgreSQL."""
    return log.partition("://")[0] in _SCHEMES


def parse_address(log: str) -> Address:
    """`[USER:PASSWORD@]HOST[:PORT],.../STREAM[?monitor=...][&credentials=FILE]` behind `nats://`, or `tls://`; or
    `TOKEN@`. These three are quoted as in any URL (`%40` is an `@`).

    `monitor`: a port at each host (8222 unless given), or a list of ports or HOST:PORT, one for each host. Raises
    ValueError.
    """
    scheme, _, rest = log.partition("://")
    rest, _, query = rest.partition("?")
    places, slash, stream = rest.rpartition("/")
    if not slash or not _STREAM.fullmatch(stream):
        raise ValueError("no name of a stream behind the servers, of letters, digits, _ and -")
    known, _, places = places.rpartition("@")
    user, colon, password = map(unquote, known.partition(":"))
    hosts = [_host_and_port(place, _PORT) for place in places.split(",")]
    options = parse_qs(query, keep_blank_values=True)
    if unknown := set(options) - _OPTIONS:
        raise ValueError(f"not an option: {', '.join(sorted(unknown))}")
    return Address(
        stream,
        tuple(f"{scheme}://{host}:{port}" for host, port in hosts),
        _monitors([host for host, _ in hosts], options.get("monitor", [str(_MONITORING_PORT)])[-1].split(",")),
        options.get("credentials", [None])[-1],
        user=user if colon else None,
        password=password if colon else None,
        token=None if colon else user or None,
    )


def _monitors(hosts: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    if len(given) == 1:
        given = [given[0]] * len(hosts)
    if len(given) != len(hosts):
        raise ValueError(f"monitor has {len(given)} places, and there are {len(hosts)} servers")
    return tuple(
        f"{host}:{place}" if place.isdecimal() else ":".join(map(str, _host_and_port(place, _MONITORING_PORT)))
        for host, place in zip(hosts, given, strict=True)
    )


def _host_and_port(place: str, port: int) -> tuple[str, int]:
    """An IPv6 address keeps its brackets."""
    try:
        parts = urlsplit(f"//{place}")
        found = parts.port or port
    except ValueError:
        parts = urlsplit("")
    if not parts.hostname or parts.path:
        # Only what comes first is told: where the host is missing, behind USER:PASSWORD, a password follows.
        raise ValueError(f"not HOST[:PORT]: {place.partition(':')[0]!r}")
    return f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname, found
