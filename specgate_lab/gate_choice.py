"""How a request drafts, as a value that the variants of an experiment differ by."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate


class GateChoice(NamedTuple):
    """A gate with its γ and thresholds; None is the gate's default."""

    gate: Gate
    gamma: int | None = None
    threshold: float | None = None
    draft_threshold: float | None = None

    @classmethod
    def like(cls, request: GenerationRequest) -> Self:
        """Return the choice of a request."""
        return cls(request.gate, request.gamma, request.gate_threshold, request.draft_threshold)

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with this choice."""
        gate, gamma, threshold, draft_threshold = self
        return replace(request, gate=gate, gamma=gamma, gate_threshold=threshold, draft_threshold=draft_threshold)

    @property
    def stops_drafts(self) -> bool:
        """Whether a draft ends where the draft itself is unsure."""
        return self.gate is Gate.DRAFT_CONFIDENCE or bool(self.draft_threshold)

    def __str__(self) -> str:
        """Return its name in tables."""
        if self.gamma == 0:
            return "target alone"
        name = str(self.gate) if self.threshold is None else f"{self.gate} {self.threshold:g}"
        if self.draft_threshold is not None:
            name += f" + draft {self.draft_threshold:g}"
        return name if self.gamma is None else f"{name} γ {self.gamma}"


def gated_choices(
    gammas: Sequence[int], thresholds: Sequence[float], draft_thresholds: Sequence[float]
) -> list[GateChoice]:
    """Return ``target_confidence``, ``draft_confidence`` and both together, with each γ and each threshold."""
    both = [(threshold, draft) for threshold in thresholds for draft in draft_thresholds]
    return [
        *(GateChoice(Gate.TARGET_CONFIDENCE, gamma, threshold) for threshold in thresholds for gamma in gammas),
        *(GateChoice(Gate.DRAFT_CONFIDENCE, gamma, draft) for draft in draft_thresholds for gamma in gammas),
        *(GateChoice(Gate.TARGET_CONFIDENCE, gamma, *one) for one in both for gamma in gammas),
    ]


TARGET_ALONE, AUTO_GATE = GateChoice(Gate.NONE, 0), GateChoice(Gate.AUTO)
ALONE, AUTO = str(TARGET_ALONE), str(AUTO_GATE)
