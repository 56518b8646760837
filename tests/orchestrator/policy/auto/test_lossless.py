"""Why ``auto`` changes no text: what a plan can depend on, and the same text from it as from the target alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.session import Session
from orchestrator.policy.auto.learner import Learner
from specgate.types import Proposal, RoundPlan, SparseDistribution, Verdict
from tests.orchestrator.decode.support import within
from tests.orchestrator.policy.auto.support import REQUEST, THERE, measured
from tests.support.decoding import emitted, make_spec, run, target_alone
from tests.support.fakes import FakeDrafter, FakeVerifier


def a_session(learner: Learner, max_tokens: int = 400) -> Session:
    spec = make_spec(max_tokens, stop_token_ids=frozenset())
    return Session(spec, OutputText(None, ()), clock=lambda: 0.0, on_record=filter(None, [learner.observer(REQUEST)]))


@pytest.mark.parametrize("announces", [False, True])
@pytest.mark.parametrize("agreement", [0.0, 0.5, 1.0])
async def test_the_text_is_the_targets(agreement: float, announces: bool) -> None:
    learner, lengths, num_solo = Learner(measured), set[int](), 0
    for _ in range(2):
        session = a_session(learner)
        spec = session.opening_spec
        drafter = FakeDrafter(spec, agreement=agreement, announces=announces)
        deltas = await run(session, drafter, FakeVerifier(spec), within(learner.policy(REQUEST, THERE)))
        assert emitted(deltas) == target_alone(spec)
        lengths |= {length for length, _ in session.stats.outcomes}
        num_solo += session.stats.solo_tokens
    assert len(lengths) + (num_solo > 0) > 1


HISTORY = st.lists(
    st.tuples(
        st.integers(1, 8), st.integers(0, 8), st.floats(0, 1), st.integers(100, 50_000), st.integers(100, 50_000)
    ),
    min_size=24,
    max_size=60,
)


@settings(max_examples=30)
@given(history=HISTORY, values=st.lists(st.integers(0, 96), min_size=8, max_size=8), shift=st.integers(1, 96))
def test_a_plan_depends_on_no_token_and_on_no_pending_proposal(history, values, shift) -> None:
    """Two gateways see the same rounds; the tokens in them, and all of the proposals that wait, are different."""
    plans: list[list[RoundPlan]] = []
    for offset in (0, shift):
        learner = Learner(measured)
        session, policy = a_session(learner, 10_000), learner.policy(REQUEST, THERE)
        planned: list[RoundPlan] = []
        for proposed, accepted, confidence, draft_us, verify_us in history:
            planned.append(policy.plan(session))
            draft = tuple((value + offset) % 97 for value in values[:proposed])
            probs = tuple(SparseDistribution((token,), (0.5 + offset / 200,)) for token in draft)
            session.draft_request(planned[-1])
            pending = Proposal(draft, probs, from_run_ahead=draft_us % 2 == 0, draft_us=draft_us)
            session.verify_request(pending, planned[-1])
            verdict = Verdict(
                session.round,
                min(accepted, proposed),
                5 + offset % 7,
                confidence,
                verify_us=verify_us,
                batch_sessions=1,
                batch_rows=len(draft) + 1,
                forward_us=verify_us,
            )
            session.commit(pending, verdict)
        plans.append(planned)
    assert plans[0] == plans[1]
