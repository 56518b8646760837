"""The metrics of an answer from made-up statistics."""

from collections import Counter

import pytest

from orchestrator.api.http.metrics import Timing, speculative_decoding
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats

REQUEST = GenerationRequest((1,), gamma=3)


def test_acceptance_as_vllm_counts_it() -> None:
    stats = GenerationStats(outcomes=Counter({(3, 0): 4, (3, 3): 1, (2, 1): 1}))
    assert speculative_decoding(REQUEST, stats) == {
        "mean_acceptance_length": pytest.approx(1 + 4 / 6),
        "draft_acceptance_rate": pytest.approx(4 / 17),
        "acceptance_histogram": [4, 1, 0, 1],
        "acceptance_histogram_by_draft_length": {"2": [0, 1, 0], "3": [4, 0, 0, 1]},
        "num_spec_steps": 6,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 17,
        "num_spec_tokens": 3,
    }
    nothing = speculative_decoding(REQUEST, GenerationStats())
    assert (nothing["mean_acceptance_length"], nothing["draft_acceptance_rate"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("ticks", "told"),
    [
        ([10.0, 10.5, 11.0, 11.25, 12.0], [500.0, 1000.0, 500.0, 200.0, 4.0]),
        # Before a first and a second token there are no gaps; and a clock may be too coarse for a rate.
        ([10.0, 10.0, 10.0], [0.0, 0.0, 0.0, None, None]),
    ],
    ids=["three deltas", "one"],
)
def test_times(ticks: list[float], told: list[float | None]) -> None:
    timing = Timing()
    timing.on_turn(*ticks[:2])
    for committed_s in ticks[2:]:
        timing.on_delta(Delta((1,), (), committed_s=committed_s))
    names = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
    num_tokens = 6 if len(ticks) > 3 else 1
    assert timing.summary(num_tokens) == dict(zip(names, told, strict=True))
