"""The target goes on by itself where a verdict is an outcome that it was told of, and nowhere else."""

from collections import Counter

import pytest

from specgate.errors import InvalidArgument, OutOfSync
from specgate.types import (
    ALWAYS_SOLO,
    FollowUp,
    FollowUps,
    Proposal,
    SamplingParams,
    Verdict,
    Verification,
    VerifyRequest,
)
from tests.support.chisquare import p_value
from tests.support.models import run_task
from tests.support.sessions import PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec, open_session
from verifier_svc.verifier import VerifySession

START = len(PROMPT)
MODEL = known_model()
PATH = greedy_path(MODEL, 8)
WRONG, RIGHT = FollowUp(1, PATH[1], (1, 1)), FollowUp(2, PATH[2], PATH[3:5])
EXPECTED = FollowUps(2, START, (WRONG, RIGHT))
"""Two outcomes of the round that drafts ``PATH[:2]``: one that does not come true, and the one that does."""


def opened(*follow_ups: FollowUps, **fields: object) -> VerifySession:
    session = open_session(VerifySession, make_spec(**fields), MODEL)
    run_task(MODEL, session.prefill())
    for one in follow_ups:
        session.expect(one)
    return session


def verify(session: VerifySession, draft: Ids = PATH[:2], round_index: int = 1, **gate: float) -> list[Verdict]:
    verdicts: list[Verdict] = []
    request = VerifyRequest(round_index, len(session.sequence), Proposal(draft), **gate)
    run_task(MODEL, session.verify(request, verdicts.append))
    return verdicts


def test_it_goes_on_where_an_outcome_came_true() -> None:
    session = opened(EXPECTED)
    first, second = verify(session)
    assert (first.round, first.follow_up, first.last, first.num_accepted, first.token_id) == (1, 2, True, 2, PATH[2])
    assert (second.round, second.follow_up, second.last) == (2, 0, True)
    assert (second.num_accepted, second.token_id) == (2, PATH[5])
    assert session.sequence.token_ids == [*PROMPT, *PATH[:6]]
    # It takes the next round as if that one had been asked for.
    (third,) = verify(session, PATH[6:7], 3)
    assert (third.num_accepted, third.token_id) == (1, PATH[7])


def test_one_follows_the_other() -> None:
    session = opened(EXPECTED)
    verdicts: list[Verdict] = []

    def emit(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if verdict.round == 1:
            session.expect(FollowUps(3, START + 3, (FollowUp(2, PATH[5], PATH[6:7]),)))

    run_task(MODEL, session.verify(VerifyRequest(1, START, Proposal(PATH[:2])), emit))
    assert [(one.round, one.follow_up) for one in verdicts] == [(1, 2), (2, 1), (3, 0)]
    assert session.sequence.token_ids == [*PROMPT, *PATH[:8]]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(EXPECTED._replace(round=1), id="an earlier round"),
        pytest.param(EXPECTED._replace(round=3), id="a later round"),
        pytest.param(EXPECTED._replace(position=START - 1), id="an earlier place"),
        pytest.param(EXPECTED._replace(position=START + 3), id="a later place"),
        pytest.param(EXPECTED._replace(proposals=()), id="nothing"),
        pytest.param(EXPECTED._replace(proposals=(RIGHT._replace(token_id=WRONG.token_id),)), id="another token"),
        pytest.param(EXPECTED._replace(proposals=(RIGHT._replace(num_accepted=1),)), id="fewer accepted"),
    ],
)
def test_it_waits_where_what_it_was_told_is_for_another_round_or_did_not_come_true(told: FollowUps) -> None:
    (verdict,) = verify(opened(told))
    assert (verdict.follow_up, verdict.num_accepted, verdict.token_id) == (0, 2, PATH[2])


@pytest.mark.parametrize(("of_confidence", "follows"), [(0.999, True), (1.001, False)])
def test_it_goes_on_only_where_it_is_sure_enough(of_confidence: float, follows: bool) -> None:
    confidence = verify(opened())[0].confidence
    right = RIGHT._replace(least_confidence=of_confidence * confidence)
    assert len(verify(opened(EXPECTED._replace(proposals=(right,))))) == 1 + follows


