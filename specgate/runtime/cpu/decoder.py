"""A decoder of Llama's form on the CPU: all its layers in one call of C, and pages that lie as that call reads them."""

from collections.abc import Iterable, Sequence
from ctypes import c_int32
from dataclasses import dataclass
from itertools import chain
from typing import Self, cast

import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import Inputs, KVPages
from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.decoder_weights import Angles, DecoderWeights
from specgate.runtime.cpu.native_calls import LANES
from specgate.runtime.decoder_form import form_of
from specgate.runtime.kv_pages import Copy
from specgate.runtime.loading import LoadedModel
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows


class DecoderPages(KVPages):
    """Keys in panels of 16 tokens, so that scores are a product like any other, and values token by token.

    Keys are [layers, num_pages, kv_heads, panels, head_dim, 16], values [layers, num_pages, kv_heads, page_size,
    head_dim rounded up to 16], of the layers that attend.
    """

    def __init__(self, num_pages: int, page_size: int, num_layers: int, kv_heads: int, head_dim: int) -> None:
        super().__init__(num_pages, page_size)
        self._shape = num_layers, kv_heads, head_dim
        panels, width = -(-page_size // LANES), -(-head_dim // LANES) * LANES
        self.keys = torch.empty(num_layers, num_pages, kv_heads, panels, head_dim, LANES)
        self.values = torch.empty(num_layers, num_pages, kv_heads, page_size, width)
        self.stacks = [self.keys, self.values]

    def resized(self, num_pages: int) -> Self:
        return type(self)(num_pages, self.page_size, *self._shape)

    def copy_rows(self, copies: Iterable[Copy]) -> None:
        for source, target, first, end in copies:
            self.values[:, target, :, first:end] = self.values[:, source, :, first:end]
            # Whole panels at once: one by one they take up to five times as long.
            whole = slice(-(-first // LANES), end // LANES)
            self.keys[:, target, :, whole] = self.keys[:, source, :, whole]
            for panel in {place // LANES for place in (first, end) if place % LANES}:
                lanes = slice(max(first - panel * LANES, 0), min(end - panel * LANES, LANES))
                self.keys[:, target, :, panel, :, lanes] = self.keys[:, source, :, panel, :, lanes]


@dataclass(slots=True)
class DecoderBatch:
    """One forward's rows, see ``attention.Batch``: which sequences they are of, and where these lie."""

    pages: DecoderPages
    values: torch.Tensor
    num_sequences: int
    num_rows: int
    num_kept: int
    num_positions: int
    num_calls: int
    num_windows: int

    def attend(self, *_: object) -> torch.Tensor:
        raise UnsupportedArchitecture("its attention is computed with its layers")


class DecoderKernel:
    """Attention and everything else, see ``attention.Kernel``. One thread at a time.

    Args:
        loaded: a model whose products were packed.

    Raises:
        NotOfThisForm: it is no decoder of Llama's form, see also ``DecoderWeights`` and ``Angles``.
    """

    name = "decoder"
    batch_invariant = True

    def __init__(self, loaded: LoadedModel) -> None:
        self.why = "one call for all layers"
        self._form = form_of(loaded.model, takes_short_head=True)
        self._vocab_size = loaded.vocab_size
        self._weights = DecoderWeights(self._form)
        self._angles = Angles(self._form, loaded.context_length)
        self._scratch = torch.empty(0)
        self._pages: DecoderPages | None = None
        attentions = [layer.attention for layer in self._form.layers if layer.attention]
        self._num_calls, self._num_windows = len(attentions), sum(one.window > 0 for one in attentions)

    def pages(self, num_pages: int, page_size: int) -> DecoderPages:
        form = self._form
        return DecoderPages(num_pages, page_size, self._num_calls, form.kv_heads, form.head_dim)

    def inputs(self, batch: Sequence[Rows], pages: KVPages, device: torch.device) -> Inputs:
        """Return the integers of a forward, all in one tensor: tokens, positions, rows to keep, sequences, pages."""
        token_ids: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        sequences: list[int] = []
        tables: list[int] = []
        num_positions = 0
        for sequence, num_rows, num_logits in batch:
            start = sequence.num_cached
            if start + num_rows > min(len(sequence), len(sequence.block_table) * pages.page_size):
                raise IndexError(
                    f"rows up to {start + num_rows} of {len(sequence)} on {len(sequence.block_table)} pages"
                )
            sequences += (len(token_ids), num_rows, start, len(tables))
            token_ids += sequence.token_ids[start : start + num_rows]
            positions += range(start, start + num_rows)
            keep += range(len(token_ids) - num_logits, len(token_ids))
            tables += sequence.block_table
            num_positions = max(num_positions, start + num_rows)
        num_rows, num_kept = len(token_ids), len(keep)
        values = torch.tensor(token_ids + positions + keep + sequences + tables)
        ragged = DecoderBatch(
            cast(DecoderPages, pages),
            values,
            len(batch),
            num_rows,
            num_kept,
            num_positions,
            self._num_calls,
            self._num_windows,
        )
        return Inputs(
            token_ids=values[:num_rows],
            positions=values[num_rows : 2 * num_rows],
            keep=None if num_kept == num_rows else values[2 * num_rows : 2 * num_rows + num_kept],
            ragged=ragged,
        )

    def __call__(self, inputs: Inputs) -> torch.Tensor:
        """Write keys and values into the pages; return the logits of the rows to keep, [rows, vocabulary]."""
        batch = cast(DecoderBatch, inputs.ragged)
        logits = self._empty_logits(batch.num_kept)
        native_calls.forward(self._weights.decoder, self._as_read(batch, logits))
        return self._whole(logits)

    def draft(
        self,
        inputs: Inputs,
        num_steps: int,
        interrupt: c_int32,
        choices: Sequence[SamplingStep],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run up to ``num_steps`` forwards in one call, each but the first on the tokens chosen from the one before.

        Args:
            inputs: of the first one, which keeps one row of each sequence; there are pages for all.
            choices: how each sequence's token of the first step is chosen, all by one law.

        Returns:
            Logits [steps, sequences, vocabulary], and what was chosen, float64 [steps, sequences, 4].
        """
        batch = cast(DecoderBatch, inputs.ragged)
        logits = self._empty_logits(num_steps * batch.num_kept)
        table = torch.empty(num_steps, batch.num_kept, 4, dtype=torch.float64)
        head = self._form.short_head
        one = choices[0]
        num_choices = int((head.token_ids < one.vocab_size).sum()) if head else one.vocab_size
        # By steps, and in each by sequences.
        keys = list(chain(*zip(*(each.noise_keys(num_steps) for each in choices), strict=True)))
        with_probs = any(each.with_probs for each in choices)
        first, ids = logits[: batch.num_kept, :num_choices], head.token_ids if head else None
        num_steps = native_calls.draft(
            self._weights.decoder,
            self._as_read(batch, logits, num_steps),
            native_calls.choosing_of(first, keys, one.params.temperature, with_probs, table, ids),
            num_steps,
            interrupt,
            one.stop_below if len(choices) == 1 else 0.0,
        )
        logits = logits.view(len(table), batch.num_kept, -1)
        return self._whole(logits[:num_steps]), table[:num_steps]

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocabulary] of what the head gave, which is filled up to whole panels."""
        logits = logits[..., : self._weights.decoder.head.out]
        if self._form.short_head:
            logits = self._form.short_head.widened(logits)
        return logits[..., : self._vocab_size]

    def _empty_logits(self, num_rows: int) -> torch.Tensor:
        return torch.empty(num_rows, -(-self._weights.decoder.head.out // LANES) * LANES)

    def _as_read(self, batch: DecoderBatch, logits: torch.Tensor, num_steps: int = 1) -> native_calls.NativeBatch:
        """Return a batch as C reads it."""
        if batch.pages is not self._pages:
            self._lay_out(batch.pages)
        num_rows, num_kept = batch.num_rows, batch.num_kept
        self._grow_scratch(num_rows, num_kept)
        first = batch.values.data_ptr()
        keep = first + 8 * 2 * num_rows
        sequences = keep + 8 * num_kept
        angles = self._angles.up_to(batch.num_positions + num_steps - 1)
        return native_calls.NativeBatch(
            first, first + 8 * num_rows, keep, sequences, sequences + 8 * 4 * batch.num_sequences,
            num_rows, num_kept, batch.num_sequences, *angles, self._scratch.data_ptr(), logits.data_ptr(),
            native_calls.threads(),
        )  # fmt: skip

    def _grow_scratch(self, num_rows: int, num_kept: int) -> None:
        needed = self._weights.scratch_floats(num_rows, num_kept)
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed)

    def _lay_out(self, pages: DecoderPages) -> None:
        """Tell C where the pages are."""
        self._pages = pages
        self._weights.decoder.page_size = pages.page_size
        attending = [layer for layer in self._weights.layers if layer.has_attention]
        for layer, keys, values in zip(attending, pages.keys, pages.values, strict=True):
            layer.key_pages, layer.value_pages = keys.data_ptr(), values.data_ptr()
