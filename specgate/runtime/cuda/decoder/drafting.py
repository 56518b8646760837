"""Drafts of several tokens, their choice included: one copy to the device, one recorded graph a token, one read."""

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace, num_words, pack, unpack, workspace_for
from specgate.runtime.cuda.decoder.shape import MOST_STEPS, DecoderShape, DraftTiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from specgate.runtime.cuda.graphs import Capturer
from specgate.runtime.one_call import Drafted
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows

_EARLY_FROM = (9, 0)
"""Compute capability. On an H200 a token takes 582 us so, and 733 us by launches that wait."""
_log = logging.getLogger(__name__)


class StepLauncher(NamedTuple):
    """Drafts one token of each sequence; what ``launch`` is called with is named by its types."""

    name: str
    launch: Callable[[StackedWeights, DraftBatch, Workspace, DecoderShape, DraftTiles], Any]
    tiles: DraftTiles = DraftTiles()


def launcher_on(device: torch.device) -> StepLauncher | None:
    """Return what launches our kernels on a card; None without Triton, which comes with torch's CUDA builds."""
    try:
        launches = importlib.import_module(f"{__package__}.launches")
    except ImportError as error:
        _log.info("drafts are not made in one call: %s", error)
        return None
    early = torch.cuda.get_device_capability(device) >= _EARLY_FROM
    return StepLauncher("launches that begin early" if early else "launches", partial(launches.launch, early=early))


class StackedDecoder(NamedTuple):
    shape: DecoderShape
    weights: StackedWeights


class CudaDrafter:
    """See ``OneCallDrafter``. Drafts over the pages as they are now.

    Args:
        pages: all layers', see ``DraftBatch``.
        capturer: records the launches of a step; at capture no sequence is there.
        vocab_size: of the logits that are handed out.
    """

    def __init__(
        self, launcher: StepLauncher, decoder: StackedDecoder, pages: torch.Tensor, capturer: Capturer, vocab_size: int
    ) -> None:
        self._launcher = launcher
        self.shape, self._weights = decoder.shape, decoder.weights
        self._vocab_size, self._device = vocab_size, pages.device
        self._words = torch.zeros(num_words(self.shape), dtype=torch.int64, device=pages.device)
        parts = unpack(self._words, self.shape, torch.int32)
        self._batch = parts._replace(pages=pages, page_stride=pages.stride(0))
        self._work = workspace_for(self.shape, launcher.tiles, pages.device)
        self._replay = capturer.capture(self._launch)

    @property
    def most_rows(self) -> int:
        """See ``OneCallDrafter``."""
        return self.shape.WIDTH

    def interrupt(self) -> None:
        """See ``OneCallDrafter``: a draft ends soon."""

    def resume(self) -> None:
        """See ``OneCallDrafter``."""

    def fits(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> bool:
        """Return whether it can draft after these, which are sampled by one law."""
        longest = max(len(rows.sequence) for rows in batch) + num_steps - 1
        has_room = len(batch) <= self.shape.SEQUENCES and longest <= len(self._weights.angles)
        return has_room and all(step.is_plain for step in choices)

    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Draft ``num_steps`` tokens, or ``MOST_STEPS``, after each sequence."""
        num_steps = min(num_steps, MOST_STEPS)
        words = pack(batch, choices, num_steps, self.shape, pinned=self._device.type == "cuda")
        self._words.copy_(words, non_blocking=True)
        for _ in range(num_steps):
            self._replay()
        # Launched before the host waits for the device.
        logits = [self._work.logits[:num_steps, i, : self._vocab_size].clone() for i in range(len(batch))]
        report = self._work.report[:num_steps, : len(batch)].transpose(0, 1)
        probs = report[..., 1]
        if any(step.with_probs for step in choices):
            # Where all logits are broken the token is none of these.
            ids = report[..., :1].long().clamp(max=choices[0].vocab_size - 1)
            known = torch.stack(logits)[..., : choices[0].vocab_size]
            probs = known.float().log_softmax(-1).gather(-1, ids)[..., 0].exp()
        lead = torch.full_like(probs, math.inf)
        return Drafted(logits, torch.stack([*report.unbind(-1), lead, probs], -1).tolist())

    def _launch(self) -> None:
        self._launcher.launch(self._weights, self._batch, self._work, self.shape, self._launcher.tiles)
