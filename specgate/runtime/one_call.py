"""Drafts of several tokens in one call, their choice included: on a card in one launch, on the CPU in one call of C."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from specgate.runtime.batch_sampler import SamplingStep
from specgate.runtime.scheduler import Rows


class Drafted(NamedTuple):
    """Of each sequence: logits of all steps [steps, vocabulary], its own, and rows of what was chosen, see
    ``batch_sampler.answer_of``; of one call perhaps without leads and probabilities.
    """

    logits: list[torch.Tensor]
    tables: list[list[list[float]]]


class OneCallDrafter(Protocol):
    """Not thread-safe but for ``interrupt``: the engine's thread owns it."""

    @property
    def name(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def most_rows(self) -> int:
        """Rows of a sequence that a call takes; more of them are run before."""
        ...

    def interrupt(self) -> None:
        """End the draft that runs behind its present token, if it can end. From any thread."""
        ...

    def resume(self) -> None:
        """Let the next draft run to its end."""
        ...

    def fits(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> bool:
        """Return whether it can draft behind these, which are chosen by one law."""
        ...

    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Draft up to ``num_steps`` tokens, at least one, behind each sequence, which has pages for them."""
        ...


def is_plain(step: SamplingStep) -> bool:
    """Return whether tokens are chosen by their logits and the temperature alone, and nothing more is wanted."""
    is_masked = step.weighs or step.allowed is not None
    return step.params.is_unfiltered and not is_masked and not step.with_probs
