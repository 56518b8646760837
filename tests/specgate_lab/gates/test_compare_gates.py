"""``orchestrator compare-gates``: its flags, its drafts, and one small run of all of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate_lab.gate_choice import AUTO, TARGET_ALONE, GateChoice
from specgate_lab.gates.cases import Case, DraftKind
from specgate_lab.gates.drafters import shuffle_weights
from specgate_lab.gates.options import GateOptions
from specgate_lab.replay.trace import read_trace
from tests.support.models import TOKENIZER_SIZE, Mix, write_llama
from tests.support.orchestrating import Cli


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", TOKENIZER_SIZE, seed=1, tokenizer=True)
    write_llama(folder / "draft", TOKENIZER_SIZE, seed=2, mix=Mix(1, 0.97), tokenizer=True)
    return folder


def test_cases_are_all_combinations() -> None:
    assert len(GateOptions().cases) == 2 * 3 * 2
    few = GateOptions(
        drafts="random", temperatures="0", concurrency="1,16", gammas="", thresholds="", draft_thresholds=""
    )
    assert few.cases == [Case(DraftKind.RANDOM, 0.0, 1), Case(DraftKind.RANDOM, 0.0, 16)]
    assert [str(choice) for choice in few.choices] == ["target alone", AUTO]
    ranked = [GateChoice(Gate.NONE, 3), TARGET_ALONE, GateChoice(Gate.NONE, 5), GateChoice(Gate.NONE, 1)]
    best = GateOptions(best=2, traces=8, out=Path("gates")).choices_of(ranked)
    assert [str(choice) for choice in best] == ["target alone", "none γ 3", "none γ 5", AUTO]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"drafts": "good,best"}, "drafts: 'best' is not one of good, random"),
        ({"drafts": ""}, "drafts: '' is not one of good"),
        ({"concurrency": ""}, "temperatures: no case is left"),
        ({"temperatures": "hot"}, "temperatures: 'hot' is no list"),
        ({"concurrency": "0"}, "concurrency: 0 is outside"),
        ({"gammas": "0"}, "gammas: 0 is outside"),
        ({"thresholds": "2"}, "thresholds: 2.0 is outside"),
        ({"draft_thresholds": "2"}, "draft_thresholds: 2.0 is outside"),
        ({"gated_gammas": "65"}, "gated_gammas: 65 is outside"),
        ({"blocks": 0}, "blocks: 0 is outside"),
        ({"traces": 2}, "traces: 2 are recorded into the folder"),
        ({"traces": 2, "out": Path("gates"), "best": 3}, "traces: 2 are too few to replay 8 clients"),
        ({"warm_up": -1}, "warm_up: -1 is outside"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        GateOptions(**values)


def test_a_random_draft_has_the_same_numbers_elsewhere(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no folder with safetensors"):
        shuffle_weights(tmp_path, tmp_path)
    shuffle_weights(pair / "draft", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in (pair / "draft").iterdir()}
    before, after = (load_file(folder / "model.safetensors") for folder in (pair / "draft", tmp_path))
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert np.array_equal(np.sort(values, None), np.sort(after[name], None))
        assert np.array_equal(values, after[name]) == (values.ndim < 2)


@pytest.mark.timeout(300)
def test_a_small_comparison(orchestrator: Cli, pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = [
        "--drafts", "good,random", "--temperatures", "1", "--concurrency", "2", "--gammas", "2", "--thresholds", "",
        "--draft-thresholds", "0.5", "--gated-gammas", "3", "--blocks", "1", "--warm-up", "1", "--max-tokens", "6",
        "--traces", "2",
    ]  # fmt: skip
    flags += ["--out", str(out), "--verification", "rejection"]
    models = ["--target", str(pair / "target"), "--draft", str(pair / "draft")]
    code, shown, told_beside = orchestrator("compare-gates", *flags, *models)
    assert code == 0, told_beside
    told = json.loads((out / "gates.json").read_text())["cases"]
    assert [(one["draft"], one["verification"]) for one in told] == [(kind, "rejection") for kind in DraftKind]
    for one in told:
        assert {name: len(blocks) for name, blocks in one["blocks"].items()} == {
            "target alone": 1, "none γ 2": 1, "draft_confidence 0.5 γ 3": 1, AUTO: 1,
        }  # fmt: skip
        assert all(3 * 6 <= block["tokens"] <= 4 * 6 for blocks in one["blocks"].values() for block in blocks)
    tables = [(out / name).read_text() for name in ("replays.md", "gates.md")]
    assert shown.endswith("".join(tables))
    assert [table.count("\n") for table in tables] == [2 + len(told)] * 2
    traces = {path.name: read_trace(path) for path in out.glob("trace-*.jsonl")}
    assert set(traces) == {f"trace-{kind}-draft-temperature-1-rejection.jsonl" for kind in DraftKind}
    assert all([len(text) for text in one.texts] == [6, 6] and one.knows_draft for one in traces.values())
    assert all(one.machine.forward_us > one.machine.row_us >= 0 < one.machine.draft_us for one in traces.values())
    pytest.importorskip("matplotlib")
    assert (out / "rates.png").read_bytes()[:4] == b"\x89PNG"
