"""The gates: each decides before a round whether to draft, and how many tokens.

A policy sees committed tokens, their confidences and past rounds. It never sees a pending proposal or verdict. So every
policy keeps the target's distribution, in rejection mode too.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from specgate.errors import InvalidArgument
from specgate.types import ALWAYS_SOLO, RoundPlan, SamplingParams, Verification, WhyAlone
from specgate.types import Gate as Gate

ABSENT_DRAFTER_SOLO_TOKENS = 16
"""Limit of a solo run while a drafter is looked for, so that a new drafter is used soon."""
DEFAULT_THRESHOLD = {Gate.NONE: 0.0, Gate.TARGET_CONFIDENCE: 0.5, Gate.DRAFT_CONFIDENCE: 0.4, Gate.AUTO: 0.0}
DEFAULT_GATE = Gate.AUTO
FIXED_GAMMA, AUTO_GAMMA = 5, 8
"""Default draft tokens per round: of a fixed gate, and the most that ``auto`` picks."""


def check_thresholds(gate: Gate, threshold: float | None, draft_threshold: float | None) -> None:
    """Raise InvalidArgument for a threshold above 0 that the gate does not have."""
    if threshold and gate not in (Gate.TARGET_CONFIDENCE, Gate.DRAFT_CONFIDENCE):
        gated = f"{Gate.TARGET_CONFIDENCE} or {Gate.DRAFT_CONFIDENCE}"
        raise InvalidArgument("gate_threshold", f"{threshold:g}: the gate {gate} has no threshold; use {gated}")
    if draft_threshold and gate is not Gate.TARGET_CONFIDENCE:
        raise InvalidArgument(
            "draft_threshold", f"{draft_threshold:g}: is for {Gate.TARGET_CONFIDENCE}, not for {gate}"
        )


class Asked(Protocol):
    """The fields of a request that say how to draft."""

    @property
    def gate(self) -> Gate: ...

    @property
    def gamma(self) -> int | None:
        """Draft tokens per round in the request; None is the gate's default."""
        ...

    @property
    def max_gamma(self) -> int:
        """Most draft tokens per round; 0 is the target alone."""
        ...

    @property
    def threshold(self) -> float: ...

    @property
    def stop_below(self) -> float:
        """See ``RoundPlan``."""
        ...

    @property
    def verification(self) -> Verification: ...

    @property
    def sampling(self) -> SamplingParams: ...


class DrafterState(Protocol):
    """What a policy may know of the drafter. It never sees drafted tokens."""

    def want(self) -> None:
        """Open the drafter if it was never opened, or anew if it is full, for a plan needs a draft. Never waits."""
        ...

    @property
    def available(self) -> bool:
        """Whether a proposal can be requested now."""
        ...

    @property
    def may_return(self) -> bool:
        """Whether an unavailable drafter may become available within this request."""
        ...

    @property
    def context_length(self) -> int:
        """Length of the text up to which the drafter can draft, in tokens; very large before it is opened."""
        ...

    @property
    def num_unread(self) -> int:
        """Committed tokens that the drafter must read before it can draft."""
        ...


class Progress(Protocol):
    """What a policy may see of a session."""

    @property
    def confidence(self) -> float | None:
        """The target's raw probability of the last emitted token, None before the first one."""
        ...

    @property
    def agreement(self) -> float | None:
        """How often the draft agreed lately, see ``RecentAgreement``; None if unknown."""
        ...

    @property
    def length(self) -> int:
        """Prompt plus emitted tokens."""
        ...

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        ...


class ExpectedPlan(NamedTuple):
    """The plan of the round after a pending verdict, valid if its confidence is at least ``least_confidence``."""

    plan: RoundPlan
    least_confidence: float = 0.0


