"""``auto`` for one session whose drafter copies: nothing is asked, what it announces is taken where that pays.

The target goes on alone and never waits. Meanwhile the drafter follows the text, and where it has evidence it announces
a draft, which the target verifies in its next forward (see ``FollowUps``). So a text without copies costs nothing. How
long a draft is follows from its evidence; what is left to choose is behind which confidences of the target it pays.

Lossless as ``policy.Auto`` is: only committed tokens and rounds that are over are looked at.
"""

from dataclasses import replace

from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.auto.policy import MOST_SOLO, PROBE_ROUNDS
from orchestrator.policy.gates import AUTO_GAMMA, DrafterState, ExpectedPlan, Progress
from specgate.types import ALWAYS_SOLO, RoundPlan, WhyAlone


class OnEvidence:
    """See ``gates.Policy``. A draft has up to ``longest`` tokens."""

    def __init__(self, mode: ModeLearner, drafter: DrafterState, longest: int) -> None:
        self._mode = mode
        self._drafter = drafter
        self._longest = longest
        self._max_gamma = min(longest, AUTO_GAMMA)
        """Of the choices that are looked at: longer ones tell no more of whether a copy pays."""
        self._probes_left = 0

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan: the target alone, beside a drafter that follows or one that hears nothing."""
        gamma = self._gamma()
        if gamma and not self._drafter.available:
            self._drafter.want()
        return _alone(session, gamma)

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return the plan of a round whose draft was announced."""
        found = self._mode.found(self._max_gamma, renew=False)
        solo_below = 0.0
        if found is not None and found.choice.drafts:
            solo_below = found.choice.solo_below
        elif found is not None and not self._probes_left:
            return None
        plan = replace(_alone(session, self._longest), gamma=self._longest, why_alone=None)
        return ExpectedPlan(plan, solo_below)

    def _gamma(self) -> int:
        """Return how long an announced draft may be; 0: none is wanted, and none is tried at this moment."""
        found = self._mode.found(self._max_gamma)
        if found is None:
            return self._longest
        self._probes_left -= self._probes_left > 0
        if not found.choice.drafts and not self._probes_left:
            loss_us = PROBE_ROUNDS * found.probe_us
            if not self._mode.book_probe(self._max_gamma, loss_us, self._drafter.num_unread):
                return 0
            # The plan that begins a probe has no draft yet.
            self._probes_left = PROBE_ROUNDS + 1
        return self._longest


def _alone(session: Progress, prepare: int) -> RoundPlan:
    """Let the target go on alone; with ``prepare`` 0 the drafter hears nothing."""
    run = min(session.remaining, MOST_SOLO)
    why_alone = WhyAlone.NO_COPY if prepare else WhyAlone.NO_GAIN
    return RoundPlan(0, 0.0, ALWAYS_SOLO, run, prepare, keeps_warm=prepare > 0, why_alone=why_alone)
