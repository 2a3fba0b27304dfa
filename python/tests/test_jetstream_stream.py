"""What a stream, its leader and its servers' monitoring say of whether it loses nothing, and what is made of that."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from pgmip.replication import jetstream_stream
from pgmip.replication.engine import Refused, Unavailable
from pgmip.replication.jetstream_address import parse_address
from pgmip.replication.jetstream_stream import bounds_of, check_servers, check_stream, is_followed, settings

MILLISECONDS = 10**6
ADDRESS = parse_address("nats://a,b,c/log")


def peer(name: str, active: int = 5 * MILLISECONDS, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "current": True, "active": active, **parameters}


def info(*others: dict[str, Any], leader: str = "n1") -> dict[str, Any]:
    return {"cluster": {"leader": leader, "replicas": list(others)}}


@pytest.mark.parametrize(
    ("told", "followed"),
    [
        (info(peer("n2"), peer("n3")), True),
        (info(peer("n2"), peer("n3", 10**10)), True),
        (info(peer("n2", 10**10), peer("n3", 10**10)), False),
        (info(peer("n2", 10 * MILLISECONDS), peer("n3", 11 * MILLISECONDS)), False),
        (info(peer("n2", 0), peer("n3", 0)), False),  # it has never heard them
        (info(peer("n2"), peer("n3", 0), peer("n4", 0), peer("n5", 0)), False),
        (info(peer("n2"), peer("n3"), peer("n4", 0), peer("n5", 0)), True),
        (info(peer("n1"), peer("n3")), False),  # n1 has not said that itself
        (info(peer("n2"), peer("n3"), leader=""), False),
        ({}, False),
    ],
)
def test_a_leader_that_is_followed(told: dict[str, Any], followed: bool) -> None:
    assert is_followed(told, 0.01) is followed


@pytest.mark.parametrize(
    ("state", "holes"),
    [
        ({"first_seq": 1, "last_seq": 5, "messages": 5}, 0),
        ({"first_seq": 4, "last_seq": 5, "messages": 2}, 0),
        ({"first_seq": 4, "last_seq": 6, "messages": 2}, 1),
        ({"first_seq": 6, "last_seq": 5, "messages": 0}, 0),
    ],
)
def test_holes(state: dict[str, Any], holes: int) -> None:
    assert bounds_of({"state": state}).holes == holes


@pytest.mark.parametrize(
    "subjects",
    [
        None,
        [],
        ["other.*"],
        [f"pgmip.log.log.{'0' * 32}.>"],
        [f"pgmip.log.other.{'0' * 32}.*"],
        [f"pgmip.log.log.{'0' * 31}.*"],
        [f"pgmip.log.log.{'0' * 32}.*", "other.*"],
    ],
)
def test_other_subjects(subjects: Any) -> None:
    config = settings("log", UUID(int=0), UUID(int=1))
    check_stream({"config": config})
    with pytest.raises(Refused, match="may lose messages: subjects = "):
        check_stream({"config": {**config, "subjects": subjects}})


def varz(name: str, **parameters: Any) -> dict[str, Any]:
    return {"server_name": name, "version": "2.15.2", "jetstream": {"config": {"sync_always": True}}, **parameters}


WELL = info(peer("n2"), peer("n3"))


def check(monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], *answers: dict[str, Any] | None) -> None:
    """What is made of what the stream's leader has said, and monitoring at each place."""
    told = dict(zip(ADDRESS.monitors, answers, strict=True))
    monkeypatch.setattr(jetstream_stream, "_look", told.__getitem__)
    asyncio.run(check_servers(ADDRESS, said))


@pytest.mark.parametrize(
    "third",
    [
        peer("n3", offline=True),
        peer("n3", 3000 * MILLISECONDS),
        peer("n3", 0, current=False),  # it has not been heard by a new leader
    ],
)
def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch, third: dict[str, Any]) -> None:
    """It is looked at when it is back."""
    check(monkeypatch, info(peer("n2"), third), varz("n1"), varz("n2"), None)
    with pytest.raises(Unavailable, match=r"too few servers say whether .* no answer from b:8222, c:8222"):
        check(monkeypatch, info(peer("n2"), third), varz("n1"), None, None)


@pytest.mark.parametrize(
    ("said", "who"),
    [
        (WELL, "n3"),
        (info(peer("n2"), peer("n3", 2900 * MILLISECONDS)), "n3"),
        (info(peer("n1"), peer("n2"), leader="n3"), "n3"),
    ],
)
def test_one_that_does_not_say_how_it_is_set_up(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], who: str
) -> None:
    """Though it works: a majority that flushes is not enough, as it may be in another one."""
    with pytest.raises(Unavailable, match=f"{who} does not say whether .* no answer from c:8222"):
        check(monkeypatch, said, varz("n1"), varz("n2"), None)


def test_one_that_the_address_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, WELL, varz("n1"), varz("n2"), varz("n3"))
    with pytest.raises(Refused, match="servers n1, n2, n3 the address has only: n1, n2"):
        check(monkeypatch, WELL, varz("n1"), varz("n2"), varz("n1"))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"jetstream": None}, "does not flush"),
        ({"jetstream": {}}, "does not flush"),
        ({"jetstream": 3}, "does not flush"),
        ({"jetstream": {"config": {"sync_always": False}}}, "does not flush"),
        ({"version": None}, "has version None"),
        ({"version": "2.14.9"}, "has version 2.14.9"),
        ({"version": "2.1500"}, ""),
        ({"version": "3.0.0-RC.1"}, ""),
    ],
)
def test_how_it_is_set_up(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], told: str) -> None:
    answers = (varz("n1"), varz("n2"), varz("n3", **wrong))
    if not told:
        check(monkeypatch, WELL, *answers)
        return
    with pytest.raises(Refused, match=told):
        check(monkeypatch, WELL, *answers)
