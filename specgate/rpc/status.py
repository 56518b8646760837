"""One table between the exception tree and gRPC status, used both ways.

On the wire an error is a ``google.rpc.Status``: an ErrorInfo with the stable reason, a BadRequest that names
the field, a RetryInfo that says when to come back.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from specgate.errors import (
    EngineFailed,
    InternalError,
    InvalidArgument,
    KVCacheFull,
    LeaseRefused,
    ModelLoadError,
    NonFiniteLogits,
    OutOfSync,
    PermissionDenied,
    RateLimited,
    ResourceExhausted,
    ServiceUnavailable,
    SessionIdle,
    SpecgateError,
    TokenizerMismatch,
    TooManySessions,
    Unauthenticated,
    UnsupportedArchitecture,
)
from specgate.logs import REQUEST_ID

DOMAIN = "specgate"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_BYTES = 1024
"""A message travels three times (status, details, field violation); peers take 8 KiB of metadata in all."""
MAX_FIELD_BYTES = 128
STATUS_FLUSH_S = 0.5
"""How long a failed call waits for its status to be sent: the peer may not read the messages before it."""

CODES: dict[type[SpecgateError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    TokenizerMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    UnsupportedArchitecture: grpc.StatusCode.FAILED_PRECONDITION,
    ModelLoadError: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfSync: grpc.StatusCode.FAILED_PRECONDITION,
    LeaseRefused: grpc.StatusCode.PERMISSION_DENIED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    SessionIdle: grpc.StatusCode.DEADLINE_EXCEEDED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    KVCacheFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RateLimited: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManySessions: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    InternalError: grpc.StatusCode.INTERNAL,
    NonFiniteLogits: grpc.StatusCode.INTERNAL,
    EngineFailed: grpc.StatusCode.INTERNAL,
}
_BY_REASON = {error_class.reason: error_class for error_class in CODES}
_BY_CODE: dict[grpc.StatusCode, type[SpecgateError]] = {
    grpc.StatusCode.UNAVAILABLE: ServiceUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServiceUnavailable,
    grpc.StatusCode.CANCELLED: ServiceUnavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
}
"""For a status without our details: gRPC's own, or a proxy's. Every other code is an InternalError."""

_log = logging.getLogger(__name__)


def to_status(error: SpecgateError) -> Any:
    """Return the ``grpc.Status`` (code, details, trailing_metadata) of ``error``."""
    known = next((parent for parent in type(error).__mro__ if parent in CODES), InternalError)
    status = status_pb2.Status(code=CODES[known].value[0], message=_clip(str(error), MAX_MESSAGE_BYTES))
    for detail in _details(error):
        status.details.add().Pack(detail)
    return rpc_status.to_status(status)


def _details(error: SpecgateError) -> Iterable[Message]:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, InvalidArgument):
        field, problem = _clip(error.field, MAX_FIELD_BYTES), _clip(error.problem, MAX_MESSAGE_BYTES)
        info.metadata["field"] = field
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=problem)
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        yield error_details_pb2.RetryInfo(retry_delay=delay)
    yield info


def _clip(text: str, max_bytes: int) -> str:
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def from_rpc_error(error: grpc.RpcError) -> SpecgateError:
    """Return the exception that the peer raised, or the one that stands for gRPC's own failure."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return InternalError(f"an RPC failed without a status: {error!r}")
    status = _rich_status(error.trailing_metadata() or ())
    details = _unpack(status) if status is not None else {}
    info = details.get(error_details_pb2.ErrorInfo)
    if info is None or info.domain != DOMAIN or info.reason not in _BY_REASON:
        return _by_code(error.code(), error.details() or "")
    return _rebuild(_BY_REASON[info.reason], status.message if status is not None else "", details)


def _rich_status(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in trailing_metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _unpack(status: status_pb2.Status) -> dict[type[Message], Any]:
    """Return the details that we know, by their class."""
    known = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
    found: dict[type[Message], Any] = {}
    for packed in status.details:
        for detail_class in known:
            detail = detail_class()
            if packed.Is(detail.DESCRIPTOR) and packed.Unpack(detail):
                found[detail_class] = detail
    return found


def _rebuild(error_class: type[SpecgateError], message: str, details: dict[type[Message], Any]) -> SpecgateError:
    if issubclass(error_class, InvalidArgument):
        return _invalid_argument(message, details.get(error_details_pb2.BadRequest))
    error = error_class(message)
    retry = details.get(error_details_pb2.RetryInfo)
    if retry is not None:
        error.retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    return error


def _invalid_argument(message: str, bad_request: Any) -> InvalidArgument:
    for violation in bad_request.field_violations if bad_request is not None else ():
        return InvalidArgument(violation.field, violation.description)
    return InvalidArgument("request", message)


def _by_code(code: grpc.StatusCode, message: str) -> SpecgateError:
    return _BY_CODE.get(code, InternalError)(f"{code.name}: {message}")


def for_client(error: Exception) -> SpecgateError:
    """Return what a client may see of ``error``.

    What we did not raise on purpose may hold paths, prompts or tensors: it goes to the log alone, and the
    client gets the request's id to quote, or a random one where there is none.
    """
    if isinstance(error, SpecgateError):
        if isinstance(error, InternalError):
            _log.error("a session failed", exc_info=error)
        return error
    if isinstance(error, DecodeError):
        return InvalidArgument("message", "is not valid protobuf")
    correlation_id = REQUEST_ID.get() or secrets.token_hex(8)
    _log.error("unexpected error, correlation id %s", correlation_id, exc_info=error)
    return InternalError(f"internal error, correlation id {correlation_id}")


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End the RPC with ``error``'s status.

    Raises:
        grpc.aio.AbortError: gRPC takes it as the end of the handler.
        CancelledError: the peer is gone, or reads nothing. The status reaches it if it ever reads on, and nobody
            waits for that.
    """
    status = to_status(for_client(error))
    try:
        async with asyncio.timeout(STATUS_FLUSH_S):
            await context.abort(status.code, status.details, status.trailing_metadata)
    except (TimeoutError, grpc.aio.InternalError):
        raise asyncio.CancelledError from None
