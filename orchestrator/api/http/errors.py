"""The seam between our exceptions and OpenAI's error shape: one table, used before and after a stream has begun.

{"error": {"message": ..., "type": ..., "param": the field or null, "code": ..., "request_id": ...}}
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from specgate.errors import (
    InvalidArgument,
    PermissionDenied,
    RateLimited,
    ResourceExhausted,
    ServiceUnavailable,
    SessionIdle,
    SpecgateError,
    Unauthenticated,
)
from specgate.logs import REQUEST_ID
from specgate.rpc.status import for_client

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
STATUS_AND_TYPE: dict[type[SpecgateError], tuple[int, str]] = {
    InvalidArgument: (400, INVALID_REQUEST),
    Unauthenticated: (401, INVALID_REQUEST),
    PermissionDenied: (403, INVALID_REQUEST),
    ResourceExhausted: (429, "rate_limit_error"),
    ServiceUnavailable: (503, SERVER_ERROR),
    SessionIdle: (503, SERVER_ERROR),
    SpecgateError: (500, SERVER_ERROR),
}
"""By the nearest parent of an error's class."""
OPENAI_CODES: dict[type[SpecgateError], str] = {Unauthenticated: "invalid_api_key", RateLimited: "rate_limit_exceeded"}


class ApiError(HTTPException):
    """A refusal that only HTTP or OpenAI's API knows.

    Args:
        param: the request's field at fault.
        code: OpenAI's word for the problem, or ours where OpenAI has none.
    """

    def __init__(self, status_code: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status_code, message)
        self.param = param
        self.code = code


def error_body(error: Exception) -> dict[str, Any]:
    """Return the body that reports ``error`` to a client. An unexpected error is reported by an id only."""
    return _http_body(error) if isinstance(error, HTTPException) else _body(for_client(error))


def error_response(error: Exception) -> JSONResponse:
    """Return the answer to a request that failed before anything was sent."""
    if isinstance(error, HTTPException):
        return JSONResponse(_http_body(error), error.status_code, error.headers)
    known = for_client(error)
    return JSONResponse(_body(known), _status_and_type(known)[0], _hint_header(known))


def with_client_field(error: InvalidArgument, names: Mapping[str, str]) -> InvalidArgument:
    """Return ``error`` with the client's name of its field; ``logit_bias[5]`` becomes ``logit_bias``.

    Args:
        names: the client's name by ours, for names that differ.
    """
    field = re.split(r" \(|\[", error.field)[0]
    # The longest name that the field begins with.
    known = [name for name in names if field == name or field.startswith(f"{name}.")]
    if known:
        ours = max(known, key=len)
        field = names[ours] + field[len(ours) :]
    return InvalidArgument(field, error.problem)


def _http_body(error: HTTPException) -> dict[str, Any]:
    param, code = (error.param, error.code) if isinstance(error, ApiError) else (None, None)
    return _shape(error.detail, INVALID_REQUEST if error.status_code < 500 else SERVER_ERROR, param, code)


def _body(error: SpecgateError) -> dict[str, Any]:
    kind = _status_and_type(error)[1]
    if isinstance(error, InvalidArgument):
        return _shape(str(error), kind, error.field, "invalid_value")
    return _shape(str(error), kind, None, OPENAI_CODES.get(type(error), error.reason.lower()))


def _shape(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": error | ({"request_id": request_id} if (request_id := REQUEST_ID.get()) else {})}


def _status_and_type(error: SpecgateError) -> tuple[int, str]:
    return next(STATUS_AND_TYPE[parent] for parent in type(error).__mro__ if parent in STATUS_AND_TYPE)


def _hint_header(error: SpecgateError) -> dict[str, str] | None:
    """Return the header that says when to try again, in whole seconds, or how to send a key."""
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    return None if error.retry_after_s is None else {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
