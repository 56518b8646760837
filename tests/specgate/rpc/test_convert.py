"""What goes out comes back the same, and takes no more room on the wire than it must."""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from specgate.rpc import convert, convert_ahead, convert_proposal, convert_session
from specgate.types import (
    MAX_BRANCHES,
    MAX_GAMMA,
    SEED_LIMIT,
    AnnouncedProposal,
    Announcement,
    DraftMethod,
    DraftRequest,
    FinishReason,
    FollowUp,
    FollowUps,
    Grammar,
    GrammarKind,
    Proposal,
    SamplingParams,
    SessionSpec,
    SparseDistribution,
    TokenLogprobs,
    Verdict,
    Verification,
    VerifyRequest,
)
from specgate.v1 import types_pb2
from tests.support.fake_services import model_info


def over_the_wire(pb: Any) -> Any:
    """Return a message as its receiver reads it."""
    return type(pb).FromString(pb.SerializeToString())


PROBS = struct.unpack("3f", struct.pack("3f", 0.7, 0.2, 1e-30))
SAMPLED = Proposal((7, 0), (SparseDistribution((7, 0, 4_000_000_000), PROBS),) * 2)
FULL = Proposal(tuple(range(MAX_GAMMA)))
VERDICTS = [
    Verdict(1, last=True),
    Verdict(1, 2, token_id=0, confidence=0.5, near_ties=1, verify_us=77, last=False, accepted_confidences=(0.25, 1.0)),
    Verdict(2, token_id=4_000_000_000, confidence=1.0, solo=True, finish_reason=FinishReason.LENGTH),
    Verdict(3, num_accepted=1, batch_sessions=9, batch_rows=40, forward_us=66, finish_reason=FinishReason.STOP),
    Verdict(4, 1, token_id=9, logprobs=(TokenLogprobs(-0.5), TokenLogprobs(-1.5, ((3, -0.25), (9, -1.5))))),
    Verdict(5, token_id=9, follow_up=2, cached_tokens=48),
]
LONG, SHORT = AnnouncedProposal((8, 9, 7), (1, 2, 3)), AnnouncedProposal((0,), (5,))
COPIED = AnnouncedProposal((4,), (5, 6), DraftMethod.SUFFIX)
WEIGHED = AnnouncedProposal((4,), (5, 6), draft_confidences=(1.0, 0.25))
ANNOUNCED = [
    (),
    (COPIED,),
    (LONG, COPIED),
    (LONG,),
    (LONG,) * 4,
    (WEIGHED, SHORT._replace(draft_confidences=(0.5,))),
    (SHORT,) * 64,
    (LONG, SHORT, AnnouncedProposal((4,) * 130, (9,) * MAX_GAMMA)),
]
SURE, ANY = FollowUp(2, 7, (1, 2, 3), 0.5), FollowUp(0, 0, (5,))
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=50, top_p=0.95, min_p=0.05),
    # The float32 is below the limit 0.01: it must arrive as the user wrote it.
    SamplingParams(repetition_penalty=0.01, presence_penalty=-2.0, frequency_penalty=1.1),
    SamplingParams(logit_bias=MappingProxyType({0: -100.0, 4_000_000_000: 0.3})),
]
FINGERPRINT = MappingProxyType({"vocabulary": "ab12", "merges": "cd34"})
PLAIN = SessionSpec((1, 0, 4_000_000_000), SAMPLINGS[2], SEED_LIMIT - 1, Verification.REJECTION, 10)
SPECS = [
    PLAIN,
    SessionSpec((0,), SamplingParams(), 0, Verification.SHARED_NOISE, 1),
    replace(PLAIN, output_token_ids=(5, 6), stop_token_ids=frozenset({9, 8}), logprobs=0),
    replace(PLAIN, cache_salt="tenant ä", first_position=3),
    replace(PLAIN, vocab_size=151_643, tokenizer_fingerprint=FINGERPRINT, logprobs=2, lease_token="once"),
    replace(PLAIN, min_tokens=7, prompt_logprobs=0),
    *(replace(PLAIN, grammar=Grammar(kind, '["a", "b"]')) for kind in GrammarKind),
]
INFO = model_info(
    "verifier",
    num_parameters=70_000_000_000,
    tokenizer_fingerprint=FINGERPRINT,
    eos_token_ids=(2, 3),
    kv_tokens=1 << 33,
    active_sessions=3,
    free_kv_tokens=1 << 32,
    uptime_s=90_000,
    batch_invariant=True,
    capabilities=frozenset({"first_position", "of a newer release"}),
)
ROUND_TRIPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[Any]]] = {
    "proposal": (
        convert_proposal.proposal_to_pb,
        convert_proposal.proposal_from_pb,
        [Proposal(), Proposal((0,)), SAMPLED, FULL],
    ),
    "draft response": (
        partial(convert.draft_response_to_pb, 9),
        convert.draft_response_from_pb,
        [
            Proposal((7, 0, 7), from_run_ahead=True, draft_us=1234, num_prepared=2),
            Proposal((7, 0), draft_confidences=(0.75, 0.0)),
            SAMPLED,
            FULL,
            *(Proposal(method=method) for method in DraftMethod),
        ],
    ),
    "verify round": (
        convert.verify_round_to_pb,
        convert.verify_round_from_pb,
        [VerifyRequest((1 << 64) - 1, 100, proposal, 0.5, max_solo_tokens=32) for proposal in (Proposal(), SAMPLED)],
    ),
    "verdict": (convert.verdict_to_pb, convert.verdict_from_pb, VERDICTS),
    "announcement": (
        convert_ahead.announcement_to_pb,
        lambda response: convert_ahead.announcement_from_pb(response.announced),
        [Announcement(9, proposals, MAX_GAMMA, stop_below) for proposals in ANNOUNCED for stop_below in (0.0, 0.25)],
    ),
    "follow-ups": (
        convert_ahead.follow_ups_to_pb,
        convert_ahead.follow_ups_from_pb,
        [FollowUps(4, 9, ups, 0.25, 8) for ups in ((), (SURE,), (SURE, ANY), (ANY, SURE, ANY), (ANY, ANY))],
    ),
    "sampling": (convert_session.sampling_params_to_pb, convert_session.sampling_params_from_pb, SAMPLINGS),
    "session": (convert_session.session_spec_to_pb, convert_session.session_spec_from_pb, SPECS),
    "model info": (convert_session.model_info_to_pb, convert_session.model_info_from_pb, [INFO]),
}


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_what_goes_out_comes_back_the_same(kind: str) -> None:
    to_pb, from_pb, values = ROUND_TRIPS[kind]
    assert [from_pb(over_the_wire(to_pb(value))) for value in values] == values


