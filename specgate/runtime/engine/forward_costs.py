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
"""How far all rows look back: a longer text adds little to a forward beside its weights."""
MOST_REPEATS, BUDGET_S = 7, 1.0
"""Widths take turns, so that a neighbour's noise hits all of them; a slow model gets fewer turns."""


def measure_forwards(runner: ModelRunner, *, drafts: bool = False) -> tuple[ForwardCost, ...]:
    """Return the least microseconds of a forward of one sequence, by its rows; the pages are free again after it.

    The least, since whatever else runs on the machine only adds to it: drafter and verifier must compare.

    Widths that do not fit into the pages or the context are left out.

    Args:
        drafts: the runner is a drafter's: a lone row is a token of a draft.
    """
    length = min(
        runner.loaded.context_length, runner.pool.num_pages * runner.pool.page_size, CONTEXT_TOKENS + WIDTHS[-1]
    )
    widths = [width for width in WIDTHS if width < length]
    if not widths:
        return ()
    sequence = runner.pool.open([0] * length, length)
    try:
        runner.pool.extend(sequence, length)
        head = max(length - widths[-1], 1) - sequence.num_cached
        if head > 0:
            runner.forward([Rows(sequence, head, 0)])
        start = sequence.num_cached = max(length - widths[-1], 1)
        times: list[list[float]] = []
        begin_s = time.perf_counter()
        while len(times) <= 1 or (len(times) <= MOST_REPEATS and time.perf_counter() - begin_s < BUDGET_S):
            times.append([_forward_us(runner, sequence, start, width) for width in widths])
    finally:
        runner.pool.free(sequence)
    # The first ones of a process take longer.
    costs = tuple(
        ForwardCost(width, max(round(min(each)), 1))
        for width, each in zip(widths, zip(*times[1:], strict=True), strict=True)
    )
    if not drafts or runner.drafter is None or length < DRAFT_ROOM:
        return costs
    return (ForwardCost(1, max(round(chain_us(runner)), 1)), *costs[1:])


def _forward_us(runner: ModelRunner, sequence: KVSequence, start: int, width: int) -> float:
    begin_s = time.perf_counter()
    logits = runner.forward([Rows(sequence, width, width)])
    # Reading one number waits for the device.
    float(logits[0][0, 0])
    sequence.num_cached = start
    return (time.perf_counter() - begin_s) * 1e6
