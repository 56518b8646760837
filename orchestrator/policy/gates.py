"""When the draft is asked, and for how many tokens: one small class a policy.

A policy looks at committed tokens, their confidences and past rounds, never at a proposal's tokens or at a verdict that
is still to come. That is what keeps every policy lossless in rejection mode too.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from specgate.errors import InvalidArgument
from specgate.types import ALWAYS_SOLO, RoundPlan, SamplingParams, Verification, WhyAlone
from specgate.types import Gate as Gate

ABSENT_DRAFTER_SOLO_TOKENS = 16
"""A solo run is no longer than this while a drafter is being looked for, so that a new one is soon made use of."""


DEFAULT_THRESHOLD = {Gate.NONE: 0.0, Gate.TARGET_CONFIDENCE: 0.5, Gate.DRAFT_CONFIDENCE: 0.4, Gate.AUTO: 0.0}
DEFAULT_GATE = Gate.AUTO
FIXED_GAMMA, AUTO_GAMMA = 5, 8
"""Draft tokens a round where nothing is said: those of a gate that does not choose, and the most that ``auto`` may."""


def check_threshold(gate: Gate, threshold: float | None) -> None:
    """Raise InvalidArgument for a threshold above 0 of a gate that has none: it would do nothing."""
    if threshold and gate in (Gate.NONE, Gate.AUTO):
        gated = f"{Gate.TARGET_CONFIDENCE} or {Gate.DRAFT_CONFIDENCE}"
        raise InvalidArgument("gate_threshold", f"{threshold:g}: the gate {gate} has none; name {gated} with it")


class Asked(Protocol):
    """What a policy is made for: a request, as far as it says how to draft."""

    @property
    def gate(self) -> Gate: ...

    @property
    def gamma(self) -> int | None:
        """Draft tokens a round that were asked for; None: nothing was said."""
        ...

    @property
    def max_gamma(self) -> int:
        """Draft tokens a round, at the most; 0 is the target alone."""
        ...

    @property
    def threshold(self) -> float: ...

    @property
    def verification(self) -> Verification: ...

    @property
    def sampling(self) -> SamplingParams: ...


class DrafterState(Protocol):
    """What the planning of a round may know of the drafter: never what it drafted."""

    def want(self) -> None:
        """Say that a plan asks for a draft, so that a drafter that was never opened is. Never waits."""
        ...

    @property
    def available(self) -> bool:
        """Whether a proposal can be asked for now."""
        ...

    @property
    def may_return(self) -> bool:
        """Whether an unavailable drafter may become available within this request."""
        ...

    @property
    def context_length(self) -> int:
        """The longest sequence that the drafter in use can hold, in tokens; without one, any that was met."""
        ...

    @property
    def num_unread(self) -> int:
        """Committed tokens that it has to read before it drafts."""
        ...


class Progress(Protocol):
    """What a policy may see of a session."""

    @property
    def confidence(self) -> float | None:
        """The target's raw probability of the last emitted token, None before the first one."""
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
    """The plan of a round behind a verdict that is still to come, if its confidence is ``least_confidence`` or more."""

    plan: RoundPlan
    least_confidence: float = 0.0


