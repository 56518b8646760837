"""The target goes on by itself where a verdict is an outcome that it was told of, and nowhere else."""

from dataclasses import replace

import pytest

from specgate.errors import InvalidArgument, OutOfSync
from specgate.types import FollowUp, FollowUps, Proposal, SamplingParams, Verdict, Verification, VerifyRequest
from tests.support.models import KnownModel, run_task
from tests.support.sessions import PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec
from verifier_svc.verifier import VerifySession

START = len(PROMPT)


@pytest.fixture
def model() -> KnownModel:
    return known_model()


def open_session(model: KnownModel, **fields: object) -> VerifySession:
    session = VerifySession(make_spec(**fields), model.pool, VOCAB_SIZE, model.loaded.context_length)
    run_task(model, session.prefill())
    return session


def verify(model: KnownModel, session: VerifySession, draft: Ids, round_index: int = 1, **gate: float) -> list[Verdict]:
    verdicts: list[Verdict] = []
    request = VerifyRequest(round_index, len(session.sequence), Proposal(draft), **gate)
    run_task(model, session.verify(request, verdicts.append))
    return verdicts


def expected(path: Ids, **changes: object) -> FollowUps:
    """Two outcomes of the round that drafts ``path[:2]``: one that does not come true, and the one that does."""
    wrong, right = FollowUp(1, path[1], (1, 1)), FollowUp(2, path[2], path[3:5])
    return replace_tuple(FollowUps(2, START, (wrong, right)), changes)


def replace_tuple(follow_ups: FollowUps, changes: dict[str, object]) -> FollowUps:
    return follow_ups._replace(**changes)


def test_it_goes_on_where_an_outcome_came_true(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path))
    first, second = verify(model, session, path[:2])
    assert (first.round, first.follow_up, first.last, first.num_accepted, first.token_id) == (1, 2, True, 2, path[2])
    assert (second.round, second.follow_up, second.last) == (2, 0, True)
    assert (second.num_accepted, second.token_id) == (2, path[5])
    assert session.sequence.token_ids == [*PROMPT, *path[:6]]
    # It takes the next round as if that one had been asked for.
    (third,) = verify(model, session, path[6:7], 3)
    assert (third.num_accepted, third.token_id) == (1, path[7])


def test_one_follows_the_other(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path))
    verdicts: list[Verdict] = []

    def emit(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if verdict.round == 1:
            session.expect(FollowUps(3, START + 3, (FollowUp(2, path[5], path[6:7]),)))

    run_task(model, session.verify(VerifyRequest(1, START, Proposal(path[:2])), emit))
    assert [(one.round, one.follow_up) for one in verdicts] == [(1, 2), (2, 1), (3, 0)]
    assert session.sequence.token_ids == [*PROMPT, *path[:8]]


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 1},
        {"round": 3},
        {"position": START - 1},
        {"position": START + 3},
        {"proposals": ()},
    ],
)
def test_it_waits_where_what_it_was_told_is_for_another_round(changes: dict[str, object], model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path, **changes))
    (verdict,) = verify(model, session, path[:2])
    assert verdict.follow_up == 0


@pytest.mark.parametrize("outcome", ["another token", "fewer accepted"])
def test_it_waits_where_no_outcome_came_true(outcome: str, model: KnownModel) -> None:
    path = greedy_path(model, 8)
    token_id, num_accepted = (path[2] + 1, 2) if outcome == "another token" else (path[2], 1)
    session = open_session(model)
    session.expect(expected(path, proposals=(FollowUp(num_accepted, token_id % VOCAB_SIZE, path[3:5]),)))
    (verdict,) = verify(model, session, path[:2])
    assert (verdict.follow_up, verdict.token_id) == (0, path[2])


@pytest.mark.parametrize(("of_confidence", "follows"), [(0.999, True), (1.001, False)])
def test_it_goes_on_only_where_it_is_sure_enough(of_confidence: float, follows: bool, model: KnownModel) -> None:
    path = greedy_path(model, 8)
    confidence = verify(model, open_session(model), path[:2])[0].confidence
    session = open_session(model)
    right = FollowUp(2, path[2], path[3:5], least_confidence=of_confidence * confidence)
    session.expect(expected(path, proposals=(right,)))
    assert len(verify(model, session, path[:2])) == 1 + follows


def test_a_follow_up_has_its_gate(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path, solo_below=2.0, max_solo_tokens=2))
    verdicts = verify(model, session, path[:2])
    assert [(one.round, one.solo, one.last) for one in verdicts] == [
        (1, False, True), (2, False, False), (2, True, False), (2, True, True),
    ]  # fmt: skip


def test_it_goes_on_behind_the_last_token_of_a_solo_run(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(FollowUps(2, START + 2, (FollowUp(0, path[2], path[3:5]),)))
    verdicts = verify(model, session, (), solo_below=2.0, max_solo_tokens=2)
    assert [(one.round, one.solo, one.follow_up) for one in verdicts] == [
        (1, False, 0), (1, True, 0), (1, True, 1), (2, False, 0),
    ]  # fmt: skip
    assert session.sequence.token_ids == [*PROMPT, *path[:6]]


def test_it_stops_where_the_text_does(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model, max_tokens=3)
    session.expect(expected(path))
    (verdict,) = verify(model, session, path[:2])
    assert verdict.finish_reason is not None
    assert verdict.follow_up == 0


def test_a_round_that_arrives_meanwhile_comes_first(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path))
    session.interrupt()
    (verdict,) = verify(model, session, path[:2])
    assert verdict.follow_up == 0


def test_a_round_that_runs_already_cannot_be_asked_for(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model)
    session.expect(expected(path))
    verify(model, session, path[:2])
    with pytest.raises(OutOfSync):
        verify(model, session, path[3:5], 2)


def test_a_follow_up_that_passes_the_limit_is_refused(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    session = open_session(model, max_tokens=5)
    session.expect(expected(path, proposals=(FollowUp(2, path[2], path[3:6]),)))
    with pytest.raises(InvalidArgument, match="draft_token_ids"):
        verify(model, session, path[:2])


def test_rejection_takes_none(model: KnownModel) -> None:
    spec = replace(make_spec(sampling=SamplingParams()), verification=Verification.REJECTION)
    session = VerifySession(spec, model.pool, VOCAB_SIZE, model.loaded.context_length)
    with pytest.raises(InvalidArgument, match="rejection"):
        session.expect(FollowUps(1, START, ()))
