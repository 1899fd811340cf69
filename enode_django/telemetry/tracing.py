"""Traces of OpenTelemetry, from the sender of a command to the subscribers of its events.

    send ─► handle ─► commit
                  ├─► publish
                  └─► each subscriber's handlers

The context is a ``traceparent`` (W3C Trace Context) in the metadata: the sender's in those of the command, the
handler's in those of the stored stream. Commands whose trace is not sampled carry none and have no spans.

Tracing is off if the package ``opentelemetry-api`` is missing, or no tracer provider is set when a sender or a worker
starts. Then it costs one call per batch.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import isgenerator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from enode_django.domain.metadata import Metadata
from enode_django.exceptions import MessageError
from enode_django.serialization.codec import decode_metadata, encode_metadata

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind

TRACEPARENT = "traceparent"
PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"
"""The environment variable that names the provider that ``opentelemetry-api`` sets at first use."""
_MARK = TRACEPARENT.encode()
"""The key as it occurs in encoded metadata, so that a search for it is cheap."""


class Carrier(Protocol):
    """A command in transit."""

    id: str
    aggregate_root_id: str
    type_name: str
    metadata: bytes


class Stored(Protocol):
    @property
    def command_id(self) -> str: ...
    @property
    def aggregate_root_id(self) -> str: ...
    @property
    def metadata(self) -> bytes: ...


class HasResult(Protocol):
    @property
    def result(self) -> Any:
        """The result of the command, with ``status`` and ``error_type``; None if it is not known."""


HandledEvent = tuple[Any, Sequence[Callable[..., Any]]]
"""A message with its handlers."""


class FindsHandledEvents(Protocol):
    def of(self, record: Any, /) -> list[HandledEvent]: ...


AnyCarrier = TypeVar("AnyCarrier", bound=Carrier)
Slot = TypeVar("Slot")
Made = TypeVar("Made", bound=HasResult)
Events = TypeVar("Events", bound=FindsHandledEvents)


class Tracing:
    """The hooks of tracing; these do nothing. Thread-safe."""

    def sending(self, what: str, metadata: Metadata) -> AbstractContextManager[Metadata]:
        """Return a context manager around sending, which gives the metadata for the commands."""
        return nullcontext(metadata)

    def handling(self, handle: Callable[[Slot, AnyCarrier], Made]) -> Callable[[Slot, AnyCarrier], Made]:
        """Return the function to call instead of ``handle``."""
        return handle

    def now(self) -> int:
        return 0

    def batch(self, name: str, carriers: Iterable[Carrier], began: int) -> None:
        """Record that these commands were processed as one batch, from ``began`` (a result of `now`) until now."""

    def following(self, subscriber: str, events: Events) -> Events | FindsHandledEvents:
        """Return the object to use instead of ``events``."""
        return events

    def followed(self, subscriber: str, record: Stored, followed: list[HandledEvent]) -> list[HandledEvent]:
        """Return the handlers to call for this record instead of ``followed``."""
        return followed


NO_TRACING = Tracing()


def current_tracing() -> Tracing:
    """Return the tracing in force now: `NO_TRACING` unless a tracer provider is set."""
    trace = _api()
    if trace is None:
        return NO_TRACING
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return NO_TRACING
    return _Traced(trace)


def _api() -> ModuleType | None:
    """Return OpenTelemetry's API; None, without an import, if no provider can be set by a call or the environment."""
    if "opentelemetry.trace" not in sys.modules and PROVIDER_VARIABLE not in os.environ:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


