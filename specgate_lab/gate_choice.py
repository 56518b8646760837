"""How a request drafts, as a value that the variants of an experiment differ by."""

from dataclasses import replace
from typing import NamedTuple, Self

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate


class GateChoice(NamedTuple):
    """A gate with its γ and threshold; None is the gate's default."""

    gate: Gate
    gamma: int | None = None
    threshold: float | None = None

    @classmethod
    def like(cls, request: GenerationRequest) -> Self:
        """Return the choice of a request."""
        return cls(request.gate, request.gamma, request.gate_threshold)

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with this choice."""
        return replace(request, gate=self.gate, gamma=self.gamma, gate_threshold=self.threshold)

    def __str__(self) -> str:
        """Return its name in tables."""
        if self.gamma == 0:
            return "target alone"
        name = str(self.gate) if self.threshold is None else f"{self.threshold:g}"
        return name if self.gamma is None else f"{name} γ {self.gamma}"


TARGET_ALONE, AUTO_GATE = GateChoice(Gate.NONE, 0), GateChoice(Gate.AUTO)
ALONE, AUTO = str(TARGET_ALONE), str(AUTO_GATE)
