"""The sources of drafts, and the gates that are tried with them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from orchestrator.policy.gates import AUTO_GAMMA, DEFAULT_THRESHOLD, FIXED_GAMMA, Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod
from specgate_lab.gate_choice import AUTO_GATE, GateChoice

SHORT_GAMMA = 3


class DrafterChoice(NamedTuple):
    """A source of drafts, and how many outcomes its drafter guesses ahead; 0 is none."""

    method: DraftMethod
    run_ahead: int = 0

    def __str__(self) -> str:
        return f"{self.method} with run-ahead" if self.run_ahead else str(self.method)


class Choice(NamedTuple):
    """Everything that is chosen: a drafter, and a gate with its γ."""

    drafter: DrafterChoice
    gate: GateChoice

    def __str__(self) -> str:
        return f"{self.drafter}, {self.gate}"

    def to_object(self) -> dict[str, Any]:
        """Return a choice as JSON has it."""
        drafter = {"method": str(self.drafter.method), "run_ahead": self.drafter.run_ahead}
        gate, gamma, _, draft_threshold = self.gate
        return {**drafter, "gate": str(gate), "gamma": gamma, "draft_threshold": draft_threshold}


def drafters_of(models: ModelOptions, skip: str | None, wanted: Sequence[DraftMethod]) -> list[DrafterChoice]:
    """Return the drafters that can be started with what the flags name; each with run-ahead and without, where it can.

    Args:
        skip: file of the blocks that layer-skip leaves out.
        wanted: sources; none of them are all that there can be.

    Raises:
        InvalidArgument: a source that is wanted needs what is not given; names the flag.
    """
    possible = [method for method in DraftMethod if _missing(models, skip, method) is None]
    for method in wanted:
        if flag := _missing(models, skip, method):
            raise InvalidArgument(flag, f"is needed for the source {method}")
    ahead = models.service.value("run_ahead")
    # A suffix draft takes no time, so run-ahead has nothing to hide.
    return [
        DrafterChoice(method, rows)
        for method in wanted or possible
        for rows in ((ahead, 0) if ahead and method is not DraftMethod.SUFFIX else (0,))
    ]


def choices_of(drafter: DrafterChoice) -> list[Choice]:
    """Return the gates that are tried with a drafter, ``auto`` first."""
    gates = [AUTO_GATE, GateChoice(Gate.NONE, AUTO_GAMMA)]
    if drafter.method is not DraftMethod.SUFFIX:
        fixed = (GateChoice(Gate.NONE, gamma) for gamma in (SHORT_GAMMA, FIXED_GAMMA))
        unsure = DEFAULT_THRESHOLD[Gate.DRAFT_CONFIDENCE]
        both = GateChoice(Gate.TARGET_CONFIDENCE, FIXED_GAMMA, draft_threshold=unsure)
        gated = (GateChoice(Gate.TARGET_CONFIDENCE, FIXED_GAMMA), GateChoice(Gate.DRAFT_CONFIDENCE, AUTO_GAMMA), both)
        gates = [AUTO_GATE, *fixed, *gated]
    return [Choice(drafter, gate) for gate in gates]


def default_choice(models: ModelOptions) -> Choice | None:
    """Return the choice that is served by default; None is the target alone, where there is no draft model."""
    if models.draft_model is None:
        return None
    return Choice(DrafterChoice(DraftMethod.MODEL, models.service.value("run_ahead")), AUTO_GATE)


def _missing(models: ModelOptions, skip: str | None, method: DraftMethod) -> str | None:
    """Return the flag without which a source cannot be, None where it can."""
    if method is DraftMethod.MODEL and models.draft_model is None:
        return "draft"
    if method is DraftMethod.LAYER_SKIP and skip is None:
        return "source_skip"
    return None
