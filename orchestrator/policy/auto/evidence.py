"""``auto`` for one session whose drafter copies from the text: uses announced drafts when they pay.

The target decodes alone and never waits. The drafter follows the text and announces a draft when it finds a match; the
target verifies it in its next forward (see ``FollowUps``). So a text without matches costs nothing. The match sets the
length of a draft; this policy chooses the confidence above which drafts are used.

Like ``policy.Auto``, it sees only committed tokens and finished rounds.
"""

from dataclasses import replace

from orchestrator.policy.auto.costs import LEAST_RUN
from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.auto.policy import PROBE_ROUNDS
from orchestrator.policy.gates import AUTO_GAMMA, DrafterState, ExpectedPlan, Progress
from specgate.types import ALWAYS_SOLO, RoundPlan, WhyAlone


class OnEvidence:
    """See ``gates.Policy``. A draft has up to ``longest`` tokens."""

    def __init__(self, mode: ModeLearner, drafter: DrafterState, longest: int) -> None:
        self._mode = mode
        self._drafter = drafter
        self._longest = longest
        self._max_gamma = min(longest, AUTO_GAMMA)
        """Longest draft that the search considers; longer ones do not change whether copying pays."""
        self._probes_left = 0

    def plan(self, session: Progress) -> RoundPlan:
        """Return the next round's plan: the target alone, with a drafter that follows the text if drafts pay."""
        gamma = self._gamma()
        if gamma and not self._drafter.available:
            self._drafter.want()
        return _alone(session, gamma)

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return the plan of a round whose draft was announced."""
        found = self._mode.choice(self._max_gamma)
        solo_below = 0.0
        if found is not None and found.choice.drafts:
            solo_below = found.choice.solo_below
        elif found is not None and not self._probes_left:
            return None
        plan = replace(_alone(session, self._longest), gamma=self._longest)
        return ExpectedPlan(plan, solo_below)

    def _gamma(self) -> int:
        """Return the longest draft that may be announced; 0 if drafts do not pay now."""
        found = self._mode.search(self._max_gamma)
        if found is None:
            return self._longest
        self._probes_left -= self._probes_left > 0
        if not found.choice.drafts and not self._probes_left:
            loss_us = PROBE_ROUNDS * found.probe_us
            if not self._mode.book_probe(self._max_gamma, loss_us, self._drafter.num_unread):
                return 0
            # The first round of a probe has no draft yet.
            self._probes_left = PROBE_ROUNDS + 1
        return self._longest


def _alone(session: Progress, prepare: int) -> RoundPlan:
    """Return a solo plan; with ``prepare`` 0 the drafter gets no tokens."""
    run = min(session.remaining, LEAST_RUN)
    why_alone = WhyAlone.NO_COPY if prepare else WhyAlone.NO_GAIN
    return RoundPlan(0, 0.0, ALWAYS_SOLO, run, prepare, keeps_warm=prepare > 0, why_alone=why_alone)
