"""What observers are told: phases and how they nest and end, decisions, siblings; and that they can do no harm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

import psycopg
import pytest
from shop import BUY, Shop, leave_at
from test_submit import prepare_by_hand

from pgmip import App, Cancelled, KeyReused, NothingHappened, ProtocolViolation, Step, Unknown
from pgmip.observe import Observer, Phase, outcome
from pgmip.xinst import new_xid, new_xinst

Server = Callable[..., App]


class Recorder(Observer):
    """Keeps every phase in the order in which they began, and those that are open."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.open: list[Phase] = []
        self.paths: list[str] = []
        self.steps: list[Step] = []

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        assert phase.error is None
        self.phases.append(phase)
        self.open.append(phase)
        self.paths.append("/".join(phase.name for phase in self.open))
        yield
        self.open.remove(phase)

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def named(self, name: str) -> list[Phase]:
        return [phase for phase in self.phases if phase.name == name]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    assert recorder.open == []


@pytest.mark.integration
async def test_phases_of_a_request(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server(parallel=False)
    app.observe(recorder)
    result = await app.submit("buy", BUY, xid="phases")
    parts = ["connect", "connect", "handler", "prepare", "prepare", "commit", "commit"]
    assert recorder.paths == ["submit", "submit/attempt", *(f"submit/attempt/{part}" for part in parts)]
    assert [phase.site for phase in recorder.phases[2:]] == ["bank", "store", None, *["store", "bank"] * 2]
    assert {phase.outcome for phase in recorder.phases} == {"ok"}
    assert {(phase.xid, phase.transaction) for phase in recorder.phases} == {("phases", "buy")}
    assert [phase.xinst for phase in recorder.phases] == [None, *[result["xinst"]] * 8]
    assert (recorder.phases[0].decision, recorder.phases[0].siblings) == ("own", 0)
    assert [step.name for step in recorder.steps][-1] == "committed-all"


@pytest.mark.integration
async def test_one_site_has_no_prepare(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server()
    app.observe(recorder)
    await app.submit("restock", {"item": 1, "qty": 1}, xid="one")
    assert recorder.paths[2:] == [f"submit/attempt/{part}" for part in ("connect", "handler", "commit")]
    await app.submit("restock", {"item": 1, "qty": 1}, xid="one")
    assert recorder.named("submit")[1].decision == "earlier"


@pytest.mark.integration
async def test_a_retransmission(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server()
    await app.submit("buy", BUY, xid="observed-again")
    app.observe(recorder)
    await app.submit("buy", BUY, xid="observed-again")
    (submit,), (attempt,) = recorder.named("submit"), recorder.named("attempt")
    assert (submit.decision, submit.siblings, submit.outcome) == ("earlier", 0, "ok")
    assert attempt.outcome == "family_committed"
    assert {phase.site for phase in recorder.named("read")} == {"store", "bank"}
    with pytest.raises(KeyReused):
        await app.submit("buy", {"item": 1, "qty": 3}, xid="observed-again")
    assert recorder.named("submit")[1].outcome == "key_reused"


@pytest.mark.integration
@pytest.mark.parametrize(("step_name", "decision"), [("prepared-first-site", "own"), ("prepared-all", "sibling")])
async def test_after_a_server_has_died(
    server: Server, shop: Shop, recorder: Recorder, unlooking: None, step_name: str, decision: str
) -> None:
    xid = f"died-{step_name}"
    await leave_at(server(), step_name, xid)
    app = server()
    app.observe(recorder)
    await app.submit("buy", BUY, xid=xid)
    (submit,) = recorder.named("submit")
    assert (submit.decision, submit.siblings) == (decision, 1)


@pytest.mark.integration
async def test_a_settled_request_is_known_by_its_transaction(server: Server, shop: Shop, recorder: Recorder) -> None:
    await leave_at(server(), "prepared-first-site", "observed-settle")
    app = server()
    app.observe(recorder)
    await app.settle("observed-settle")
    assert [phase.name for phase in recorder.phases[:4]] == ["settle", "read", "read", "attempt"]
    (settle,) = recorder.named("settle")
    assert (settle.transaction, settle.decision, settle.siblings) == ("buy", "own", 1)


@pytest.mark.integration
async def test_retries_know_what_they_come_after(server: Server, shop: Shop, recorder: Recorder) -> None:
    prepare_by_hand(shop, "observed-ahead", new_xinst() + 2**50)
    app = server()
    app.observe(recorder)
    await app.submit("buy", BUY, xid="observed-ahead")
    first, second = recorder.named("attempt")
    assert (first.after, first.outcome) == (None, "superseded")
    assert second.after is first.error
    assert second.outcome == "ok"


@pytest.mark.integration
async def test_failures(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server()
    app.observe(recorder)

    @app.transaction(sites=("store", "bank"))
    async def faulty(tx: object, request: object) -> None:
        raise KeyError("a bug")

    with pytest.raises(NothingHappened):
        await app.submit("faulty", None)
    assert [phase.outcome for phase in recorder.phases if not phase.site] == ["nothing_happened", *["exception"] * 2]
    recorder.phases.clear()
    await leave_at(server(), "prepared-first-site", "observed-cancel")
    await app.resolve("observed-cancel")
    (resolve,) = recorder.named("resolve")
    assert (resolve.decision, resolve.outcome, resolve.transaction) == ("cancelled", "ok", None)
    with pytest.raises(Cancelled):
        await app.submit("buy", BUY, xid="observed-cancel")
    assert (recorder.named("submit")[0].decision, recorder.named("submit")[0].outcome) == ("cancelled", "cancelled")


@pytest.mark.integration
async def test_a_site_that_cannot_be_reached(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server(shop.conninfos(bank=1))
    app.observe(recorder)
    with pytest.raises(Unknown):
        await app.submit("buy", BUY, xid="observed-down", attempts=1)
    assert {(phase.site, phase.outcome) for phase in recorder.named("connect")} == {("bank", "connection")}
    assert recorder.named("submit")[0].outcome == "unknown"
    assert "connection" in {phase.outcome for phase in recorder.named("read") if phase.site == "bank"}


@pytest.mark.integration
async def test_a_cancelled_submit(server: Server, shop: Shop, recorder: Recorder) -> None:
    app = server()
    app.observe(recorder)
    await leave_at(app, "prepared-first-site", "interrupted")
    assert recorder.named("submit")[0].outcome == "interrupted"
    await server().resolve("interrupted")


@pytest.mark.integration
async def test_an_observer_that_fails_does_no_harm(
    server: Server, shop: Shop, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def __init__(self, where: str) -> None:
            self.where = where

        @contextlib.contextmanager
        def phase(self, phase: Phase) -> Iterator[None]:
            if self.where == "begin":
                raise ValueError("a bug")
            yield
            raise ValueError("a bug")

    app = server()
    app.observe(Broken("begin"))
    app.observe(recorder)
    app.observe(Broken("end"))
    xid = new_xid()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid))
    assert len(caplog.records) == 2 * len(recorder.phases)
    shop.assert_clean()


@pytest.mark.integration
async def test_an_observer_that_is_interrupted_keeps_no_connection(server: Server, shop: Shop) -> None:
    class Interrupted(Observer):
        over = False

        @contextlib.contextmanager
        def phase(self, phase: Phase) -> Iterator[None]:
            yield
            if phase.name == "connect" and not self.over:
                self.over = True
                raise asyncio.CancelledError

    app = server(pool_size=1)
    app.observe(Interrupted())
    with pytest.raises(Unknown):
        await app.submit("buy", BUY)
    xid = new_xid()
    shop.assert_once(xid, await app.submit("buy", BUY, xid=xid, deadline=5))
    shop.assert_clean()


@pytest.mark.integration
@pytest.mark.parametrize("of", ["logger", "handler"])
async def test_a_log_that_fails_does_no_harm(
    server: Server, shop: Shop, caplog: pytest.LogCaptureFixture, of: str
) -> None:
    """By a filter that looks for what is there in requests of a framework only: logging lets that through."""

    def needs_a_request(record: logging.LogRecord) -> bool:
        raise LookupError("no request")

    app, xid = server(), new_xid()
    filtered: logging.Filterer = logging.getLogger("pgmip") if of == "logger" else caplog.handler
    with caplog.at_level(logging.DEBUG, "pgmip"):
        filtered.addFilter(needs_a_request)
        try:
            result = await app.submit("buy", BUY, xid=xid)
        finally:
            filtered.removeFilter(needs_a_request)
    shop.assert_once(xid, result)
    shop.assert_clean()


class Gate(Observer):
    """Notes what is left, which may fail."""

    def __init__(self, left: list[str], name: str, error: BaseException | None = None) -> None:
        self.left, self.name, self.error = left, name, error

    @contextlib.contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        yield
        self.left.append(self.name)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("in_the_log", [False, True])
def test_all_observers_are_left(monkeypatch: pytest.MonkeyPatch, in_the_log: bool) -> None:
    """Also where one is interrupted, or where the log is by which one is said to have failed."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logging.getLogger("pgmip"), "exception", interrupted)
    left: list[str] = []
    error = LookupError() if in_the_log else KeyboardInterrupt()
    observers = [Gate(left, "first"), Observer(), Gate(left, "second", error), Gate(left, "third")]
    with pytest.raises(KeyboardInterrupt), Phase(observers, "submit", "x"):
        pass
    assert left == ["third", "second", "first"]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (None, "ok"),
        (NothingHappened("x"), "nothing_happened"),
        (ProtocolViolation("x"), "protocol_violation"),
        (psycopg.errors.SerializationFailure(), "serialization_failure"),
        (psycopg.errors.DeadlockDetected(), "deadlock"),
        (psycopg.errors.UniqueViolation(), "constraint"),
        (psycopg.errors.UndefinedTable(), "sql_error"),
        (psycopg.errors.AdminShutdown(), "server_down"),
        (psycopg.OperationalError("no route"), "connection"),
        (psycopg.ProgrammingError("no SQL"), "sql_error"),
        (TimeoutError(), "timeout"),
        (asyncio.CancelledError(), "interrupted"),
        (KeyError("secret"), "exception"),
    ],
)
def test_outcomes(error: BaseException | None, word: str) -> None:
    assert outcome(error) == word
