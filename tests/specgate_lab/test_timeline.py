"""What one request saw: the definitions, on traces made by hand and on the fakes."""

import pytest

from specgate.errors import InvalidArgument, TooManySessions
from specgate_lab.timeline import time_request
from tests.specgate_lab.support import FakeStart, Ticks, a_request, a_timeline


@pytest.mark.parametrize(
    ("arrivals", "ttft_s", "e2e_s", "tpot_s", "gaps_s", "tokens_per_s"),
    [
        pytest.param(
            [(10.5, 1), (12.5, 4), (13.5, 2)], 0.5, 3.5, 3.0 / 6, (2.0, 1.0), 2.0, id="several tokens a delta"
        ),
        pytest.param([(11.0, 3), (12.0, 1)], 1.0, 2.0, 1.0 / 3, (1.0,), 2.0, id="several tokens at first"),
        pytest.param([(12.0, 1)], 2.0, 2.0, None, (), 0.5, id="one token has no time per token"),
        pytest.param([], None, None, None, (), None, id="no token has no time at all"),
    ],
)
def test_the_times_of_a_request(arrivals, ttft_s, e2e_s, tpot_s, gaps_s, tokens_per_s) -> None:
    one = a_timeline(10.0, *arrivals)
    assert one.num_tokens == sum(num for _, num in arrivals)
    assert (one.ttft_s, one.e2e_s, one.tpot_s) == (ttft_s, e2e_s, tpot_s)
    assert (one.gaps_s, one.tokens_per_s) == (gaps_s, tokens_per_s)


async def test_a_timeline_has_every_token_and_the_time_of_every_delta() -> None:
    told: list[tuple[int, float]] = []
    one = await time_request(
        FakeStart(),
        a_request(max_tokens=20),
        -2.0,
        Ticks(),
        lambda delta, at_s: told.append((len(delta.token_ids), at_s)),
    )
    assert one.error is None
    assert one.num_tokens == one.stats.completion_tokens == len(one.token_ids) == 20
    assert any(arrival.num_tokens > 1 for arrival in one.arrivals)
    assert [arrival.at_s for arrival in one.arrivals] == [float(i + 1) for i in range(len(one.arrivals))]
    assert told == [(arrival.num_tokens, arrival.at_s) for arrival in one.arrivals]
    assert one.ttft_s == 3.0


async def test_what_breaks_a_request_off_is_kept_and_what_no_request_would_pass_is_raised() -> None:
    full = await time_request(FakeStart(verifiers=(TooManySessions("all are in use"),)), a_request(), 0.0)
    assert isinstance(full.error, TooManySessions)
    assert full.arrivals == ()
    with pytest.raises(InvalidArgument, match="max_tokens"):
        await time_request(FakeStart(verifiers=(InvalidArgument("max_tokens", "too many"),)), a_request(), 0.0)
