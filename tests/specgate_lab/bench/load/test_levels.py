"""Every level in both modes, side by side in time, on the same requests."""

import pytest

from orchestrator.policy.gates import Gate
from specgate.errors import TooManySessions
from specgate_lab.bench.load.levels import Level, Speculation, Sweep, measure_levels
from specgate_lab.bench.load.rows import load_rows
from specgate_lab.variants import WARM_UP_TOKENS
from tests.specgate_lab.support import FakeStart, a_request
from tests.support.fakes import FakeVerifier

ONE, TWO = Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 2)
FAST = Level(Sweep.RATE, 5000.0)


async def test_both_modes_get_the_same_prompts_after_a_short_warm_up() -> None:
    start = FakeStart()
    requests = [a_request((index + 1,), max_tokens=20) for index in range(3)]
    ticks: list[None] = []
    samples = await measure_levels(start, requests, (ONE, TWO, FAST), 2, 4, lambda: ticks.append(None))
    assert list(samples) == list(Speculation)
    assert [len(one.requests) for own in samples.values() for one in own] == [4] * 12
    assert len(ticks) == 12
    warm_up, measured = start.asked[:6], start.asked[6:]
    assert {request.max_tokens for request in warm_up} == {WARM_UP_TOKENS}
    assert {request.max_tokens for request in measured} == {20}
    prompts = [[request.prompt_token_ids[0] for request in measured[at : at + 4]] for at in range(0, 48, 4)]
    assert prompts == [[1, 2, 3, 1]] * 12
    # Off is the target alone.
    asked = [(request.gamma, request.gate, request.gate_threshold) for request in measured[:16:4]]
    off, on = (0, Gate.NONE, None), (3, Gate.NONE, requests[0].gate_threshold)
    assert asked == [off, on, on, off]
    assert {one.tokens for own in samples.values() for one in own} == {4 * 20}


async def test_refused_requests_are_counted_and_leave_the_numbers_alone() -> None:
    full = TooManySessions("all 2 sessions are in use")
    # A first opening is tried three times over before its request is given up.
    warm_up, refused = [FakeVerifier] * 2, [full] * 3
    start = FakeStart(verifiers=(*warm_up, FakeVerifier, *refused, FakeVerifier))
    off, on = load_rows([ONE], await measure_levels(start, [a_request()], (ONE,), 1, 2))
    assert (off.requests, off.failed, on.failed) == (2, 1, 0)
    assert off.rate.median > 0


async def test_where_nothing_comes_through_the_reason_is_raised() -> None:
    start = FakeStart(verifiers=(FakeVerifier, FakeVerifier, TooManySessions("all are in use")))
    with pytest.raises(TooManySessions, match="all are in use"):
        await measure_levels(start, [a_request()], (ONE,), 1, 2)
