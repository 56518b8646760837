"""The metrics of an answer from made-up statistics."""

from collections import Counter

import pytest

from orchestrator.api.http.metrics import Timing, speculative_decoding
from orchestrator.decode.request import GenerationRequest, GenerationStats

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


def test_nothing_drafted() -> None:
    told = speculative_decoding(REQUEST, GenerationStats())
    assert (told["mean_acceptance_length"], told["draft_acceptance_rate"]) == (1.0, 0.0)
    assert told["acceptance_histogram"] == [0, 0, 0, 0]
    assert told["acceptance_histogram_by_draft_length"] == {}


def test_times() -> None:
    now = iter([10.0, 10.5, 11.0, 11.25, 12.0])
    timing = Timing(lambda: next(now))
    timing.let_in()
    for _ in range(3):
        timing.delta()
    assert timing.summary(num_tokens=6) == {
        "time_to_first_token_ms": 500.0,
        "generation_time_ms": 1000.0,
        "queue_time_ms": 500.0,
        "mean_itl_ms": 200.0,
        "tokens_per_second": 4.0,
    }


def test_times_of_one_token() -> None:
    now = iter([10.0, 10.0, 10.0])
    timing = Timing(lambda: next(now))
    timing.let_in()
    timing.delta()
    told = timing.summary(num_tokens=1)
    assert (told["mean_itl_ms"], told["tokens_per_second"]) == (None, None)
