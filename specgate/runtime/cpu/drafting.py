"""A draft in one call of C: forwards one after the other with sampling between them, and no interpreter."""

import sys
from collections.abc import Callable, Sequence
from ctypes import c_int32

from specgate.runtime.attention.interface import Inputs
from specgate.runtime.cpu.decoder import DecoderKernel
from specgate.runtime.one_call import Drafted
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows


class CpuDrafter:
    """See ``OneCallDrafter``. Drafts with a decoder whose layers are one call already.

    Args:
        inputs: makes a forward's, over the pages as they are.
    """

    most_rows = sys.maxsize

    def __init__(self, kernel: DecoderKernel, inputs: Callable[[Sequence[Rows]], Inputs]) -> None:
        self._kernel, self._inputs = kernel, inputs
        self._interrupt = c_int32(0)

    def interrupt(self) -> None:
        """End the draft that runs after its present token. From any thread."""
        self._interrupt.value = 1

    def resume(self) -> None:
        """Let the next draft run to its end."""
        self._interrupt.value = 0

    def fits(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> bool:
        """Return whether it can choose so. All are of one law."""
        return all(step.is_plain for step in choices)

    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Run up to ``num_steps`` forwards; fewer where it was interrupted, or one sequence alone is unsure."""
        logits, table = self._kernel.draft(self._inputs(batch), num_steps, self._interrupt, choices)
        # By steps, then cut up by sequences.
        return Drafted(list(logits.unbind(1)), table.transpose(0, 1).tolist())
