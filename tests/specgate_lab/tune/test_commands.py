"""The commands through real services: what they print, write and refuse."""

import json
from pathlib import Path

import pytest

from orchestrator.api.settings.settings import load_settings
from orchestrator.decode.text import TextTokenizer
from specgate.runtime.layer_skip import LayerSkip
from specgate.runtime.layer_trials import Text, ranks
from specgate.types import SamplingParams
from specgate_lab.tune.layers.study import open_study
from tests.support.models import load_float32, write_llama, write_model, write_tokenizer
from tests.support.orchestrating import Cli
from tests.support.services import PAIR

TARGET = str(PAIR / "target")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text('{"prompt": "def main():"}\n{"prompt": "import os"}\n')
    return file


def test_a_search_of_layers_resumes(orchestrator: Cli, prompts: Path, tmp_path: Path) -> None:
    target = write_tokenizer(write_llama(tmp_path / "target", vocab_size=300, layers=3))
    flags = ("--target", str(target), "--prompts", str(prompts), "--max-tokens", "8", "--ignore-eos", "--repeats", "1")
    command = ("tune", "layers", *flags, "--out", str(tmp_path / "out"))
    code, shown, told = orchestrator(*command, "--trials", "1")
    assert code == 0, told
    assert "As many blocks at random, 8 sets" in shown
    first = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(first["tried"]) == 1
    skip = json.loads((tmp_path / "out" / "skip.json").read_text())
    assert skip["measured"]["dtype"] == "float32"
    assert (tmp_path / "out" / "search.png").stat().st_size > 1000
    code, _, told = orchestrator(*command, "--trials", "2")
    assert code == 0, told
    # The measurements of the first search are not made again.
    assert "target writes" not in told
    second = json.loads((tmp_path / "out" / "result.json").read_text())
    assert second["tried"][:1] == first["tried"]
    assert len(second["tried"]) == 2


