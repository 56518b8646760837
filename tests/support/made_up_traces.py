"""Made-up traces, seeded: texts whose difficulty comes in runs, machines by a few ratios. Nothing is measured here."""

import math
import random
from dataclasses import dataclass

from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.replay.trace import RoundTrace, TracedText

FORWARD_US = 8000.0


@dataclass(frozen=True, slots=True)
class TextKind:
    """How sure the target is and how well the draft agrees; both follow one hidden ease that comes in runs.

    ``sureness`` and ``agreement`` are logits at an ease of 0, ``spread`` and ``sense`` what one unit of it changes in
    them. ``stay`` is the correlation of the ease from token to token.
    """

    sureness: float
    spread: float
    agreement: float
    sense: float
    stay: float = 0.7


KINDS = {
    "greedy, good draft": TextKind(3.0, 1.8, 2.5, 1.2),
    "warm, good draft": TextKind(1.5, 2.0, 1.6, 1.5),
    "warm, poor draft": TextKind(0.0, 2.0, -0.7, 1.5),
    "useless draft": TextKind(-0.5, 1.5, -3.0, 0.8),
}


def text(kind: TextKind, num_tokens: int, rng: random.Random) -> TracedText:
    """Return one text."""
    ease, confidences, agrees = rng.gauss(0, 1), [], []
    for _ in range(num_tokens):
        ease = kind.stay * ease + math.sqrt(1 - kind.stay**2) * rng.gauss(0, 1)
        confidences.append(_logistic(kind.sureness + kind.spread * ease + rng.gauss(0, 0.7)))
        agrees.append(rng.random() < _logistic(kind.agreement + kind.sense * ease))
    return TracedText(tuple(confidences), tuple(agrees))


def machine(draft_ratio: float) -> SimulatedMachine:
    """Return a machine whose draft step takes this share of a forward of the target."""
    return SimulatedMachine(
        forward_us=FORWARD_US,
        session_us=0.1 * FORWARD_US,
        row_us=0.03 * FORWARD_US,
        draft_us=draft_ratio * FORWARD_US,
        draft_session_us=0.1 * draft_ratio * FORWARD_US,
        network_us=0.05 * FORWARD_US,
    )


def trace(kind: TextKind, machine: SimulatedMachine, num_texts: int, num_tokens: int, seed: int = 0) -> RoundTrace:
    """Return a trace of texts of equal length."""
    rng = random.Random(seed)
    return RoundTrace(machine, tuple(text(kind, num_tokens, rng) for _ in range(num_texts)))


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))
