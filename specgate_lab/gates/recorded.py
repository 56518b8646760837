"""Records what a pair says and takes, so that gates can be compared on it in simulated time, without noise."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from orchestrator.decode.request import GenerationRequest, GenerationStats
from orchestrator.policy.gates import Gate
from specgate_lab.arrivals import closed_loop
from specgate_lab.gates.measure import Starter
from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.replay.recording import record
from specgate_lab.replay.trace import RoundTrace
from specgate_lab.timeline import time_request

NARROW, WIDE = 2, 8
"""Draft tokens of the rounds that tell what a row of the target's forward takes."""
CROWD = 8
"""Sessions of the forwards that tell what a session takes."""


async def record_trace(starter: Starter, requests: Sequence[GenerationRequest]) -> RoundTrace | None:
    """Return what these requests, which need seeds above temperature 0, are answered with, and what that takes.

    The starter's drafter should not run ahead: what is left of a draft that was prepared tells not what one takes.

    A text that is not the same in two runs, for a near tie, is left out; None where no text is left.

    Raises:
        SpecgateError: a request broke off.
    """
    machine = await measure_machine(starter, requests)
    texts = [await record(starter.generate, request) for request in requests]
    same = tuple(text for text in texts if text is not None)
    return RoundTrace(machine, same) if same else None


async def measure_machine(starter: Starter, requests: Sequence[GenerationRequest]) -> SimulatedMachine:
    """Return what forwards, drafts and messages take, as medians; of rounds whose proposal was not prepared.

    The rest of a round is two messages and their answers, one pair to each service.

    What further sessions cost a draft step is not measured: their share is taken to be that of the target's.

    Raises:
        SpecgateError: a request broke off.
    """
    alone, crowd = await _run(starter, requests, 0, 1), await _run(starter, requests, 0, CROWD)
    narrow, wide = await _run(starter, requests, NARROW, 1), await _run(starter, requests, WIDE, 1)
    forward_us = _middle([us for one in alone for us in one.solo_us])
    session_us = (_middle([us for one in crowd for us in one.solo_us]) - forward_us) / (CROWD - 1)
    narrow_us, wide_us = (_middle([us for one in runs for us in one.verify_us]) for runs in (narrow, wide))
    drafts = [
        us / length
        for one in (*narrow, *wide)
        for length, us, prepared in zip(one.draft_lengths, one.draft_us, one.prepared, strict=True)
        if not prepared
    ]
    draft_us = _middle(drafts)
    return SimulatedMachine(
        forward_us=forward_us,
        session_us=max(session_us, 0.0),
        row_us=max((wide_us - narrow_us) / (WIDE - NARROW), 0.0),
        draft_us=draft_us,
        draft_session_us=max(draft_us * session_us / forward_us, 0.0),
        network_us=max(_middle([us for one in (*narrow, *wide) for us in _rests(one)]) / 2, 0.0),
    )


async def _run(
    starter: Starter, requests: Sequence[GenerationRequest], gamma: int, concurrency: int
) -> list[GenerationStats]:
    """Run the requests with the gate ``none``, from the first one again where they are fewer than the clients."""
    few = [requests[index % len(requests)] for index in range(max(concurrency, 2))]
    asked = [replace(request, gate=Gate.NONE, gate_threshold=None, gamma=gamma) for request in few]
    clock = time.perf_counter
    traces = await closed_loop(partial(time_request, starter.generate, clock=clock), asked, concurrency, clock)
    for error in (one.error for one in traces if one.error is not None):
        raise error
    return [one.stats for one in traces]


def _rests(stats: GenerationStats) -> list[int]:
    times = zip(stats.prepared, stats.round_us, stats.draft_us, stats.verify_us, strict=True)
    return [whole - draft - verify for prepared, whole, draft, verify in times if not prepared]


def _middle(values: Sequence[float]) -> float:
    return float(median(values)) if values else 0.0
