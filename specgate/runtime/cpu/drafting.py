"""A draft in one call of C: forwards one behind the other with the choices between them, and no interpreter."""

from collections.abc import Sequence
from ctypes import c_int32

import torch

from specgate.runtime.attention.interface import Inputs
from specgate.runtime.batch_sampler import Choosing
from specgate.runtime.cpu.decoder import DecoderKernel


class OneCallDrafter:
    """Drafts with a decoder whose layers are one call already."""

    def __init__(self, kernel: DecoderKernel) -> None:
        self._kernel = kernel
        self._interrupt = c_int32(0)

    def interrupt(self) -> None:
        """End the draft that runs behind its present token. From any thread."""
        self._interrupt.value = 1

    def resume(self) -> None:
        """Let the next draft run to its end."""
        self._interrupt.value = 0

    def fits(self, asked: Sequence[Choosing]) -> bool:
        """Return whether it can choose so. All are of one law."""
        return all(one.is_plain and not one.with_probs and one.allowed is None for one in asked)

    def draft(self, inputs: Inputs, asked: Sequence[Choosing], num_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run up to ``num_steps`` forwards, of which ``inputs`` are the first; it keeps one row of each sequence.

        Returns:
            Logits [steps, sequences, vocabulary], and each step's table of what was chosen, float64
            [steps, sequences, 4], see ``batch_sampler.chosen_on_device``. Fewer steps where it was interrupted.
        """
        params, greedy = asked[0].params, asked[0].params.greedy
        steps = [] if greedy else list(zip(*(one.noise_keys(num_steps) for one in asked), strict=True))
        keys = [key for step in steps for key in step]
        return self._kernel.draft(inputs, num_steps, self._interrupt, keys, params.temperature, asked[0].vocab_size)
