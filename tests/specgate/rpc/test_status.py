"""Every exception crosses the wire as itself, and nothing else of ours does."""

import asyncio
import logging
from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from specgate import errors
from specgate.errors import (
    InternalError,
    InvalidArgument,
    ResourceExhausted,
    ServiceUnavailable,
    SpecgateError,
)
from specgate.rpc.status import CODES, DETAILS_KEY, abort, for_client, from_rpc_error, to_status


def every_error(parent: type[SpecgateError] = SpecgateError) -> Iterator[type[SpecgateError]]:
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
        yield from every_error(child)


def rpc_error(
    code: grpc.StatusCode, details: str = "", metadata: tuple[tuple[str, str | bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details)


def sent(error: SpecgateError) -> grpc.aio.AioRpcError:
    status = to_status(error)
    return rpc_error(status.code, status.details, status.trailing_metadata)


def rich(error: SpecgateError) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(to_status(error).trailing_metadata)[DETAILS_KEY])


def make(error_class: type[SpecgateError]) -> SpecgateError:
    if issubclass(error_class, InvalidArgument):
        return InvalidArgument("gamma", "65 is outside [0, 64]")
    return error_class("what happened")


def test_the_table_has_every_error_once() -> None:
    assert set(CODES) == set(every_error())
    assert len({error_class.reason for error_class in CODES}) == len(CODES)


@pytest.mark.parametrize("error_class", CODES)
def test_an_error_comes_back_as_itself(error_class: type[SpecgateError]) -> None:
    error = make(error_class)
    back = from_rpc_error(sent(error))
    assert type(back) is error_class
    assert str(back) == str(error)
    assert back.retry_after_s == error.retry_after_s


def test_the_field_comes_back() -> None:
    back = from_rpc_error(sent(InvalidArgument("gamma", "65 is outside [0, 64]")))
    assert isinstance(back, InvalidArgument)
    assert (back.field, back.problem) == ("gamma", "65 is outside [0, 64]")


def test_a_retry_delay_comes_back() -> None:
    error = ResourceExhausted("full")
    error.retry_after_s = 0.25
    assert from_rpc_error(sent(error)).retry_after_s == 0.25


def test_other_languages_find_the_standard_details() -> None:
    status = rich(InvalidArgument("gamma", "65 is outside [0, 64]"))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(bad_request)
    assert status.details[1].Unpack(info)
    assert bad_request.field_violations[0].field == "gamma"
    assert (info.reason, info.domain) == ("INVALID_ARGUMENT", "specgate")
    assert info.metadata["field"] == "gamma"


def test_a_long_message_fits_the_metadata_that_peers_take() -> None:
    status = to_status(InvalidArgument("ä" * 10_000, "ä" * 10_000))
    percent_encoded = 3 * len(status.details.encode())
    base64 = len(dict(status.trailing_metadata)[DETAILS_KEY]) * 4 // 3
    assert percent_encoded + base64 < 7500


class OfAService(errors.OutOfSync):
    """A subclass that the table does not hold."""


def test_a_subclass_takes_its_parents_code() -> None:
    assert type(from_rpc_error(sent(OfAService("7, not 9")))) is errors.OutOfSync


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
    assert type(back) is expected
    assert str(back) == f"{code.name}: connection refused"


@pytest.mark.parametrize(
    "details",
    [
        b"\xff not protobuf",
        b"",
        status_pb2.Status(code=14, message="no details").SerializeToString(),
        rich(errors.OutOfSync("x")).SerializeToString().replace(b"OUT_OF_SYNC", b"NEW_FAILURE"),
        rich(errors.OutOfSync("x")).SerializeToString().replace(b"specgate", b"elsewher"),
    ],
)
def test_details_that_are_not_ours_are_left_alone(details: bytes) -> None:
    back = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "gone", ((DETAILS_KEY, details),)))
    assert type(back) is ServiceUnavailable


def test_an_invalid_argument_without_a_violation_is_still_one() -> None:
    status = rich(InvalidArgument("gamma", "too large"))
    del status.details[0]
    back = from_rpc_error(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, "", ((DETAILS_KEY, status.SerializeToString()),)))
    assert isinstance(back, InvalidArgument)
    assert back.field == "request"


def test_an_rpc_error_without_a_status_is_internal() -> None:
    assert type(from_rpc_error(grpc.RpcError("odd"))) is InternalError


def test_what_we_did_not_raise_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told = for_client(KeyError("the prompt at /home/user"))
    again = for_client(KeyError("the prompt at /home/user"))
    assert type(told) is InternalError
    assert "prompt" not in str(told)
    assert str(told) != str(again)
    assert str(told).rsplit(" ", 1)[1] in caplog.text
    assert "the prompt at /home/user" in caplog.text


def test_a_failed_session_is_logged_and_a_refused_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    refused = InvalidArgument("gamma", "too large")
    assert for_client(refused) is refused
    assert not caplog.records
    for_client(errors.NonFiniteLogits("row 3"))
    assert "row 3" in caplog.text


async def test_a_status_that_cannot_leave_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeafClient:
        async def abort(self, *_: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("specgate.rpc.status.STATUS_FLUSH_S", 0.01)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(abort(DeafClient(), errors.OutOfSync("x")), 30)
