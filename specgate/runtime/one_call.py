"""Drafts of several tokens in one call, their choice included: on a card without a look at it, on the CPU in C."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows


class Drafted(NamedTuple):
    """Each sequence's logits of all steps [steps, vocabulary], and its rows of ``batch_sampler.chosen_on_device``. One
    call may leave leads out, and probabilities where they are not asked for.
    """

    logits: list[torch.Tensor]
    tables: list[list[list[float]]]


class OneCallDrafter(Protocol):
    """Not thread-safe but for ``interrupt``: the engine's thread owns it."""

    @property
    def most_rows(self) -> int:
        """Rows of a sequence that a call takes; more of them are run before."""
        ...

    def interrupt(self) -> None:
        """End the draft that runs after its present token, if it can end. From any thread."""
        ...

    def resume(self) -> None:
        """Let the next draft run to its end."""
        ...

    def fits(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> bool:
        """Return whether it can draft after these, which are sampled by one law."""
        ...

    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Draft up to ``num_steps`` tokens, at least one, after each sequence, which has pages for them."""
        ...
