"""Traces: which spans, how they nest, what they are told, and that without OpenTelemetry nothing is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from shop import BUY, Shop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import pgmip.http
from pgmip import App, NothingHappened, Tx
from pgmip.tracing import Tracing, continued, inject

Server = Callable[..., App]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == f"pgmip.{name}"]


def parent_of(exporter: InMemorySpanExporter, span: ReadableSpan) -> str | None:
    spans = {other.context.span_id: other.name for other in exporter.get_finished_spans() if other.context}
    return spans.get(span.parent.span_id) if span.parent else None


@pytest.mark.integration
async def test_spans(server: Server, shop: Shop, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    app = server()
    app.observe(Tracing(provider))
    result = await app.submit("buy", BUY, xid="traced")
    ((submit,), (attempt,), (handler,)) = (named(exporter, name) for name in ("submit", "attempt", "handler"))
    assert [parent_of(exporter, span) for span in (submit, attempt, handler)] == [None, "pgmip.submit", "pgmip.attempt"]
    assert submit.attributes == {
        "pgmip.xid": "traced", "pgmip.transaction": "buy", "pgmip.outcome": "ok", "pgmip.decision": "own",
        "pgmip.siblings": 0,
    }  # fmt: skip
    for name in ("connect", "prepare", "commit"):
        spans = named(exporter, name)
        assert {(span.attributes or {})["pgmip.site"] for span in spans} == {"store", "bank"}
        assert {(span.attributes or {})["pgmip.xinst"] for span in spans} == {result["xinst"]}
        assert {(parent_of(exporter, span), span.kind) for span in spans} == {("pgmip.attempt", SpanKind.CLIENT)}
    assert {event.name for event in attempt.events} == {
        "prepared-first-site", "prepared-all", "committed-first-site", "committed-all",
    }  # fmt: skip
    assert {event.name for event in handler.events} == {"begun"}
    assert {span.context.trace_id for span in exporter.get_finished_spans() if span.context} == {
        submit.context.trace_id if submit.context else None
    }
    assert not any(span.status.status_code is StatusCode.ERROR for span in exporter.get_finished_spans())


@pytest.mark.integration
async def test_failures_are_told_without_secrets(
    server: Server, shop: Shop, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    app = server()
    app.observe(Tracing(provider))

    @app.transaction(sites=("store", "bank"))
    async def faulty(tx: Tx, request: Any) -> None:
        with provider.get_tracer("shop").start_as_current_span("mine"):
            pass
        raise ValueError("secret")

    with pytest.raises(NothingHappened):
        await app.submit("faulty", "secret")
    (submit,), (handler,) = named(exporter, "submit"), named(exporter, "handler")
    assert (submit.status.status_code, submit.status.description) == (StatusCode.ERROR, "nothing_happened")
    assert (handler.status.status_code, handler.status.description) == (StatusCode.ERROR, "exception")
    (mine,) = [span for span in exporter.get_finished_spans() if span.name == "mine"]
    assert parent_of(exporter, mine) == "pgmip.handler"
    assert "secret" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_the_trace_of_an_http_request_goes_on(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    tracer = provider.get_tracer("test")
    headers: dict[str, str] = {}
    with continued({"traceparent": PARENT}), tracer.start_as_current_span("server"):
        inject(headers)
    with tracer.start_as_current_span("outer"), continued({"traceparent": PARENT}):  # instrumented already
        tracer.start_span("inner").end()
    assert not trace.get_current_span().get_span_context().is_valid
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans["server"].parent is not None
    assert spans["server"].context is not None
    assert f"{spans['server'].parent.span_id:016x}" == PARENT.split("-")[2]
    assert headers["traceparent"].split("-")[1:3] == [PARENT.split("-")[1], f"{spans['server'].context.span_id:016x}"]
    assert spans["inner"].parent == spans["outer"].context


@pytest.mark.integration
async def test_a_server_continues_its_clients_trace(
    server: Server, shop: Shop, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    app = server()
    app.observe(Tracing(provider))
    headers = {"traceparent": PARENT, "Idempotency-Key": "traced-http"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(pgmip.http.asgi(app)), base_url="http://app") as client:
        (await client.post("/buy", json=BUY, headers=headers)).raise_for_status()
    (submit,) = named(exporter, "submit")
    assert submit.context is not None
    assert f"{submit.context.trace_id:032x}" == PARENT.split("-")[1]


@pytest.mark.integration
async def test_an_endpoint_continues_its_clients_trace(
    server: Server, shop: Shop, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    app = server()
    app.observe(Tracing(provider))

    async def order(request: Request) -> Response:
        await pgmip.http.tx(request).store.execute("SELECT 1")
        return Response()

    endpoint = pgmip.http.Endpoint("/orders", ("store",))
    served = pgmip.http.IdempotencyMiddleware(
        Starlette(routes=[Route("/orders", order, methods=["POST"])]), app, [endpoint], scope=lambda _: ""
    )
    headers = {"traceparent": PARENT, "Idempotency-Key": "traced-endpoint"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://app") as client:
        (await client.post("/orders", headers=headers)).raise_for_status()
    (submit,) = named(exporter, "submit")
    assert submit.context is not None
    assert f"{submit.context.trace_id:032x}" == PARENT.split("-")[1]


async def test_a_client_sends_its_trace(provider: TracerProvider) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["traceparent"])
        return httpx.Response(200, json={})

    async with pgmip.Client(["http://app"], transport=httpx.MockTransport(answer), acknowledge=False) as client:
        with provider.get_tracer("browser").start_as_current_span("click") as click:
            await client.submit("buy", BUY)
    assert sent[0].split("-")[1] == f"{click.get_span_context().trace_id:032x}"


def test_the_sdk_may_be_set_up_later() -> None:
    code = """
from contextlib import nullcontext
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pgmip.observe import Phase
from pgmip.tracing import Tracing

tracing = Tracing()
for provider in (None, TracerProvider()):
    if provider is not None:
        trace.set_tracer_provider(provider)
    with Phase([tracing], "submit", "x") as phase:
        print(trace.get_current_span().is_recording(), isinstance(tracing.phase(phase), nullcontext))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False True", "True False"]


def test_the_sdk_is_not_set_up() -> None:
    """What somebody else traces in his own way gets no steps that belong to spans of ours."""
    code = """
import asyncio
from opentelemetry.sdk.trace import TracerProvider
from pgmip.observe import Phase
from pgmip.tracing import Tracing

async def main():
    with TracerProvider().get_tracer("theirs").start_as_current_span("theirs") as span:
        for tracing in (Tracing(), Tracing(TracerProvider())):
            with Phase([tracing], "submit", "x") as phase:
                await phase.step("begun", 1, "store")
        print(len(span.events))

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["0"]


def test_nothing_of_it_is_needed() -> None:
    """Without the optional packages the library is whole, and says what is missing to whom asks for it."""
    code = """
import sys
for name in ("opentelemetry", "prometheus_client", "starlette", "httpx"):
    sys.modules[name] = None
import pgmip, pgmip.tracing
pgmip.App(sites={"a": ""})
with pgmip.tracing.continued({"traceparent": "x"}):
    pgmip.tracing.inject({})
try:
    pgmip.tracing.Tracing()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "./python[tracing]" in done.stdout
