"""Forwards that are recorded once and replayed: one graph for each bucket of (sequences, rows of a sequence).

A replay reads its inputs from buffers that stay where they are, filled by one copy from the host. A batch that is
smaller than its bucket is padded, see ``packing``. What fits no bucket, prompts above all, runs without a graph.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from weakref import WeakSet

import torch

from specgate.runtime.attention.interface import Forward, KVPages
from specgate.runtime.attention.packing import Layout
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.loading import Progress
from specgate.runtime.scheduler import Rows
from specgate.runtime.warnings_lock import WARNINGS_LOCK

WIDTHS = (1, 2, 4, 8, 16)
"""Rows a sequence: a lone token, and what a verification brings. A row more costs next to nothing, a graph seconds."""
FEW_ROWS = 16
"""Rows of a matrix unit: up to so many have kernels of their own, see ``decoder.few_rows``."""
MAX_SEQUENCES = 64
MAX_ROWS = 256
"""Beyond these a forward is long enough to hide what launching it costs."""
WARM_UPS = 2

Replay = Callable[[], object]
"""Runs what was captured again, on what its input buffers hold now."""


class Capturer(Protocol):
    """Turns a function that reads and writes tensors which stay where they are into its replay."""

    def capture(self, function: Callable[[], object]) -> Replay: ...


class CudaCapturer:
    """Records CUDA graphs, which share one memory pool: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._alive = WeakSet[torch.cuda.CUDAGraph]()
        self._stream = torch.cuda.Stream(device)

    def capture(self, function: Callable[[], object]) -> Replay:
        """Warm up on a side stream, as libraries take their workspaces in a first call, and record."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                function()
            self._refuse_host_reads(function)
        current.wait_stream(self._stream)
        if not self._alive:
            # With its last graph a pool is gone for torch.
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self._alive.add(graph)
        # Other threads of the process, a health check's among them, may use CUDA meanwhile.
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        # Torch leaves the capture's stream current where a capture fails.
        with torch.cuda.stream(current), recording:
            function()
        return graph.replay

    def _refuse_host_reads(self, function: Callable[[], object]) -> None:
        """Raise RuntimeError for a forward that waits for the device, as a capture would.

        A capture that fails leaves torch's allocator in it for good, so what would make it fail is found before.
        """
        before = torch.cuda.get_sync_debug_mode()
        try:
            _set_sync_debug_mode("error")
            function()
        finally:
            _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    """Set what torch does where a host waits for the device; it warns once in a process that this is a prototype."""
    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode", category=UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


class Bucket(NamedTuple):
    """Batches of up to so many sequences, of up to ``width`` rows each.

    ``few``: of up to 16 rows in all, shared out as the batch needs them. The kernels for few rows read how.
    """

    num_sequences: int
    width: int
    few: bool = False

    @property
    def num_rows(self) -> int:
        return FEW_ROWS if self.few else self.num_sequences * self.width

    def holds(self, batch: Sequence[Rows]) -> bool:
        widths = [rows.num_rows for rows in batch]
        return len(batch) <= self.num_sequences and max(widths) <= self.width and sum(widths) <= self.num_rows

    def layout(self, batch: Sequence[Rows], num_columns: int) -> Layout:
        """Return how a batch that it holds is packed: in as many words as any other."""
        if not self.few:
            return Layout((self.width,) * self.num_sequences, num_columns)
        owned = [rows.num_rows for rows in batch]
        unused = (0,) * (self.num_sequences - len(batch))
        return Layout((*owned, *unused), num_columns, FEW_ROWS - sum(owned))


def buckets_for(max_sessions: int, *, few_rows: bool = False) -> list[Bucket]:
    """Return the buckets for a service of so many sessions, the largest first: they find the pool's memory empty.

    Args:
        few_rows: batches of up to 16 rows have kernels of their own.
    """
    numbers, number = [1], 1
    while number < min(max_sessions, MAX_SEQUENCES):
        number *= 2
        numbers.append(number)
    fewest = FEW_ROWS if few_rows else 0
    buckets = [Bucket(number, width) for number in numbers for width in WIDTHS if number * width > fewest]
    buckets += [Bucket(number, FEW_ROWS, few=True) for number in numbers if number <= fewest]
    return sorted((b for b in buckets if b.num_rows <= MAX_ROWS), key=_size, reverse=True)


def _size(bucket: Bucket) -> tuple[int, int, int]:
    return bucket.num_rows, bucket.width, bucket.num_sequences


class Graph:
    """One bucket's graph.

    Args:
        logits: where a replay leaves its logits, [rows of the bucket, vocabulary].
    """

    def __init__(
        self, bucket: Bucket, kernel: VarlenKernel, call: Forward, pages: KVPages, logits: torch.Tensor
    ) -> None:
        self.bucket = bucket
        self._kernel, self._call, self._pages = kernel, call, pages
        self._device, self._logits = logits.device, logits
        self._num_columns = kernel.num_columns(pages.page_size)
        words, _ = self._pack([])
        self._words = words.to(self._device)
        self._parts, self._inputs = kernel.of_words(self._words, bucket.layout([], self._num_columns), pages)
        self._replay: Replay | None = None

    @property
    def num_calls(self) -> int:
        return self._inputs.ragged.num_calls

    @property
    def num_windows(self) -> int:
        return self._inputs.ragged.num_windows

    def capture(self, capturer: Capturer) -> None:
        """Record the forward, on padding alone: it writes to no page but the scratch page."""
        self._replay = capturer.capture(self._forward)

    def run(self, batch: Sequence[Rows], token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits of the rows to keep, a copy that the next replay leaves alone.

        ``token_ids`` as of ``ModelRunner.forward``.
        """
        words, num_kept = self._pack(batch)
        self._words.copy_(words, non_blocking=True)
        if token_ids is not None:
            self._inputs._replace(keep=self._parts.keep[:num_kept]).replace_kept(token_ids)
        if self._replay is None:
            raise RuntimeError("the graph was not captured")
        self._replay()
        return self._logits.index_select(0, self._parts.keep[:num_kept])

    def fits(self, batch: Sequence[Rows]) -> bool:
        columns = self._num_columns
        return self.bucket.holds(batch) and all(len(rows.sequence.block_table) <= columns for rows in batch)

    def _pack(self, batch: Sequence[Rows]) -> tuple[torch.Tensor, int]:
        return self._kernel.pack(batch, self.bucket.layout(batch, self._num_columns), self._pages, self._device)

    def _forward(self) -> None:
        ragged = self._inputs.ragged
        ragged.num_calls = ragged.num_windows = 0
        # One place for all buckets: kept apart, their logits would take as much memory as a small model.
        self._logits.copy_(self._call(self._inputs))


@torch.inference_mode()
def capture(
    buckets: Sequence[Bucket],
    kernel: VarlenKernel,
    call: Forward,
    pages: KVPages,
    logits: torch.Tensor,
    capturer: Capturer,
    progress: Progress,
) -> list[Graph]:
    """Capture a graph for each bucket, in order; return them, the smallest first.

    Args:
        logits: [rows of the largest bucket, vocabulary]; every replay leaves its own there.
    """
    graphs = []
    for done, bucket in enumerate(buckets):
        progress("graphs", done, len(buckets))
        graph = Graph(bucket, kernel, call, pages, logits[: bucket.num_rows])
        graph.capture(capturer)
        graphs.append(graph)
    progress("graphs", len(buckets), len(buckets))
    return sorted(graphs, key=lambda graph: _size(graph.bucket))