@pytest.mark.parametrize("num_accepted", [0, 2])
def test_accepted_tokens_are_not_sent_again(num_accepted: int) -> None:
    request = DraftRequest(3, 100, (7, 8, 0), gamma=5, stop_below=0.25, prepare=8)
    pb = over_the_wire(convert.draft_round_to_pb(request, num_accepted))
    assert list(pb.token_ids) == list(request.token_ids[num_accepted:])
    assert convert.draft_round_from_pb(pb, (7, 8, 9)) == request


def test_a_duration_too_long_for_its_field_is_cut() -> None:
    assert convert.draft_response_to_pb(1, Proposal((1,), draft_us=1 << 40)).draft_us == (1 << 32) - 1
    verdict = convert.verdict_to_pb(Verdict(1, verify_us=1 << 40, forward_us=1 << 40))
    assert (verdict.verify_us, verdict.forward_us) == ((1 << 32) - 1, (1 << 32) - 1)


def test_absent_sampling_fields_take_their_defaults_and_odd_values_arrive_as_their_float32() -> None:
    assert convert_session.sampling_params_from_pb(types_pb2.SamplingParams()) == SamplingParams()
    pb = over_the_wire(types_pb2.SamplingParams(temperature=1 / 3))
    assert convert_session.sampling_params_from_pb(pb).temperature == pytest.approx(1 / 3, rel=1e-7)


def test_of_too_many_guesses_the_first_are_announced() -> None:
    many = convert_ahead.announcement_to_pb(Announcement(9, (LONG, SHORT) * 40, 3))
    announced = convert_ahead.announcement_from_pb(many.announced).proposals
    assert announced == ((LONG, SHORT) * 40)[:MAX_BRANCHES]


def test_a_further_guess_takes_two_bytes_besides_its_tokens_and_a_follow_up_one_where_lengths_are_alike() -> None:
    def size(*proposals: AnnouncedProposal) -> int:
        return convert_ahead.announcement_to_pb(Announcement(9, proposals, 3)).ByteSize()

    def told(*proposals: FollowUp) -> int:
        return convert_ahead.follow_ups_to_pb(FollowUps(4, 9, proposals)).ByteSize()

    assert size(LONG, LONG) - size(LONG) == 2 + 6
    assert size(LONG, SHORT, SHORT) - size(LONG, SHORT) == 2 + 2
    assert told(ANY, ANY) - told(ANY) == 1 + 1 + len(ANY.draft_token_ids)


def test_a_limit_of_nothing_takes_no_room() -> None:
    assert convert_ahead.follow_ups_to_pb(FollowUps(4, 9, (ANY, ANY))).least_confidences == []
    assert convert_ahead.follow_ups_to_pb(FollowUps(4, 9, (ANY, SURE, ANY))).least_confidences == [0.0, 0.5]
