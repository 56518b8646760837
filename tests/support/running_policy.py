"""A policy that takes all of a running draft, whatever it costs: the gate ``auto`` does so where that pays."""

from dataclasses import dataclass

from orchestrator.policy.gates import Asked, DrafterState, Progress
from specgate.types import RoundPlan, WhyAlone


@dataclass
class AlwaysRunning:
    """See ``gates.PolicyMaker`` and ``gates.Policy``; in place of an orchestrator's ``learner``."""

    gamma: int = 4
    ahead: int = 16
    solo_below: float = 0.0
    run_tokens: int = 24

    def policy(self, request: Asked, drafter: DrafterState) -> "AlwaysRunning":
        return self

    def observer(self, request: Asked) -> None:
        return None

    def plan(self, session: Progress) -> RoundPlan:
        run = min(self.run_tokens, session.remaining)
        return RoundPlan(0, 0.0, self.solo_below, run, self.gamma, True, WhyAlone.NOT_YET, self.gamma, self.ahead)

    def plan_ahead(self, session: Progress) -> None:
        return None
