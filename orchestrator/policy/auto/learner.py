"""What one gateway learns from all its sessions, shared by the policies of the gate ``auto``. Not thread-safe."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from orchestrator.policy.auto.costs import Costs, MeasuredCosts
from orchestrator.policy.auto.mode import ModeLearner, Pace, at_once
from orchestrator.policy.auto.policy import Auto
from orchestrator.policy.gates import Asked, DrafterState
from specgate.types import RoundRecord, Verification

MAX_CHOICE = 16
"""Most draft tokens that ``auto`` picks, whatever a request allows; searching more costs more than it brings."""


class Learner:
    """Learns costs from the rounds of all sessions, and acceptance for each mode.

    Args:
        measured: returns the costs that the services have reported so far.
        pace: runs the steps of a search.
        copies: returns whether the drafters copy from the text instead of running a model.
        drafter_price: see ``Prices``.
    """

    def __init__(
        self,
        measured: Callable[[], MeasuredCosts] = MeasuredCosts,
        pace: Pace = at_once,
        copies: Callable[[], bool] = lambda: False,
        drafter_price: float | None = None,
    ) -> None:
        self.costs = Costs(measured, drafter_price)
        self._pace = pace
        self._copies = copies
        self._modes: dict[tuple[bool, int, bool], ModeLearner] = {}
        self._sessions = count()

    def policy(self, request: Asked, drafter: DrafterState) -> Auto:
        """Return the policy of one session with this drafter."""
        longest_copy = min(request.gamma or MAX_CHOICE, MAX_CHOICE) if self._running_copies() else 0
        return Auto(self.mode(request), drafter, min(request.max_gamma, MAX_CHOICE), longest_copy)

    def observer(self, request: Asked) -> "Observer | None":
        """Return the observer of a session's verdicts; None if they would mislead the learner.

        Where a draft ends at an unsure token, the acceptance of the remaining tokens is too high.
        """
        return None if request.stop_below else Observer(self.mode(request), next(self._sessions))

    def _running_copies(self) -> bool:
        prices = self.costs.now()
        return self._copies() and prices is not None and prices.runs

    def mode(self, request: Asked) -> ModeLearner:
        """Return what is learned from requests of its verification, and its temperature in quarters: acceptance is
        alike within such a mode.
        """
        rejects = request.verification is Verification.REJECTION and not request.sampling.greedy
        copies, quarters = self._running_copies(), request.sampling.quarters
        made = ModeLearner(self.costs, self._pace, copies=copies, rejects=rejects)
        return self._modes.setdefault((rejects, quarters, copies), made)


@dataclass(frozen=True, slots=True)
class Observer:
    """Passes on one session's records until ``leave``, which is safe to call twice."""

    mode: ModeLearner
    session: int

    def __call__(self, record: RoundRecord, /) -> None:
        self.mode.observe(self.session, record)

    def enter(self) -> None:
        """Count the session from now on, which its first verdict does at the latest."""
        self.mode.costs.enter(self.session)

    def attached(self, verifier: str) -> None:
        """Count the session at this endpoint from now on."""
        self.mode.costs.attached(self.session, verifier)

    def leave(self) -> None:
        self.mode.costs.leave(self.session)
