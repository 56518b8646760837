"""``auto`` for one session whose drafter copies: nothing is asked, what it announces is taken where that pays.

The target goes on alone and never waits. Meanwhile the drafter follows the text, and where it has evidence it announces
a draft, which the target verifies in its next forward (see ``FollowUps``). So a text without copies costs nothing, and
what is left to choose is how long a draft may be, and behind which confidences of the target it is worth its rows.

Lossless as ``policy.Auto`` is: only committed tokens and rounds that are over are looked at.
"""

from dataclasses import replace

from orchestrator.policy.auto.choice import Choice
from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.auto.policy import MOST_SOLO, PROBE_ROUNDS
from orchestrator.policy.gates import DrafterState, ExpectedPlan, Progress
from specgate.types import ALWAYS_SOLO, RoundPlan


class OnEvidence:
    """See ``gates.Policy``. ``max_gamma`` is the most that the request allows."""

    def __init__(self, mode: ModeLearner, drafter: DrafterState, max_gamma: int) -> None:
        self._mode = mode
        self._drafter = drafter
        self._max_gamma = max_gamma
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
        if found is None:
            choice = Choice(0, self._max_gamma)
        elif found.choice.drafts:
            choice = found.choice
        elif self._probes_left:
            choice = found.choice._replace(closed=0)
        else:
            return None
        return ExpectedPlan(replace(_alone(session, choice.gamma), gamma=choice.gamma), choice.solo_below)

    def _gamma(self) -> int:
        """Return how long an announced draft may be; 0: none is wanted, and none is tried at this moment."""
        found = self._mode.found(self._max_gamma)
        if found is None:
            return self._max_gamma
        self._probes_left -= self._probes_left > 0
        if not found.choice.drafts and not self._probes_left:
            loss_us = PROBE_ROUNDS * found.probe_us
            if not self._mode.book_probe(self._max_gamma, loss_us, self._drafter.num_unread):
                return 0
            # The plan that begins a probe has no draft yet.
            self._probes_left = PROBE_ROUNDS + 1
        return found.choice.gamma


def _alone(session: Progress, prepare: int) -> RoundPlan:
    """Let the target go on alone; with ``prepare`` 0 the drafter hears nothing."""
    run = min(session.remaining, MOST_SOLO)
    return RoundPlan(0, 0.0, ALWAYS_SOLO, run, prepare, keeps_warm=prepare > 0)
