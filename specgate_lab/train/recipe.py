"""What a draft is made of, and how long it is trained: checked before a model is loaded."""

from dataclasses import dataclass

from specgate.types import check_range

MAX_STEPS = 1 << 24
MAX_LAYERS = 256


@dataclass(frozen=True, slots=True)
class Recipe:
    """One draft. With the same recipe, ``layers`` included, and prompts, the same machine makes the same draft.

    Args:
        target: folder or hub id of the model that the draft is for.
        layers: of the target's that the draft keeps. None: by what they cost on this machine.
        head_tokens: frequent tokens that the draft can propose; 0 is all.
        rows, row_tokens: texts that the target writes, rounded up to whole batches of ``write_rows``, the last of which
            judges the draft; and the length of each, its beginning included.
        write_rows: texts that it writes at a time.
        steps, step_tokens: optimiser steps, at most, and tokens in each.

    Raises:
        InvalidArgument: a value is outside its range; names it.
    """

    target: str
    layers: int | None = None
    head_tokens: int = 8192
    rows: int = 8192
    row_tokens: int = 128
    write_rows: int = 256
    steps: int = 1000
    step_tokens: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if self.layers is not None:
            check_range("layers", self.layers, 1, MAX_LAYERS)
        check_range("head_tokens", self.head_tokens, 0, 1 << 24)
        check_range("write_rows", self.write_rows, 2, 1 << 14)
        check_range("rows", self.rows, 2 * self.write_rows, 1 << 24)
        check_range("row_tokens", self.row_tokens, 64, 1 << 17)
        check_range("steps", self.steps, 1, MAX_STEPS)
        check_range("step_tokens", self.step_tokens, self.row_tokens, 1 << 24)
        check_range("seed", self.seed, 0, 1 << 63)

    @property
    def num_chunks(self) -> int:
        """How often the target writes ``write_rows`` texts; the last time is for judging the draft alone."""
        return -(-self.rows // self.write_rows)

    def cuts_head(self, vocab_size: int) -> bool:
        """Whether the draft proposes fewer tokens than there are."""
        return 0 < self.head_tokens < vocab_size
