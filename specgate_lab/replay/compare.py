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
    "| trace | sessions | alone, tokens/s | none | target | draft | both | auto | best | auto / best | from cold |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


class AlwaysThere:
    """The state of a drafter that has read everything."""

    available, may_return, context_length, num_unread = True, False, sys.maxsize, 0

    def want(self) -> None:
        """Do nothing."""


class ReplayRow(NamedTuple):
    """How the gates do on one trace: the tokens per second of all sessions together, over those of the target alone.

    ``none``, ``target_confidence``, ``draft_confidence`` and ``both`` are each the best of their γ and thresholds, None
    where the trace does not know the draft; ``best`` names the best of all. ``auto`` starts with nothing learned:
    ``auto_to_best_cold`` is the ratio over all tokens, all else is after ``WARMUP_SHARE`` of them.
    """

    trace: str
    sessions: int
    alone_tokens_per_s: float
    none: float
    target_confidence: float
    draft_confidence: float | None
    both: float | None
    auto: float
    best: str
    auto_to_best: float
    auto_to_best_cold: float

    def __str__(self) -> str:
        name, sessions, alone, *ratios, best, to_best, cold = self
        shown = " | ".join("" if one is None else f"{one:.2f}" for one in ratios)
        return f"| {name} | {sessions} | {alone:.0f} | {shown} | {best} | {to_best:.3f} | {cold:.3f} |"


def replay(trace: RoundTrace, sessions: int, choice: GateChoice, learner: Learner | None = None) -> ReplayResult:
    """Return the result of a gate; ``auto`` begins with what ``learner`` knows, which is nothing where it is None."""
    known, request = learner or Learner(), choice.of(GenerationRequest((0,)))

    def gate() -> tuple[Policy, Observe]:
        observer = known.observer(request)
        if observer is not None:
            observer.enter()
        return make_policy(request, AlwaysThere(), known), observer or (lambda record: None)

    return Replay(trace, sessions, gate).run()


def choices_of(trace: RoundTrace) -> list[GateChoice]:
    """Return the fixed choices that a trace can be replayed with."""
    return [one for one in FIXED_CHOICES if trace.knows_draft or not one.stops_drafts]


def compare(name: str, trace: RoundTrace, sessions: int) -> tuple[ReplayRow, list[GateChoice]]:
    """Return how ``auto`` and the fixed choices fare on a trace with so many sessions at a time, and these, best first.

    Raises:
        InvalidArgument: it has fewer texts.
    """
    results = {choice: replay(trace, sessions, choice) for choice in choices_of(trace)}
    learned = replay(trace, sessions, AUTO_GATE, Learner(trace.machine.measured_costs))
    warmup_tokens = round(WARMUP_SHARE * sum(map(len, trace.texts)))
    rates = {choice: result.tokens_per_s(warmup_tokens) for choice, result in results.items()}
    ranked, alone, auto = sorted(rates, key=rates.__getitem__), rates[TARGET_ALONE], learned.tokens_per_s(warmup_tokens)
    by_signals = {_signals(choice): rates[choice] / alone for choice in ranked if choice != TARGET_ALONE}
    best = ranked[-1]
    row = ReplayRow(
        name,
        sessions,
        alone,
        by_signals[False, False],
        by_signals[True, False],
        by_signals.get((False, True)),
        by_signals.get((True, True)),
        auto / alone,
        str(best),
        auto / rates[best],
        learned.tokens_per_s() / max(result.tokens_per_s() for result in results.values()),
    )
    return row, ranked[::-1]


def _signals(choice: GateChoice) -> tuple[bool, bool]:
    """Return whether a fixed choice gates on the target's confidence, and whether on the draft's."""
    return choice.gate is Gate.TARGET_CONFIDENCE, choice.stops_drafts
