"""The nouns: what may be in them, and what the messages say when it may not."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from specgate.errors import InvalidArgument
from specgate.types import (
    GREEDY_BELOW,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
    SEED_LIMIT,
    FinishReason,
    SamplingParams,
    SessionSpec,
    TokenSource,
    Verdict,
    Verification,
    check_range,
)


def spec(**fields: Any) -> SessionSpec:
    return replace(SessionSpec((1, 2, 3), SamplingParams(), 7, Verification.SHARED_NOISE, 10), **fields)


NAN, INF = math.nan, math.inf
RANGES: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([0.0, 100.0], [-0.1, 100.5, NAN, INF]),
    "top_k": ([0], [-1]),
    "top_p": ([1e-9, 1.0], [0.0, 1.01, NAN]),
    "min_p": ([0.0, 1.0], [-0.01, 1.01]),
    "repetition_penalty": ([0.01], [0.0, 101.0, NAN]),
    "presence_penalty": ([-2.0, 2.0], [-2.1, 2.1]),
    "frequency_penalty": ([-2.0, 2.0], [-2.1, 2.1]),
}
"""Values inside, the ends among them, and values outside."""


@pytest.mark.parametrize("field", RANGES)
def test_a_sampling_parameter_is_in_its_range_or_is_refused_by_name(field: str) -> None:
    inside, outside = RANGES[field]
    assert [getattr(SamplingParams(**{field: value}), field) for value in inside] == inside
    for value in outside:
        with pytest.raises(InvalidArgument, match=f"^{field}: "):
            SamplingParams(**{field: value})


@pytest.mark.parametrize("bias", [-100.5, 100.5, NAN, -INF])
def test_a_bias_out_of_range_names_its_token(bias: float) -> None:
    with pytest.raises(InvalidArgument, match=r"^logit_bias\[17\]: "):
        SamplingParams(logit_bias={3: 1.0, 17: bias})


def test_too_many_biases_are_refused() -> None:
    SamplingParams(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0))
    with pytest.raises(InvalidArgument, match=r"logit_bias \(entries\): 1025 is outside \[0, 1024\]"):
        SamplingParams(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0))


def test_greedy_is_where_there_is_nothing_left_to_sample() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert SamplingParams(temperature=GREEDY_BELOW / 2).greedy
    assert not SamplingParams(temperature=GREEDY_BELOW).greedy
    assert not SamplingParams().greedy


@pytest.mark.parametrize(
    ("field", "value"), [("repetition_penalty", 1.1), ("presence_penalty", -0.5), ("frequency_penalty", 0.5)]
)
def test_each_penalty_counts_as_one(field: str, value: float) -> None:
    assert SamplingParams(**{field: value}).has_penalties
    assert not SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 1.0}).has_penalties


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("prompt_token_ids", (), "is empty; at least 1 token is needed"),
        ("seed", -1, f"-1 is outside [0, {SEED_LIMIT - 1}]"),
        ("seed", SEED_LIMIT, f"{SEED_LIMIT} is outside [0, {SEED_LIMIT - 1}]"),
        ("max_tokens", 0, "0 is outside [1, 1073741824]"),
        ("output_token_ids", (1,) * 11, "11 is outside [0, 10]"),
        ("logprobs", MAX_LOGPROBS + 1, "21 is outside [0, 20]"),
        ("logprobs", -1, "-1 is outside [0, 20]"),
        ("stop_token_ids", frozenset(range(MAX_STOP_TOKEN_IDS + 1)), "257 is outside [0, 256]"),
    ],
)
def test_a_session_out_of_limits_is_refused_by_name(field: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{field}( \(length\))?: {re.escape(problem)}$"):
        spec(**{field: value})


def test_what_was_emitted_before_counts_as_committed() -> None:
    resumed = spec(output_token_ids=(8, 9), max_tokens=5)
    assert resumed.committed_token_ids == (1, 2, 3, 8, 9)
    assert resumed.max_length == 8
    assert spec(seed=SEED_LIMIT - 1, logprobs=MAX_LOGPROBS).seed == SEED_LIMIT - 1


def test_a_range_has_its_ends_and_no_nan() -> None:
    check_range("gamma", 0, 0, 4)
    check_range("gamma", 4, 0, 4)
    with pytest.raises(InvalidArgument, match=r"^gamma: 5 is outside \[0, 4\]$"):
        check_range("gamma", 5, 0, 4)
    with pytest.raises(InvalidArgument, match="nan is outside"):
        check_range("gamma", NAN, -INF, INF)


def test_token_id_zero_is_a_token() -> None:
    verdicts = [Verdict(1), Verdict(1, num_accepted=3), Verdict(1, token_id=0), Verdict(1, num_accepted=3, token_id=0)]
    assert [verdict.num_emitted for verdict in verdicts] == [0, 3, 1, 4]


def test_the_words_on_the_outside_are_openais() -> None:
    assert [reason.value for reason in FinishReason] == ["stop", "length"]
    sources = ["accepted", "recovered", "bonus", "solo", "accepted_layer_skip", "accepted_suffix"]
    assert [source.value for source in TokenSource] == sources
    assert [mode.value for mode in Verification] == ["shared_noise", "rejection"]
