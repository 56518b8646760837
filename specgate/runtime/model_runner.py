"""The model, its weights and its KV pages: rows of sequences in, logits out. The only user of the device."""

import inspect
from collections.abc import Sequence as List

import torch

from specgate.errors import NonFiniteLogits, ResourceExhausted
from specgate.runtime.attention import KVPages, RaggedBatch, Span
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.loading import LoadedModel
from specgate.runtime.scheduler import Rows


class ModelRunner:
    """Runs ragged batches of one model over its KV pages. Not thread-safe: the engine's thread owns it.

    Args:
        loaded: the model with the paged attention set.
        kv_tokens: how many tokens the pages hold in all.
        page_size: tokens a page; on CPU large enough that most sequences lie in one page and are read as a view.
    """

    def __init__(self, loaded: LoadedModel, kv_tokens: int, page_size: int) -> None:
        self.loaded = loaded
        self.pool = PagePool(max(1, kv_tokens // page_size), page_size)
        self.vocab_size = loaded.vocab_size
        self.device = loaded.device
        self._pages = KVPages(self.pool.num_pages, page_size)
        self._keeps_some = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters
        self.last_num_calls = self.last_num_windows = self.last_num_sequences = self.last_num_rows = 0

    @property
    def kv_bytes_a_token(self) -> int:
        """Bytes of all layers' keys and values, known from the first forward on."""
        return self._pages.num_bytes // (self.pool.num_pages * self.pool.page_size)

    def resize(self, kv_tokens: int) -> None:
        """Begin anew with pages for ``kv_tokens``, at least one. No sequence may be open.

        Their memory is taken now, where a forward has told their shapes: nobody else can take it later.

        Raises:
            ResourceExhausted: the memory is not there.
        """
        num_pages = max(1, kv_tokens // self.pool.page_size)
        try:
            self._pages = self._pages.resized(num_pages)
        except (RuntimeError, MemoryError) as error:
            raise ResourceExhausted(f"no memory for KV pages of {kv_tokens} tokens: {error}") from error
        self.pool = PagePool(num_pages, self.pool.page_size)

    @torch.inference_mode()
    def forward(self, batch: List[Rows]) -> list[torch.Tensor]:
        """Run all rows in one pass and mark them cached; return each entry's float logits [num_logits, vocabulary].

        Raises:
            NonFiniteLogits: a row came out NaN or infinite; nothing is marked cached.
        """
        self._pages.copy_rows(self.pool.take_copies())
        ragged = RaggedBatch(self._spans(batch), self._pages)
        logits = self._logits(batch, ragged)
        self.last_num_calls, self.last_num_windows = ragged.num_calls, ragged.num_windows
        self.last_num_sequences, self.last_num_rows = len(batch), _num_rows(batch)
        if len(logits) and not bool(logits.amax(-1).isfinite().all()):
            raise NonFiniteLogits("the model answered with NaN or infinite logits")
        for sequence, num_rows, _ in batch:
            sequence.num_cached += num_rows
            self.pool.remember(sequence)
        return list(logits.split([rows.num_logits for rows in batch]))

    def _spans(self, batch: List[Rows]) -> list[Span]:
        spans, first = [], 0
        for sequence, num_rows, _ in batch:
            spans.append(Span(first, num_rows, sequence.num_cached, tuple(sequence.block_table)))
            first += num_rows
        return spans

    def _logits(self, batch: List[Rows], ragged: RaggedBatch) -> torch.Tensor:
        token_ids: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        for span, (sequence, num_rows, num_logits) in zip(ragged.spans, batch, strict=True):
            token_ids += sequence.token_ids[span.start : span.end]
            positions += range(span.start, span.end)
            keep += range(span.first_row + num_rows - num_logits, span.first_row + num_rows)
        everything = len(keep) == len(token_ids)
        kept = slice(None) if everything else self._tensor(keep)
        # To transformers 0 means all rows, and spares a copy.
        extra = {"logits_to_keep": 0 if everything else kept} if self._keeps_some else {}
        logits = self.loaded.model(
            input_ids=self._tensor(token_ids)[None],
            position_ids=self._tensor(positions)[None],
            use_cache=False,
            ragged=ragged,
            **extra,
        ).logits[0]
        return (logits if self._keeps_some else logits[kept])[:, : self.vocab_size]

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _num_rows(batch: List[Rows]) -> int:
    """Return how many rows there are; 0 where tokens of prompts are among them, which want no logits."""
    return sum(rows.num_rows for rows in batch) if all(rows.num_rows == rows.num_logits for rows in batch) else 0
