"""The rate that a draft would bring, from where it agrees and from the times of forwards. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from orchestrator.policy.auto.costs import forward_us
from orchestrator.policy.gates import AUTO_GAMMA
from specgate.types import ForwardCost
from specgate_lab.tune.layers.blocks import BlockSet

Ranks = Sequence[int]
"""Of each token of a text, its place among what the draft would have chosen there; 0 is its choice."""

GUESSED_RANK = 1
"""The model of run-ahead: it prepares its draft's own choice and the next one after a whole proposal, and the next one
after a rejection. Its four guesses are spent on about that."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Measured times, in microseconds.

    ``forward`` is the target's by rows, ``alone_us`` a token of the target alone, its way to us included. A draft
    token takes ``base_us``, ``attention_us`` for each attention that is kept and ``mlp_us`` for each MLP, and ``ahead``
    times that where as many guesses are drafted side by side as run-ahead does. ``overhead_us`` is the rest of a round
    beside drafting and verifying; a draft that was prepared and sent ahead hides it. ``misfit`` is the largest share by
    which a measured draft differs from that sum.
    """

    forward: tuple[ForwardCost, ...]
    alone_us: float
    base_us: float
    attention_us: float
    mlp_us: float
    ahead: float
    overhead_us: float
    misfit: float = 0.0

    def draft_us(self, skip: BlockSet, num_layers: int) -> float:
        """Return what a draft token takes with these blocks left out."""
        attention, mlp = num_layers - len(skip.attention), num_layers - len(skip.mlp)
        return self.base_us + attention * self.attention_us + mlp * self.mlp_us

    @classmethod
    def of_object(cls, values: dict[str, Any]) -> Self:
        """Return the times that JSON holds as ``asdict`` makes them."""
        return cls(**{**values, "forward": tuple(ForwardCost(*pair) for pair in values["forward"])})


class Prediction(NamedTuple):
    """The best γ of a draft, and its rate over the target alone's."""

    gamma: int
    ratio: float
    agreement: float


class Judged(NamedTuple):
    """A set of blocks, and the prediction of it."""

    skip: BlockSet
    prediction: Prediction

    @property
    def ratio(self) -> float:
        return self.prediction.ratio

    def to_object(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {**self.skip.to_object(), "predicted": self.prediction._asdict()}


def agreement(texts: Sequence[Ranks]) -> float:
    """Return how often the draft's choice is the target's."""
    return sum(rank == 0 for text in texts for rank in text) / max(1, sum(map(len, texts)))


def predict(texts: Sequence[Ranks], draft_us: float, times: MeasuredTimes, *, run_ahead: bool) -> Prediction:
    """Return the γ with the highest rate on these texts, and that rate over the target alone's."""
    per_token = {
        gamma: sum(_text_us(text, gamma, draft_us, times, run_ahead) for text in texts) / sum(map(len, texts))
        for gamma in range(1, AUTO_GAMMA + 1)
    }
    gamma = min(per_token, key=per_token.__getitem__)
    return Prediction(gamma, times.alone_us / per_token[gamma], agreement(texts))


def _text_us(text: Ranks, gamma: int, draft_us: float, times: MeasuredTimes, run_ahead: bool) -> float:
    """Return what a text takes in rounds of γ draft tokens; the target's forward of one row is a token alone."""
    pace = times.alone_us / forward_us(times.forward, 1)
    total_us, position, prepared = 0.0, 0, False
    while position < len(text):
        proposed = min(gamma, len(text) - position - 1)
        verify_us = pace * forward_us(times.forward, proposed + 1)
        # After the last draft token one forward more gives the choices that may follow it.
        ahead_us = max(0.0, (proposed + 1) * draft_us * times.ahead - verify_us)
        total_us += verify_us + (ahead_us if prepared else proposed * draft_us + times.overhead_us)
        accepted = next((n for n in range(proposed) if text[position + n]), proposed)
        position += accepted + 1
        prepared = run_ahead and text[position - 1] <= GUESSED_RANK
    return total_us
