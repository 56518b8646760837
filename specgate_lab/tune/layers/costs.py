"""The time of a draft token by the blocks that are kept, measured with drafters that leave half of them out."""

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import median

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from orchestrator.terminal.results import overhead_us
from specgate.types import ForwardCost
from specgate_lab.gate_choice import GateChoice
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.drafters import SkipDrafters
from specgate_lab.tune.layers.predict import MeasuredTimes
from specgate_lab.variants import pair_variant

PROBE_GAMMA = 4
"""Draft tokens of the rounds that are timed: enough that a round is mostly drafting."""
PROBE_REQUESTS = 4
GUESSES = 4
"""That run-ahead drafts side by side by default."""


def probes(blocks: Blocks) -> list[BlockSet]:
    """Return sets to measure: without one layer, half of the attention, of the MLPs, of both.

    The layers that are left out are every second one, so that layers of different kinds are left out alike.
    """
    half, last = frozenset(range(0, blocks.num_layers, 2)), frozenset([blocks.num_layers - 1])
    whole = [BlockSet(last, last), BlockSet(half, half)]
    return [*whole, BlockSet(half), BlockSet(mlp=half)] if blocks.has_mlp_blocks else whole


def fit(draft_us: Sequence[tuple[BlockSet, float]], num_layers: int) -> tuple[float, float, float, float]:
    """Return (base, attention, mlp, misfit): least squares of the time of a draft token by the blocks that are kept.

    Where attention and MLP were never left out apart, each counts for a half of a layer.
    """
    import numpy as np

    kept = [(num_layers - len(skip.attention), num_layers - len(skip.mlp)) for skip, _ in draft_us]
    times = np.array([us for _, us in draft_us])
    table = np.array([(1.0, attention, mlp) for attention, mlp in kept])
    best, least = np.zeros(3), math.inf
    # No time is negative: of all choices of times that are not 0, the one that fits best.
    for used in itertools.product((True, False), repeat=3):
        columns = np.array(used)
        found = np.zeros(3)
        # The least solution of many gives attention and MLP equal parts.
        found[columns] = np.linalg.lstsq(table[:, columns], times, rcond=None)[0]
        error = float(np.sum((table @ found - times) ** 2))
        if (found >= 0).all() and error < least * (1 - 1e-9):
            best, least = found, error
    misfit = float(np.max(np.abs(table @ best / times - 1)))
    return float(best[0]), float(best[1]), float(best[2]), misfit


async def measure_times(
    drafters: SkipDrafters, requests: Sequence[GenerationRequest], alone_us: float, on_probe: Callable[[], None]
) -> MeasuredTimes:
    """Return the times of rounds, with one drafter after the other beside the pair's verifier.

    Args:
        alone_us: a token of the target alone.

    Raises:
        SpecgateError: a drafter does not start, or a request breaks off.
    """
    found, overheads, ahead = list[tuple[BlockSet, float]](), list[int](), list[float]()
    for skip in probes(drafters.blocks):
        async with drafters.without(skip, run_ahead=0) as orchestrator:
            probe = pair_variant(orchestrator, GateChoice(Gate.NONE, PROBE_GAMMA))
            stats = [(await probe(request)).stats[0] for request in requests[:PROBE_REQUESTS]]
            ahead.append(_ahead(orchestrator))
        token_us = [us / n for one in stats for us, n in zip(one.draft_us, one.draft_lengths, strict=True) if n]
        found.append((skip, median(token_us)))
        overheads += [us for one in stats for us in overhead_us(one)]
        on_probe()
    base, attention, mlp, misfit = fit(found, drafters.blocks.num_layers)
    forward, overhead = drafters.pair.orchestrator.target_info.forward_costs, max(0.0, median(overheads))
    return MeasuredTimes(forward, alone_us, base, attention, mlp, median(ahead), overhead, round(misfit, 3))


def _ahead(orchestrator: Orchestrator) -> float:
    """Return the time of a forward of as many rows as there are guesses, over that of one row."""
    info = orchestrator.draft_info
    costs: Sequence[ForwardCost] = info.forward_costs if info else ()
    times = {cost.rows: cost.forward_us for cost in costs}
    return max(1.0, times[GUESSES] / times[1]) if {1, GUESSES} <= times.keys() else 1.0
