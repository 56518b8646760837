"""Noise: bit-equal wherever it is made, never outside its range, independent where it must be."""

import math
from collections import Counter
from collections.abc import Callable

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


def numpy_words(keys: list[int], token_ids: np.ndarray) -> np.ndarray:
    """SplitMix64 once more, in unsigned numpy arithmetic."""
    with np.errstate(over="ignore"):
        steps = token_ids.astype(np.uint64) + np.uint64(1)
        z = np.array(keys, np.uint64)[:, None] + steps * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def test_splitmix64_known_answers() -> None:
    """Published outputs for the start 1234567; in another language these must come out too."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [noise.word(1234567, counter) for counter in range(5)] == expected
    assert unsigned(noise.words([1234567], torch.arange(5)))[0].tolist() == expected


ROW_KEYS = [
    ((0, 0, Purpose.SHARED, 0), 10414705469639538944),
    ((LAST_WORD, 5, Purpose.ACCEPT, 0), 17025048471755981296),
    ((42, 1000, Purpose.DRAFT, 17), 1840575397521677326),
]


@pytest.mark.parametrize(("arguments", "expected"), ROW_KEYS)
def test_row_key_known_answers(arguments: tuple[int, int, Purpose, int], expected: int) -> None:
    assert noise.row_key(*arguments) == expected


def test_the_integer_stage_is_equal_in_three_implementations() -> None:
    by_torch = unsigned(noise.words(KEYS, TOKEN_IDS))
    assert (by_torch == numpy_words(KEYS, TOKEN_IDS.numpy())).all()
    some = range(0, len(TOKEN_IDS), 37)
    by_hand = [[noise.word(key, int(TOKEN_IDS[i])) for i in some] for key in KEYS]
    assert by_torch[:, list(some)].tolist() == by_hand


@pytest.mark.gpu
def test_the_integer_stage_is_equal_on_two_devices() -> None:
    on_cpu, on_gpu = noise.words(KEYS, TOKEN_IDS), noise.words(KEYS, TOKEN_IDS.cuda())
    assert torch.equal(on_cpu, on_gpu.cpu())
    # The logarithms of the float stage may round differently, by far less than a near tie.
    gumbel = noise.gumbel(KEYS, TOKEN_IDS)
    assert torch.allclose(gumbel, noise.gumbel(KEYS, TOKEN_IDS.cuda()).cpu(), rtol=1e-12, atol=1e-12)


def test_uniforms_are_equal_in_both_forms() -> None:
    by_torch = noise.uniforms(noise.words(KEYS, torch.arange(50)))
    assert by_torch.tolist() == [[noise.uniform(key, counter) for counter in range(50)] for key in KEYS]


@pytest.mark.parametrize("word", [0, 1, 1 << 63, LAST_WORD - 1, LAST_WORD])
def test_extreme_words_stay_strictly_inside(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    as_tensor = torch.tensor([[word - (1 << 64) if word >> 63 else word]])
    monkeypatch.setattr(noise, "word", lambda key, counter=0: word)
    monkeypatch.setattr(noise, "words", lambda keys, token_ids: as_tensor)
    assert 0.0 < noise.uniform(0) < 1.0
    assert noise.uniforms(as_tensor).item() == noise.uniform(0)
    gumbel = noise.gumbel([0], torch.arange(1)).item()
    assert math.isfinite(gumbel)
    assert gumbel == pytest.approx(-math.log(-math.log(noise.uniform(0))), rel=1e-9)


def test_extreme_words_are_the_ends_of_the_range() -> None:
    ends = noise.uniforms(torch.tensor([0, -1]))
    assert ends.tolist() == [2.0**-53, 1.0 - 2.0**-53]
    assert ends.dtype == torch.float64


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


def cells(first: torch.Tensor, second: torch.Tensor) -> Counter[tuple[int, int]]:
    return Counter(zip((first * 6).long().tolist(), (second * 6).long().tolist(), strict=True))


ALL_CELLS = {(a, b): 1 / 36 for a in range(6) for b in range(6)}
Key = Callable[[int], int]
NEIGHBOURS: dict[str, tuple[Key, Key]] = {
    "purpose": (lambda i: noise.row_key(9, i, Purpose.ACCEPT), lambda i: noise.row_key(9, i, Purpose.RESIDUAL)),
    "round": (lambda i: noise.row_key(9, i, Purpose.DRAFT, 4), lambda i: noise.row_key(9, i, Purpose.DRAFT, 5)),
    "position": (lambda i: noise.row_key(9, i, Purpose.TARGET), lambda i: noise.row_key(9, i + 1, Purpose.TARGET)),
    "seed": (lambda i: noise.row_key(9, i, Purpose.SHARED), lambda i: noise.row_key(10, i, Purpose.SHARED)),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_neighbouring_streams_are_independent(neighbour: str) -> None:
    one, other = NEIGHBOURS[neighbour]
    first, second = (torch.tensor([noise.uniform(key(i)) for i in range(10_000)]) for key in (one, other))
    assert p_value(cells(first, second), ALL_CELLS) > 1e-3


def test_token_ids_of_one_row_are_independent() -> None:
    row = noise.uniforms(noise.words([noise.row_key(1, 1, Purpose.SHARED)], torch.arange(20_001)))[0]
    assert p_value(cells(row[:-1], row[1:]), ALL_CELLS) > 1e-3


@pytest.mark.parametrize("across", ["token ids", "positions"])
def test_uniforms_are_uniform(across: str) -> None:
    positions, ids = (1, 50_000) if across == "token ids" else (50_000, 1)
    keys = [noise.row_key(2024, position, Purpose.SHARED) for position in range(positions)]
    numbers = noise.uniforms(noise.words(keys, torch.arange(ids))).flatten()
    assert p_value(Counter((numbers * 100).long().tolist()), dict.fromkeys(range(100), 0.01)) > 1e-3


def test_the_argmax_of_log_probability_plus_gumbel_is_a_sample() -> None:
    probs = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01], dtype=torch.float64)
    keys = [noise.row_key(3, position, Purpose.SHARED) for position in range(40_000)]
    chosen = Counter((probs.log() + noise.gumbel(keys, torch.arange(5))).argmax(-1).tolist())
    assert p_value(chosen, dict(enumerate(probs.tolist()))) > 1e-3
    assert p_value(chosen, dict(enumerate([0.48, 0.32, 0.15, 0.04, 0.01]))) < 1e-6
