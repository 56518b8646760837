"""The loop over fakes: whatever the draft, γ and the gate, the text is the target's own, as the plain loop's is."""

from dataclasses import replace
from itertools import pairwise, product

import pytest

from orchestrator.decode.loop import decode
from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from orchestrator.policy.gates import AlwaysDraft, Progress, TargetAlone, TargetConfidence
from orchestrator.services.reattach import NoDrafter
from specgate.types import ALWAYS_SOLO, DraftMethod, FinishReason, RoundPlan, RoundRecord, TokenSource
from tests.orchestrator.decode.support import parties, within
from tests.support.decoding import PROMPT, emitted, make_spec, run, target_alone
from tests.support.fakes import EOS_TOKEN_ID
from tests.support.plain_loop import decode_plainly


@pytest.mark.parametrize(
    "gate",
    [
        AlwaysDraft,
        lambda gamma: TargetConfidence(gamma, 0.5),
        lambda gamma: TargetConfidence(gamma, 1.0),
        lambda gamma: AlwaysDraft(gamma, 0.4),
    ],
    ids=["none", "target", "target_always", "draft"],
)
async def test_text_is_the_targets_own(gate) -> None:
    lengths = ((1, 0.0), (2, 0.0), (40, 0.0), (40, 0.1))
    for gamma, agreement, (max_tokens, eos_rate) in product((1, 3, 64), (0.0, 0.7, 1.0), lengths):
        await check_against_the_target(gate, gamma, agreement, max_tokens, eos_rate)


async def check_against_the_target(gate, gamma, agreement, max_tokens, eos_rate) -> None:
    spec = make_spec(max_tokens)
    session, drafter, verifier = parties(spec, agreement, eos_rate)
    deltas = await run(session, drafter, verifier, within(gate(gamma)))
    plain = parties(spec, agreement, eos_rate)
    plain_deltas = [delta async for delta in decode_plainly(*plain, gamma)]

    expected = target_alone(spec, eos_rate)
    assert emitted(deltas) == emitted(plain_deltas) == expected
    if gate is AlwaysDraft:
        assert [delta.sources for delta in deltas] == [delta.sources for delta in plain_deltas]
        assert [one.proposal for one in verifier.requests] == [one.proposal for one in plain.verifier.requests]
    reason = FinishReason.STOP if expected[-1] == EOS_TOKEN_ID else FinishReason.LENGTH
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [reason]
    # What the drafter was told is a prefix of the truth: nothing skipped, nothing twice.
    assert tuple(drafter.told) == (PROMPT + expected)[: len(drafter.told)]


async def test_statistics_and_sources_add_up() -> None:
    session, drafter, verifier = parties(make_spec(200), agreement=0.8)
    deltas = await run(session, drafter, verifier, within(TargetConfidence(4, 0.3)))

    stats, sources = session.stats, [source for delta in deltas for source in delta.sources]
    counts = {source: sources.count(source) for source in TokenSource}
    assert {source for source, count in counts.items() if count} == set(list(TokenSource)[:4])
    assert stats.accepted_by == {DraftMethod.MODEL: stats.accepted}
    assert stats.completion_tokens == 200 == len(sources)
    assert stats.accepted == counts[TokenSource.ACCEPTED]
    assert stats.solo_tokens == counts[TokenSource.SOLO]
    # A rejection, and nothing after it, is drafted and not accepted.
    assert stats.drafted == stats.accepted + counts[TokenSource.RECOVERED]
    assert stats.rounds == counts[TokenSource.RECOVERED] + counts[TokenSource.BONUS]
    assert stats.target_forwards == len(deltas) == verifier.num_verdicts
    assert sum(times * num for (_, num), times in stats.outcomes.items()) == stats.accepted
    assert len(stats.draft_us) == len(stats.verify_us) == len(stats.round_us) == stats.rounds
    assert set(stats.draft_us) == {50}
    assert set(stats.verify_us) == {100}
    assert stats.prompt_tokens == len(PROMPT)
    # 0 is the answer to the opening.
    assert [request.round for request in verifier.requests] == list(range(1, len(verifier.requests) + 1))
    assert {request.round for request in drafter.requests} <= {request.round for request in verifier.requests}


async def test_a_closed_gate_streams_solo_tokens_in_one_round_and_the_drafter_hears_of_each_at_once() -> None:
    session, drafter, verifier = parties(make_spec(60))
    known = []
    async for delta in decode(session, drafter, verifier, within(TargetConfidence(4, 0.6))):
        if delta.sources == (TokenSource.SOLO,) and (session.confidence or 0.0) < 0.6 and not session.finished:
            known.append(len(drafter.told) == session.length)
    assert len(known) > 10
    assert all(known)
    # The run ends where the target is sure again, so no round ever begins behind a closed gate.
    assert all(len(request.proposal) for request in verifier.requests[:-1])


async def test_a_drafter_that_need_not_be_warm_hears_nothing_until_it_is_asked() -> None:
    spec = make_spec(60)
    session, drafter, verifier = parties(spec)
    alone, planned = RoundPlan(0, 0.0, ALWAYS_SOLO, 5, keeps_warm=False), list[int]()

    class TwiceAlone(AlwaysDraft):
        def plan(self, session: Progress) -> RoundPlan:
            planned.append(session.length)
            return RoundPlan(3) if len(planned) % 3 == 0 else alone

    async for _ in decode(session, drafter, verifier, TwiceAlone(3)):
        pass
    assert session.output_token_ids == target_alone(spec)
    assert {request.gamma for request in drafter.requests} == {3}
    assert max(len(request.token_ids) for request in drafter.requests) >= 12


class NotKeptWarm(TargetConfidence):
    """A policy whose drafter need not be ready when a solo run ends."""

    def plan(self, session: Progress) -> RoundPlan:
        return replace(super().plan(session), keeps_warm=False)


async def test_a_drafter_that_need_not_be_ready_hears_of_a_solo_run_when_it_is_asked() -> None:
    spec, records = make_spec(60), list[RoundRecord]()
    _, drafter, verifier = parties(spec)
    session = Session(spec, OutputText(None), on_record=[records.append])
    deltas, num_heard = [], set[int]()
    async for delta in decode(session, drafter, verifier, within(NotKeptWarm(4, 0.6))):
        deltas.append(delta)
        if delta.sources == (TokenSource.SOLO,) and (session.confidence or 0.0) < 0.6 and not session.finished:
            num_heard.add(session.length - len(drafter.told))
    assert emitted(deltas) == target_alone(spec)
    assert max(num_heard) > 2
    # What it had to read first is no measure of a draft.
    drafted = [one for before, one in pairwise(records) if not one.undrafted and before.verdict.solo]
    assert drafted
    assert not any(one.timing.typical for one in drafted)


async def test_verifier_is_left_alone_after_the_end() -> None:
    """A stop that only the session knows of ends the loop in the middle of a solo run."""
    spec = make_spec(40)
    session, _, verifier = parties(spec)
    stop_at = target_alone(spec)[9]
    session.opening_spec = make_spec(40, stop_token_ids=frozenset({stop_at}))
    deltas = await run(session, NoDrafter(), verifier, TargetAlone())
    assert emitted(deltas) == target_alone(session.opening_spec)
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert verifier.num_verdicts == len(deltas)