def test_a_follow_up_has_its_gate() -> None:
    verdicts = verify(opened(EXPECTED._replace(solo_below=2.0, max_solo_tokens=2)))
    assert [(one.round, one.solo, one.last) for one in verdicts] == [
        (1, False, True), (2, False, False), (2, True, False), (2, True, True),
    ]  # fmt: skip


def test_it_goes_on_behind_the_last_token_of_a_solo_run() -> None:
    session = opened(FollowUps(2, START + 2, (FollowUp(0, PATH[2], PATH[3:5]),)))
    verdicts = verify(session, (), solo_below=2.0, max_solo_tokens=2)
    assert [(one.round, one.solo, one.follow_up) for one in verdicts] == [
        (1, False, 0), (1, True, 0), (1, True, 1), (2, False, 0),
    ]  # fmt: skip
    assert session.sequence.token_ids == [*PROMPT, *PATH[:6]]


def test_it_stops_where_the_text_does_and_where_a_round_arrives_meanwhile() -> None:
    (verdict,) = verify(opened(EXPECTED, max_tokens=3))
    assert (verdict.finish_reason is not None, verdict.follow_up) == (True, 0)
    session = opened(EXPECTED)
    session.interrupt()
    (verdict,) = verify(session)
    assert verdict.follow_up == 0


def test_a_round_that_runs_already_cannot_be_asked_for() -> None:
    session = opened(EXPECTED)
    verify(session)
    with pytest.raises(OutOfSync):
        verify(session, PATH[3:5], 2)


def test_of_several_for_one_place_the_first_ones_hold() -> None:
    later = EXPECTED._replace(proposals=(RIGHT._replace(draft_token_ids=(PATH[3] ^ 1,)),))
    assert [verdict.num_accepted for verdict in verify(opened(EXPECTED, later))] == [2, 2]


def test_a_follow_up_that_passes_the_limit_is_refused() -> None:
    session = opened(EXPECTED._replace(proposals=(RIGHT._replace(draft_token_ids=PATH[3:6]),)), max_tokens=5)
    with pytest.raises(InvalidArgument, match="draft_token_ids"):
        verify(session)


def test_it_ends_a_solo_run() -> None:
    """A drafter that copies announces while the target goes on alone."""
    session = opened()
    verdicts: list[Verdict] = []

    def emit(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if len(verdicts) == 2:
            session.expect(FollowUps(2, START + 2, (FollowUp(0, PATH[2], PATH[3:5]),), ALWAYS_SOLO, 1))

    request = VerifyRequest(1, START, Proposal(), ALWAYS_SOLO, 100)
    run_task(MODEL, session.verify(request, emit))
    assert [(one.round, one.solo, one.last, one.follow_up) for one in verdicts] == [
        (1, False, False, 0),
        (1, True, False, 0),
        (1, True, True, 1),
        (2, False, False, 0),
        (2, True, True, 0),
    ]
    assert session.sequence.token_ids == [*PROMPT, *PATH[:7]]


NUM_RUNS = 3_000


@pytest.mark.parametrize("guess", [1, 5])
def test_in_rejection_mode_the_law_is_the_targets_whatever_is_told(guess: int) -> None:
    """Each second token is drafted, by a follow-up that is always the same, behind one first token."""
    counts, num_followed = Counter[Ids](), 0
    rejecting = {"sampling": SamplingParams(), "verification": Verification.REJECTION, "max_tokens": 3}
    for seed in range(NUM_RUNS):
        # Two of the first tokens that there may be are followed.
        follow_ups = [FollowUp(0, first, (guess,)) for first in (1, 5)]
        session = opened(FollowUps(2, START, tuple(follow_ups), ALWAYS_SOLO, 9), seed=seed, **rejecting)
        verdicts: list[Verdict] = []
        request = VerifyRequest(1, START, Proposal(), ALWAYS_SOLO, 9)
        run_task(MODEL, session.verify(request, verdicts.append))
        num_followed += verdicts[0].follow_up > 0
        counts[tuple(session.sequence.token_ids[START : START + 2])] += 1
        session.free()
    law = {
        (first, second): float(MODEL.logits(PROMPT).softmax(-1)[first] * behind[second])
        for first in range(VOCAB_SIZE)
        for behind in [MODEL.logits((*PROMPT, first)).softmax(-1)]
        for second in range(VOCAB_SIZE)
    }
    assert num_followed > 0
    assert p_value(counts, law) > 1e-3
