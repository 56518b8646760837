"""What one request saw: the definitions, on traces made by hand and on the fakes."""

import pytest

from orchestrator.bench.load.trace import trace
from specgate.errors import InvalidArgument, TooManySessions
from tests.orchestrator.bench.load.support import FakeStart, Ticks, a_request, a_trace


def test_the_times_of_a_request_whose_deltas_carry_several_tokens() -> None:
    # 1 + 4 + 2 tokens: 6 after the first delta's, over 3 seconds.
    one = a_trace(10.0, (10.5, 1), (12.5, 4), (13.5, 2))
    assert one.num_tokens == 7
    assert (one.ttft_s, one.e2e_s) == (0.5, 3.5)
    assert one.tpot_s == 3.0 / 6
    assert one.gaps_s == (2.0, 1.0)
    assert one.tokens_per_s == 2.0


def test_the_first_delta_may_carry_several_tokens_too() -> None:
    one = a_trace(0.0, (1.0, 3), (2.0, 1))
    assert (one.ttft_s, one.tpot_s, one.gaps_s) == (1.0, 1.0 / 3, (1.0,))


def test_one_token_has_no_time_per_token_and_none_has_no_time_at_all() -> None:
    single, empty = a_trace(1.0, (3.0, 1)), a_trace(1.0)
    assert (single.ttft_s, single.e2e_s, single.tpot_s, single.gaps_s) == (2.0, 2.0, None, ())
    assert (empty.ttft_s, empty.e2e_s, empty.tpot_s, empty.gaps_s, empty.tokens_per_s) == (None, None, None, (), None)


async def test_a_trace_has_every_token_and_the_time_of_every_delta() -> None:
    told: list[tuple[int, float]] = []
    one = await trace(FakeStart(), a_request(max_tokens=20), -2.0, Ticks(), lambda num, at_s: told.append((num, at_s)))
    assert one.error is None
    assert one.num_tokens == one.stats.completion_tokens == 20
    assert any(arrival.num_tokens > 1 for arrival in one.arrivals)
    assert [arrival.at_s for arrival in one.arrivals] == [float(i + 1) for i in range(len(one.arrivals))]
    assert told == [(arrival.num_tokens, arrival.at_s) for arrival in one.arrivals]
    assert one.ttft_s == 3.0


async def test_what_breaks_a_request_off_is_kept_and_what_no_request_would_pass_is_raised() -> None:
    full = await trace(FakeStart(verifiers=(TooManySessions("all are in use"),)), a_request(), 0.0)
    assert isinstance(full.error, TooManySessions)
    assert full.arrivals == ()
    with pytest.raises(InvalidArgument, match="max_tokens"):
        await trace(FakeStart(verifiers=(InvalidArgument("max_tokens", "too many"),)), a_request(), 0.0)


async def test_the_target_alone_brings_a_token_a_delta() -> None:
    one = await trace(FakeStart(), a_request(gamma=0, max_tokens=6), 0.0)
    assert [arrival.num_tokens for arrival in one.arrivals] == [1] * 6
    assert one.stats.batch_widths == {1: 6}