def test_a_search_leaves_out_whole_layers_where_an_mlp_is_no_block(orchestrator: Cli, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", "opt", layers=3)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"token_ids": [5, 6, 7], "temperature": 1.0, "seed": 5}\n{"token_ids": [8]}\n')
    flags = ("--target", str(target), "--prompts", str(prompts), "--max-tokens", "8", "--trials", "1", "--repeats", "1")
    code, shown, told = orchestrator("tune", "layers", *flags, "--out", str(tmp_path / "out"))
    assert code == 0, told
    skip = json.loads((tmp_path / "out" / "skip.json").read_text())
    assert skip["attention"] == skip["mlp"]
    assert "of 3 blocks" in shown


@pytest.mark.parametrize(
    "law",
    [
        SamplingParams(temperature=0.7, top_k=20, top_p=0.9),
        SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    ],
    ids=["filters", "penalties"],
)
def test_a_search_would_let_the_whole_target_draft_all_of_its_text(orchestrator: Cli, law: SamplingParams) -> None:
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    flags = [part for name in names for part in (f"--{name.replace('_', '-')}", str(getattr(law, name)))]
    prompt = "def main():"
    code, shown, told = orchestrator("generate", prompt, *flags, "--gamma", "0", "--seed", "7", "--json")
    assert code == 0, told
    tokenizer = TextTokenizer.load(TARGET)
    assert tokenizer is not None
    text = Text(tokenizer.encode(prompt), json.loads(shown)["token_ids"], 7, law)
    found = ranks(load_float32(Path(TARGET)), LayerSkip(frozenset(), frozenset()), text)
    # One place may be a near tie.
    assert sum(rank > 0 for rank in found) <= 1
    assert len(found) > 20


def test_a_pair_is_tuned_and_its_configuration_can_be_served(orchestrator: Cli, prompts: Path, tmp_path: Path) -> None:
    flags = ("--prompts", str(prompts), "--max-tokens", "12", "--ignore-eos", "--repeats", "1", "--sources", "suffix")
    code, shown, told = orchestrator("tune", *flags, "--out", str(tmp_path))
    assert code == 0, told
    advice = json.loads((tmp_path / "advice.json").read_text())
    assert {one["gate"] for one in advice["tried"]} == {"auto", "none"}
    assert advice["advice"][0] in shown.replace("\n", " ")
    assert (tmp_path / "advice.png").stat().st_size > 1000
    settings = load_settings(tmp_path / "serve.yaml")
    assert (settings.drafter is None) == (advice["choice"] is None)


def test_a_file_that_cannot_be_written_at_the_end_loses_no_advice(
    orchestrator: Cli, prompts: Path, tmp_path: Path
) -> None:
    (tmp_path / "out" / "advice.json").mkdir(parents=True)
    flags = ("--prompts", str(prompts), "--max-tokens", "8", "--repeats", "1", "--sources", "suffix")
    code, shown, told = orchestrator("tune", *flags, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "Serve the target alone." in shown
    assert told.splitlines()[-1].startswith("orchestrator: --out: ")


def test_a_draft_is_trained(orchestrator: Cli, tmp_path: Path) -> None:
    size = ("--layers", "1", "--hidden-size", "64", "--rows", "4", "--write-rows", "2", "--row-tokens", "40")
    length = ("--steps", "2", "--step-tokens", "80", "--device", "cpu")
    code, shown, told = orchestrator("train-draft", "--target", TARGET, "--out", str(tmp_path), *size, *length)
    assert code == 0, told
    assert "its likeliest token is the target's at" in shown
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("command", "lines", "words"),
    [
        (("tune",), "", "--prompts: {file} holds no prompt"),
        *(
            (
                command,
                '{"prompt": "a"}\n' + json.dumps({"token_ids": [5] * 1000}),
                "--prompts: prompt 2 has 1000 tokens, and 64 are",
            )
            for command in (("tune",), ("tune", "layers"))
        ),
    ],
)
def test_prompts_that_cannot_be_used_are_one_line(
    orchestrator: Cli, tmp_path: Path, command: tuple[str, ...], lines: str, words: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    flags = ("--prompts", str(file), "--max-tokens", "64", "--out", str(tmp_path / "out"))
    code, _, told = orchestrator(*command, *flags)
    assert code == 2
    assert told.splitlines()[-1].startswith(f"orchestrator: {words.format(file=file)}")


def test_a_target_of_one_layer_has_nothing_to_leave_out(orchestrator: Cli, prompts: Path, tmp_path: Path) -> None:
    target = write_tokenizer(write_llama(tmp_path / "target", vocab_size=300, layers=1))
    flags = ("--target", str(target), "--prompts", str(prompts), "--out", str(tmp_path / "out"))
    code, _, told = orchestrator("tune", "layers", *flags)
    assert code == 2
    assert told.splitlines()[-1] == "orchestrator: --target: has 1 layer; 2 are needed to leave one out"


def test_a_study_of_another_model_is_one_line(orchestrator: Cli, prompts: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.json"
    with open_study(study, {"model": "of another one"}, 0):
        pass
    flags = ("--prompts", str(prompts), "--out", str(tmp_path))
    code, _, told = orchestrator("tune", "layers", *flags)
    assert code == 2
    assert f"orchestrator: --out: {study} is a study with another model" in told


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("tune", "layers", "--trials", "0"), "--trials: 0 is outside"),
        (("tune", "layers", "--draft", "some/draft"), "--draft: 'some/draft' is not for a search"),
        (("tune", "--target", "mine", "layers"), "--target: goes behind `layers`"),
        (("tune", "--sources", "copy"), "--sources: 'copy' is not one of"),
        (("tune", "--sources", "layer-skip"), "--source-skip: is needed for the source layer-skip"),
        (("tune", "--method", "suffix"), "--method: is what is to be found out"),
        (("train-draft", "--target", TARGET, "--out", "/proc/draft"), "--out: /proc/draft cannot be made"),
        (("train-draft", "--target", "/nowhere", "--out", "x"), "--target: there is no folder '/nowhere'"),
        (("train-draft", "--target", TARGET, "--out", "x", "--hidden-size", "5"), "--hidden-size: 5 is no multiple"),
    ],
)
def test_bad_flags_are_one_line(orchestrator: Cli, command: tuple[str, ...], words: str) -> None:
    code, _, told = orchestrator(*command)
    assert code == 2
    assert told.startswith(f"orchestrator: {words}")
