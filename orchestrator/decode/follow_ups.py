"""What the target is told before it is asked: announced proposals, each with the plan of its round.

In ``shared_noise`` and greedy alone, where whatever is verified leaves the text as it is: in rejection mode above
temperature 0 nothing is announced.
"""

from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.decode.ports import Drafter
from orchestrator.decode.session import Session
from orchestrator.policy.gates import ExpectedPlan, Policy
from specgate.types import (
    AnnouncedProposal,
    Announcement,
    DraftRequest,
    FollowUp,
    FollowUps,
    Proposal,
    RoundPlan,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Coming:
    """The ``Progress`` of a session behind a verdict that is still to come."""

    length: int
    remaining: int
    fully_accepted: bool
    confidence: None = None


class Planned(NamedTuple):
    """A round as it would be behind one outcome."""

    plan: RoundPlan
    proposal: Proposal


class Foresight:
    """Tells follow-ups of the round that runs, and remembers what was told: once a round and position, for good.

    What a verifier goes on with is what it was told first, so what came later must not be taken for it.

    Args:
        policy: says what a round would be.
        drafter: says what it would propose for it.
    """

    def __init__(self, session: Session, drafter: Drafter, policy: Policy) -> None:
        self._session = session
        self._drafter = drafter
        self._policy = policy
        self._told: tuple[Planned, ...] = ()
        self._told_at: tuple[int, int] | None = None

    def tell(self, running: Proposal, announcement: Announcement) -> FollowUps | None:
        """Return what is to be told of what may come behind the verdict on ``running``; None: nothing.

        All have the gate of the first one; one whose plan has another is left out.
        """
        session = self._session
        place = session.round, session.length
        if session.finished or announcement.position != session.length or place == self._told_at:
            return None
        coming = [entry for one in announcement.proposals if (entry := self._coming(running, one)) is not None]
        coming = [entry for entry in coming if entry[1].plan.solo_below == coming[0][1].plan.solo_below]
        if not coming:
            return None
        self._told_at, self._told = place, tuple(planned for _, planned in coming)
        plans = [planned.plan for planned in self._told]
        # A solo run ends with the text, whatever its limit.
        gate = plans[0].solo_below, max(plan.max_solo_tokens for plan in plans)
        return FollowUps(session.round + 1, session.length, tuple(one for one, _ in coming), *gate)

    def followed(self, verdict: Verdict) -> Planned | None:
        """Return the round that the verifier has gone on with behind ``verdict``."""
        return self._told[verdict.follow_up - 1] if verdict.follow_up else None

    def _coming(self, running: Proposal, announced: AnnouncedProposal) -> tuple[FollowUp, Planned] | None:
        session, (num_accepted, token_id, _) = self._session, announced
        if num_accepted > len(running) or not 0 <= token_id < session.opening_spec.vocab_size:
            return None
        token_ids = (*running.draft_token_ids[:num_accepted], token_id)
        foreseen = self._plan_ahead(len(token_ids), fully_accepted=num_accepted == len(running))
        if foreseen is None or not foreseen.plan.gamma:
            return None
        plan = foreseen.plan
        request = DraftRequest(session.round + 1, session.length, token_ids, plan.gamma, plan.stop_below, plan.prepare)
        proposal = self._drafter.announced(request)
        if proposal is None:
            return None
        follow_up = FollowUp(num_accepted, token_id, proposal.draft_token_ids, foreseen.least_confidence)
        return follow_up, Planned(plan, proposal)

    def _plan_ahead(self, num_tokens: int, *, fully_accepted: bool) -> ExpectedPlan | None:
        session = self._session
        return self._policy.plan_ahead(
            Coming(session.length + num_tokens, session.remaining - num_tokens, fully_accepted)
        )