class Policy(Protocol):
    """Plans the next round."""

    def plan(self, session: Progress) -> RoundPlan: ...

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return what ``plan`` will return for the next round; None if that is unknown. It may begin a search.

        ``plan`` is still called for every round.

        Args:
            session: as it will be then, except for its confidence, which is unknown, and its agreement, which is now's.
        """
        ...


@dataclass(frozen=True, slots=True)
class AlwaysDraft:
    """``none``: drafts gamma tokens in every round. ``draft_confidence``: ends a draft as ``stop_below`` says."""

    gamma: int
    stop_below: float = 0.0

    def plan(self, session: Progress) -> RoundPlan:
        return RoundPlan(self.gamma, self.stop_below)

    def plan_ahead(self, session: Progress) -> ExpectedPlan:
        return ExpectedPlan(self.plan(session))


@dataclass(frozen=True, slots=True)
class TargetConfidence:
    """``target_confidence``: the target decodes alone while its confidence is below the threshold.

    The gate is open before the first token. The verifier applies the same rule within a round. So the gate is closed
    here only if the last round ended for another reason. With ``stop_below`` both confidences decide.
    """

    gamma: int
    threshold: float
    stop_below: float = 0.0

    def plan(self, session: Progress) -> RoundPlan:
        closed = session.confidence is not None and session.confidence < self.threshold
        return self._plan(0 if closed else self.gamma, session)

    def plan_ahead(self, session: Progress) -> ExpectedPlan:
        return ExpectedPlan(self._plan(self.gamma, session), self.threshold)

    def _plan(self, gamma: int, session: Progress) -> RoundPlan:
        why_alone = None if gamma else WhyAlone.GATE
        return RoundPlan(gamma, self.stop_below, self.threshold, session.remaining, why_alone=why_alone)


@dataclass(frozen=True, slots=True)
class WithinLimits:
    """Limits any policy to the rest of the request and to what the drafter can do now."""

    policy: Policy
    drafter: DrafterState

    def plan(self, session: Progress) -> RoundPlan:
        plan, is_last = self.policy.plan(session), session.remaining == 1
        drafts = self.drafter.available and not is_last
        why_alone = WhyAlone.LAST_TOKEN if is_last else WhyAlone.NO_DRAFTER
        if plan.gamma == 0:
            if plan.why_alone in (WhyAlone.NO_COPY, WhyAlone.NOT_YET) and not drafts:
                plan = replace(plan, why_alone=why_alone)
            if plan.running_gamma and not (drafts or is_last):
                self.drafter.want()
            # Without a drafter the target runs faster; the learner must not mix the two times.
            return plan if drafts or (self.drafter.may_return and not is_last) else replace(plan, keeps_warm=False)
        if drafts:
            return replace(plan, gamma=self._within(plan.gamma, session))
        if not is_last:
            self.drafter.want()
            if self.drafter.may_return:
                # The drafter reads the text meanwhile, which slows the target.
                solo_tokens = min(session.remaining, ABSENT_DRAFTER_SOLO_TOKENS)
                return _target_alone(solo_tokens, why_alone, keeps_warm=True)
        return _target_alone(session.remaining, why_alone)

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        expected = self.policy.plan_ahead(session)
        if expected is None or (gamma := self._within(expected.plan.gamma, session)) <= 0:
            return None
        return expected._replace(plan=replace(expected.plan, gamma=gamma))

    def _within(self, gamma: int, session: Progress) -> int:
        # A verdict emits up to gamma + 1 tokens.
        return min(gamma, session.remaining - 1, self.drafter.context_length - session.length)


@dataclass(frozen=True, slots=True)
class TargetAlone:
    """The target alone: one round streams the whole text."""

    def plan(self, session: Progress) -> RoundPlan:
        return _target_alone(session.remaining, WhyAlone.OFF)

    def plan_ahead(self, session: Progress) -> None:
        """Return None: the target decodes alone to the end."""


def _target_alone(max_solo_tokens: int, why_alone: WhyAlone, *, keeps_warm: bool = False) -> RoundPlan:
    return RoundPlan(
        solo_below=ALWAYS_SOLO, max_solo_tokens=max_solo_tokens, keeps_warm=keeps_warm, why_alone=why_alone
    )


class PolicyMaker(Protocol):
    """Makes the policies of ``auto``, which share one learner."""

    def policy(self, request: Asked, drafter: DrafterState) -> Policy: ...


def make_policy(request: Asked, drafter: DrafterState, learner: PolicyMaker) -> Policy:
    """Return the policy of ``request``, limited to what ``drafter`` can do."""
    if request.max_gamma == 0:
        return TargetAlone()
    policy: Policy
    match request.gate:
        case Gate.NONE | Gate.DRAFT_CONFIDENCE:
            policy = AlwaysDraft(request.max_gamma, request.stop_below)
        case Gate.TARGET_CONFIDENCE:
            policy = TargetConfidence(request.max_gamma, request.threshold, request.stop_below)
        case Gate.AUTO:
            policy = learner.policy(request, drafter)
    return WithinLimits(policy, drafter)
