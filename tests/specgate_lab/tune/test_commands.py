"""The commands through real services: what they print, write and refuse."""

import json
from pathlib import Path

import pytest

from orchestrator.api.settings.settings import load_settings
from tests.support.orchestrating import Cli
from tests.support.services import PAIR

TARGET = str(PAIR / "target")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text('{"prompt": "def main():"}\n{"prompt": "import os"}\n')
    return file


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
    size = ("--layers", "1", "--head-tokens", "256", "--rows", "4", "--write-rows", "2", "--row-tokens", "64")
    length = ("--steps", "2", "--step-tokens", "80", "--device", "cpu")
    code, shown, told = orchestrator("train-draft", "--target", TARGET, "--out", str(tmp_path), *size, *length)
    assert code == 0, told
    assert "draft of 1 layers: a token takes" in told
    assert "it agrees with the target at" in shown
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "--prompts: {file} holds no prompt"),
        (
            '{"prompt": "a"}\n' + json.dumps({"token_ids": [5] * 1000}),
            "--prompts: prompt 2 has 1000 tokens, and 64 are",
        ),
    ],
)
def test_prompts_that_cannot_be_used_are_one_line(orchestrator: Cli, tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    flags = ("--prompts", str(file), "--max-tokens", "64", "--out", str(tmp_path / "out"))
    code, _, told = orchestrator("tune", *flags)
    assert code == 2
    assert told.splitlines()[-1].startswith(f"orchestrator: {words.format(file=file)}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("tune", "--sources", "copy"), "--sources: 'copy' is not one of"),
        (("tune", "--sources", "layer-skip"), "--source-skip: is needed for the source layer-skip"),
        (("tune", "--method", "suffix"), "--method: is what is to be found out"),
        (("train-draft", "--target", TARGET, "--out", "/proc/draft"), "--out: /proc/draft cannot be made"),
        (("train-draft", "--target", "/nowhere", "--out", "x"), "--target: there is no folder '/nowhere'"),
        (("train-draft", "--target", TARGET, "--out", "x", "--layers", "0"), "--layers: 0 is outside"),
    ],
)
def test_bad_flags_are_one_line(orchestrator: Cli, command: tuple[str, ...], words: str) -> None:
    code, _, told = orchestrator(*command)
    assert code == 2
    assert told.startswith(f"orchestrator: {words}")
