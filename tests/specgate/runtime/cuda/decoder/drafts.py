"""Tiny decoders whose drafts Triton's interpreter makes in seconds, and drafts behind random prompts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specgate.runtime.cuda.decoder import launches
from specgate.runtime.cuda.decoder.drafting import StackedDecoder, StepLauncher
from specgate.runtime.cuda.decoder.shape import DraftTiles
from specgate.runtime.engine.chain import Link
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.one_call import Drafted
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows
from specgate.types import SamplingParams
from tests.support.drafting import stacked
from tests.support.models import write_llama
from tests.support.tape import EagerCapturer

VOCAB, CONTEXT_LENGTH, PAGE_SIZE = 101, 64, 8
TILES = DraftTiles(QKV=16, OUT=16, GATE=32, DOWN=16, HEAD=32, KEYS=16, PARTS=2, CHOICE=64, PROGRAMS=4)
GREEDY, NOISE = SamplingParams(temperature=0), SamplingParams(temperature=0.8)
LAUNCHES = StepLauncher("launches", partial(launches.launch, early=False), TILES)


def write_tiny(folder: Path) -> Path:
    """Write a Llama of odd sizes, three query heads a key head."""
    sizes = {"hidden": 48, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 80}
    return write_llama(folder, VOCAB, max_position_embeddings=CONTEXT_LENGTH, **sizes)


class Draws(NamedTuple):
    """A runner, and what it drafts with."""

    runner: ModelRunner
    decoder: StackedDecoder

    @classmethod
    def of(cls, folder: Path) -> "Draws":
        return cls(*stacked(folder, PAGE_SIZE))

    def by_kernels(self) -> None:
        """From now on our kernels draft."""
        self.runner.drafter = self.runner.drafter_by(LAUNCHES, self.decoder, EagerCapturer())

    @contextmanager
    def links(
        self, prompts: Sequence[list[int]], rows: Sequence[int], params: SamplingParams, room: int
    ) -> Iterator[list[Link]]:
        """Open sequences with all but so many rows of each cached, and room for more tokens."""
        pool, links = self.runner.pool, []
        for prompt, num_rows in zip(prompts, rows, strict=True):
            sequence = pool.open(prompt, CONTEXT_LENGTH)
            pool.extend(sequence, len(prompt) + room)
            self.runner.forward([Rows(sequence, len(prompt) - num_rows, 0)])
            links.append(Link(Rows(sequence, num_rows, 1), SamplingStep(params, 7, len(prompt), VOCAB)))
        try:
            yield links
        finally:
            for link in links:
                pool.free(link.rows.sequence)

    def draft(
        self, prompts: Sequence[list[int]], rows: Sequence[int], num_steps: int, params: SamplingParams = GREEDY
    ) -> Drafted:
        with self.links(prompts, rows, params, num_steps) as links:
            return self.runner.draft([link.rows for link in links], [link.sample for link in links], num_steps)


def prompts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]


def ids_of(drafted: Drafted) -> list[list[int]]:
    return [[int(row[0]) for row in table] for table in drafted.tables]


def same(one: Drafted, other: Any) -> bool:
    """Return whether two drafts are equal, logits to the bit."""
    return one.tables == other.tables and all(map(torch.equal, one.logits, other.logits))
