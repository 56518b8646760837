"""The benchmark of draft sources: what may be asked, and one small run of it through real services."""

import json
from pathlib import Path

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate_lab.bench.prompt_sets import SETS, prompt_set
from specgate_lab.bench.sources import SourceOptions
from tests.support.orchestrating import Cli
from tests.support.services import PAIR


def test_layer_skip_needs_its_blocks() -> None:
    with pytest.raises(InvalidArgument, match="source_skip: is needed"):
        SourceOptions("layer-skip")


def test_a_model_that_was_never_taught_to_answer_gets_a_copy_that_is_begun() -> None:
    tokenizer = TextTokenizer.load(str(PAIR / "target"))
    assert tokenizer is not None
    request = GenerationRequest((), max_tokens=8)
    sets = {name: prompt_set(name, request, tokenizer) for name in SETS}
    assert all(len(prompts) == 4 for prompts in sets.values())
    assert all(prompt.text for prompts in sets.values() for prompt in prompts)
    assert max(len(tokenizer.encode(prompt.text or "")) for prompts in sets.values() for prompt in prompts) < 512


def test_a_small_run_of_it(orchestrator: Cli, tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    flags = ("--sources", "suffix,model", "--sets", "copy", "--repeats", "1", "--max-tokens", "24")
    code, shown, told = orchestrator("bench", *flags, "--json", str(file))
    assert code == 0, told
    assert "prompt set: copy" in shown
    rows = {row["name"]: row for row in json.loads(file.read_text())["prompt_sets"]["copy"]["rows"]}
    assert [*rows] == ["target-hf", "hf-prompt-lookup", "hf-assisted", "target", "model+auto", "suffix+auto"]
    agreement = json.loads(file.read_text())["prompt_sets"]["copy"]["agreement"]
    assert agreement["equal"] == agreement["total"] == 4


def test_it_goes_with_no_other_kind_of_measurement(orchestrator: Cli) -> None:
    code, _, told = orchestrator("bench", "--sources", "suffix", "--added-delay-ms", "1")
    assert code == 2
    assert "sources: go with no other kind of measurement" in told
