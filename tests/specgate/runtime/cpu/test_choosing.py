"""What one call of C chooses is what torch's operations choose, and each row's choice is its own."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.errors import NonFiniteLogits
from specgate.runtime import noise
from specgate.runtime.batch_sampler import Answer, SamplingStep, answers
from specgate.runtime.cpu import native_calls
from specgate.runtime.noise import Purpose
from specgate.types import SamplingParams

BEST = cpu_library.instruction_set()
SETS = [BEST, InstructionSet.AVX2] if BEST is InstructionSet.AVX512 else [BEST]
pytestmark = pytest.mark.skipif(BEST is InstructionSet.NONE, reason="the C library does not serve here")


@pytest.fixture(params=SETS, autouse=True)
def _instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECGATE_CPU_KERNELS", request.param)
    native_calls.kernels.cache_clear()
    yield
    native_calls.kernels.cache_clear()


def rows_of(vocab_size: int, num_rows: int) -> torch.Tensor:
    """Return logits of a few shapes: flat, peaked, with equal ones, with some that never occur; not side by side."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(num_rows, vocab_size + 5, generator=generator)[:, :vocab_size]
    logits[::2] *= 8.0
    logits[1::4] = logits[1::4].round()
    logits[2::4, 1 : vocab_size // 2] = -torch.inf
    return logits


def choose(logits: torch.Tensor, keys: Sequence[int], temperature: float) -> torch.Tensor:
    return native_calls.choose(logits, keys, temperature, True)


def keys_of(num_rows: int, temperature: float) -> list[int]:
    return [noise.row_key(7, row, Purpose.SHARED) for row in range(num_rows if temperature else 0)]


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("vocab_size", [1, 17, 300, 4096, 50_257])
def test_it_chooses_what_torch_chooses(vocab_size: int, temperature: float) -> None:
    num_rows = 300 if vocab_size < 1000 else 24
    logits = rows_of(vocab_size, num_rows)
    params = SamplingParams(temperature=temperature)
    asked = [SamplingStep(params, 7, position, vocab_size, with_probs=True) for position in range(num_rows)]
    by_torch, by_c = (answers(logits.split(1), asked, chooser) for chooser in (None, native_calls.choose))
    for one, other in zip(by_torch, by_c, strict=True):
        assert isinstance(one, Answer)
        assert isinstance(other, Answer)
        assert one.sampled is not None
        assert other.sampled is not None
        assert other.sampled.near_ties == one.sampled.near_ties
        if temperature == 0.0 or not any(one.sampled.near_ties):
            assert other.sampled.token_ids == one.sampled.token_ids
            assert other.sampled.probs == pytest.approx(one.sampled.probs, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_is_chosen_alike_whoever_is_beside_it(temperature: float) -> None:
    logits, keys = rows_of(4096, 8), keys_of(8, temperature)
    alone = [choose(logits[row : row + 1], keys[row : row + 1], temperature) for row in range(8)]
    assert torch.equal(choose(logits, keys, temperature), torch.cat(alone))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_is_told(value: float, temperature: float) -> None:
    logits = rows_of(300, 2)
    asked = [SamplingStep(SamplingParams(temperature=temperature), 7, 0, 300)] * 2
    for place in (0, 255, 299):
        broken = logits.clone()
        broken[0, place] = value
        found = answers(broken.split(1), asked, native_calls.choose)
        assert [isinstance(one, NonFiniteLogits) for one in found] == [True, False]
    nothing = answers([torch.full((1, 300), -torch.inf)], asked[:1], native_calls.choose)
    assert isinstance(nothing[0], NonFiniteLogits)


def test_the_noise_is_the_one_that_python_makes() -> None:
    """Of equal logits the one with the highest noise is chosen, and its score is its noise: to the last bits."""
    for key in keys_of(200, 1.0):
        (told,) = choose(torch.zeros(1, 77), [key], 1.0).tolist()
        gumbel = [-math.log(-math.log(noise.uniform(key, token_id))) for token_id in range(77)]
        first, second = sorted(gumbel, reverse=True)[:2]
        assert told[0] == gumbel.index(first)
        assert told[1:3] == pytest.approx([first, first - second], rel=1e-12, abs=1e-12)


def test_a_row_is_chosen_alike_beside_one_that_is_weighed() -> None:
    """Of two tokens whose scores are alike up to a float32's rounding, other arithmetic would choose the other."""
    params, vocab_size = SamplingParams(temperature=0.7), 64
    other = SamplingStep(SamplingParams(temperature=0.7, logit_bias={1: 0.5}), 7, 10, vocab_size)
    for seed in range(400):
        own = SamplingStep(params, seed, 10, vocab_size)
        gumbel = noise.gumbel(own.noise_keys(1), torch.arange(vocab_size))[0]
        row = torch.full((1, vocab_size), -60.0)
        row[0, 1], row[0, 2] = 3.1, float((3.1 / 0.7 + gumbel[1] - gumbel[2]) * 0.7)
        (alone,) = answers([row], [own], native_calls.choose)
        beside, _ = answers([row, torch.randn(1, vocab_size)], [own, other], native_calls.choose)
        assert isinstance(alone, Answer)
        assert isinstance(beside, Answer)
        assert alone.sampled == beside.sampled
