"""Attention of all sequences in one call, by a kernel like ``torch.nn.attention.varlen.varlen_attn``.

Pages lie as that kernel reads them, [num_pages, page_size, kv_heads, head_dim], with one more page than sessions may
have: the scratch page, where padding is written. All that differs from forward to forward is in tensors, so that a
CUDA graph that was captured once replays any batch of the same layout.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.attention.interface import Inputs, KVPages, LayerCall
from specgate.runtime.attention.packing import Layout, Packing, pack, unpack
from specgate.runtime.kv_pages import Copy
from specgate.runtime.scheduler import Rows

VarlenAttention = Callable[..., torch.Tensor]
"""Called as ``varlen_attn``: see ``reference.varlen_attention``."""
Store = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Writes keys and values to their slots: called as ``copy_to_slots``."""


def copy_to_slots(
    key: torch.Tensor, value: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write keys and values [1, kv_heads, rows, head_dim] into pages, row i at slots[i] = page * page_size + offset."""
    key_pages.flatten(0, 1).index_copy_(0, slots, key[0].transpose(0, 1))
    value_pages.flatten(0, 1).index_copy_(0, slots, value[0].transpose(0, 1))


class TokenPages(KVPages):
    """Pages [num_pages + 1, page_size, kv_heads, head_dim]; the last one is scratch."""

    __slots__ = ()

    def stack_of_all(self) -> torch.Tensor:
        """Return all layers' pages as one tensor [2 * layers, num_pages + 1, ...], a layer's keys before its values.

        Raises:
            RuntimeError: they are not alike, or lie apart, as before the first ``resized``.
        """
        in_order = list(self.layers) == list(range(len(self.layers)))
        if len(self.stacks) != 1 or not in_order or len(self.stacks[0]) != 2 * len(self.layers):
            raise RuntimeError("the pages of all layers are not one tensor")
        return self.stacks[0]

    def copy_rows(self, copies: Iterable[Copy]) -> None:
        """Copy keys and values between pages, in order, in all layers that have any."""
        for source, target, first, end in copies:
            for stack in self.stacks:
                stack[:, target, first:end] = stack[:, source, first:end]

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(self.num_pages + 1, self.page_size, like.shape[1], like.shape[3])


@dataclass(slots=True)
class VarlenBatch:
    """A batch as tensors, see ``attention.Batch``.

    Attributes:
        max_q, max_k: bounds of a sequence's rows and tokens that hold for every batch of this layout.
        caps_scores: the kernel takes a soft-cap.
    """

    parts: Packing
    pages: KVPages
    attention: VarlenAttention
    max_q: int
    max_k: int
    caps_scores: bool
    store: Store
    num_calls: int = 0
    num_windows: int = 0

    def attend(self, call: LayerCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend in one call for all sequences; shapes as in ``attention.Batch``.

        Raises:
            UnsupportedArchitecture: values of another width than keys, or a soft-cap where the kernel takes none.
        """
        if key.shape[3] != value.shape[3]:
            raise UnsupportedArchitecture("the fused attention has no place for values of another width than keys")
        if call.softcap is not None and not self.caps_scores:
            raise UnsupportedArchitecture("the fused attention has no place for a soft-cap on the scores")
        key_pages, value_pages = self.pages.layer(call.layer, key, value)
        self.store(key, value, key_pages, value_pages, self.parts.slots)
        out = self.attention(
            query[0].transpose(0, 1),
            key_pages,
            value_pages,
            self.parts.cu_seq_q,
            self.parts.cu_seq_k,
            self.max_q,
            self.max_k,
            scale=call.scale,
            window_size=(call.window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=self.parts.seqused_k,
            block_table=self.parts.block_table,
            # Split, torch's kernel leaves rows of all sequences but the first unwritten (pytorch issue 194167). Ours
            # splits as it likes.
            num_splits=1,
            **({} if call.softcap is None else {"softcap": call.softcap}),
        )
        return out[None]


class VarlenKernel:
    """See ``attention.Kernel``.

    Args:
        attention: what computes it.
        context_length: tokens of a sequence at the most.
        caps_scores: ``attention`` takes a soft-cap.
        store: writes keys and values to their places.
    """

    name = "varlen"
    batch_invariant = False
    pages = staticmethod(TokenPages)

    def __init__(
        self,
        attention: VarlenAttention,
        context_length: int,
        why: str = "",
        *,
        caps_scores: bool = False,
        store: Store = copy_to_slots,
    ) -> None:
        self._attention, self._store = attention, store
        self._caps_scores = caps_scores
        self.why = why
        self._context_length = context_length

    def num_columns(self, page_size: int) -> int:
        """Return how many pages the longest sequence takes."""
        return -(-self._context_length // page_size)

    def inputs(self, batch: Sequence[Rows], pages: KVPages, device: torch.device) -> Inputs:
        """Return a batch without padding."""
        owned = tuple(rows.num_rows for rows in batch)
        longest = max(len(rows.sequence.block_table) for rows in batch)
        layout = Layout(owned, max(self.num_columns(pages.page_size), longest))
        words, num_kept = self.pack(batch, layout, pages, device)
        parts, inputs = self.of_words(words.to(device, non_blocking=True), layout, pages)
        return inputs if num_kept == layout.num_rows else inputs._replace(keep=parts.keep[:num_kept])

    def pack(
        self, batch: Sequence[Rows], layout: Layout, pages: KVPages, device: torch.device
    ) -> tuple[torch.Tensor, int]:
        """Return a batch as words on the host, and the number of rows whose logits are wanted."""
        return pack(batch, layout, pages.page_size, pages.num_pages, pinned=device.type == "cuda")

    def of_words(self, words: torch.Tensor, layout: Layout, pages: KVPages) -> tuple[Packing, Inputs]:
        """Return the parts of int64 ``words`` on the device, and inputs made of them that keep all rows' logits."""
        parts = unpack(words, layout, torch.int32)
        max_k = layout.num_columns * pages.page_size
        ragged = VarlenBatch(parts, pages, self._attention, max(layout.owned), max_k, self._caps_scores, self._store)
        return parts, Inputs(parts.token_ids, parts.positions, None, ragged)
