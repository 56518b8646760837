"""Graphs serve only where what they replay is what the same forward gives without them."""

import logging

from specgate.runtime.attention import wait_for
from specgate.runtime.graphs import Bucket, Capturer, buckets_for
from specgate.runtime.kv_pages import Sequence
from specgate.runtime.loading import Progress
from specgate.runtime.model_runner import ModelRunner
from specgate.runtime.scheduler import Rows
from specgate.runtime.self_check import compare

_log = logging.getLogger(__name__)
_HEAD = 5
"""Cached tokens before the rows that are compared."""


def add_graphs(runner: ModelRunner, capturer: Capturer, num_sequences: int, progress: Progress) -> bool:
    """Capture a graph for each bucket and check each; False: the device or the model does not let us, none are used.

    Raises:
        RuntimeError: the device is lost, and with it everything.
    """
    try:
        runner.capture(buckets_for(num_sequences), capturer, progress)
        for bucket in runner.buckets:
            _check(runner, bucket)
    # Whatever keeps a model from being captured, it serves without.
    except Exception as error:
        _log.warning("CUDA graphs are not used: %s: %s", type(error).__name__, str(error).partition("\n")[0])
        runner.drop_graphs()
        wait_for(runner.device)
        return False
    return True


def _check(runner: ModelRunner, bucket: Bucket) -> None:
    """Compare a replay with the forward that it stands for, for a batch that leaves a part of the bucket unused."""
    widths = [1 + (bucket.width - 1 + i) % bucket.width for i in range(_num_checked(runner, bucket))]
    sequences = [_open(runner, i, _HEAD + width) for i, width in enumerate(widths)]
    try:
        runner.forward([Rows(sequence, _HEAD, 0) for sequence in sequences], use_graphs=False)
        batch = [Rows(sequence, width, width) for sequence, width in zip(sequences, widths, strict=True)]
        expected = runner.forward(batch, use_graphs=False)
        for sequence in sequences:
            sequence.num_cached = _HEAD
        compare(runner.loaded, expected, runner.forward(batch))
    finally:
        for sequence in sequences:
            # Nobody shares what a graph wrote that is perhaps wrong.
            runner.pool.release(sequence, spoilt=True)
            runner.pool.free(sequence)


def _num_checked(runner: ModelRunner, bucket: Bucket) -> int:
    """Return how many sequences to check with: one place stays empty, where the bucket is not a smaller one then."""
    most = bucket.num_sequences - 1 if bucket.num_sequences > 2 else bucket.num_sequences
    pages_each = -(-(_HEAD + bucket.width) // runner.pool.page_size)
    return min(most, max(1, runner.pool.num_pages // pages_each))


def _open(runner: ModelRunner, index: int, length: int) -> Sequence:
    ids = [(7 * index + 3 * place) % runner.vocab_size for place in range(length)]
    sequence = runner.pool.open(ids, length)
    runner.pool.extend(sequence, length)
    return sequence
