"""``auto`` for one session: follows the choice, and tries now and then what is not chosen.

Lossless by what it may look at: the target's confidence in committed tokens, and rounds that are over: how many of
their tokens were judged and stood, how long they took, who shared their forwards. A pending proposal has no way in:
``plan`` is called before the draft is asked for, and a record comes once its verdict is committed. When to try what is
not chosen is counted, not drawn: there is no randomness that could meet the text's.
"""

from orchestrator.policy.auto.choice import Choice, Found
from orchestrator.policy.auto.history import bucket_of
from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.gates import DrafterState, ExpectedPlan, Progress
from specgate.types import RoundPlan, WhyAlone

PROBE_ROUNDS = 2
"""Of one probe: the second one finds the drafter ready, and may find something prepared."""
MOST_SOLO = 64
"""Tokens of one solo run: nothing else is tried before it ends, and what the way back costs is a hundredth of it."""


class Auto:
    """See ``gates.Policy``. ``max_gamma`` is the most that the request allows."""

    def __init__(self, mode: ModeLearner, drafter: DrafterState, max_gamma: int) -> None:
        self._mode = mode
        self._drafter = drafter
        self._max_gamma = max_gamma
        self._probes_left = 0

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan."""
        found = self._mode.found(self._max_gamma)
        if found is None:
            return RoundPlan(1)
        choice, bucket = found.choice, bucket_of(session.confidence)
        is_closed = bucket < choice.closed
        if not self._probes(found):
            return _gated(choice, 0 if is_closed else choice.gamma, session)
        # With no gate at the verifier: the round behind it, which may be closed too, is this policy's to plan.
        # Until the drafter has read the text nothing is tried, and nothing is lost but the reading.
        self._probes_left -= is_closed and self._drafter.available
        # Behind the last one nobody asks; 0 would leave it to the drafter how much it prepares.
        return RoundPlan(choice.gamma, prepare=choice.gamma if self._probes_left else 1)

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return the next round's plan where it follows the choice in use, and tries nothing."""
        found = self._mode.found(self._max_gamma, renew=False)
        if found is None:
            return ExpectedPlan(RoundPlan(1))
        choice = found.choice
        if self._probes_left or not choice.drafts:
            return None
        return ExpectedPlan(_gated(choice, choice.gamma, session), choice.solo_below)

    def _probes(self, found: Found) -> bool:
        """Return whether this round is one of a probe; begin one if it is time."""
        loss_us = PROBE_ROUNDS * found.probe_us
        if not found.choice.closed:
            # The probe has changed the choice: nothing is left to try.
            self._probes_left = 0
        elif not self._probes_left and self._mode.book_probe(self._max_gamma, loss_us, self._drafter.num_unread):
            self._probes_left = PROBE_ROUNDS
        return self._probes_left > 0


def _gated(choice: Choice, gamma: int, session: Progress) -> RoundPlan:
    """Let the verifier go on alone where the choice says so."""
    run = min(session.remaining, MOST_SOLO) if choice.closed else 0
    # No longer proposals are prepared than will be used, and where nothing is drafted nothing need be ready.
    prepare = choice.gamma if choice.drafts else 0
    why_alone = None if gamma else WhyAlone.GATE if choice.drafts else WhyAlone.NO_GAIN
    return RoundPlan(gamma, 0.0, choice.solo_below, run, prepare, choice.drafts, why_alone)
