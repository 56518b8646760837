"""How every fixed choice, and ``auto``, fare on a trace."""

import sys
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import AUTO_GAMMA, AlwaysDraft, Policy, TargetAlone, TargetConfidence
from orchestrator.policy.gates import Gate as GateName
from specgate.types import RoundRecord
from specgate_lab.replay.replay import Gate, Observe, Replay, ReplayResult
from specgate_lab.replay.trace import RoundTrace

ALONE = "target alone"
THRESHOLDS = (0.3, 0.5, 0.7)
GATED_GAMMAS = (2, 3, 5, 8)
WARMUP_SHARE = 0.25
"""Of the tokens: what ``auto`` learns from before it counts as warm."""
HEAD = (
    "| trace | sessions | target alone | best fixed | which | auto | auto / best | from a cold start |\n"
    "|---|---|---|---|---|---|---|---|"
)


class AlwaysThere:
    """The state of a drafter that has read everything."""

    available, may_return, context_length, num_unread = True, False, sys.maxsize, 0

    def want(self) -> None:
        """Do nothing."""


class ReplayRow(NamedTuple):
    """How ``auto`` and the best fixed choice do on one trace, in tokens per second of all sessions together.

    ``auto`` starts with nothing learned: ``auto_to_best_cold`` is the ratio over all tokens, all other rates are after
    ``WARMUP_SHARE`` of them.
    """

    trace: str
    sessions: int
    alone_tokens_per_s: float
    best_tokens_per_s: float
    best: str
    auto_tokens_per_s: float
    auto_to_best: float
    auto_to_best_cold: float

    def __str__(self) -> str:
        name, sessions, alone, best, best_name, auto, ratio, cold = self
        return (
            f"| {name} | {sessions} | {alone:.0f} | {best:.0f} | {best_name} | {auto:.0f} | {ratio:.3f} | {cold:.3f} |"
        )


def fixed_gates() -> dict[str, Policy]:
    """Return every fixed choice by its name: the target alone, ``none`` and ``target_confidence``."""
    gates: dict[str, Policy] = {ALONE: TargetAlone()}
    gates |= {f"none γ {gamma}": AlwaysDraft(gamma) for gamma in range(1, AUTO_GAMMA + 1)}
    for threshold in THRESHOLDS:
        gates |= {f"{threshold} γ {gamma}": TargetConfidence(gamma, threshold) for gamma in GATED_GAMMAS}
    return gates


def auto_gate(learner: Learner) -> Gate:
    """Return the gate ``auto`` for a replay: greedy requests that share what ``learner`` knows."""
    request = GenerationRequest((0,), gate=GateName.AUTO, gamma=AUTO_GAMMA)

    def make() -> tuple[Policy, Observe]:
        return learner.policy(request, AlwaysThere()), learner.observer(request) or _ignore

    return make


def replay_fixed(trace: RoundTrace, concurrency: int, policy: Policy) -> ReplayResult:
    """Return the result of a policy that learns nothing."""
    return Replay(trace, concurrency, lambda: (policy, _ignore)).run()


def compare(name: str, trace: RoundTrace, sessions: int) -> ReplayRow:
    """Return how every fixed choice and ``auto`` fare on a trace with so many sessions at a time.

    Raises:
        InvalidArgument: it has fewer texts.
    """
    results = {gate: replay_fixed(trace, sessions, policy) for gate, policy in fixed_gates().items()}
    costs = trace.machine.measured_costs()
    learned = Replay(trace, sessions, auto_gate(Learner(lambda: costs))).run()
    warmup_tokens = round(WARMUP_SHARE * sum(map(len, trace.texts)))
    rates = {gate: result.tokens_per_s(warmup_tokens) for gate, result in results.items()}
    best, auto = max(rates, key=rates.__getitem__), learned.tokens_per_s(warmup_tokens)
    cold = learned.tokens_per_s() / max(result.tokens_per_s() for result in results.values())
    return ReplayRow(name, sessions, rates[ALONE], rates[best], best, auto, auto / rates[best], cold)


def _ignore(record: RoundRecord) -> None:
    """Learn nothing."""
