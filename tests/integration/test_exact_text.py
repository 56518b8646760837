"""The text is the target's own: token for token, over real gRPC between real processes, in float32."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.runtime.translation import translation
from specgate.tokenizer import load_tokenizer
from specgate.types import SamplingParams, Verification
from tests.support import guessing_drafter
from tests.support.letters import write_byte_model, write_permuted
from tests.support.orchestrating import Widths, connected, expect_texts, num_prepared, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, of_short_context, running

FULL = pytest.param(50, 128, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
SIZES = [pytest.param(6, 48, id="quick"), FULL]
PLANS = [(gamma, gate) for gamma in (1, 4, 8) for gate in (Gate.NONE, Gate.TARGET_CONFIDENCE, Gate.AUTO)]
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def drafter() -> Iterator[Service]:
    """One that guesses for all who run at a time; the default is few enough for two of them."""
    with running("drafter", PAIR / "draft", "--run-ahead", "16", module=guessing_drafter.MODULE) as service:
        yield service


def prompts(count: int) -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    return [tuple(tokenizer.encode(text)) for text in HELD_OUT_PROMPTS[:count]]


def transformers_greedy(prompt_ids: list[tuple[int, ...]], max_tokens: int) -> list[tuple[int, ...]]:
    model: Any = AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    outputs = []
    for ids in prompt_ids:
        batch = torch.tensor([ids])
        out = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=max_tokens)
        outputs.append(tuple(out[0, len(ids) :].tolist()))
    return outputs


@pytest.mark.parametrize(("num_prompts", "max_tokens"), SIZES)
async def test_greedy_is_what_transformers_generates(
    drafter: Service, verifier: Service, num_prompts: int, max_tokens: int
) -> None:
    prompt_ids = prompts(num_prompts)
    expected = transformers_greedy(prompt_ids, max_tokens)
    for gamma, gate in PLANS:
        requests = [GenerationRequest(ids, GREEDY, max_tokens, gamma=gamma, gate=gate) for ids in prompt_ids]
        # One that has learned nothing yet drafts, however slow this machine's drafts are.
        async with connected([drafter], [verifier]) as orchestrator:
            generations = await run_all(orchestrator, requests)
        expect_texts(f"gamma {gamma} gate {gate}", generations, expected, most_excused=num_prompts // 20)
        assert sum(g.stats.accepted for g in generations) > 0


SAMPLINGS = {
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "top-k 20": SamplingParams(temperature=1.0, top_k=20),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.5, min_p=0.05),
    "greedy, by rejection": GREEDY,
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_the_text_depends_on_seed_prompt_and_target_alone(
    drafter: Service, verifier: Service, sampling: str
) -> None:
    verification = Verification.REJECTION if "rejection" in sampling else Verification.SHARED_NOISE
    alone = [
        GenerationRequest(ids, SAMPLINGS[sampling], max_tokens=32, seed=seed, gamma=0, verification=verification)
        for seed, ids in enumerate(prompts(4), start=1000)
    ]
    async with connected([drafter], [verifier]) as orchestrator:
        expected = [g.token_ids for g in await run_all(orchestrator, alone)]
        for gamma, gate in ((1, Gate.NONE), (4, Gate.AUTO), (4, Gate.DRAFT_CONFIDENCE), (8, Gate.TARGET_CONFIDENCE)):
            generations = await run_all(orchestrator, [replace(one, gamma=gamma, gate=gate) for one in alone])
            expect_texts(f"gamma {gamma} gate {gate}", generations, expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_text_longer_than_the_drafter_holds(
    verifier: Service, slow_verifier: Service, temperature: float, tmp_path: Path
) -> None:
    alone = [
        GenerationRequest(ids, SamplingParams(temperature=temperature), 160, seed=5, gamma=0, ignore_eos=True)
        for ids in prompts(2)
    ]
    with running("drafter", of_short_context(tmp_path), "--run-ahead", "16", module=guessing_drafter.MODULE) as drafter:
        async with connected([], [verifier]) as orchestrator:
            expected = [g.token_ids for g in await run_all(orchestrator, alone, concurrency=1)]
        async with connected([drafter], [slow_verifier]) as orchestrator:
            drafted = [replace(one, gamma=4, gate=Gate.NONE) for one in alone]
            generations = await run_all(orchestrator, drafted, concurrency=1)
    expect_texts("a short context", generations, expected)
    for generation in generations:
        assert generation.stats.drafter_failures == 0
        # (The prompts alone are longer.)
        assert generation.stats.accepted > 10
    assert num_prepared(generations) > 0


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    """Drafters with vocabularies of their own: one with the target's tokens, and one with hardly any of them."""
    folder = tmp_path_factory.mktemp("others")
    flags = ("--target-tokenizer", str(PAIR / "target"))
    own, theirs = (load_tokenizer(str(one)) for one in (write_byte_model(folder / "bytes"), PAIR / "target"))
    assert own is not None
    assert theirs is not None
    assert translation(own, theirs, 256) is None
    with (
        running(
            "drafter",
            write_permuted(folder / "permuted", PAIR / "draft"),
            *flags,
            "--run-ahead",
            "16",
            module=guessing_drafter.MODULE,
        ) as permuted,
        running("drafter", folder / "bytes", *flags) as of_bytes,
    ):
        yield {"permuted": permuted, "bytes": of_bytes}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", ["permuted", "bytes"])
