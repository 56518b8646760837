"""A row's logits are the same to the bit, whoever shares its forward and however its prompt was cut."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specgate import cpu_library
from specgate.cpu_library import InstructionSet
from specgate.runtime.cpu import native_calls
from specgate.runtime.cpu.decoder import DecoderKernel
from specgate.runtime.cpu.packing import pack_layers
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.loading import LoadedModel, load
from specgate.runtime.scheduler import Rows
from tests.support.models import quiet, write_model

BEST = cpu_library.instruction_set()
SETS = [BEST, InstructionSet.AVX2] if BEST is InstructionSet.AVX512 else [BEST]
pytestmark = pytest.mark.skipif(BEST is InstructionSet.NONE, reason="the C library does not serve here")

VOCAB_SIZE = 100
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "shared key heads": ("llama", {"num_key_value_heads": 1}),
    "biases, odd sizes": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "intermediate_size": 501, "head_dim": 36},
    ),
    "norms of heads": ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "a window": ("mistral", {"sliding_window": 21}),
}
HIDDEN = 128
LENGTHS = (70, 3, 50, 61, 17, 44, 1, 33)
PAGE_SIZES = (16, 40, 1024)
KV_TOKENS = len(LENGTHS) * max(PAGE_SIZES)
MOST_ROWS = 17
Kernels = Callable[[str, bool], tuple[LoadedModel, DecoderKernel]]
"""A model and its kernel, by its name and whether its weights stay in bfloat16."""


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECGATE_CPU_KERNELS", request.param)
    native_calls.kernels.cache_clear()
    yield
    native_calls.kernels.cache_clear()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    @cache
    def folder(name: str) -> Path:
        """A checkpoint in bfloat16."""
        model_type, config = MODELS[name]
        wide, short = tmp_path_factory.mktemp("wide"), tmp_path_factory.mktemp("short")
        write_model(wide, model_type, vocab_size=VOCAB_SIZE, hidden=HIDDEN, **config)
        AutoModelForCausalLM.from_pretrained(wide, dtype=torch.bfloat16).save_pretrained(short)
        return short

    @cache
    def kernel(name: str, is_stored: bool) -> tuple[LoadedModel, DecoderKernel]:
        loaded = load(str(folder(name)), torch.device("cpu"), torch.float32, quiet, keeps_stored=is_stored)
        assert pack_layers(loaded.model)
        return loaded, DecoderKernel(loaded)

    return kernel


def texts() -> list[list[int]]:
    rng = Random(1)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def logits_of(
    runner: ModelRunner, texts: Sequence[list[int]], width: Callable[[], int], num_logits: Callable[[int], int]
) -> list[torch.Tensor]:
    """Run all texts side by side, some rows of each in every forward, of which some logits are wanted.

    Returns:
        Each text's logits [length, vocabulary], NaN where they were not wanted.
    """
    sequences = [runner.pool.open(text, len(text)) for text in texts]
    found = [torch.full((len(text), VOCAB_SIZE), torch.nan) for text in texts]
    for sequence in sequences:
        runner.pool.extend(sequence, len(sequence))
    while batch := [
        Rows(one, count, num_logits(count)) for one in sequences if (count := min(width(), len(one) - one.num_cached))
    ]:
        for rows, logits in zip(batch, runner.forward(batch), strict=True):
            end = rows.sequence.num_cached
            found[sequences.index(rows.sequence)][end - rows.num_logits : end] = logits
    return found


def alone(kernels: Kernels, name: str) -> list[torch.Tensor]:
    """Return every text's logits, each row in a forward of its own, from float32 weights."""
    loaded, kernel = kernels(name, False)
    return [logits_of(ModelRunner(loaded, 1024, 1024, kernel), [text], lambda: 1, all_of)[0] for text in texts()]


def expect_equal(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        wanted = ~one.isnan().any(-1)
        assert wanted[-1]
        assert torch.equal(one[wanted], other[wanted])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("is_stored", [False, True], ids=["float32", "bfloat16 stored"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("instructions")
def test_a_row_has_the_same_bits_whoever_shares_its_forward(kernels: Kernels, name: str, is_stored: bool) -> None:
    expected, (loaded, kernel) = alone(kernels, name), kernels(name, is_stored)
    for num_rows in range(1, MOST_ROWS + 1):
        runner = ModelRunner(loaded, KV_TOKENS, PAGE_SIZES[num_rows % len(PAGE_SIZES)], kernel)
        expect_equal(logits_of(runner, texts(), lambda: num_rows, all_of), expected)  # noqa: B023
    for page_size in PAGE_SIZES:
        runner = ModelRunner(loaded, KV_TOKENS, page_size, kernel)
        whole = [logits_of(runner, [text], lambda: max(LENGTHS), all_of)[0] for text in texts()]
        expect_equal(whole, expected)
        expect_equal(mixed(loaded, kernel, page_size), expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("two_threads")
def test_a_row_has_the_same_bits_on_two_threads(kernels: Kernels, name: str) -> None:
    loaded, kernel = kernels(name, True)
    on_two = mixed(loaded, kernel, PAGE_SIZES[1])
    torch.set_num_threads(1)
    expect_equal(on_two, alone(kernels, name))


def all_of(count: int) -> int:
    return count


def mixed(loaded: LoadedModel, kernel: DecoderKernel, page_size: int) -> list[torch.Tensor]:
    """Run prompts in chunks of all sizes, some of whose logits are wanted, beside sessions of a few rows."""
    rng, runner = Random(page_size), ModelRunner(loaded, KV_TOKENS, page_size, kernel)
    most = cycle((MOST_ROWS, max(LENGTHS)))
    return logits_of(runner, texts(), lambda: rng.randint(1, next(most)), lambda count: rng.randint(1, count))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("instructions")
def test_a_branch_has_the_bits_of_what_it_came_from(kernels: Kernels, name: str, page_size: int) -> None:
    expected, (loaded, kernel), text = alone(kernels, name)[0], kernels(name, True), texts()[0]
    rng = Random(3)
    for place in (15, 16, 17, 37, 40, 63):
        runner = ModelRunner(loaded, 4096, page_size, kernel)
        trunk = runner.pool.open(text[:place], len(text))
        runner.pool.extend(trunk, place)
        runner.forward([Rows(trunk, place, 0)])
        # Both write to what they share: who writes first gets a copy.
        one, other = (trunk, runner.pool.fork(trunk))[:: rng.choice((1, -1))]
        for sequence, tokens in ((one, text[place : place + 5]), (other, [7] * 5)):
            sequence.token_ids += tokens
            runner.pool.extend(sequence, len(sequence))
        rows = runner.forward([Rows(one, 5, 5), Rows(other, 5, 5)])
        assert torch.equal(rows[0], expected[place : place + 5])
        assert not torch.equal(rows[0], rows[1])
