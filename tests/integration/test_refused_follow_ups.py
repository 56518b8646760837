"""What the verifier refuses of what may come next, over gRPC: by field, value and limit."""

from typing import Any

import grpc
import pytest

from specgate.rpc.channel import open_channel
from specgate.rpc.convert_ahead import follow_ups_to_pb
from specgate.rpc.convert_session import session_spec_to_pb
from specgate.types import FollowUp, FollowUps, SamplingParams, SessionSpec, Verification
from specgate.v1 import verifier_service_pb2
from specgate.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.support.services import Service

VOCAB_SIZE = 4096


async def refused(verifier: Service, follow_up: FollowUp) -> grpc.aio.AioRpcError:
    """Tell the verifier of one follow-up of the first round, and return how it ends the stream."""
    spec = SessionSpec((1, 2, 3), SamplingParams(), 1, Verification.SHARED_NOISE, 20)
    async with open_channel(verifier.endpoint) as channel:
        call: Any = VerifierServiceStub(channel).Verify()
        await call.write(verifier_service_pb2.VerifyRequest(open=session_spec_to_pb(spec)))
        assert (await call.read()).opened
        told = follow_ups_to_pb(FollowUps(2, 3, (FollowUp(0, 5, (6,)), follow_up)))
        await call.write(verifier_service_pb2.VerifyRequest(follow_ups=told))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    return caught.value


@pytest.mark.parametrize("follow_up", [FollowUp(0, VOCAB_SIZE, (7,)), FollowUp(0, 7, (8, VOCAB_SIZE))], ids=str)
async def test_a_token_that_does_not_exist(verifier: Service, follow_up: FollowUp) -> None:
    error = await refused(verifier, follow_up)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "follow_ups.branches.token_ids: token id 4096 is outside the vocabulary [0, 4096)" in (error.details() or "")


async def test_a_draft_that_is_too_long(verifier: Service) -> None:
    error = await refused(verifier, FollowUp(0, 7, (8,) * 65))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "follow_ups.branches.num_draft_tokens: 65 is outside [1, 64]" in (error.details() or "")
