"""Both services with GGUF files: the text is that of the file's numbers, with drafts as without."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gguf_files import write_gguf
from tests.support.orchestrating import Cli
from tests.support.services import HELD_OUT_PROMPTS, PAIR, running
from tests.support.stored_services import Served, expect_text_of_the_numbers, greedy_texts

KINDS = ("Q8_0", "Q4_1")


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gguf")
    draft, target = folder / "draft.gguf", folder / "target.gguf"
    write_gguf(draft, PAIR / "draft", request.param)
    greedy = greedy_texts(write_gguf(target, PAIR / "target", request.param))
    with running("drafter", draft) as drafter, running("verifier", target) as verifier:
        yield Served(drafter, verifier, target, greedy)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_is_that_of_the_files_numbers(served: Served, temperature: float) -> None:
    await expect_text_of_the_numbers(served, temperature)


def test_a_tokenizer_that_is_not_read_is_given(orchestrator: Cli, tmp_path: Path) -> None:
    """By a flag that both services and the command take."""
    for role in ("target", "draft"):
        write_gguf(tmp_path / f"{role}.gguf", PAIR / role, "Q8_0", **{"tokenizer.ggml.pre": "tekken"})
    files = ["--target", str(tmp_path / "target.gguf"), "--draft", str(tmp_path / "draft.gguf")]
    asked = ("generate", HELD_OUT_PROMPTS[0], "--max-tokens", "8", "--json", *files)
    code, told, _ = orchestrator(*asked, "--tokenizer", str(PAIR / "target"))
    assert code == 0
    assert len(json.loads(told)["token_ids"]) == 8
    code, told, _ = orchestrator("doctor", *files, "--tokenizer", str(PAIR / "target"))
    assert (code, "both have the same one" in told) == (0, True)
    code, _, told = orchestrator("generate", "x", "--tokenizer", str(PAIR / "target"))
    assert code == 2
    assert "is for GGUF files; neither model is one" in told
