"""Every exception crosses the wire as itself, and nothing else of ours does."""

from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from specgate import errors
from specgate.errors import InternalError, InvalidArgument, ResourceExhausted, ServiceUnavailable, SpecgateError
from specgate.rpc.status import DETAILS_KEY, from_rpc_error, to_status

OUT_OF_RANGE = InvalidArgument("gamma", "65 is outside [0, 64]")


def every_error(parent: type[SpecgateError] = SpecgateError) -> Iterator[type[SpecgateError]]:
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
        yield from every_error(child)


def rpc_error(code: grpc.StatusCode, details: str = "", rich: bytes | None = None) -> grpc.aio.AioRpcError:
    trailing = () if rich is None else ((DETAILS_KEY, rich),)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


def received(error: SpecgateError) -> SpecgateError:
    """Return what a client makes of ``error``."""
    status = to_status(error)
    return from_rpc_error(rpc_error(status.code, status.details, dict(status.trailing_metadata)[DETAILS_KEY]))


def rich(error: SpecgateError) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(to_status(error).trailing_metadata)[DETAILS_KEY])


@pytest.mark.parametrize("error_class", list(every_error()))
def test_an_error_comes_back_as_itself(error_class: type[SpecgateError]) -> None:
    error = OUT_OF_RANGE if error_class is InvalidArgument else error_class("what happened")
    if error.retry_after_s is not None:
        error.retry_after_s = 0.25
    back = received(error)
    assert (type(back), str(back), back.retry_after_s) == (error_class, str(error), error.retry_after_s)
    assert getattr(back, "field", None) == getattr(error, "field", None)


def test_other_languages_find_the_standard_details() -> None:
    status = rich(OUT_OF_RANGE)
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(bad_request)
    assert status.details[1].Unpack(info)
    assert bad_request.field_violations[0].field == "gamma"
    assert (info.reason, info.domain, info.metadata["field"]) == ("INVALID_ARGUMENT", "specgate", "gamma")


def test_a_long_message_fits_the_metadata_that_peers_take() -> None:
    status = to_status(InvalidArgument("ä" * 10_000, "ä" * 10_000))
    percent_encoded = 3 * len(status.details.encode())
    base64 = len(dict(status.trailing_metadata)[DETAILS_KEY]) * 4 // 3
    assert percent_encoded + base64 < 7500


class OfAService(errors.OutOfSync):
    """A subclass that the table does not hold."""


def test_a_subclass_takes_its_parents_code() -> None:
    assert type(received(OfAService("7, not 9"))) is errors.OutOfSync


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, ServiceUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ServiceUnavailable),
        (grpc.StatusCode.CANCELLED, ServiceUnavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
        (grpc.StatusCode.UNIMPLEMENTED, InternalError),
        (grpc.StatusCode.UNKNOWN, InternalError),
    ],
)
def test_a_status_without_details_goes_by_its_code(code: grpc.StatusCode, expected: type[SpecgateError]) -> None:
    back = from_rpc_error(rpc_error(code, "connection refused"))
    assert (type(back), str(back)) == (expected, f"{code.name}: connection refused")


@pytest.mark.parametrize(
    "details",
    [
        b"\xff not protobuf",
        status_pb2.Status(code=14, message="no details").SerializeToString(),
        rich(errors.OutOfSync("x")).SerializeToString().replace(b"OUT_OF_SYNC", b"NEW_FAILURE"),
        rich(errors.OutOfSync("x")).SerializeToString().replace(b"specgate", b"elsewher"),
    ],
)
def test_details_that_are_not_ours_are_left_alone(details: bytes) -> None:
    back = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", details))
    assert type(back) is ServiceUnavailable


def test_an_invalid_argument_without_a_violation_is_still_one() -> None:
    status = rich(OUT_OF_RANGE)
    del status.details[0]
    back = from_rpc_error(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "", status.SerializeToString()))
    assert isinstance(back, InvalidArgument)
    assert back.field == "request"


def test_an_rpc_error_without_a_status_is_internal() -> None:
    assert type(from_rpc_error(grpc.RpcError("odd"))) is InternalError
