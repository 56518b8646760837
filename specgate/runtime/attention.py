"""Attention over KV pages, plugged into unchanged HuggingFace models by ``AttentionInterface``.

A batch is one ragged row of tokens; each sequence's rows write their keys and values into its pages and attend to
what the pages hold up to themselves. A sequence that lies in one page is read as a view, without a copy; one that
spans several is gathered. Keyword arguments that change the result and are not computed here are refused, because
a model with random or small weights can pass a numerical check without them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import torch
from transformers import AttentionInterface

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.kv_pages import Copy
from specgate.runtime.softcap import attend_with

NAME = "specgate_paged"
# Passed through by some models, without influence on the result of attention itself.
_HARMLESS = frozenset({"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states",
                       "output_router_logits", "return_dict", "is_causal", "logits_to_keep"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence in a batch: ``num_rows`` from ``first_row`` on, at position ``start`` and after."""

    first_row: int
    num_rows: int
    start: int
    block_table: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.num_rows


@dataclass(slots=True)
class KVPages:
    """Key and value pages of every layer, [num_pages, kv_heads, page_size, head_dim], made when first written."""

    num_pages: int
    page_size: int
    layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if index not in self.layers:
            self.layers[index] = (self._empty(key), self._empty(value))
        return self.layers[index]

    @property
    def num_bytes(self) -> int:
        return sum(pages.nbytes for layer in self.layers.values() for pages in layer)

    def resized(self, num_pages: int) -> "KVPages":
        """Return so many pages of the same layers, empty."""
        other = KVPages(num_pages, self.page_size)
        for index, (key, value) in self.layers.items():
            other.layer(index, key, value)
        return other

    def copy_rows(self, copies: Iterable[Copy]) -> None:
        """Copy keys and values between pages, in order, in all layers that have any."""
        for source, target, first, end in copies:
            for pages in (pages for layer in self.layers.values() for pages in layer):
                pages[target, :, first:end] = pages[source, :, first:end]

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(self.num_pages, like.shape[1], self.page_size, like.shape[3])


@dataclass(slots=True)
class RaggedBatch:
    """What the attention function needs to know of one forward pass.

    ``num_calls`` counts the layers that asked, ``num_windows`` those that asked for a sliding window.
    """

    spans: list[Span]
    pages: KVPages
    num_calls: int = 0
    num_windows: int = 0
    masks: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, span: Span, window: int, like: torch.Tensor) -> torch.Tensor | None:
        """Return the additive mask [num_rows, end], or None where a lone row may see everything before it."""
        if span.num_rows == 1 and not (0 < window < span.end):
            return None
        key = (span.num_rows, span.end, window)
        if key not in self.masks:
            row = torch.arange(span.start, span.end, device=like.device)[:, None]
            column = torch.arange(span.end, device=like.device)[None]
            hidden = (column > row) | (column <= row - window) if window > 0 else column > row
            self.masks[key] = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(
                hidden, -torch.inf
            )
        return self.masks[key]


def _extend(pages: torch.Tensor, span: Span, rows: torch.Tensor) -> torch.Tensor:
    """Write a sequence's new rows [1, heads, num_rows, dim]; return all it has now, [1, heads, end, dim].

    Twice a layer and token: narrow costs a third of what an index in brackets does.
    """
    if span.end <= pages.shape[2]:
        page = pages.narrow(0, span.block_table[0], 1)
        page.narrow(2, span.start, span.num_rows).copy_(rows)
        return page.narrow(2, 0, span.end)
    _write(pages, span, rows)
    return _gather(pages, span)


def _write(pages: torch.Tensor, span: Span, rows: torch.Tensor) -> None:
    """Copy rows [1, heads, num_rows, dim] to their places in pages [num_pages, heads, page_size, dim]."""
    size, done = pages.shape[2], 0
    while done < span.num_rows:
        page, offset = divmod(span.start + done, size)
        count = min(size - offset, span.num_rows - done)
        pages[span.block_table[page], :, offset : offset + count] = rows[0, :, done : done + count]
        done += count


def _gather(pages: torch.Tensor, span: Span) -> torch.Tensor:
    """Return the first ``end`` tokens of a sequence that spans pages, [1, heads, end, dim]."""
    table = torch.tensor(span.block_table[: -(-span.end // pages.shape[2])], device=pages.device)
    return pages[table].transpose(0, 1).flatten(1, 2)[None, :, : span.end]


def _refuse_unknown(module: torch.nn.Module, arguments: dict[str, object]) -> None:
    if arguments.keys() <= _HARMLESS:
        return
    unknown = sorted(k for k, v in arguments.items() if k not in _HARMLESS and v is not None)
    if unknown:
        raise UnsupportedArchitecture(
            f"{type(module).__name__} passes {', '.join(unknown)} to attention, which is not computed here"
        )


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    ragged: RaggedBatch | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attend per sequence over its pages.

    Args:
        query, key, value: [1, heads, total_rows, head_dim]; key and value may have fewer heads (GQA).

    Returns:
        [1, total_rows, heads, head_dim], and no weights.

    Raises:
        UnsupportedArchitecture: the model passes an argument that is not computed here, or lost the batch.
    """
    _refuse_unknown(module, others)
    if ragged is None or attention_mask is not None or dropout:
        raise UnsupportedArchitecture(f"{type(module).__name__} does not hand the ragged batch to attention")
    ragged.num_calls += 1
    ragged.num_windows += bool(sliding_window)
    key_pages, value_pages = ragged.pages.layer(cast(int, module.layer_idx), key, value)
    outputs = []
    for span in ragged.spans:
        of_rows, new_keys, new_values = query, key, value
        if len(ragged.spans) > 1:
            of_rows, new_keys, new_values = (x.narrow(2, span.first_row, span.num_rows) for x in (query, key, value))
        outputs.append(
            attend_with(softcap)(
                of_rows,
                _extend(key_pages, span, new_keys),
                _extend(value_pages, span, new_values),
                attn_mask=ragged.mask(span, sliding_window or 0, query),
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return out.transpose(1, 2), None


def register() -> None:
    """Make the function known to transformers under ``NAME``. Safe to call twice.

    No mask function is registered with it: transformers then builds no mask, and looks for none in the positions.
    """
    AttentionInterface.register(NAME, paged_attention)
