"""The nouns: what may be in them, and what the messages say when it may not."""

import math
from dataclasses import FrozenInstanceError
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
    Proposal,
    SamplingParams,
    SessionSpec,
    TokenSource,
    Verdict,
    Verification,
    check_range,
)


def spec(**fields: Any) -> SessionSpec:
    settings = {
        "prompt_token_ids": (1, 2, 3),
        "sampling": SamplingParams(),
        "seed": 7,
        "verification": Verification.SHARED_NOISE,
        "max_tokens": 10,
    }
    return SessionSpec(**{**settings, **fields})


OUTSIDE: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 100.5),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 101.0),
    ("repetition_penalty", math.nan),
    ("presence_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", 2.1),
]


@pytest.mark.parametrize(("field", "value"), OUTSIDE)
def test_a_sampling_parameter_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidArgument) as error:
        SamplingParams(**{field: value})
    assert error.value.field == field


INSIDE: list[tuple[str, Any]] = [
    ("temperature", 0.0),
    ("temperature", 100.0),
    ("top_k", 0),
    ("top_p", 1e-9),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("min_p", 1.0),
    ("repetition_penalty", 0.01),
    ("presence_penalty", -2.0),
    ("frequency_penalty", 2.0),
]


@pytest.mark.parametrize(("field", "value"), INSIDE)
def test_the_ends_of_the_ranges_are_inside(field: str, value: float) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("bias", [-100.5, 100.5, math.nan, -math.inf])
def test_a_bias_out_of_range_names_its_token(bias: float) -> None:
    with pytest.raises(InvalidArgument, match=r"^logit_bias\[17\]: ") as error:
        SamplingParams(logit_bias={3: 1.0, 17: bias})
    assert error.value.field == "logit_bias[17]"


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
    "params",
    [
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=-0.5),
        SamplingParams(frequency_penalty=0.5),
    ],
)
def test_each_penalty_counts_as_one(params: SamplingParams) -> None:
    assert params.has_penalties
    assert not SamplingParams(temperature=0.5, top_k=3, logit_bias={1: 1.0}).has_penalties


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("prompt_token_ids", (), "prompt_token_ids: is empty; at least 1 token is needed"),
        ("seed", -1, f"seed: -1 is outside [0, {SEED_LIMIT - 1}]"),
        ("seed", SEED_LIMIT, f"seed: {SEED_LIMIT} is outside [0, {SEED_LIMIT - 1}]"),
        ("max_tokens", 0, "max_tokens: 0 is outside [1, 1073741824]"),
        ("output_token_ids", (1,) * 11, "output_token_ids (length): 11 is outside [0, 10]"),
        ("logprobs", MAX_LOGPROBS + 1, "logprobs: 21 is outside [0, 20]"),
        ("logprobs", -1, "logprobs: -1 is outside [0, 20]"),
        (
            "stop_token_ids",
            frozenset(range(MAX_STOP_TOKEN_IDS + 1)),
            "stop_token_ids (length): 257 is outside [0, 256]",
        ),
    ],
)
def test_a_session_out_of_limits_is_refused_by_name(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        spec(**{field: value})
    assert str(error.value) == message


def test_what_was_emitted_before_counts_as_committed() -> None:
    resumed = spec(output_token_ids=(8, 9), max_tokens=5)
    assert resumed.committed_token_ids == (1, 2, 3, 8, 9)
    assert resumed.max_length == 8
    assert spec(seed=SEED_LIMIT - 1, logprobs=MAX_LOGPROBS).seed == SEED_LIMIT - 1


def test_a_range_says_field_value_and_limits() -> None:
    check_range("gamma", 4, 0, 4)
    check_range("gamma", 0, 0, 4)
    with pytest.raises(InvalidArgument, match=r"^gamma: 5 is outside \[0, 4\]$"):
        check_range("gamma", 5, 0, 4)
    with pytest.raises(InvalidArgument, match="nan is outside"):
        check_range("gamma", math.nan, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("verdict", "emitted"),
    [
        (Verdict(1), 0),
        (Verdict(1, num_accepted=3), 3),
        (Verdict(1, token_id=0), 1),
        (Verdict(1, num_accepted=3, token_id=0), 4),
    ],
)
def test_token_id_zero_is_a_token(verdict: Verdict, emitted: int) -> None:
    assert verdict.num_emitted == emitted


def test_a_proposal_is_as_long_as_its_tokens() -> None:
    assert len(Proposal()) == 0
    assert len(Proposal((5, 6))) == 2


def test_values_cannot_be_changed() -> None:
    for value, field in ((SamplingParams(), "top_k"), (spec(), "seed"), (Verdict(1), "round")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, 1)


def test_the_words_on_the_outside_are_openais() -> None:
    assert [reason.value for reason in FinishReason] == ["stop", "length"]
    assert [source.value for source in TokenSource] == ["accepted", "recovered", "bonus", "solo"]
    assert [mode.value for mode in Verification] == ["shared_noise", "rejection"]
