"""Sums, ratios and percentiles, on traces made by hand."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from specgate.errors import TooManySessions
from specgate_lab.bench.load.levels import Level, Speculation, Sweep, load_sample
from specgate_lab.bench.load.rows import LoadRow, load_rows, mean_batch_width
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.statistics import Percentiles
from tests.specgate_lab.support import a_timeline

ONE, EIGHT = Level(Sweep.CONCURRENCY, 1), Level(Sweep.CONCURRENCY, 8)
RATE = Level(Sweep.RATE, 2.5)


def stats(tokens: int, forwards: int, drafted: int = 0, accepted: int = 0, **more: int) -> MeasuredStats:
    return MeasuredStats(
        prompt_tokens=10,
        completion_tokens=tokens,
        target_forwards=forwards,
        drafted=drafted,
        accepted=accepted,
        batch_widths=Counter({2: forwards}),
        **more,
    )


@pytest.fixture
def rows() -> dict[tuple[Level, Speculation], LoadRow]:
    # Off: 8 tokens from 0 to 4 s, then 8 from 10 to 12 s. On: 12 tokens from 1 to 3 s, and a refused request.
    first = [
        a_timeline(0.0, (1.0, 1), (2.0, 3), stats=stats(4, 2)),
        a_timeline(1.0, (2.0, 2), (4.0, 2), stats=stats(4, 2)),
    ]
    second = [a_timeline(10.0, (11.0, 4), (12.0, 4), stats=stats(8, 2))]
    on = [
        a_timeline(1.0, (2.0, 6), (3.0, 6), stats=stats(12, 3, drafted=10, accepted=9, drafter_failures=1)),
        a_timeline(0.0, error=TooManySessions("all are in use")),
    ]
    runs = {
        Speculation.OFF: [(0, first), (0, second), (1, second), (2, first), (2, second)],
        Speculation.ON: [(0, on)],
    }
    samples = {
        str(mode): [replace(load_sample(one), case=case, repeat=at) for at, (case, one) in enumerate(own)]
        for mode, own in runs.items()
    }
    return {(row.level, row.speculation): row for row in load_rows((ONE, EIGHT, RATE), samples)}


def test_rates_are_medians_of_repeats_over_the_busy_span_and_times_are_pooled(rows) -> None:
    off = rows[ONE, Speculation.OFF]
    assert off.rate == (3.0, 2.0, 4.0)
    # 4 tokens in 2 s, 4 in 3 s, 8 in 2 s.
    assert off.request_tokens_per_s == 2.0
    assert off.ttft_ms == Percentiles(1000, 1000, 1000, 1000)
    assert (off.itl_ms.p50, off.itl_ms.max) == (1000, 2000)
    assert off.tpot_ms.p50 == pytest.approx(1000 / 3)
    assert json.loads(json.dumps(off.to_object()))["e2e_ms"] == {"p50": 2000, "p90": 2800, "p99": 2980, "max": 3000}


def test_what_speculation_did_and_what_failed(rows) -> None:
    off, on, eight = rows[ONE, Speculation.OFF], rows[ONE, Speculation.ON], rows[EIGHT, Speculation.OFF]
    assert (off.acceptance_rate, off.tokens_per_forward) == (None, 16 / 6)
    assert (on.acceptance_rate, on.tokens_per_forward) == (0.9, 4.0)
    assert (on.requests, on.failed, on.failures_survived) == (2, 1, 1)
    assert (on.mean_prompt_tokens, on.batch_width) == (10.0, 2.0)
    assert (on.rate.median, on.ratio_to_off, eight.ratio_to_off) == (6.0, 2.0, 1.0)
    assert (eight.ratio_to_concurrency_1, rows[RATE, Speculation.OFF].ratio_to_concurrency_1) == (
        pytest.approx(4 / 3),
        None,
    )


def test_the_batch_width_is_a_mean_over_forwards_not_over_verdicts() -> None:
    # One forward of 8 sessions and two of 1: ten verdicts in three forwards.
    widths = [MeasuredStats(batch_widths=Counter({8: 1})) for _ in range(7)]
    widths.append(MeasuredStats(batch_widths=Counter({8: 1, 1: 2})))
    assert mean_batch_width(widths) == pytest.approx(10 / 3)
    assert mean_batch_width([MeasuredStats()]) is None
