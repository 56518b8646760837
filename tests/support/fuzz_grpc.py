"""Calls of gRPC methods with any bytes, valid beginnings for them, and what may come of it."""

from functools import partial
from typing import Any, NamedTuple

import grpc
from hypothesis import strategies as st

from specgate.rpc.convert import verify_round_to_pb
from specgate.rpc.convert_session import session_spec_to_pb
from specgate.types import Proposal, SamplingParams, SessionSpec, Verification, VerifyRequest
from specgate.v1 import drafter_service_pb2 as dpb
from specgate.v1 import generation_service_pb2 as gpb
from specgate.v1 import types_pb2
from specgate.v1 import verifier_service_pb2 as vpb
from tests.support.door_process import DOOR_HANG_S
from tests.support.fuzz_messages import messages, mutated, on_the_wire
from tests.support.fuzzing import FuzzCounts

PACKAGE = "/specgate.v1."
HANG_S = 20.0
VOCAB_SIZE = 64
PROMPT = (1, 2, 3)
EXPECTED = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


class GrpcCase(NamedTuple):
    """One call: its method, such as "DrafterService/Draft", and the messages that are sent before it is half-closed."""

    method: str
    sent: tuple[bytes, ...]


def call(channel: grpc.Channel, case: GrpcCase) -> grpc.StatusCode:
    """Send what a case says, read to the end, and return the status."""
    path = PACKAGE + case.method
    running: Any
    try:
        if case.method in ("DrafterService/Draft", "VerifierService/Verify"):
            running = channel.stream_stream(path)(iter(case.sent), timeout=HANG_S)
        elif case.method.endswith("Stream"):
            running = channel.unary_stream(path)(case.sent[0], timeout=DOOR_HANG_S)
        else:
            running = (channel.unary_unary(path)(case.sent[0], timeout=DOOR_HANG_S),)
        for _ in running:
            pass
    except grpc.RpcError as error:
        # One of a call, and no bare error of gRPC's, is what a call raises.
        return error.code()
    return grpc.StatusCode.OK


def judge(code: grpc.StatusCode, counts: FuzzCounts) -> None:
    """Count a status; raise AssertionError where it is none that a peer may see."""
    counts.done += code is grpc.StatusCode.OK
    count_faults(code, counts)
    assert code in EXPECTED


def count_faults(code: grpc.StatusCode, counts: FuzzCounts) -> None:
    """Count a status that tells of a fault of ours."""
    counts.hangs += code is grpc.StatusCode.DEADLINE_EXCEEDED
    counts.crashes += code is grpc.StatusCode.UNAVAILABLE
    counts.internal += code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def spec_to_pb(**changes: Any) -> types_pb2.SessionSpec:
    """Return the opening of a short greedy session but for ``changes``."""
    values = {
        "prompt_token_ids": PROMPT, "sampling": SamplingParams(temperature=0.0), "seed": 1,
        "verification": Verification.SHARED_NOISE, "max_tokens": 40, **changes,
    }  # fmt: skip
    return session_spec_to_pb(SessionSpec(**values))


VERIFY_ROUND = verify_round_to_pb(VerifyRequest(1, len(PROMPT), Proposal((4, 5)), 0.5, 4))
FOLLOW_UPS = vpb.FollowUps(
    round=2, position=len(PROMPT), branches=types_pb2.Branches(num_accepted=[0], num_draft_tokens=[1], token_ids=[6, 7])
)
VALID: dict[str, tuple[Any, ...]] = {
    "VerifierService/Verify": (
        vpb.VerifyRequest(open=spec_to_pb()),
        vpb.VerifyRequest(round=VERIFY_ROUND),
        vpb.VerifyRequest(follow_ups=FOLLOW_UPS),
    ),
    "DrafterService/Draft": (
        dpb.DraftRequest(open=spec_to_pb()),
        dpb.DraftRequest(round=dpb.DraftRound(round=1, position=len(PROMPT), gamma=3)),
        dpb.DraftRequest(round=dpb.DraftRound(round=2, position=len(PROMPT), num_accepted=2, token_ids=[9], gamma=4)),
    ),
    "GenerationService/GenerateStream": (
        gpb.GenerateStreamRequest(
            token_ids=gpb.TokenIds(ids=PROMPT),
            params=gpb.GenerationParams(sampling=types_pb2.SamplingParams(temperature=0.0), max_tokens=3),
        ),
    ),
    "GenerationService/Generate": (
        gpb.GenerateRequest(text="def f():", params=gpb.GenerationParams(max_tokens=3, gate=gpb.GATE_NONE, gamma=2)),
    ),
}
"""By method: messages that are answered as they stand; a stream's in this order."""


def cases_of(method: str) -> st.SearchStrategy[GrpcCase]:
    """Return calls of one method: its valid messages a little changed, or any of its type."""
    valid = VALID[method]
    nearly = st.tuples(*(on_the_wire(partial(mutated, one)) for one in valid))
    anything = on_the_wire(lambda: messages(valid[0].DESCRIPTOR))
    if len(valid) == 1:
        return st.one_of(nearly, st.tuples(anything)).map(lambda sent: GrpcCase(method, sent))
    sound = st.just(valid[0].SerializeToString())
    later = st.lists(st.one_of(on_the_wire(lambda: mutated(valid[1])), anything), max_size=4)
    opened = st.tuples(sound, later).map(lambda pair: (pair[0], *pair[1]))
    loose = st.lists(anything, max_size=3).map(tuple)
    return st.one_of(nearly, opened, loose).map(lambda sent: GrpcCase(method, sent))
