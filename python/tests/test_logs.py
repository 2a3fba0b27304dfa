"""Logs: which record at which level, its fields, and that nothing secret gets into one."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from shop import BUY, Shop, leave_at

from pgmip import App, Cancelled, KeyReused, NothingHappened, ProtocolViolation, Tx, Unknown
from pgmip.logs import FIELDS, JsonFormatter, Logs
from pgmip.observe import Phase

Server = Callable[..., App]
SECRET = "4111-1111-1111-1111"


def told(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records if record.levelno >= level]


@pytest.mark.integration
async def test_a_request_that_just_works_is_quiet(server: Server, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pgmip")
    result = await server().submit("buy", BUY, xid="logged")
    assert told(caplog) == []
    last = caplog.records[-1]
    assert last.name == "pgmip"
    assert last.message == "submit buy: ok (own)"
    fields = {name: getattr(last, name) for name in FIELDS}
    assert fields.pop("seconds") > 0
    assert fields == {
        "phase": "submit", "xid": "logged", "xinst": None, "site": None, "transaction": "buy", "outcome": "ok",
        "error": None, "sqlstate": None, "decision": "own", "idempotency_key": None,
    }  # fmt: skip
    prepared = [record for record in caplog.records if record.message.startswith("prepare")]
    assert {(record.site, record.xinst) for record in prepared} == {  # type: ignore[attr-defined]
        (site, result["xinst"]) for site in ("store", "bank")
    }


@pytest.mark.integration
async def test_what_an_operator_wants_to_know(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture, unlooking: None
) -> None:
    caplog.set_level(logging.INFO, "pgmip")
    await leave_at(server(), "prepared-all", "logged-sibling")
    caplog.clear()
    await server().submit("buy", BUY, xid="logged-sibling")
    assert told(caplog)[-1] == ("INFO", "submit buy: ok (sibling)")
    caplog.clear()
    with pytest.raises(KeyReused):
        await server().submit("buy", {"item": 1, "qty": 9}, xid="logged-sibling")
    assert told(caplog)[-1] == ("INFO", "submit buy: key_reused (earlier)")
    caplog.clear()
    with pytest.raises(Unknown):
        await server(shop.conninfos(bank=1)).submit("buy", BUY, xid="logged-down", attempts=1)
    assert ("WARNING", "connect buy at bank: connection") in told(caplog)
    assert told(caplog)[-1] == ("WARNING", "submit buy: unknown")


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ProtocolViolation("x"), logging.ERROR),
        (Unknown("x"), logging.WARNING),
        (NothingHappened("x"), logging.WARNING),
        (Cancelled("x"), logging.INFO),
        (None, logging.DEBUG),
    ],
)
def test_levels(error: Exception | None, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pgmip")
    with Phase([Logs()], "submit", "x") as phase:
        phase.error = error
    (record,) = caplog.records
    assert record.levelno == level


@pytest.mark.integration
async def test_nothing_secret_is_logged(server: Server, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = server()

    @app.transaction(sites=("store", "bank"))
    async def secretive(tx: Tx, request: Any) -> Any:
        if request["how"] == "raise":
            raise ValueError(request["card"])
        if request["how"] == "error":
            await tx.store.execute("SELECT %s::text::int", (request["card"],))
        await tx.store.execute("SELECT %s::text", (request["card"],))
        await tx.bank.execute("SELECT 1")
        return {"paid with": request["card"]}

    for how in ("raise", "error"):
        with pytest.raises(NothingHappened, match=SECRET):  # the caller gets to know
            await app.submit("secretive", {"how": how, "card": SECRET}, xid=f"secret-{how}")
    for _ in range(2):  # the second time, MP001 has the result in its detail
        await app.submit("secretive", {"how": "return", "card": SECRET}, xid="secret")
    assert any(getattr(record, "sqlstate", None) == "22P02" for record in caplog.records)
    assert any(getattr(record, "sqlstate", None) == "MP001" for record in caplog.records)
    formatter = JsonFormatter()
    for record in caplog.records:
        assert SECRET not in formatter.format(record) + repr(record.__dict__)


def test_json() -> None:
    formatter = JsonFormatter()
    record = logging.makeLogRecord(
        {"name": "pgmip", "levelname": "INFO", "msg": "x %s", "args": ("y",), "created": 1.5, "xid": "a\nb"}
    )
    line = formatter.format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500+00:00", "level": "INFO", "logger": "pgmip", "message": "x y", "xid": "a\nb",
    }  # fmt: skip
    try:
        raise KeyError("bug")
    except KeyError:
        record.exc_info = sys.exc_info()
    assert "KeyError" in json.loads(formatter.format(record))["traceback"]
