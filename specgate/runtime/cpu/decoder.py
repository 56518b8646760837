"""A decoder of Llama's form on the CPU: all its layers in one call of C, and pages that lie as that call reads them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import Inputs, KVPages
from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.native_calls import LANES, Decoder, Layer, Matrix
from specgate.runtime.cpu.packing import panels_of
from specgate.runtime.decoder_form import AttentionForm, DecoderForm, MlpForm, Norm, NotOfThisForm, form_of
from specgate.runtime.kv_pages import Copy
from specgate.runtime.loading import LoadedModel
from specgate.runtime.scheduler import Rows
from specgate.runtime.stored_weights import weight_of

FIRST_POSITIONS = 1024
"""For how many positions angles are known at first; then for twice as many, and so on."""


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
            for panel in range(first // LANES, -(-end // LANES)):
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
    num_calls: int
    num_windows: int

    def attend(self, *_: Any, **__: Any) -> torch.Tensor:
        raise UnsupportedArchitecture("its attention is computed with its layers")


class DecoderKernel:
    """Attention and everything else, see ``attention.Kernel``. One thread at a time.

    Args:
        loaded: a model whose products were packed.

    Raises:
        NotOfThisForm: it is no decoder of Llama's form, or not all of its products are packed.
    """

    name = "decoder"
    batch_invariant = True

    def __init__(self, loaded: LoadedModel) -> None:
        self.why = "one call for all layers"
        self._form = form_of(loaded.model)
        self._vocab_size = loaded.vocab_size
        self._kept: list[torch.Tensor] = []
        self._layers = (Layer * len(self._form.layers))(*map(self._layer, self._form.layers))
        self._decoder = self._whole()
        self._angles = Angles(self._form, loaded.context_length)
        self._scratch = torch.empty(0)
        self._floats_a_row, self._floats_a_kept = (
            native_calls.scratch_floats(self._decoder, *n) for n in ((1, 0), (0, 1))
        )
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
        num_rows, num_kept = len(token_ids), len(keep)
        values = torch.tensor(token_ids + positions + keep + sequences + tables)
        ragged = DecoderBatch(
            cast(DecoderPages, pages), values, len(batch), num_rows, num_kept, self._num_calls, self._num_windows
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
        if batch.pages is not self._pages:
            self._lay_out(batch.pages)
        num_rows, num_kept = batch.num_rows, batch.num_kept
        self._grow_scratch(num_rows, num_kept)
        logits = torch.empty(num_kept, -(-self._decoder.head.out // LANES) * LANES)
        first = batch.values.data_ptr()
        keep = first + 8 * 2 * num_rows
        sequences = keep + 8 * num_kept
        angles = self._angles.up_to(batch.pages.num_pages * batch.pages.page_size)
        native_calls.forward(self._decoder, native_calls.Batch(
            first, first + 8 * num_rows, keep, sequences, sequences + 8 * 4 * batch.num_sequences,
            num_rows, num_kept, batch.num_sequences, *angles, self._scratch.data_ptr(), logits.data_ptr(),
            native_calls.threads(),
        ))  # fmt: skip
        return logits[:, : self._vocab_size]

    def _grow_scratch(self, num_rows: int, num_kept: int) -> None:
        needed = num_rows * self._floats_a_row + num_kept * self._floats_a_kept
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed)

    def _lay_out(self, pages: DecoderPages) -> None:
        """Tell C where the pages are."""
        self._pages = pages
        self._decoder.page_size = pages.page_size
        attending = [layer for layer in self._layers if layer.has_attention]
        for layer, keys, values in zip(attending, pages.keys, pages.values, strict=True):
            layer.key_pages, layer.value_pages = keys.data_ptr(), values.data_ptr()

    def _whole(self) -> Decoder:
        form = self._form
        embedding = None if panels_of(form.embedding) else weight_of(form.embedding).contiguous()
        if embedding is not None:
            self._kept.append(embedding)
        mlp_widths = {layer.mlp.gate.out_features for layer in form.layers if layer.mlp} or {0}
        if len(mlp_widths) > 1:
            raise NotOfThisForm("its MLPs are of several widths")
        return Decoder(
            self._layers, len(form.layers), form.embedding.num_embeddings, form.embedding.embedding_dim, form.heads,
            form.kv_heads, form.head_dim, mlp_widths.pop(), 0, form.scale, form.epsilon,
            None if embedding is None else embedding.data_ptr(),
            embedding is not None and embedding.dtype is torch.bfloat16, self._norm(form.final_norm),
            self._matrix(form.head),
        )  # fmt: skip

    def _layer(self, form: Any) -> Layer:
        attention: AttentionForm | None = form.attention
        mlp: MlpForm | None = form.mlp
        layer = Layer(has_attention=attention is not None, has_mlp=mlp is not None)
        layer.attention_norm, layer.mlp_norm = self._norm(form.attention_norm), self._norm(form.mlp_norm)
        if attention:
            layer.query, layer.key, layer.value = map(self._matrix, (attention.query, attention.key, attention.value))
            layer.attention_out = self._matrix(attention.out)
            layer.query_norm, layer.key_norm = self._norm(attention.query_norm), self._norm(attention.key_norm)
            layer.window = attention.window
        if mlp:
            layer.gate, layer.up, layer.down = map(self._matrix, (mlp.gate, mlp.up, mlp.down))
        return layer

    def _matrix(self, layer: torch.nn.Linear) -> Matrix:
        panels = panels_of(layer)
        if panels is None:
            raise NotOfThisForm("not all of its products are packed")
        return panels.matrix

    def _norm(self, norm: Norm | None) -> int | None:
        if norm is None:
            return None
        weight = norm.weight.detach().float().contiguous()
        self._kept.append(weight)
        return weight.data_ptr()


class Angles:
    """Cosines and sines of rotary position embedding, by HuggingFace's own module, [positions, head_dim / 2].

    Raises:
        NotOfThisForm: it turns a part of each head alone, or otherwise than by halves.
    """

    def __init__(self, form: DecoderForm, context_length: int) -> None:
        self._rotary, self._head_dim, self._most = form.rotary, form.head_dim, context_length
        self._cosines = self._sines = torch.empty(0)
        self.up_to(1)

    def up_to(self, num_positions: int) -> tuple[int, int, int]:
        """Return how long both tables are, at least so long or as the context is, and their addresses."""
        wanted = min(num_positions, self._most)
        if wanted > len(self._cosines):
            length = FIRST_POSITIONS
            while length < wanted:
                length *= 2
            self._cosines, self._sines = self._tables(min(length, self._most))
        return len(self._cosines), self._cosines.data_ptr(), self._sines.data_ptr()

    @torch.inference_mode()
    def _tables(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            tables = self._rotary(torch.empty(0), torch.arange(length)[None])
            halves = [table[0].float().chunk(2, -1) for table in tables]
        except (TypeError, ValueError, IndexError) as error:
            raise NotOfThisForm(f"its angles are told in another way: {error}") from error
        if any(one.shape != (length, self._head_dim // 2) or not one.equal(other) for one, other in halves):
            raise NotOfThisForm("it does not turn both halves of a head together")
        cosines, sines = (one.contiguous() for one, _ in halves)
        return cosines, sines
