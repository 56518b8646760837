"""How every fixed choice, and ``auto``, fare on a trace."""

import sys
from collections.abc import Mapping
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


class AlwaysThere:
    """The state of a drafter that has read everything."""

    available, may_return, context_length, num_unread = True, False, sys.maxsize, 0

    def want(self) -> None:
        """Nothing is to be done."""


class Comparison(NamedTuple):
    """Tokens per second on one trace, of all sessions together."""

    auto: float
    alone: float
    best: float
    best_name: str

    @property
    def ratio(self) -> float:
        """Of ``auto`` to the best fixed choice, the target alone among them."""
        return self.auto / self.best


def fixed_gates() -> dict[str, Policy]:
    """Return every fixed choice by its name: the target alone, ``none`` and ``target_confidence``."""
    gates: dict[str, Policy] = {ALONE: TargetAlone()}
    gates |= {f"none γ {gamma}": AlwaysDraft(gamma) for gamma in range(1, AUTO_GAMMA + 1)}
    for threshold in THRESHOLDS:
        gates |= {f"{threshold} γ {gamma}": TargetConfidence(gamma, threshold) for gamma in GATED_GAMMAS}
    return gates


def auto_gate(learner: Learner, max_gamma: int = AUTO_GAMMA) -> Gate:
    """Return the gate ``auto`` for a replay: greedy requests that share what ``learner`` knows."""
    request = GenerationRequest((0,), gate=GateName.AUTO, gamma=max_gamma)

    def make() -> tuple[Policy, Observe]:
        return learner.policy(request, AlwaysThere()), learner.observer(request) or _ignore

    return make


def replay_fixed(trace: RoundTrace, concurrency: int, policy: Policy) -> ReplayResult:
    """Return what a policy that learns nothing comes to."""
    return Replay(trace, concurrency, lambda: (policy, _ignore)).run()


def compare(trace: RoundTrace, concurrency: int, gates: Mapping[str, Policy]) -> tuple[Comparison, Comparison]:
    """Return how ``auto``, starting from nothing, does against ``gates``: after a quarter of the tokens; over all."""
    results = {name: replay_fixed(trace, concurrency, policy) for name, policy in gates.items()}
    told = trace.machine.measured_costs()
    learned = Replay(trace, concurrency, auto_gate(Learner(lambda: told))).run()
    warmup_tokens = round(WARMUP_SHARE * sum(map(len, trace.texts)))
    return _compare(learned, results, warmup_tokens), _compare(learned, results, 0)


def _compare(learned: ReplayResult, results: Mapping[str, ReplayResult], after_tokens: int) -> Comparison:
    rates = {name: result.tokens_per_s(after_tokens) for name, result in results.items()}
    best = max(rates, key=rates.__getitem__)
    return Comparison(learned.tokens_per_s(after_tokens), rates[ALONE], rates[best], best)


def _ignore(record: RoundRecord) -> None:
    """Learn nothing."""
