"""What is announced goes to the target before it is asked for, and the text stays the target's own."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.decode.lookahead import Lookahead
from orchestrator.decode.loop import decode
from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from orchestrator.policy.gates import AlwaysDraft, Policy, Progress, TargetAlone, TargetConfidence
from specgate.types import MAX_BRANCHES, FollowUps, Proposal, RoundPlan, RoundRecord, TokenIds, Verdict
from tests.orchestrator.decode.support import within
from tests.support.decoding import emitted, make_session, make_spec, run, target_alone
from tests.support.fake_fleet import FakeDialer
from tests.support.fakes import VOCAB_SIZE, FakeDrafter, FakeVerifier, Fault
from tests.support.faults import HUNG_DRAFT, Run, verifier

SPEC = make_spec(60, stop_token_ids=frozenset())
GATES = [AlwaysDraft(3), TargetConfidence(3, 0.3), TargetConfidence(3, 0.7), AlwaysDraft(4, 0.4)]


@pytest.mark.parametrize("agreement", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gate", GATES, ids=str)
async def test_the_text_is_the_targets_own(gate: Policy, agreement: float) -> None:
    session, verifier = make_session(SPEC), FakeVerifier(SPEC)
    deltas = await run(session, FakeDrafter(SPEC, agreement=agreement, announces=True), verifier, within(gate))
    assert emitted(deltas) == target_alone(SPEC)
    assert session.stats.followed == verifier.num_followed > 0
    rounds = [request.round for request in verifier.requests]
    assert rounds == list(range(1, len(rounds) + 1))


async def test_a_closed_gate_is_not_passed() -> None:
    """After an unsure verdict the target goes on alone, whatever it was sent."""
    gate, records = TargetConfidence(3, 0.6), list[RoundRecord]()
    session = Session(SPEC, OutputText(None), on_record=[records.append])
    await run(session, FakeDrafter(SPEC, announces=True), FakeVerifier(SPEC), within(gate))
    before = [one.confidence for one in records if not one.undrafted and one.confidence is not None]
    assert before
    assert min(before) >= 0.6


@pytest.mark.parametrize("agreement", [0.0, 1.0])
async def test_the_target_is_at_most_one_round_ahead_of_the_reader(agreement: float) -> None:
    session, verifier = make_session(SPEC), FakeVerifier(SPEC)
    drafter = FakeDrafter(SPEC, agreement=agreement, announces=True)
    async with aclosing(decode(session, drafter, verifier, within(AlwaysDraft(3)))) as deltas:
        async for _ in deltas:
            for _ in range(5):
                await asyncio.sleep(0)
            sent = verifier.expected
            assert sent is None or sent.round <= session.round


async def test_a_verifier_that_dies_after_a_followed_verdict() -> None:
    for at in range(2, 8):
        dies = verifier(0.005, **{f"at{at}": Fault.DIE})
        dialer = FakeDialer((partial(FakeDrafter, announces=True),), (dies, verifier()))
        one = Run(dialer)
        assert emitted(await one()) == target_alone(one.session.opening_spec)
        assert dialer.opened_verifiers[0].num_followed
        assert one.session.stats.verifier_failovers == 1


@pytest.mark.parametrize("fault", Fault)
async def test_a_drafter_that_fails_after_a_followed_verdict(fault: Fault) -> None:
    for at in range(2, 6):
        first = partial(FakeDrafter, announces=True, faults={at: fault})
        dialer = FakeDialer((first, partial(FakeDrafter, announces=True)), (verifier(0.005),))
        one = Run(dialer, make_spec(120), timeouts=HUNG_DRAFT)
        assert emitted(await one()) == target_alone(one.session.opening_spec)
        assert one.session.stats.followed
        assert one.session.stats.drafter_failures == 1


ALWAYS_TWO = AlwaysDraft(2)
PROPOSAL = Proposal((4, 5))


def looking_ahead(*outcomes: TokenIds, policy: Policy = ALWAYS_TWO, **fields: object) -> tuple[Lookahead, Session]:
    session = make_session(replace(SPEC, **fields))
    session.draft_request(RoundPlan(2))

    class Knows(FakeDrafter):
        def announced(self, request):
            return Proposal((7, 8)[: request.gamma])

        def expected(self, position):
            return outcomes if position == session.length else ()

    return Lookahead(session, Knows(SPEC), within(policy)), session


def test_what_is_sent() -> None:
    lookahead, session = looking_ahead((4, 5, 6), (3,), policy=TargetConfidence(2, 0.5))
    sent = lookahead.follow_ups(PROPOSAL)
    assert sent is not None
    assert (sent.round, sent.position, sent.solo_below) == (2, session.length, 0.5)
    assert sent.proposals == ((2, 6, (7, 8), 0.5), (0, 3, (7, 8), 0.5))
    followed = lookahead.followed(Verdict(1, 0, 3, follow_up=2))
    assert followed is not None
    assert followed.proposal.draft_token_ids == (7, 8)
    assert lookahead.followed(Verdict(1, 0, 3)) is None


def test_no_more_is_sent_than_a_message_holds() -> None:
    sent = looking_ahead(*((token_id,) for token_id in range(VOCAB_SIZE)))[0].follow_ups(PROPOSAL)
    assert sent is not None
    assert len(sent.proposals) == MAX_BRANCHES < VOCAB_SIZE


def test_of_one_place_is_sent_once() -> None:
    """The verifier may have gone on with what it was sent first."""
    lookahead, session = looking_ahead((4, 5, 6))
    assert lookahead.follow_ups(PROPOSAL) is not None
    assert lookahead.follow_ups(PROPOSAL) is None
    followed = lookahead.followed(Verdict(1, 2, 6, follow_up=1))
    assert followed is not None
    session.draft_request(RoundPlan(2))
    assert lookahead.follow_ups(PROPOSAL) is not None


NOT_OF_IT = [(4, 5, 6, 7), (5, 6), (VOCAB_SIZE,)]
"""Of two rounds, of another proposal, and no token at all."""


@pytest.mark.parametrize(
    ("policy", "fields", "outcomes", "sent"),
    [
        *((ALWAYS_TWO, {}, (outcome, (3,)), [(0, (7, 8))]) for outcome in NOT_OF_IT),
        # A verdict emits one token more than was drafted.
        (ALWAYS_TWO, {"max_tokens": 3}, ((4, 5, 6), (4, 6), (3,)), [(0, (7,))]),
        (ALWAYS_TWO, {}, (), None),
        (TargetAlone(), {}, ((3,),), None),
    ],
    ids=[*map(str, NOT_OF_IT), "past_the_end", "nothing", "target_alone"],
)
def test_what_cannot_be_is_not_sent(policy: Policy, fields: dict[str, int], outcomes, sent) -> None:
    follow_ups = looking_ahead(*outcomes, policy=policy, **fields)[0].follow_ups(PROPOSAL)
    found = follow_ups and [(one.num_accepted, one.draft_token_ids) for one in follow_ups.proposals]
    assert found == sent


def test_all_that_is_sent_has_one_gate() -> None:
    class Moody(AlwaysDraft):
        def plan_ahead(self, session: Progress):
            plan = RoundPlan(2, solo_below=0.3 if session.remaining < 58 else 0.4, max_solo_tokens=session.remaining)
            return super().plan_ahead(session)._replace(plan=plan)

    lookahead, session = looking_ahead((4, 5, 6), (3,), policy=Moody(2))
    sent = lookahead.follow_ups(PROPOSAL)
    assert isinstance(sent, FollowUps)
    assert [one.num_accepted for one in sent.proposals] == [2]
    assert (sent.solo_below, sent.max_solo_tokens) == (0.3, session.remaining - 3)
