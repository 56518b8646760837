"""``auto`` for one session whose drafter copies from the text: uses announced drafts when they pay.

The target never waits. The drafter follows the text and sends a running draft when it finds a match; the target takes
it in its next forward. So a text without matches costs nothing. The match sets the length of a draft; this policy
chooses the confidence above which drafts are used.

Like ``policy.Auto``, it sees only committed tokens and finished rounds.
"""

from orchestrator.policy.auto.costs import LEAST_RUN
from orchestrator.policy.auto.mode import ModeLearner
from orchestrator.policy.auto.policy import PROBE_ROUNDS
from orchestrator.policy.gates import AUTO_GAMMA, DrafterState, Progress
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
        gamma, prices = self._gamma(), self._mode.costs.now()
        run = min(session.remaining, prices.longest_run if prices is not None else LEAST_RUN)
        if not gamma:
            return RoundPlan(0, 0.0, ALWAYS_SOLO, run, keeps_warm=False, why_alone=WhyAlone.NO_GAIN)
        found = self._mode.choice(self._max_gamma)
        solo_below = found.choice.solo_below if found is not None and found.choice.drafts else 0.0
        return RoundPlan(0, 0.0, solo_below, run, gamma, True, WhyAlone.NO_COPY, gamma, gamma)

    def plan_ahead(self, session: Progress) -> None:
        """Return None: nothing is asked for."""

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
