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


@pytest.mark.parametrize(
    ("follow_up", "refusal"),
    [
        (FollowUp(0, VOCAB_SIZE, (7,)), "token_ids: token id 4096 is outside the vocabulary [0, 4096)"),
        (FollowUp(0, 7, (8, VOCAB_SIZE)), "token_ids: token id 4096 is outside the vocabulary [0, 4096)"),
        (FollowUp(0, 7, (8,) * 65), "num_draft_tokens: 65 is outside [1, 64]"),
    ],
    ids=["token", "draft token", "length"],
)
async def test_a_follow_up_that_cannot_be(verifier: Service, follow_up: FollowUp, refusal: str) -> None:
    spec = SessionSpec((1, 2, 3), SamplingParams(), 1, Verification.SHARED_NOISE, 20)
    async with open_channel(verifier.endpoint) as channel:
        call: Any = VerifierServiceStub(channel).Verify()
        await call.write(verifier_service_pb2.VerifyRequest(open=session_spec_to_pb(spec)))
        assert (await call.read()).opened
        told = follow_ups_to_pb(FollowUps(2, 3, (FollowUp(0, 5, (6,)), follow_up)))
        await call.write(verifier_service_pb2.VerifyRequest(follow_ups=told))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"follow_ups.branches.{refusal}" in (caught.value.details() or "")
