"""The benchmark of draft sources: what may be asked, and one small run of it through real services."""

import json
from pathlib import Path

import pytest

from specgate.errors import InvalidArgument
from specgate_lab.bench.sources import SourceOptions
from specgate_lab.workload import BENCH_PROMPTS
from tests.support.orchestrating import Cli


def test_layer_skip_needs_its_blocks() -> None:
    with pytest.raises(InvalidArgument, match="source_skip: is needed"):
        SourceOptions("layer-skip")


def test_a_small_run_of_it(orchestrator: Cli, tmp_path: Path) -> None:
    file, prompts = tmp_path / "told.json", tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in BENCH_PROMPTS[:2]), "utf-8")
    flags = ("--sources", "suffix,model", "--prompts", str(prompts), "--repeats", "1", "--max-tokens", "24")
    code, _, told = orchestrator("bench", *flags, "--json", str(file))
    assert code == 0, told
    result = json.loads(file.read_text())
    names = [row["name"] for row in result["rows"]]
    assert names == ["target-hf", "hf-prompt-lookup", "hf-assisted", "target", "model+auto", "suffix+auto"]
    assert result["agreement"]["equal"] == result["agreement"]["total"] == 2


def test_it_goes_with_no_other_kind_of_measurement(orchestrator: Cli) -> None:
    code, _, told = orchestrator("bench", "--sources", "suffix", "--added-delay-ms", "1")
    assert code == 2
    assert "sources: go with no other kind of measurement" in told
