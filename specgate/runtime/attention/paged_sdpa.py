"""Attention one sequence after the other, by ``scaled_dot_product_attention``. Runs on every device.

A sequence that lies in one page is read as a view, without a copy; one that spans several is gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specgate.runtime.attention.interface import Inputs, KVPages, LayerCall, to_device
from specgate.runtime.attention.reference import attend_with
from specgate.runtime.scheduler import Rows


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
class PagedSdpaBatch:
    """A batch as spans of rows, see ``attention.Batch``."""

    spans: list[Span]
    pages: KVPages
    num_calls: int = 0
    num_windows: int = 0
    masks: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    tables: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def attend(self, call: LayerCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend per sequence over its pages; shapes as in ``attention.Batch``."""
        key_pages, value_pages = self.pages.layer(call.layer, key, value)
        attend, is_grouped = attend_with(call.softcap), query.shape[1] != key.shape[1]
        outputs = []
        for span in self.spans:
            # narrow costs a third of what an index in brackets does, and is called for each layer and sequence.
            rows, new_keys, new_values = (x.narrow(2, span.first_row, span.num_rows) for x in (query, key, value))
            keys, values = self._extend(key_pages, span, new_keys), self._extend(value_pages, span, new_values)
            mask = self.mask(span, call.window, query)
            outputs.append(attend(rows, keys, values, attn_mask=mask, scale=call.scale, enable_gqa=is_grouped))
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
        return out.transpose(1, 2)

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

    def _extend(self, pages: torch.Tensor, span: Span, rows: torch.Tensor) -> torch.Tensor:
        """Write a sequence's new rows [1, heads, num_rows, dim]; return all it has now, [1, heads, end, dim]."""
        if span.end <= self.pages.page_size:
            page = pages.narrow(0, span.block_table[0], 1)
            page.narrow(2, span.start, span.num_rows).copy_(rows)
            return page.narrow(2, 0, span.end)
        _write(pages, span, rows)
        return self._gather(pages, span)

    def _gather(self, pages: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the first ``end`` tokens of a sequence that spans pages, [1, heads, end, dim]."""
        used = span.block_table[: -(-span.end // pages.shape[2])]
        if used not in self.tables:
            self.tables[used] = to_device(torch.tensor(used), pages.device)
        return pages[self.tables[used]].transpose(0, 1).flatten(1, 2)[None, :, : span.end]


def _write(pages: torch.Tensor, span: Span, rows: torch.Tensor) -> None:
    """Copy rows [1, heads, num_rows, dim] to their places in pages [num_pages, heads, page_size, dim]."""
    size, done = pages.shape[2], 0
    while done < span.num_rows:
        page, offset = divmod(span.start + done, size)
        count = min(size - offset, span.num_rows - done)
        pages[span.block_table[page], :, offset : offset + count] = rows[0, :, done : done + count]
        done += count


class PagedSdpaKernel:
    """See ``attention.Kernel``."""

    name = "sdpa"
    batch_invariant = False
    pages = staticmethod(KVPages)

    def __init__(self, why: str = "") -> None:
        self.why = why

    def inputs(self, batch: Sequence[Rows], pages: KVPages, device: torch.device) -> Inputs:
        """Return a batch of spans; token ids, positions and rows to keep go to the device in one copy."""
        spans: list[Span] = []
        token_ids: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        for sequence, num_rows, num_logits in batch:
            span = Span(len(token_ids), num_rows, sequence.num_cached, tuple(sequence.block_table))
            spans.append(span)
            token_ids += sequence.token_ids[span.start : span.end]
            positions += range(span.start, span.end)
            keep += range(len(token_ids) - num_logits, len(token_ids))
        num_rows, everything = len(token_ids), len(keep) == len(token_ids)
        values = to_device(torch.tensor(token_ids + positions + ([] if everything else keep)), device)
        return Inputs(
            token_ids=values[:num_rows],
            positions=values[num_rows : 2 * num_rows],
            keep=None if everything else values[2 * num_rows :],
            ragged=PagedSdpaBatch(spans, pages),
        )
