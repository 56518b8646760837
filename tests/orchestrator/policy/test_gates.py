"""Plans, from what is committed and nothing else."""

from dataclasses import dataclass

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.auto.policy import Auto
from orchestrator.policy.gates import (
    ABSENT_DRAFTER_SOLO_TOKENS,
    AlwaysDraft,
    ExpectedPlan,
    Gate,
    TargetAlone,
    TargetConfidence,
    WithinLimits,
    make_policy,
)
from orchestrator.services.reattach import NoDrafter
from specgate.errors import InvalidArgument
from specgate.types import ALWAYS_SOLO, RoundPlan, WhyAlone


@dataclass
class Progress:
    confidence: float | None = None
    length: int = 10
    remaining: int = 30
    agreement: float | None = None


@dataclass
class Drafts:
    available: bool = True
    may_return: bool = False
    context_length: int = 1000
    num_unread: int = 0
    wanted: bool = False

    def want(self) -> None:
        self.wanted = True


def test_none_always_drafts() -> None:
    assert AlwaysDraft(5).plan(Progress(0.0)) == RoundPlan(5)


@pytest.mark.parametrize(
    ("confidence", "threshold", "gamma"),
    [(None, 0.5, 5), (0.49, 0.5, 0), (0.5, 0.5, 5), (0.51, 0.5, 5), (0.0, 0.0, 5), (None, 1.0, 5), (0.999, 1.0, 0)],
)
def test_target_confidence(confidence: float | None, threshold: float, gamma: int) -> None:
    plan = TargetConfidence(5, threshold).plan(Progress(confidence))
    why_alone = None if gamma else WhyAlone.GATE
    assert plan == RoundPlan(gamma, solo_below=threshold, max_solo_tokens=30, why_alone=why_alone)


def test_draft_confidence_stops_the_draft() -> None:
    assert AlwaysDraft(5, 0.4).plan(Progress(0.1)) == RoundPlan(5, stop_below=0.4)


def test_with_a_draft_threshold_both_confidences_decide() -> None:
    both = TargetConfidence(5, 0.5, 0.4)
    assert both.plan(Progress(0.6)) == RoundPlan(5, 0.4, 0.5, 30)
    assert both.plan(Progress(0.4)).gamma == 0
    assert both.plan_ahead(Progress()) == ExpectedPlan(RoundPlan(5, 0.4, 0.5, 30), 0.5)


@pytest.mark.parametrize("gate", [Gate.NONE, Gate.DRAFT_CONFIDENCE, Gate.AUTO])
def test_a_draft_threshold_is_for_target_confidence_alone(gate: Gate) -> None:
    with pytest.raises(InvalidArgument, match=f"draft_threshold: 0.4: is for target_confidence, not for {gate}"):
        GenerationRequest((1,), gate=gate, draft_threshold=0.4)


def test_target_alone_streams_everything() -> None:
    expected = RoundPlan(solo_below=ALWAYS_SOLO, max_solo_tokens=30, keeps_warm=False, why_alone=WhyAlone.OFF)
    assert TargetAlone().plan(Progress()) == expected


@pytest.mark.parametrize(("remaining", "gamma"), [(30, 5), (6, 5), (5, 4), (2, 1)])
def test_a_verdict_never_passes_the_end(remaining: int, gamma: int) -> None:
    plan = WithinLimits(AlwaysDraft(5), Drafts()).plan(Progress(remaining=remaining))
    assert plan.gamma == gamma


def test_last_token_is_not_drafted_for() -> None:
    plan = WithinLimits(AlwaysDraft(5), Drafts()).plan(Progress(remaining=1))
    expected = RoundPlan(solo_below=ALWAYS_SOLO, max_solo_tokens=1, keeps_warm=False, why_alone=WhyAlone.LAST_TOKEN)
    assert plan == expected


@pytest.mark.parametrize(("length", "gamma"), [(10, 5), (95, 5), (96, 4), (99, 1)])
def test_draft_models_context(length: int, gamma: int) -> None:
    plan = WithinLimits(AlwaysDraft(5), Drafts(context_length=100)).plan(Progress(length=length))
    assert plan == RoundPlan(gamma)


def test_absent_drafter_is_looked_for_again_soon() -> None:
    absent = Drafts(available=False, may_return=True)
    policy = WithinLimits(AlwaysDraft(5), absent)
    expected = RoundPlan(
        solo_below=ALWAYS_SOLO, max_solo_tokens=ABSENT_DRAFTER_SOLO_TOKENS, why_alone=WhyAlone.NO_DRAFTER
    )
    assert policy.plan(Progress()) == expected
    assert absent.wanted
    assert policy.plan(Progress(remaining=7)).max_solo_tokens == 7
    absent.available = True
    assert policy.plan(Progress()).gamma == 5


def test_closed_gate_needs_no_drafter() -> None:
    absent = Drafts(available=False)
    policy = WithinLimits(TargetConfidence(5, 0.5), absent)
    expected = RoundPlan(solo_below=0.5, max_solo_tokens=30, keeps_warm=False, why_alone=WhyAlone.GATE)
    assert policy.plan(Progress(0.2)) == expected
    assert not absent.wanted


@pytest.mark.parametrize("available", [True, False])
def test_closed_gate_keeps_only_a_drafter_warm_that_can_go_on(available: bool) -> None:
    """What the target does beside no drafter must not be taken for what it does beside one."""
    plan = WithinLimits(TargetConfidence(5, 0.5), Drafts(available)).plan(Progress(0.2))
    assert plan.keeps_warm == available


@pytest.mark.parametrize(
    ("gate", "draft_threshold", "policy"),
    [
        (Gate.NONE, None, AlwaysDraft(4)),
        (Gate.TARGET_CONFIDENCE, None, TargetConfidence(4, 0.5)),
        (Gate.TARGET_CONFIDENCE, 0.3, TargetConfidence(4, 0.5, 0.3)),
        (Gate.DRAFT_CONFIDENCE, None, AlwaysDraft(4, 0.4)),
    ],
)
def test_make_policy(gate: Gate, draft_threshold: float | None, policy: object) -> None:
    request = GenerationRequest((1,), gamma=4, gate=gate, draft_threshold=draft_threshold)
    made = make_policy(request, NoDrafter(), Learner())
    assert isinstance(made, WithinLimits)
    assert made.policy == policy


def test_auto_is_held_to_limits_too() -> None:
    made = make_policy(GenerationRequest((1,), gamma=4, gate=Gate.AUTO), NoDrafter(), Learner())
    assert isinstance(made, WithinLimits)
    assert isinstance(made.policy, Auto)


def test_gamma_0_is_the_target_alone() -> None:
    assert make_policy(GenerationRequest((1,), gamma=0), NoDrafter(), Learner()) == TargetAlone()
