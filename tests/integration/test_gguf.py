"""Both services with GGUF files: the text is that of the file's numbers, with drafts as without."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams, Verification
from tests.support.gguf_files import write_gguf
from tests.support.orchestrating import Cli, connected, expect_texts, run_all
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running

KINDS = ("Q8_0", "Q4_1")
Served = tuple[Service, Service, Path, list[tuple[int, ...]]]


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Drafter, verifier, the target's file, and what transformers generates of its numbers."""
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "draft.gguf", PAIR / "draft", request.param)
    model = write_gguf(folder / "target.gguf", PAIR / "target", request.param)
    expected = []
    for ids in prompts():
        batch = torch.tensor([ids])
        out = model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=48)
        expected.append(tuple(out[0, len(ids) :].tolist()))
    with (
        running("drafter", folder / "draft.gguf") as drafter,
        running("verifier", folder / "target.gguf") as verifier,
    ):
        yield drafter, verifier, folder / "target.gguf", expected


def prompts() -> list[tuple[int, ...]]:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    return [tuple(tokenizer.encode(text)) for text in HELD_OUT_PROMPTS[:6]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_is_that_of_the_files_numbers(served: Served, temperature: float) -> None:
    drafter, verifier, path, greedy = served
    sampling = SamplingParams(temperature=temperature)
    alone = [GenerationRequest(ids, sampling, 48, seed=seed, gamma=0) for seed, ids in enumerate(prompts())]
    async with connected([drafter], [verifier], tokenizer=path) as orchestrator:
        expected = [one.token_ids for one in await run_all(orchestrator, alone)]
        for gamma, gate in ((4, Gate.NONE), (8, Gate.TARGET_CONFIDENCE), (4, Gate.AUTO)):
            generations = await run_all(orchestrator, [replace(one, gamma=gamma, gate=gate) for one in alone])
            expect_texts(f"gamma {gamma} gate {gate}", generations, expected)
            assert gate is Gate.AUTO or sum(one.stats.accepted for one in generations) > 0
        rejecting = [replace(one, gamma=4, verification=Verification.REJECTION) for one in alone]
        rejected = await run_all(orchestrator, rejecting)
    if temperature == 0.0:
        expect_texts("transformers", rejected, greedy)


def test_a_tokenizer_that_is_not_read_is_given(orchestrator: Cli, tmp_path: Path) -> None:
    """By a flag that both services and the command take."""
    for role in ("target", "draft"):
        write_gguf(tmp_path / f"{role}.gguf", PAIR / role, "Q8_0", **{"tokenizer.ggml.pre": "tekken"})
    files = ["--target", str(tmp_path / "target.gguf"), "--draft", str(tmp_path / "draft.gguf")]
    asked = ("generate", HELD_OUT_PROMPTS[0], "--max-tokens", "8", "--json", *files)
    code, _, told = orchestrator(*asked)
    assert code != 0
    assert "give another with --tokenizer" in told
    code, told, _ = orchestrator(*asked, "--tokenizer", str(PAIR / "target"))
    assert code == 0
    assert len(json.loads(told)["token_ids"]) == 8
    code, told, _ = orchestrator("doctor", *files, "--tokenizer", str(PAIR / "target"))
    assert (code, "both have the same one" in told) == (0, True)
