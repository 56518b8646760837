"""What forwards take, measured when a service has loaded, so that no user's request has to measure it."""

import time

from specgate.runtime.engine.draft_check import DRAFT_ROOM, chain_us
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.scheduler import Rows
from specgate.types import ForwardCost

WIDTHS = (1, 2, 3, 4, 6, 9, 17)
"""Rows: a token alone, and those of a proposal of up to 16 tokens. Not on a line on a CPU, nearly alike on a GPU."""
CONTEXT_TOKENS = 32
"""How far all rows look back: so short a text adds little to a forward beside its weights."""
FAR_TOKENS = 2048
"""The text of which it is told what it adds: long enough to be seen beside the weights, and a page on a CPU."""
MOST_REPEATS, FAR_REPEATS, BUDGET_S = 7, 3, 1.0
"""Widths take turns, so that a neighbour's noise hits all of them; a slow model gets fewer turns."""


def measure_forwards(runner: ModelRunner, *, drafts: bool = False) -> tuple[ForwardCost, ...]:
    """Return the least microseconds of a forward of one sequence, by its rows; the pages are free again after it.

    The least, since whatever else runs on the machine only adds to it: drafter and verifier must compare.

    Widths that do not fit into the pages or the context are left out.

    Args:
        drafts: the runner is a drafter's: a lone row is a token of a draft.
    """
    most = min(runner.loaded.context_length, runner.pool.num_pages * runner.pool.page_size)
    length = min(most, CONTEXT_TOKENS + WIDTHS[-1])
    widths = [width for width in WIDTHS if width < length]
    if not widths:
        return ()
    near = _least_us(runner, length, widths, MOST_REPEATS)
    slopes = [0.0] * len(widths)
    if (further := min(most, FAR_TOKENS) - length) > length:
        far = _least_us(runner, length + further, [widths[0], widths[-1]], FAR_REPEATS)
        first, last = ((us - known) / further for us, known in zip(far, (near[0], near[-1]), strict=True))
        slopes = [first + (last - first) * (width - widths[0]) / (widths[-1] - widths[0]) for width in widths]
    costs = tuple(
        ForwardCost(width, max(round(us), 1), max(round(1024 * slope), 0))
        for width, us, slope in zip(widths, near, slopes, strict=True)
    )
    if not drafts or runner.drafter is None or length < DRAFT_ROOM:
        return costs
    return (costs[0]._replace(forward_us=max(round(chain_us(runner)), 1)), *costs[1:])


def _least_us(runner: ModelRunner, length: int, widths: list[int], most_repeats: int) -> list[float]:
    """Return the least time of a forward of each width at the end of a text of this length.

    What the text's first tokens hold is never computed: it takes the same time whatever it is, and nobody
    shares it.
    """
    sequence = runner.pool.open([0] * length, length)
    sequence.mark_stable(0)
    try:
        runner.pool.extend(sequence, length)
        runner.clear(sequence)
        start = sequence.num_cached = max(length - WIDTHS[-1], 1)
        times: list[list[float]] = []
        begin_s = time.perf_counter()
        while len(times) <= 1 or (len(times) <= most_repeats and time.perf_counter() - begin_s < BUDGET_S):
            times.append([_forward_us(runner, sequence, start, width) for width in widths])
    finally:
        sequence.num_cached = 0
        runner.pool.free(sequence)
    # The first ones of a process take longer.
    return [min(each) for each in zip(*times[1:], strict=True)]


def _forward_us(runner: ModelRunner, sequence: KVSequence, start: int, width: int) -> float:
    begin_s = time.perf_counter()
    logits = runner.forward([Rows(sequence, width, width)])
    # Reading one number waits for the device.
    float(logits[0][0, 0])
    sequence.num_cached = start
    return (time.perf_counter() - begin_s) * 1e6
