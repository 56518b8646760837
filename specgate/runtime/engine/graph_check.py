"""Graphs serve only where what they replay is what the same forward gives without them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from specgate.errors import UnsupportedArchitecture, reason_of
from specgate.runtime.attention.interface import wait_for
from specgate.runtime.cpu.graphs import MOST_ROWS
from specgate.runtime.cuda.decoder.few_rows import FewRows
from specgate.runtime.cuda.graphs import Bucket, Capturer, buckets_for
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.self_check import compare
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.loading import Progress
from specgate.runtime.scheduler import Rows

_log = logging.getLogger(__name__)
_HEAD = 5
"""Cached tokens before the rows that are compared."""


def add_graphs(runner: ModelRunner, capturer: Capturer, num_sequences: int, progress: Progress) -> bool:
    """Capture a graph for each bucket and check each; False: the device or the model does not let us, none are used.

    Raises:
        RuntimeError: the device is lost, and with it everything.
    """
    try:
        runner.capture(buckets_for(num_sequences, few_rows=isinstance(runner.call, FewRows)), capturer, progress)
        for bucket in runner.buckets:
            _check(runner, bucket)
    # Whatever keeps a model from being captured, it serves without.
    except Exception as error:
        runner.why_no_graphs = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _log.warning("CUDA graphs are not used: %s", runner.why_no_graphs)
        runner.drop_graphs()
        wait_for(runner.device)
        return False
    return True


def add_cpu_graphs(runner: ModelRunner, progress: Progress) -> bool:
    """Record the forwards of few rows on the CPU and check each; False: the model does not let us, none are used."""
    progress("graphs", 0, 1)
    try:
        for num_rows, largest in ((1, 1), (2, MOST_ROWS)):
            with opened(runner, _halves(runner, num_rows)) as batch:
                runner.record(batch)
            for checked in {num_rows, largest}:
                with opened(runner, _halves(runner, checked)) as batch:
                    _compare_bits(*_both_ways(runner, batch))
    # Whatever keeps a model from being recorded, it serves without.
    except Exception as error:
        _log.warning("forwards are not recorded: %s", reason_of(error))
        runner.cpu_graphs.drop()
    progress("graphs", 1, 1)
    return bool(runner.cpu_graphs)


def _halves(runner: ModelRunner, num_rows: int) -> list[int]:
    """Return rows of two sequences; of one, where there are no pages for two."""
    if num_rows == 1 or runner.pool.num_pages < 2 * -(-(_HEAD + num_rows) // runner.pool.page_size):
        return [num_rows]
    return [num_rows - num_rows // 2, num_rows // 2]


def _compare_bits(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> None:
    if not all(map(torch.equal, expected, actual)):
        raise UnsupportedArchitecture("a replay differs from the forward that it stands for")


def _check(runner: ModelRunner, bucket: Bucket) -> None:
    """Compare a replay with the forward that it stands for, for a batch that leaves a part of the bucket unused."""
    most = bucket.num_rows // bucket.num_sequences
    widths = [1 + (most - 1 + i) % most for i in range(_num_checked(runner, bucket))]
    with opened(runner, widths) as batch:
        compare(runner.loaded, *_both_ways(runner, batch))


def _both_ways(runner: ModelRunner, batch: Sequence[Rows]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the logits of a batch without graphs, and with them."""
    expected = runner.forward(batch, use_graphs=False)
    for rows in batch:
        rows.sequence.num_cached = _HEAD
    return expected, runner.forward(batch)


@contextmanager
def opened(runner: ModelRunner, widths: Sequence[int], head: int = _HEAD) -> Iterator[list[Rows]]:
    """Open sequences with so many rows each after a cached head."""
    sequences = [_open(runner, i, head + width) for i, width in enumerate(widths)]
    try:
        runner.forward([Rows(sequence, head, 0) for sequence in sequences], use_graphs=False)
        yield [Rows(sequence, width, width) for sequence, width in zip(sequences, widths, strict=True)]
    finally:
        for sequence in sequences:
            # What a graph wrote may be wrong, and is not shared.
            runner.pool.release(sequence, poisoned=True)
            runner.pool.free(sequence)


def _num_checked(runner: ModelRunner, bucket: Bucket) -> int:
    """Return how many sequences to check with: one place stays empty, where the bucket is not a smaller one then."""
    most = bucket.num_sequences - 1 if bucket.num_sequences > 2 else bucket.num_sequences
    pages_each = -(-(_HEAD + bucket.width) // runner.pool.page_size)
    return min(most, max(1, runner.pool.num_pages // pages_each))


def _open(runner: ModelRunner, index: int, length: int) -> KVSequence:
    ids = [(7 * index + 3 * place) % runner.vocab_size for place in range(length)]
    sequence = runner.pool.open(ids, length)
    runner.pool.extend(sequence, length)
    return sequence