class _Traced(Tracing):
    def __init__(self, trace: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("enode_django")
        self._propagator = TraceContextTextMapPropagator()

    # -- the sender -----------------------------------------------------------------------------------------------

    @contextmanager
    def sending(self, what: str, metadata: Metadata) -> Iterator[Metadata]:
        """Open a span. Its parent is the current span or, in a handler of events, that of the metadata."""
        parent = None if self._trace.get_current_span().get_span_context().is_valid else self._parent(metadata.extra)
        with self._span(f"send {what}", parent, self._trace.SpanKind.PRODUCER) as span:
            yield self._with_context(metadata, span)

    def _with_context(self, metadata: Metadata, span: Span) -> Metadata:
        extra = {name: value for name, value in metadata.extra.items() if name != TRACEPARENT}
        if span.get_span_context().trace_flags.sampled:
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier, self._trace.set_span_in_context(span))
            extra[TRACEPARENT] = carrier[TRACEPARENT]
        return dataclasses.replace(metadata, extra=extra)

    # -- the worker -----------------------------------------------------------------------------------------------

    def handling(self, handle: Callable[[Slot, AnyCarrier], Made]) -> Callable[[Slot, AnyCarrier], Made]:
        def traced(slot: Slot, carrier: AnyCarrier) -> Made:
            parent = self.parent_of(carrier)
            if parent is None:
                return handle(slot, carrier)
            attributes = _attributes(carrier.id, carrier.aggregate_root_id)
            with self._span(f"handle {carrier.type_name}", parent, self._trace.SpanKind.CONSUMER, attributes) as span:
                continued = copy.copy(carrier)
                continued.metadata = encode_metadata(self._with_context(decode_metadata(carrier.metadata), span))
                made = handle(slot, continued)
                if made.result is not None and made.result.status.value == "failed":
                    span.set_status(self._trace.StatusCode.ERROR, made.result.error_type)
                return made

        return traced

    def now(self) -> int:
        return time.time_ns()

    def batch(self, name: str, carriers: Iterable[Carrier], began: int) -> None:
        ended = self.now()
        for carrier in carriers:
            parent = self.parent_of(carrier)
            if parent is not None:
                attributes = _attributes(carrier.id, carrier.aggregate_root_id)
                span = self._tracer.start_span(name, parent, start_time=began, attributes=attributes)
                span.end(ended)

    def following(self, subscriber: str, events: Events) -> FindsHandledEvents:
        return _TracedEvents(subscriber, events, self)

    def followed(self, subscriber: str, record: Stored, followed: list[HandledEvent]) -> list[HandledEvent]:
        parent = self.parent_of(record)
        if parent is None:
            return followed
        call = partial(self._call, subscriber, record, parent)
        return [(message, [partial(call, handler) for handler in handlers]) for message, handlers in followed]

    def _call(
        self, subscriber: str, record: Stored, parent: Context, handler: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call a handler inside a span. The generator of a process manager is exhausted inside the span, too."""
        attributes = {**_attributes(record.command_id, record.aggregate_root_id), "enode.subscriber": subscriber}
        with self._span(f"{subscriber} follows", parent, self._trace.SpanKind.CONSUMER, attributes):
            made = handler(*arguments)
            return list(made) if isgenerator(made) else made

    # -- contexts -------------------------------------------------------------------------------------------------

    def _span(
        self, name: str, parent: Context | None, kind: SpanKind, attributes: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        span: AbstractContextManager[Span] = self._tracer.start_as_current_span(
            name, parent, kind=kind, attributes=attributes
        )
        return span

    def parent_of(self, stored: Stored | Carrier) -> Context | None:
        """Return the context of a command or row; None if it has none that is sampled."""
        if _MARK not in stored.metadata:
            return None
        try:
            return self._parent(decode_metadata(stored.metadata).extra)
        except MessageError:
            return None

    def _parent(self, extra: Mapping[str, Any]) -> Context | None:
        value = extra.get(TRACEPARENT)
        if not isinstance(value, str):
            return None
        context = self._propagator.extract({TRACEPARENT: value})
        parent = self._trace.get_current_span(context).get_span_context()
        return context if parent.is_valid and parent.trace_flags.sampled else None


class _TracedEvents:
    def __init__(self, subscriber: str, events: FindsHandledEvents, tracing: _Traced) -> None:
        self._subscriber = subscriber
        self._events = events
        self._tracing = tracing

    def of(self, record: Any) -> list[HandledEvent]:
        return self._tracing.followed(self._subscriber, record, self._events.of(record))


def _attributes(command_id: str, aggregate_root_id: str) -> dict[str, str]:
    return {"enode.command_id": command_id, "enode.aggregate_root_id": aggregate_root_id}
