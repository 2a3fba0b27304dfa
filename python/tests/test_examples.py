"""The examples, as their README says: its commands are run, with other ports."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from pgmip.testing import Cluster
from pgmip.xinst import new_xid

pytestmark = pytest.mark.integration

TOP = Path(__file__).parents[2]
README = (TOP / "examples" / "README.md").read_text()
DATABASES, _, STARLETTE, FASTAPI, BUY, REFUSED = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
ORDER = {"item": 1, "quantity": 2}
GATE = """
    CREATE TABLE gate ();
    CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM FROM gate; RETURN NULL; END$$;
    CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON payment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION pass_gate();
"""


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "this never happens"
        time.sleep(0.02)


class Place:
    """The databases, and the environment in which the README's commands find them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        known = psycopg.conninfo.conninfo_to_dict(cluster.conninfo())
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(cluster.bindir), os.environ["PATH"]]),
            "PGHOST": str(known["host"]), "PGPORT": str(known["port"]), "PGUSER": str(known["user"]),
        }  # fmt: skip

    def sql(self, database: str, sql: str) -> list[tuple[Any, ...]]:
        return self.cluster.run_sql(sql, dbname=database)

    def value(self, database: str, sql: str) -> Any:
        return self.sql(database, sql)[0][0]

    def start(self, command: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(shlex.split(command), cwd=TOP, env=self.environment, text=True, **options)

    def waiting(self) -> list[tuple[Any, ...]]:
        """Who waits for a lock at the bank."""
        return self.sql("bank", "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

    def stock_and_money(self) -> tuple[int, int, int, int]:
        return (
            self.value("store", "SELECT stock FROM item WHERE i_id = 1"),
            self.value("store", "SELECT count(*) FROM orders"),
            self.value("bank", "SELECT balance FROM account WHERE owner = 'alice'"),
            self.value("bank", "SELECT count(*) FROM payment"),
        )

    def in_doubt(self) -> int:
        return sum(self.value(database, "SELECT count(*) FROM mip.in_doubt") for database in ("store", "bank"))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with Cluster("examples", max_prepared_transactions=100, settings={"mip.push_after": "500ms"}) as cluster:
        place = Place(cluster)
        subprocess.run(["sh", "-ec", DATABASES], cwd=TOP, env=place.environment, check=True, capture_output=True)
        yield place


class Service:
    """Two servers of one kind."""

    def __init__(self, place: Place, commands: str) -> None:
        self.ports: dict[str, str] = {}
        self.servers = [place.start(self.here(line)) for line in commands.splitlines()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports.values()]
        for url in self.urls:
            until(lambda url=url: self._answers(url))

    def here(self, command: str) -> str:
        """A command of the README with ports that are free."""
        return re.sub(r"\b800[12]\b", lambda match: self.ports.setdefault(match[0], _free_port()), command)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()

    @staticmethod
    def _answers(url: str) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(url).status_code == 401
        return False


@pytest.fixture(params=[STARLETTE, FASTAPI], ids=["starlette", "fastapi"])
def service(place: Place, request: pytest.FixtureRequest) -> Iterator[Service]:
    place.sql("store", "DELETE FROM orders; UPDATE item SET stock = 1000 WHERE i_id = 1")
    place.sql("bank", "DELETE FROM payment; UPDATE account SET balance = CASE owner WHEN 'bob' THEN 50 ELSE 100000 END")
    service = Service(place, request.param)
    try:
        yield service
    finally:
        service.stop()


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def post(url: str, key: str | None, body: Any, token: str = "alice-secret") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": f'"{key}"'} if key else {})}
    return httpx.post(f"{url}/orders", json=body, headers=headers, timeout=60)


def content(response: httpx.Response) -> tuple[Any, ...]:
    """All but what the server adds each time."""
    added = (b"date", b"server", b"idempotency-replayed")
    kept = [header for header in response.headers.raw if header[0].lower() not in added]
    return response.status_code, response.content, kept


def printed(customer: subprocess.Popen[str]) -> str:
    out, _ = customer.communicate(timeout=60)
    assert customer.returncode == 0
    return out.strip()


def test_as_written(place: Place, service: Service) -> None:
    out = printed(place.start(service.here(BUY), stdout=subprocess.PIPE))
    assert re.sub(r'"order":\d+', '"order":1', out) == '201 {"order":1,"paid":40}'
    assert '`201 {"order":1,"paid":40}`' in README
    assert printed(place.start(service.here(REFUSED), stdout=subprocess.PIPE)).startswith("402 ")
    assert place.stock_and_money() == (998, 1, 100_000 - 40, 1)
    assert place.in_doubt() == 0


def test_by_the_draft(place: Place, service: Service) -> None:
    one, two = service.urls
    key = new_xid()
    first = post(one, key, ORDER)
    assert first.status_code == 201
    assert first.headers["location"] == f"/orders/{first.json()['order']}"
    assert content(first) == content(post(two, key, ORDER)) == content(post(one, key, ORDER))
    assert post(two, key, {**ORDER, "quantity": 3}).status_code == 422
    assert post(two, None, ORDER).status_code == 400
    assert post(two, key, ORDER, token="guessed").status_code == 401
    assert post(two, key, ORDER, token="bob-secret").json() != first.json(), "his own order"
    assert place.stock_and_money() == (996, 2, 100_000 - 40, 2)
    gone = {"item": 1, "quantity": 5000}
    key = new_xid()
    refused = post(one, key, gone)
    place.sql("store", "UPDATE item SET stock = 10000")
    assert refused.status_code == 409
    replayed = post(two, key, gone)
    assert content(refused) == content(replayed)
    assert (refused.headers.get("idempotency-replayed"), replayed.headers["idempotency-replayed"]) == (None, "true")


def test_not_enough_money(place: Place, service: Service) -> None:
    """Nothing is taken from the store."""
    one, two = service.urls
    key, dear = new_xid(), {"item": 1, "quantity": 3}
    refused = post(one, key, dear, token="bob-secret")
    assert refused.status_code == 402
    assert place.stock_and_money() == (1000, 0, 100_000, 0)
    place.sql("bank", "UPDATE account SET balance = 10000")
    assert content(refused) == content(post(two, key, dear, token="bob-secret"))


def test_a_corrected_body(place: Place, service: Service, request: pytest.FixtureRequest) -> None:
    """What FastAPI cannot read is not recorded under its key."""
    if "starlette" in request.node.name:
        pytest.skip("nothing is validated there")
    key = new_xid()
    assert post(service.urls[0], key, {"item": 1, "quantity": "two"}).status_code == 422
    assert post(service.urls[1], key, ORDER).status_code == 201


def test_killed_while_it_waits(place: Place, service: Service) -> None:
    with psycopg.connect(place.cluster.conninfo("bank")) as outsider:
        outsider.execute("SELECT FROM account WHERE owner = 'alice' FOR UPDATE")
        customer = place.start(service.here(BUY), stdout=subprocess.PIPE)
        until(place.waiting)
        service.servers[0].send_signal(signal.SIGKILL)
        service.servers[0].wait()
        until(lambda: len(place.waiting()) > 1)  # the second server is at it
    assert printed(customer).startswith("201 ")
    assert place.stock_and_money() == (998, 1, 100_000 - 40, 1)
    until(lambda: place.in_doubt() == 0)


@pytest.fixture
def prepared_at_the_store(place: Place, service: Service) -> Iterator[subprocess.Popen[str]]:
    """The first server has died, with the order prepared at the store and not at the bank; its customer."""
    place.sql("bank", GATE)
    try:
        with psycopg.connect(place.cluster.conninfo("bank")) as outsider:
            outsider.execute("LOCK TABLE gate IN ACCESS EXCLUSIVE MODE")
            customer = place.start(service.here(BUY), stdout=subprocess.PIPE)
            until(lambda: place.in_doubt() == 1 and place.waiting())
            customer.send_signal(signal.SIGSTOP)
            service.servers[0].send_signal(signal.SIGKILL)
            service.servers[0].wait()
            place.sql("bank", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        yield customer
    finally:
        customer.kill()
        customer.communicate()
        place.sql("bank", "DROP TABLE gate; DROP FUNCTION pass_gate CASCADE")


def test_killed_between_the_sites(
    place: Place, service: Service, prepared_at_the_store: subprocess.Popen[str]
) -> None:
    prepared_at_the_store.send_signal(signal.SIGCONT)
    assert printed(prepared_at_the_store).startswith("201 ")
    assert place.stock_and_money() == (998, 1, 100_000 - 40, 1)
    assert place.in_doubt() == 0


def test_nobody_asks_again(place: Place, service: Service, prepared_at_the_store: subprocess.Popen[str]) -> None:
    """The other server's sweeper repeats the request from its record."""
    prepared_at_the_store.kill()
    until(lambda: place.in_doubt() == 0)
    assert place.stock_and_money() == (998, 1, 100_000 - 40, 1)
