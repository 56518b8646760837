"""Drafts of several tokens, their choice included, for one copy to the device, one launch and one read."""

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from specgate.runtime.batch_sampler import SamplingStep
from specgate.runtime.cuda.decoder.buffers import DraftBatch, Workspace, num_words, pack, unpack, workspace_for
from specgate.runtime.cuda.decoder.shape import MOST_STEPS, DecoderShape, Tiles
from specgate.runtime.cuda.decoder.weights import StackedWeights
from specgate.runtime.cuda.graphs import Capturer
from specgate.runtime.one_call import Drafted, is_plain
from specgate.runtime.scheduler import Rows

_log = logging.getLogger(__name__)


class ProgramsDidNotMeet(Exception):
    """Programs of a launch waited for one that did not come; what was drafted is worth nothing."""


class Driver(NamedTuple):
    """What ``launch`` is called with is named by its types; it drafts all steps where it ``is_whole``, else one."""

    name: str
    launch: Callable[[StackedWeights, DraftBatch, Workspace, DecoderShape, Tiles], Any]
    is_whole: bool
    tiles: Tiles = Tiles()


def drivers_of_triton() -> list[Driver]:
    """Return our ways to draft, the plainest first; none without Triton, which comes with torch's CUDA builds."""
    try:
        launches, persistent = (importlib.import_module(f"{__package__}.{name}") for name in ("launches", "persistent"))
    except ImportError as error:
        _log.info("drafts are not made in one launch: %s", error)
        return []
    return [
        Driver("launches", partial(launches.launch, early=False), is_whole=False),
        Driver("launches that begin early", partial(launches.launch, early=True), is_whole=False),
        Driver("one launch", persistent.launch, is_whole=True),
    ]


class StackedDecoder(NamedTuple):
    shape: DecoderShape
    weights: StackedWeights


class OneLaunch:
    """See ``OneCallDrafter``. Drafts by one way, over the pages as they are now.

    Args:
        pages: all layers', see ``DraftBatch``.
        capturer: records the launch; at capture no sequence is there.
        vocab_size: of the logits that are handed out.
    """

    def __init__(
        self, driver: Driver, decoder: StackedDecoder, pages: torch.Tensor, capturer: Capturer, vocab_size: int
    ) -> None:
        self.name, self._driver = driver.name, driver
        self.shape, self._weights = decoder.shape, decoder.weights
        self._vocab_size, self._device = vocab_size, pages.device
        self._words = torch.zeros(num_words(self.shape), dtype=torch.int64, device=pages.device)
        parts = unpack(self._words, self.shape, torch.int32)
        self._batch = parts._replace(pages=pages, page_stride=pages.stride(0))
        self._work = workspace_for(self.shape, driver.tiles, pages.device)
        self._replay = capturer.capture(self._launch)

    @property
    def most_rows(self) -> int:
        """See ``OneCallDrafter``."""
        return self.shape.WIDTH

    def interrupt(self) -> None:
        """See ``OneCallDrafter``: a launch ends soon."""

    def resume(self) -> None:
        """See ``OneCallDrafter``."""

    def fits(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> bool:
        """Return whether it can draft behind these, which are chosen by one law."""
        longest = max(len(rows.sequence) for rows in batch) + num_steps - 1
        return (
            len(batch) <= self.shape.SEQUENCES and longest <= len(self._weights.angles) and all(map(is_plain, choices))
        )

    def draft(self, batch: Sequence[Rows], choices: Sequence[SamplingStep], num_steps: int) -> Drafted:
        """Draft ``num_steps`` tokens, or ``MOST_STEPS``, behind each sequence.

        Raises:
            ProgramsDidNotMeet: a fault of the card, or somebody else is on it.
        """
        num_steps = min(num_steps, MOST_STEPS)
        words = pack(batch, choices, num_steps, self.shape, pinned=self._device.type == "cuda")
        self._words.copy_(words, non_blocking=True)
        for _ in range(1 if self._driver.is_whole else num_steps):
            self._replay()
        # Asked for before anybody waits for the device.
        logits = [self._work.logits[:num_steps, i, : self._vocab_size].clone() for i in range(len(batch))]
        sequences = self.shape.SEQUENCES
        fault, *told = self._work.told[: 1 + num_steps * sequences * 2].tolist()
        if fault:
            raise ProgramsDidNotMeet("its programs did not meet")
        pairs = list(zip(told[::2], told[1::2], strict=True))
        tables = [[[id_, score, math.inf, score] for id_, score in pairs[i::sequences]] for i in range(len(batch))]
        return Drafted(logits, tables)

    def _launch(self) -> None:
        self._driver.launch(self._weights, self._batch, self._work, self.shape, self._driver.tiles)