async def test_a_draft_with_another_tokenizer(
    others: dict[str, Service],
    drafter: Service,
    verifier: Service,
    slow_verifier: Service,
    draft: str,
    temperature: float,
) -> None:
    sampling = SamplingParams(temperature=temperature, frequency_penalty=0.1)
    alone = [GenerationRequest(ids, sampling, 48, seed=seed, gamma=0) for seed, ids in enumerate(prompts(6))]
    async with connected([others[draft]], [verifier]) as orchestrator:
        expected = [g.token_ids for g in await run_all(orchestrator, alone)]
        drafted = [replace(one, gamma=4, gate=Gate.NONE) for one in alone]
        generations = await run_all(orchestrator, drafted)
        expect_texts(draft, generations, expected)
        for gate in (Gate.AUTO, Gate.DRAFT_CONFIDENCE, Gate.TARGET_CONFIDENCE):
            gated = await run_all(orchestrator, [replace(one, gamma=4, gate=gate) for one in alone])
            expect_texts(f"{draft}, {gate}", gated, expected)
    assert all(one.stats.drafted > 0 and one.stats.drafter_failures == 0 for one in generations)
    if draft == "permuted":
        # It says what the bundled draft says, and ahead of time where there is time.
        async with connected([drafter], [verifier]) as orchestrator:
            own = await run_all(orchestrator, drafted)
        assert [one.stats.accepted for one in generations] == [one.stats.accepted for one in own]
        async with connected([others[draft]], [slow_verifier]) as orchestrator:
            ahead = await run_all(orchestrator, drafted, concurrency=1)
        expect_texts("ahead", ahead, expected)
        assert num_prepared(ahead) > 0


@pytest.fixture(scope="module")
def widened() -> Iterator[Service]:
    """A verifier whose weights, in bfloat16 in their file, become float32 numbers in memory."""
    with running("verifier", PAIR / "target", "--dtype", "float32") as service:
        yield service


@pytest.mark.parametrize(
    ("num_prompts", "max_tokens"),
    [
        pytest.param(4, 48, id="quick"),
        pytest.param(50, 128, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
async def test_a_text_is_the_same_to_the_bit_whoever_shares_its_forwards(
    drafter: Service, verifier: Service, widened: Service, num_prompts: int, max_tokens: int
) -> None:
    """(Near ties are no excuse here: 200 texts, each alone and among eight, with drafts and without.)"""
    ids = prompts(num_prompts)
    alone = [GenerationRequest(one, GREEDY, max_tokens, gamma=0, ignore_eos=True) for one in ids]
    noisy = SamplingParams(temperature=1.0)
    alone += [replace(one, sampling=noisy, seed=seed) for seed in (1, 2, 3) for one in alone]
    drafted = [replace(one, gamma=3, gate=Gate.NONE) for one in alone]
    plans = {"alone": alone, "gamma 3": drafted, "auto": [replace(one, gamma=None, gate=Gate.AUTO) for one in alone]}
    expected: list[tuple[int, ...]] = []
    for service in (verifier, widened):
        async with connected([drafter], [service]) as orchestrator:
            assert orchestrator.target_info.batch_invariant
            expected = expected or [one.token_ids for one in await run_all(orchestrator, alone, concurrency=1)]
            for name, requests in plans.items():
                widths = Widths()
                generations = await run_all(orchestrator, requests, concurrency=8, on_record=[widths.on_record])
                expect_texts(name, generations, expected)
                assert max(widths) > 4
                # (``auto`` may leave it to the target.)
                assert name != "gamma 3" or sum(one.stats.accepted for one in generations) > 0
