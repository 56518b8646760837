"""What one gateway has learned of all its sessions, and the policies of those whose gate is ``auto``. No threads."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from orchestrator.policy.auto.costs import Costs, MeasuredCosts
from orchestrator.policy.auto.evidence import OnEvidence
from orchestrator.policy.auto.mode import ModeLearner, Pace, at_once
from orchestrator.policy.auto.policy import Auto
from orchestrator.policy.gates import Asked, DrafterState, Gate
from specgate.types import RoundRecord, Verification

MAX_CHOICE = 16
"""Draft tokens that are ever chosen, whatever a request allows: a search through more takes longer than it brings."""


def mode_of(request: Asked) -> tuple[Verification, int]:
    """Return what requests have in common whose drafts survive alike: verification, and temperature in quarters."""
    if request.sampling.greedy:
        return Verification.SHARED_NOISE, 0
    return request.verification, min(max(round(request.sampling.temperature * 4), 1), 8)


class Learner:
    """Learns from the rounds of all sessions. What they cost depends on the two models, how drafts survive on the mode.

    Args:
        measured: returns what the services told of their costs by now.
        pace: of the searches.
        copies: returns whether the drafters only draft where they have evidence, as far as is known by now.
    """

    def __init__(
        self,
        measured: Callable[[], MeasuredCosts] = MeasuredCosts,
        pace: Pace = at_once,
        copies: Callable[[], bool] = lambda: False,
    ) -> None:
        self.costs = Costs(measured)
        self._pace = pace
        self._copies = copies
        self._modes: dict[tuple[Verification, int, bool], ModeLearner] = {}
        self._sessions = count()

    def policy(self, request: Asked, drafter: DrafterState) -> Auto | OnEvidence:
        """Return the policy of one session, which asks this drafter."""
        if self._copies():
            longest = MAX_CHOICE if request.gamma is None else min(request.gamma, MAX_CHOICE)
            return OnEvidence(self._mode(request), drafter, longest)
        return Auto(self._mode(request), drafter, min(request.max_gamma, MAX_CHOICE))

    def observer(self, request: Asked) -> "Observer | None":
        """Return whom to tell of a session's verdicts; None where they would teach nothing.

        ``draft_confidence`` ends a draft where it is unsure: the tokens that are left survive better than others.
        """
        return None if request.gate is Gate.DRAFT_CONFIDENCE else Observer(self._mode(request), next(self._sessions))

    def _mode(self, request: Asked) -> "ModeLearner":
        copies = self._copies()
        mode = *mode_of(request), copies
        return self._modes.setdefault(mode, ModeLearner(self.costs, self._pace, copies=copies))


@dataclass(frozen=True, slots=True)
class Observer:
    """Tells of one session's records, until it leaves. That is safe to call twice."""

    mode: ModeLearner
    session: int

    def __call__(self, record: RoundRecord, /) -> None:
        self.mode.observe(self.session, record)

    def leave(self) -> None:
        self.mode.costs.leave(self.session)
