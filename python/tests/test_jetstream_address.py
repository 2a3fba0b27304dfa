"""Where a log in JetStream is said to be."""

from __future__ import annotations

import pytest

from pgmip.replication.jetstream_address import Address, is_address, parse_address


def test_what_is_meant_to_be_one() -> None:
    assert is_address("nats://a/log")
    assert is_address("tls://")
    assert not is_address("host=nats dbname=log")
    assert not is_address("postgresql://nats/log")
    assert not is_address("service=nats")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("nats://a/log", Address("log", ("nats://a:4222",), ("a:8222",))),
        ("tls://a:1,b/l-1_", Address("l-1_", ("tls://a:1", "tls://b:4222"), ("a:8222", "b:8222"))),
        ("nats://u:p@a/log", Address("log", ("nats://a:4222",), ("a:8222",), user="u", password="p")),
        ("nats://%75:%40%2F%25@a/log", Address("log", ("nats://a:4222",), ("a:8222",), user="u", password="@/%")),
        ("nats://u:[/#:@a/log", Address("log", ("nats://a:4222",), ("a:8222",), user="u", password="[/#:")),
        ("nats://t%2F@a/log", Address("log", ("nats://a:4222",), ("a:8222",), token="t/")),
        ("nats://@a/log", Address("log", ("nats://a:4222",), ("a:8222",))),
        ("nats://a,b/log?monitor=1", Address("log", ("nats://a:4222", "nats://b:4222"), ("a:1", "b:1"))),
        ("nats://a,b/log?monitor=1,c:2", Address("log", ("nats://a:4222", "nats://b:4222"), ("a:1", "c:2"))),
        ("nats://[::1]:5/log", Address("log", ("nats://[::1]:5",), ("[::1]:8222",))),
        ("nats://a/log?credentials=/f", Address("log", ("nats://a:4222",), ("a:8222",), "/f")),
    ],
)
def test_what_it_says(given: str, found: Address) -> None:
    assert parse_address(given) == found


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("nats://a", "no name of a stream"),
        ("nats://a/", "no name of a stream"),
        ("nats://a/b.c", "no name of a stream"),
        ("nats:///log", "not HOST"),
        ("nats://a,,b/log", "not HOST"),
        ("nats://a:x/log", "not HOST"),
        ("nats://a:99999/log", "not HOST"),
        ("nats://a,b,c/log?monitor=1,2", "2 places, and there are 3 servers"),
        ("nats://a/log?colour=red", "not an option: colour"),
    ],
)
def test_what_says_nothing(given: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_address(given)


def test_a_password_is_not_shown() -> None:
    for given in ("nats://u:secret@a/log", "nats://secret@a/log"):
        assert "secret" not in repr(parse_address(given))
    with pytest.raises(ValueError, match="not HOST") as raised:
        parse_address("nats://u:secret/log")
    assert "secret" not in str(raised.value)