class Policy(Protocol):
    """Plans the next round."""

    def plan(self, session: Progress) -> RoundPlan: ...

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        """Return what ``plan`` would return, as far as is known by now; None: nothing is.

        Whatever comes of it, ``plan`` is called for every round.

        Args:
            session: as it would be then, but for its confidence, which nobody knows yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class AlwaysDraft:
    """``none``: gamma tokens in every round."""

    gamma: int

    def plan(self, session: Progress) -> RoundPlan:
        return RoundPlan(self.gamma)

    def plan_ahead(self, session: Progress) -> ExpectedPlan:
        return ExpectedPlan(self.plan(session))


@dataclass(frozen=True, slots=True)
class TargetConfidence:
    """``target_confidence``: below the threshold the target goes on alone, until it is sure again.

    Before the first token the gate counts as open. The verifier carries the rule on by itself within a round, so a
    closed gate here means that the round before ended for another reason.
    """

    gamma: int
    threshold: float

    def plan(self, session: Progress) -> RoundPlan:
        closed = session.confidence is not None and session.confidence < self.threshold
        return self._plan(0 if closed else self.gamma, session)

    def plan_ahead(self, session: Progress) -> ExpectedPlan:
        return ExpectedPlan(self._plan(self.gamma, session), self.threshold)

    def _plan(self, gamma: int, session: Progress) -> RoundPlan:
        why_alone = None if gamma else WhyAlone.GATE
        return RoundPlan(gamma, solo_below=self.threshold, max_solo_tokens=session.remaining, why_alone=why_alone)


@dataclass(frozen=True, slots=True)
class DraftConfidence:
    """``draft_confidence``: a draft ends after its own first token below the threshold; that token is kept."""

    gamma: int
    threshold: float

    def plan(self, session: Progress) -> RoundPlan:
        return RoundPlan(self.gamma, stop_below=self.threshold)

    def plan_ahead(self, session: Progress) -> ExpectedPlan:
        return ExpectedPlan(self.plan(session))


@dataclass(frozen=True, slots=True)
class WithinLimits:
    """Any policy, held to what is left of the request and to what the drafter can do now."""

    policy: Policy
    drafter: DrafterState

    def plan(self, session: Progress) -> RoundPlan:
        plan = self.policy.plan(session)
        fits = self._within(1, session) > 0
        drafts = fits and self.drafter.available
        if plan.gamma == 0:
            # What the target takes beside no drafter must not be learned as what it takes beside one.
            return plan if drafts or (fits and self.drafter.may_return) else replace(plan, keeps_warm=False)
        if drafts:
            return replace(plan, gamma=self._within(plan.gamma, session))
        if fits:
            self.drafter.want()
        if fits and self.drafter.may_return:
            # It reads the text meanwhile: beside it the target is not as fast as alone.
            solo_tokens = min(session.remaining, ABSENT_DRAFTER_SOLO_TOKENS)
            return _target_alone(solo_tokens, WhyAlone.NO_DRAFTER, keeps_warm=True)
        return _target_alone(session.remaining, self._why_alone(fits, session))

    def plan_ahead(self, session: Progress) -> ExpectedPlan | None:
        expected = self.policy.plan_ahead(session)
        if expected is None or (gamma := self._within(expected.plan.gamma, session)) <= 0:
            return None
        return expected._replace(plan=replace(expected.plan, gamma=gamma))

    @staticmethod
    def _why_alone(fits: bool, session: Progress) -> WhyAlone:
        if fits:
            return WhyAlone.NO_DRAFTER
        return WhyAlone.LAST_TOKEN if session.remaining == 1 else WhyAlone.DRAFT_CONTEXT

    def _within(self, gamma: int, session: Progress) -> int:
        # A verdict emits up to gamma + 1 tokens.
        return min(gamma, session.remaining - 1, self.drafter.context_length - session.length)


@dataclass(frozen=True, slots=True)
class TargetAlone:
    """The target by itself: one round streams everything."""

    def plan(self, session: Progress) -> RoundPlan:
        return _target_alone(session.remaining, WhyAlone.OFF)

    def plan_ahead(self, session: Progress) -> None:
        """Nothing: it goes on alone to the end."""


def _target_alone(max_solo_tokens: int, why_alone: WhyAlone, *, keeps_warm: bool = False) -> RoundPlan:
    return RoundPlan(
        solo_below=ALWAYS_SOLO, max_solo_tokens=max_solo_tokens, keeps_warm=keeps_warm, why_alone=why_alone
    )


class PolicyMaker(Protocol):
    """Makes the policies of ``auto``, which share what they learn."""

    def policy(self, request: Asked, drafter: DrafterState) -> Policy: ...


def make_policy(request: Asked, drafter: DrafterState, learner: PolicyMaker) -> Policy:
    """Return the policy that ``request`` asks for, within what ``drafter`` can do."""
    if request.max_gamma == 0:
        return TargetAlone()
    return WithinLimits(_gate(request, drafter, learner), drafter)


def _gate(request: Asked, drafter: DrafterState, learner: PolicyMaker) -> Policy:
    match request.gate:
        case Gate.NONE:
            return AlwaysDraft(request.max_gamma)
        case Gate.TARGET_CONFIDENCE:
            return TargetConfidence(request.max_gamma, request.threshold)
        case Gate.DRAFT_CONFIDENCE:
            return DraftConfidence(request.max_gamma, request.threshold)
        case Gate.AUTO:
            return learner.policy(request, drafter)
