"""OpenTelemetry: one span per operation, attempt, handler and site phase, where OpenTelemetry is installed.

Every App traces where the package opentelemetry-api is installed (extra `tracing`); set up the SDK and its exporter as
for any other library. Where it is not installed, or the SDK not set up, nothing of this costs anything.

Spans are called `pgmip.submit`, `pgmip.attempt`, `pgmip.prepare` and so on, like the phases of `pgmip.observe`, and
have the attributes `pgmip.xid`, `pgmip.xinst`, `pgmip.site`, `pgmip.transaction` and, once ended, `pgmip.outcome`,
`pgmip.decision`, `pgmip.siblings`; the steps of the protocol are events of them. Never a request or a result.

`pgmip.http` continues the trace of the request's `traceparent`, unless other instrumentation has done so already;
`pgmip.Client` sends one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from ._extra import missing
from .observe import NOTHING, Observer, Phase, Step

try:
    from opentelemetry import context, propagate, trace
except ImportError:
    installed = False
else:
    installed = True

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue

__all__ = ["Tracing", "continued", "inject", "installed"]


class Tracing(Observer):
    """Makes a span of every phase. Where OpenTelemetry is installed every App has one, with the global provider."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Raises ImportError where OpenTelemetry is not installed."""
        if not installed:
            raise ImportError(missing("tracing", "opentelemetry-api", "tracing"))
        self._tracer = trace.get_tracer("pgmip", tracer_provider=tracer_provider)
        self._global = tracer_provider is None
        self._records = True

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        # Until the SDK is set up nothing is recorded: spans would only cost a twelfth of the client's processor time.
        if self._global and phase.xinst is None and phase.site is None:  # asked once an operation
            self._records = not self.is_idle()
        return self._span(phase) if self._records else NOTHING

    def is_idle(self) -> bool:
        return self._global and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    @contextmanager
    def _span(self, phase: Phase) -> Iterator[None]:
        kind = trace.SpanKind.INTERNAL if phase.site is None else trace.SpanKind.CLIENT
        with self._tracer.start_as_current_span(f"pgmip.{phase.name}", kind=kind, attributes=_names(phase)) as span:
            yield
            if span.is_recording():
                _conclude(span, phase)

    def step(self, step: Step) -> None:
        if self._records:
            trace.get_current_span().add_event(step.name, {} if step.site is None else {"pgmip.site": step.site})


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """What the block does belongs to the trace that an HTTP request's headers name, if it belongs to none yet."""
    if not installed or trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def inject(headers: MutableMapping[str, str]) -> None:
    """Name the current trace, if there is one, in an HTTP request's headers."""
    if installed:
        propagate.inject(headers)


def _names(phase: Phase) -> dict[str, AttributeValue]:
    names = {"xid": phase.xid, "xinst": phase.xinst, "site": phase.site, "transaction": phase.transaction}
    attributes: dict[str, AttributeValue] = {
        f"pgmip.{name}": value for name, value in names.items() if value is not None
    }
    if phase.site is not None:
        attributes["db.system.name"] = "postgresql"
    return attributes


def _conclude(span: Span, phase: Phase) -> None:
    span.set_attributes(_names(phase))  # some are known only now
    span.set_attribute("pgmip.outcome", phase.outcome)
    if phase.decision is not None:
        span.set_attribute("pgmip.decision", phase.decision)
        span.set_attribute("pgmip.siblings", phase.siblings)
    if phase.error is not None and phase.outcome != "refused":  # that is an answer
        # Not the exception itself: its text may quote rows.
        span.set_status(trace.StatusCode.ERROR, phase.outcome)
        span.set_attribute("error.type", phase.outcome)
