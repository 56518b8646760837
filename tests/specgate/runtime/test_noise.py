"""Noise: bit-equal wherever it is made, never outside its range, independent where it must be."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from specgate.runtime import noise
from specgate.runtime.noise import Purpose
from tests.support.chisquare import p_value

LAST_WORD = (1 << 64) - 1
KEYS = [0, 1, 1234567, 1 << 63, LAST_WORD, noise.row_key(7, 3, Purpose.SHARED)]
TOKEN_IDS = torch.cat([torch.arange(2000), torch.tensor([31_999, 151_935, 262_143])])


def unsigned(words: torch.Tensor) -> np.ndarray:
    return words.cpu().numpy().view(np.uint64)


def test_splitmix64_known_answers() -> None:
    """Published outputs for the start 1234567; in another language these must come out too."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [noise.word(1234567, counter) for counter in range(4)] == expected
    assert unsigned(noise.words([1234567], torch.arange(4)))[0].tolist() == expected


def test_row_key_known_answers() -> None:
    assert noise.row_key(0, 0, Purpose.SHARED) == 10414705469639538944
    assert noise.row_key(LAST_WORD, 5, Purpose.ACCEPT) == 17025048471755981296
    assert noise.row_key(42, 1000, Purpose.DRAFT, 17) == 1840575397521677326


def test_torch_and_plain_python_give_the_same_words_and_uniforms() -> None:
    words = noise.words(KEYS, TOKEN_IDS)
    assert unsigned(words).tolist() == [[noise.word(key, i) for i in TOKEN_IDS.tolist()] for key in KEYS]
    assert noise.uniforms(words).tolist() == [[noise.uniform(key, i) for i in TOKEN_IDS.tolist()] for key in KEYS]


@pytest.mark.gpu
def test_the_integer_stage_is_equal_on_two_devices() -> None:
    on_cpu, on_gpu = noise.words(KEYS, TOKEN_IDS), noise.words(KEYS, TOKEN_IDS.cuda())
    assert torch.equal(on_cpu, on_gpu.cpu())
    # The logarithms of the float stage may round differently, by far less than a near tie.
    gumbel = noise.gumbel(KEYS, TOKEN_IDS)
    assert torch.allclose(gumbel, noise.gumbel(KEYS, TOKEN_IDS.cuda()).cpu(), rtol=1e-12, atol=1e-12)


def key_of(word: int) -> int:
    """Return the key whose first word this is: SplitMix64 leaves none out."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        word = (word ^ word >> shift ^ word >> 2 * shift) * pow(factor, -1, 1 << 64) % (1 << 64)
    return (word - 0x9E3779B97F4A7C15) % (1 << 64)


def test_extreme_words_stay_strictly_inside() -> None:
    for word in (0, 1, 1 << 63, LAST_WORD - 1, LAST_WORD):
        key = key_of(word)
        uniform, gumbel = noise.uniform(key), noise.gumbel([key], torch.arange(1)).item()
        assert noise.word(key) == word
        assert 0.0 < uniform < 1.0
        assert noise.uniforms(noise.words([key], torch.arange(1))).item() == uniform
        assert gumbel == pytest.approx(-math.log(-math.log(uniform)), rel=1e-9)
    assert (noise.uniform(key_of(0)), noise.uniform(key_of(LAST_WORD))) == (2.0**-53, 1.0 - 2.0**-53)


def test_keys_depend_on_everything_that_names_them() -> None:
    """No two of seed, position, purpose and round change places, either."""
    few = (0, 1, 2, 3, 4, 5)
    keys = {
        noise.row_key(seed, position, purpose, round_index)
        for seed in (*few, LAST_WORD)
        for position in few
        for purpose in Purpose
        for round_index in few
    }
    assert len(keys) == 7 * 6 * len(Purpose) * 6


def test_the_argmax_of_log_probability_plus_gumbel_is_a_sample() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
    keys = [noise.row_key(3, position, Purpose.SHARED) for position in range(40_000)]
    chosen = Counter((probs.log() + noise.gumbel(keys, torch.arange(5))).argmax(-1).tolist())
    assert p_value(chosen, dict(enumerate(probs.tolist()))) > 1e-3
    assert p_value(chosen, dict(enumerate([0.48, 0.32, 0.15, 0.04, 0.01]))) < 1e-6
