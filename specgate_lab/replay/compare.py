"""How every fixed choice, and ``auto``, fare on a trace."""

import sys
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import AUTO_GAMMA, Gate, Policy, make_policy
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE, GateChoice, gated_choices
from specgate_lab.replay.replay import Observe, Replay, ReplayResult
from specgate_lab.replay.trace import RoundTrace

THRESHOLDS = (0.3, 0.5, 0.7)
GATED_GAMMAS = (2, 3, 5, 8)
FIXED_CHOICES = (
    TARGET_ALONE,
    *(GateChoice(Gate.NONE, gamma) for gamma in range(1, AUTO_GAMMA + 1)),
    *gated_choices(GATED_GAMMAS, THRESHOLDS, THRESHOLDS),
)
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


def replay(trace: RoundTrace, sessions: int, choice: GateChoice, learner: Learner | None = None) -> ReplayResult:
    """Return the result of a gate; ``auto`` begins with what ``learner`` knows, which is nothing where it is None."""
    known, request = learner or Learner(), choice.of(GenerationRequest((0,)))

    def gate() -> tuple[Policy, Observe]:
        return make_policy(request, AlwaysThere(), known), known.observer(request) or (lambda record: None)

    return Replay(trace, sessions, gate).run()


def choices_of(trace: RoundTrace) -> list[GateChoice]:
    """Return the fixed choices that a trace can be replayed with."""
    return [one for one in FIXED_CHOICES if trace.knows_draft or not one.stops_drafts]


def compare(name: str, trace: RoundTrace, sessions: int) -> ReplayRow:
    """Return how every fixed choice and ``auto`` fare on a trace with so many sessions at a time.

    Raises:
        InvalidArgument: it has fewer texts.
    """
    results = {choice: replay(trace, sessions, choice) for choice in choices_of(trace)}
    learned = replay(trace, sessions, AUTO_GATE, Learner(trace.machine.measured_costs))
    warmup_tokens = round(WARMUP_SHARE * sum(map(len, trace.texts)))
    rates = {choice: result.tokens_per_s(warmup_tokens) for choice, result in results.items()}
    best, auto = max(rates, key=rates.__getitem__), learned.tokens_per_s(warmup_tokens)
    cold = learned.tokens_per_s() / max(result.tokens_per_s() for result in results.values())
    return ReplayRow(name, sessions, rates[TARGET_ALONE], rates[best], str(best), auto, auto / rates[best], cold)
