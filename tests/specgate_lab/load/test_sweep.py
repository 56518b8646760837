"""Every level in both modes, side by side in time, on the same requests."""

import pytest

from orchestrator.policy.gates import Gate
from specgate.errors import TooManySessions
from specgate_lab.load.levels import Level, Speculation, Sweep, turns
from specgate_lab.load.summary import summaries
from specgate_lab.load.sweep import WARM_UP_TOKENS, measure
from tests.specgate_lab.support import FakeStart, a_request
from tests.support.fakes import FakeVerifier

ONE, TWO = Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 2)
FAST = Level(Sweep.RATE, 5000.0)


def test_off_and_on_are_neighbours_and_take_turns_to_be_first() -> None:
    order = list(turns((ONE, TWO), 2))
    assert [(turn.repeat, turn.level.value, str(turn.mode)) for turn in order] == [
        *((0, 1, "off"), (0, 1, "on"), (0, 2, "on"), (0, 2, "off")),
        *((1, 1, "on"), (1, 1, "off"), (1, 2, "off"), (1, 2, "on")),
    ]


async def test_both_modes_get_the_same_prompts_after_a_short_warm_up() -> None:
    start = FakeStart()
    requests = [a_request((index + 1,), max_tokens=20) for index in range(3)]
    ticks: list[None] = []
    runs = await measure(start, requests, (ONE, TWO, FAST), 2, 4, lambda: ticks.append(None))
    assert set(runs) == {(level, mode) for level in (ONE, TWO, FAST) for mode in Speculation}
    assert [len(traces) for repeats in runs.values() for traces in repeats] == [4] * 12
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
    assert all(one.num_tokens == 20 for repeats in runs.values() for traces in repeats for one in traces)


async def test_refused_requests_are_counted_and_leave_the_numbers_alone() -> None:
    full = TooManySessions("all 2 sessions are in use")
    # A first opening is tried three times over before its request is given up.
    warm_up, refused = [FakeVerifier] * 2, [full] * 3
    start = FakeStart(verifiers=(*warm_up, FakeVerifier, *refused, FakeVerifier))
    off, on = summaries(await measure(start, [a_request()], (ONE,), 1, 2))
    assert (off.num_requests, off.num_failed, on.num_failed) == (2, 1, 0)
    assert off.tokens_per_s > 0


async def test_where_nothing_comes_through_the_reason_is_raised() -> None:
    start = FakeStart(verifiers=(FakeVerifier, FakeVerifier, TooManySessions("all are in use")))
    with pytest.raises(TooManySessions, match="all are in use"):
        await measure(start, [a_request()], (ONE,), 1, 2)
