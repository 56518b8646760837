"""OpenTelemetry traces, by the extra ``otel``: a span for a request at the gateway and for its session on each service.

Off unless ``configure`` was called; then the little that is called for each request does nothing. Neither prompts nor
texts are in a span.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from specgate import __version__
from specgate.errors import InvalidArgument

KEY = "traceparent"
"""W3C's header, of HTTP and of gRPC metadata."""
Attributes = Mapping[str, Any]

_provider: Any = None
_tracer: Any = None
_SPAN: ContextVar[Any] = ContextVar("span", default=None)


def configure(service: str, endpoint: str, sample: float) -> None:
    """Send spans to a collector from now on, over OTLP on gRPC.

    Args:
        service: ``service.name``, such as "specgate-gateway".
        endpoint: of the collector, ``http://HOST:PORT`` in plain text or ``https://``.
        sample: share of the requests that are traced unless their caller has decided, 0 to 1.

    Raises:
        InvalidArgument: the extra is not installed.
    """
    global _provider, _tracer
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError:
        raise InvalidArgument("traces", "need the extra otel: pip install 'specgate[otel]'") from None
    resource = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(sample)), resource=resource)
    # In a thread of its own, with a bounded queue: a lost collector delays no request.
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _provider, _tracer = provider, provider.get_tracer("specgate", __version__)


def shut_down() -> None:
    """Send what is left, and trace no more."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        provider.shutdown()


@contextmanager
def span(name: str, parent: str | None, attributes: Attributes) -> Iterator[Any]:
    """Run the block in a span of a server; yield it, or None where nothing is traced or this request is not.

    Args:
        parent: the caller's ``traceparent``, if it sent one.
    """
    if _tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind

    started = _tracer.start_span(name, _context(parent), SpanKind.SERVER, attributes)
    token = _SPAN.set(started)
    try:
        yield started if started.is_recording() else None
    except Exception as error:
        started.set_attribute("error.type", getattr(error, "reason", type(error).__name__))
        raise
    finally:
        _SPAN.reset(token)
        started.end()


def current() -> Any:
    """Return the running task's span, None where it is not recorded."""
    found = _SPAN.get()
    return found if found is not None and found.is_recording() else None


def outgoing() -> tuple[tuple[str, str], ...]:
    """Return the metadata for a call that is made for the request of the running task."""
    found = _SPAN.get()
    if found is None:
        return ()
    context = found.get_span_context()
    return ((KEY, f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"),)


def given(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the ``traceparent`` among HTTP's headers, as text."""
    return next((value.decode("latin-1") for name, value in headers if name == KEY.encode()), None)


def add_child(parent: Any, name: str, duration_us: int, attributes: Attributes) -> None:
    """Add a span below ``parent`` that ends now and took ``duration_us``."""
    if _tracer is None:
        # Shut down under a request that goes on.
        return
    from opentelemetry.trace import set_span_in_context

    end_ns = time.time_ns()
    child = _tracer.start_span(
        name, set_span_in_context(parent), attributes=attributes, start_time=end_ns - 1000 * duration_us
    )
    child.end(end_ns)


def _context(parent: str | None) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # What W3C's own reader does not understand begins a trace of its own.
    return TraceContextTextMapPropagator().extract({KEY: parent} if parent else {}, Context())
