"""Two kernels choose what torch chooses: on a GPU, else in Triton's interpreter."""

import math
from collections.abc import Sequence

import pytest
import torch

from specgate.errors import NonFiniteLogits
from specgate.runtime import noise
from specgate.runtime.batch_sampler import Answer, SamplingStep, answers, chosen_on_device
from specgate.runtime.cuda import choosing
from specgate.types import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.triton, *([pytest.mark.gpu] if DEVICE.type == "cuda" else [])]
VOCAB = 2 * choosing._BLOCK + 77
SEED, POSITION = 7, 11


def logits_of(num_rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return (3.0 * torch.randn(num_rows, VOCAB, generator=generator)).to(DEVICE, dtype)


def asked(temperature: float, vocab_size: int = VOCAB) -> SamplingStep:
    return SamplingStep(SamplingParams(temperature=temperature), SEED, POSITION, vocab_size, with_probs=True)


def ours(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    keys = asked(temperature).noise_keys(len(logits)) if temperature else []
    return choosing.choose(logits, keys, temperature, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_it_tells_what_torch_tells(temperature: float, dtype: torch.dtype) -> None:
    logits = logits_of(3, dtype)
    expected = chosen_on_device([logits], [asked(temperature)]).double()
    torch.testing.assert_close(ours(logits, temperature), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("places", [(5, 9), (choosing._BLOCK + 3, 8), (VOCAB - 1, 2 * choosing._BLOCK)])
def test_of_equal_scores_the_first_is_chosen_and_leads_by_nothing(places: tuple[int, int]) -> None:
    logits = logits_of(1)
    logits[0, list(places)] = 40.0
    ((token_id, score, lead, _),) = ours(logits, 0.0).tolist()
    assert (token_id, score, lead) == (min(places), 40.0, 0.0)


def test_noise_is_that_of_python() -> None:
    """Of logits that are alike, noise decides alone."""
    for row, (token_id, score, lead, _) in enumerate(ours(torch.zeros(2, VOCAB, device=DEVICE), 1.0).tolist()):
        key = asked(1.0).noise_keys(2)[row]
        by_score = sorted((-math.log(-math.log(noise.uniform(key, i))), -i) for i in range(VOCAB))
        (second, _), (best, place) = by_score[-2:]
        assert token_id == -place
        assert score == pytest.approx(best - math.log(VOCAB), abs=1e-6)
        assert lead == pytest.approx(best - second, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_has_the_same_bits_whoever_is_beside_it(temperature: float) -> None:
    logits = logits_of(5)
    keys = asked(temperature).noise_keys(5) if temperature else []
    together = choosing.choose(logits, keys, temperature, True)
    for row in (0, 4):
        assert choosing.choose(logits[row : row + 1], keys[row : row + 1], temperature, True).equal(together[row, None])


# What a card computes without a word, numpy warns of.
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_broken_row_is_its_own_error_and_no_token_that_there_is_not(temperature: float, value: float) -> None:
    logits = logits_of(2)
    logits[1, (slice(None) if value == -math.inf else 9)] = value
    sound, broken = answers([logits[:1], logits[1:]], [asked(temperature)] * 2, choosing.choose)
    assert isinstance(sound, Answer)
    assert isinstance(broken, NonFiniteLogits)
    assert all(0 <= row[0] < VOCAB for row in ours(logits, temperature).tolist())


def test_what_a_grammar_forbids_is_never_chosen_and_no_rival() -> None:
    logits = torch.full((1, VOCAB), -math.inf, device=DEVICE)
    logits[0, 4100] = 1.0
    assert ours(logits, 0.0).tolist() == [[4100.0, 1.0, math.inf, 1.0]]


def test_it_serves_rows_that_nothing_filters_and_torch_all_others() -> None:
    seen: list[float] = []

    def noticing(raw: torch.Tensor, keys: Sequence[int], temperature: float, with_probs: bool) -> torch.Tensor:
        seen.append(temperature)
        return choosing.choose(raw, keys, temperature, with_probs)

    logits = logits_of(2)
    laws = [
        SamplingParams(temperature=0.0), SamplingParams(temperature=0.7), SamplingParams(top_k=5),
        SamplingParams(top_p=0.9), SamplingParams(min_p=0.1), SamplingParams(logit_bias={3: 50.0}),
    ]  # fmt: skip
    # Ids that do not exist for the session are cut off, and rows lie apart then.
    steps = [SamplingStep(law, SEED, POSITION, VOCAB - 9, with_probs=True) for law in laws]
    expected = [answers([logits], [step]) for step in steps]
    for step, (before,) in zip(steps, expected, strict=True):
        (after,) = answers([logits], [step], noticing)
        assert after.sampled.token_ids == before.sampled.token_ids
        assert after.sampled.near_ties == before.sampled.near_ties
        assert after.sampled.probs == pytest.approx(before.sampled.probs, rel=1e-5)
    assert seen == [0.0, 0.7, 1.0]


def test_where_it_gives_something_else_torch_chooses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choosing, "choose", lambda raw, *_: torch.zeros(len(raw), 4, device=DEVICE))
    assert choosing.chooser_on(DEVICE, torch.float32, VOCAB) is None
    assert "torch chooses: AssertionError" in caplog.text
