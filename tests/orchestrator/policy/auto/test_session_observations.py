"""What a session tells the learner of its verdicts."""

from dataclasses import replace
from itertools import count

import pytest

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from orchestrator.policy.auto.observation import Observation, PreviousRound
from orchestrator.policy.gates import RoundPlan
from specgate.types import Proposal, Verdict
from tests.support.decoding import Seen, make_spec


def watched(max_tokens: int = 40) -> tuple[Session, Seen]:
    """Return a session whose every step takes half a second, and what its observer is told."""
    seen = Seen()
    ticks = count(0.5, 0.5)
    return Session(make_spec(max_tokens), OutputText(None, ()), clock=lambda: next(ticks), observer=seen), seen


def observed(*commits: tuple[Proposal, Verdict], max_tokens: int = 40, keeps_warm: bool = True) -> list[Observation]:
    """One round a commit, but for solo verdicts, which belong to the round before."""
    session, seen = watched(max_tokens)
    for proposal, verdict in commits:
        if not verdict.solo:
            session.draft_request(RoundPlan(len(proposal), keeps_warm=keeps_warm))
        session.commit(proposal, verdict)
    session.report()
    return seen


def test_a_round_is_told_whole() -> None:
    draft = Proposal((11, 12, 13), draft_us=7)
    told = Verdict(1, 1, 20, 0.25, verify_us=9, batch_sessions=2, batch_rows=8, forward_us=6)
    assert observed((draft, told)) == [
        Observation(
            before=None, after=0.25, proposed=3, judged=2, accepted=1, settled=False,
            draft_us=7, verify_us=9, round_us=500_000, batch_sessions=2, batch_rows=8, forward_us=6,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("keeps_warm", [True, False])
def test_solo_tokens_are_streamed_and_judge_nothing(keeps_warm: bool) -> None:
    draft, told = Proposal((11, 12), draft_us=7), Verdict(1, 0, 21, 0.7, solo=True, verify_us=3)
    first, second = observed((draft, Verdict(1, 2, 20, 0.1)), (draft, told), keeps_warm=keeps_warm)
    assert (first.judged, first.accepted, first.streamed, first.warm) == (2, 2, False, False)
    # It is told whether a drafter worked beside it.
    expected = Observation(before=0.1, after=0.7, streamed=True, warm=keeps_warm, verify_us=3)
    assert second == replace(expected, previous_round=PreviousRound(2, True, 2))


def test_a_round_without_a_proposal_had_its_round_trip() -> None:
    _, second = observed((Proposal(), Verdict(1, 0, 20, 0.1)), (Proposal(), Verdict(2, 0, 21, 0.2)))
    assert (second.streamed, second.proposed, second.judged, second.settled) == (False, 0, 0, True)
    assert second.round_us == 500_000


def test_an_empty_verdict_is_not_told() -> None:
    assert observed((Proposal((11,)), Verdict(1))) == []


def test_the_last_verdict_says_so_and_counts_what_was_kept() -> None:
    (seen,) = observed((Proposal((11, 12, 13)), Verdict(1, 3, 20, 0.5)), max_tokens=2)
    assert (seen.finished, seen.judged, seen.accepted) == (True, 2, 2)


def test_what_was_there_and_what_was_before_are_told() -> None:
    prepared, announced = Proposal((11, 12, 13), num_prepared=2), Proposal((21, 22), from_run_ahead=True)
    seen = observed((prepared, Verdict(1, 3, 20, 0.5)), (announced, Verdict(2, 1, 30, 0.5)), (Proposal(), Verdict(3)))
    assert [(one.prepared, one.previous_round) for one in seen] == [(2, None), (2, PreviousRound(3, True, 3))]


def test_a_proposal_that_was_lost_did_not_stand() -> None:
    session, _ = watched()
    session.draft_request(RoundPlan(3))
    session.commit(Proposal(), Verdict(1, 0, 20, 0.5))
    assert not session.fully_accepted


def test_what_streams_behind_a_round_was_chosen_for_itself() -> None:
    session, seen = watched()
    session.draft_request(RoundPlan(2, solo_below=0.5, max_solo_tokens=4, chosen=0, chosen_alone=7))
    session.commit(Proposal((11, 12)), Verdict(1, 2, 20, 0.1))
    session.commit(Proposal((11, 12)), Verdict(1, 0, 21, 0.7, solo=True))
    session.report()
    assert [one.chosen for one in seen] == [0, 7]


def test_behind_solo_tokens_there_was_no_round() -> None:
    draft = Proposal((11, 12))
    verdicts = Verdict(1, 2, 20, 0.1), Verdict(1, 0, 21, 0.7, solo=True), Verdict(2, 0, 22, 0.1)
    seen = observed(*((draft, verdict) for verdict in verdicts))
    assert [one.previous_round for one in seen] == [None, PreviousRound(2, True, 2), None]


def test_a_round_that_lost_its_verifier_is_no_measure() -> None:
    """It waited for another one to be found, and to read the text."""
    session, seen = watched()
    for number in (1, 2, 3, 4):
        session.draft_request(RoundPlan(2))
        session.stats.verifier_failovers += number == 3
        session.commit(Proposal((11, 12)), Verdict(number, 1, 20, 0.5))
        session.report()
    assert [one.settled for one in seen] == [False, True, False, True]
