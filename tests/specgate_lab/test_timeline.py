"""What one request saw: the definitions, on traces made by hand and on the fakes."""

from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationStats
from specgate.errors import InvalidArgument, TooManySessions
from specgate.types import Proposal, RoundPlan, RoundRecord, Verdict
from specgate_lab.measured_stats import MeasuredStats
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


async def test_the_statistics_have_what_a_measurement_reads_of_its_rounds() -> None:
    stats = (await time_request(FakeStart(), a_request(max_tokens=20), 0.0)).stats
    assert len(stats.draft_lengths) == stats.rounds > 0
    assert len(stats.draft_lengths) + len(stats.solo_us) == stats.target_forwards == len(stats.forwards_us)
    assert stats.batch_widths.total() == stats.target_forwards
    verdict = Verdict(1, 0, 21, solo=True, verify_us=9, forward_us=5, batch_sessions=3)
    silent, empty = replace(verdict, forward_us=0, batch_sessions=0), Verdict(1, 0, None)
    alone = [RoundRecord(RoundPlan(), Proposal(), one, one.num_emitted) for one in (verdict, silent, empty)]
    drafted = RoundRecord(RoundPlan(2), Proposal((4, 5)), Verdict(1, 2, 6, verify_us=8, forward_us=7), 3)
    found = MeasuredStats.of(GenerationStats(completion_tokens=20), [*alone, drafted])
    assert (found.solo_us, found.draft_lengths, found.batch_widths) == ([9, 9, 0], [2], {3: 1})
    # A verifier that does not tell what the forward took tells the whole; one with nothing to say ran none.
    assert found.forwards_us == [(1, 5), (1, 9), (3, 7)]
    assert found.completion_tokens == 20


async def test_what_breaks_a_request_off_is_kept_and_what_no_request_would_pass_is_raised() -> None:
    full = await time_request(FakeStart(verifiers=(TooManySessions("all are in use"),)), a_request(), 0.0)
    assert isinstance(full.error, TooManySessions)
    assert full.arrivals == ()
    with pytest.raises(InvalidArgument, match="max_tokens"):
        await time_request(FakeStart(verifiers=(InvalidArgument("max_tokens", "too many"),)), a_request(), 0.0)
