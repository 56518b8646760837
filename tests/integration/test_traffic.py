"""What a round of five draft tokens weighs on both links together."""

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.rpc.convert import draft_response_to_pb, verify_round_to_pb
from specgate.types import Proposal, SamplingParams, SparseDistribution, Verification, VerifyRequest
from specgate_lab.bench.rows import rows_of
from specgate_lab.gate_choice import GateChoice
from specgate_lab.variants import Traffic, decode_in_turns, pair_variant
from tests.support.orchestrating import connected
from tests.support.services import HELD_OUT_PROMPTS, Service

SHARED_NOISE_BYTES, REJECTION_BYTES = 200, 6_000


@pytest.mark.parametrize(
    ("verification", "limit"),
    [(Verification.SHARED_NOISE, SHARED_NOISE_BYTES), (Verification.REJECTION, REJECTION_BYTES)],
)
async def test_bytes_of_a_round(drafter: Service, verifier: Service, verification: Verification, limit: int) -> None:
    traffic = Traffic()
    async with connected([drafter], [verifier], wrap_call=traffic.counted) as orchestrator:
        prompt = orchestrator.tokenizer.encode(HELD_OUT_PROMPTS[0])
        plan = {"gamma": 5, "gate": Gate.NONE, "verification": verification}
        like = GenerationRequest(prompt, SamplingParams(), max_tokens=48, seed=1, ignore_eos=True, **plan)
        (row,) = rows_of(
            await decode_in_turns({"spec": pair_variant(orchestrator, GateChoice.like(like), traffic)}, [like], 1)
        )
    assert row.bytes_per_round is not None
    # Five tokens there and back are 20 bytes at the least; 64 probabilities for each are 2,560.
    assert (20 if verification is Verification.SHARED_NOISE else 2_560) < row.bytes_per_round < limit


def test_the_largest_vocabularies_keep_within_it() -> None:
    """Token ids of three bytes, and a round far into a long text; what is left of the limit is for the verdict."""
    token_ids = tuple(range(250_000, 250_064))
    distribution = SparseDistribution(token_ids, (1 / 64,) * 64)
    proposal = Proposal(token_ids[:5], (distribution,) * 5, draft_us=100_000)
    answer = draft_response_to_pb(1_000_000, proposal)
    asked = verify_round_to_pb(VerifyRequest(1_000_000, 1_000_000, proposal, 0.5, 1_000_000))
    assert answer.ByteSize() + asked.ByteSize() < REJECTION_BYTES - 200
