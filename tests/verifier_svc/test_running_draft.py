"""A running draft is taken where it agrees with the text, a few tokens at a time, and never waited for."""

from collections import Counter

import pytest

from specgate.types import Proposal, RunningDraft, SamplingParams, Verdict, Verification, VerifyRequest
from tests.support.chisquare import p_value
from tests.support.models import run_task
from tests.support.sessions import PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec, open_session
from verifier_svc.verifier import VerifySession

START = len(PROMPT)
MODEL = known_model()
PATH = greedy_path(MODEL, 20)
Judged = tuple[Ids, int, bool]


def opened(draft: RunningDraft | None = None, **fields: object) -> VerifySession:
    session = open_session(VerifySession, make_spec(**fields), MODEL)
    run_task(MODEL, session.prefill())
    if draft is not None:
        session.run_on(draft)
    return session


def run(
    session: VerifySession, gamma: int = 3, max_tokens: int = 30, *, draft: Ids = (), **gate: float
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    request = VerifyRequest(
        1, len(session.sequence), Proposal(draft), max_solo_tokens=max_tokens, running_gamma=gamma, **gate
    )
    run_task(MODEL, session.verify(request, verdicts.append))
    return verdicts


def judged(verdicts: list[Verdict]) -> list[Judged]:
    return [(one.draft_token_ids, one.num_accepted, one.solo) for one in verdicts]


def test_it_is_taken_a_few_tokens_at_a_time_and_then_the_target_goes_on_alone() -> None:
    wrong = (PATH[8] + 1) % VOCAB_SIZE
    session = opened(RunningDraft(START, (*PATH[:8], wrong, *PATH[9:12])))
    verdicts = run(session)
    assert judged(verdicts)[:4] == [
        (PATH[:3], 3, False), (PATH[4:7], 3, False), ((wrong, *PATH[9:11]), 0, False), ((), 0, True),
    ]  # fmt: skip
    assert [one.last for one in verdicts[:-1]] == [False] * (len(verdicts) - 1)
    assert session.sequence.token_ids == [*PROMPT, *PATH]


@pytest.mark.parametrize(
    ("draft", "taken"),
    [
        pytest.param(RunningDraft(START - 1, (PROMPT[-1], *PATH[:4])), PATH[:3], id="it begins in the text"),
        pytest.param(RunningDraft(START - 1, (PROMPT[-1] + 1, *PATH[:4])), (), id="the text has another token"),
        pytest.param(RunningDraft(START + 1, PATH[1:4]), (), id="it begins behind the text"),
        pytest.param(RunningDraft(START - 2, PROMPT[-2:]), (), id="it has no more tokens"),
    ],
)
def test_it_is_taken_where_it_agrees_with_the_text(draft: RunningDraft, taken: Ids) -> None:
    assert run(opened(draft))[0].draft_token_ids == taken


def test_the_last_one_counts_and_a_round_s_own_proposal_goes_first() -> None:
    session = opened(RunningDraft(START, (PATH[0] + 1, *PATH[1:4])))
    session.run_on(RunningDraft(START, PATH[:6]))
    assert judged(run(session, draft=PATH[:2]))[:2] == [((), 2, False), (PATH[3:6], 3, False)]


def test_behind_an_unsure_token_the_target_goes_on_alone() -> None:
    verdicts = run(opened(RunningDraft(START, PATH)), solo_below=0.6)[:-1]
    was_sure = [one.confidence >= 0.6 for one in verdicts[:-1]]
    assert [bool(one.draft_token_ids) for one in verdicts[1:]] == was_sure
    assert set(was_sure) == {True, False}


def test_a_round_ends_with_its_tokens_and_one_that_does_not_ask_takes_nothing() -> None:
    verdicts = run(opened(RunningDraft(START, PATH)), gamma=2, max_tokens=5)
    assert [one.num_emitted for one in verdicts] == [3, 3, 2]
    assert judged(run(opened(RunningDraft(START, PATH[:12])), gamma=0)) == [((), 0, False)]


def test_in_rejection_a_copy_counts_as_drafted_with_certainty() -> None:
    """Its tokens were not sampled: each is accepted with the target's own probability of it."""
    fields = {"sampling": SamplingParams(temperature=1.0), "verification": Verification.REJECTION, "max_tokens": 3}
    counts = Counter[Ids]()
    num_taken = 0
    for seed in range(1500):
        session = opened(RunningDraft(START, PATH[:3]), seed=seed, **fields)
        num_taken += len(run(session)[0].draft_token_ids)
        counts[tuple(session.sequence.token_ids[START : START + 2])] += 1
        session.free()
    first, then = (
        MODEL.logits(PROMPT).softmax(-1),
        [MODEL.logits((*PROMPT, one)).softmax(-1) for one in range(VOCAB_SIZE)],
    )
    law = {(one, two): float(first[one] * then[one][two]) for one in range(VOCAB_SIZE) for two in range(VOCAB_SIZE)}
    assert num_taken == 2 * 1500
    assert p_value(counts, law) > 1e-3
