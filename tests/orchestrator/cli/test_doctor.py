"""The doctor names what is wrong with a pair, and what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from orchestrator.cli import main as cli
from orchestrator.cli.findings import Finding, Status
from orchestrator.cli.machine import Gpu, Machine, check_machine, check_memory
from orchestrator.cli.model_checks import check_architecture, check_pair, check_tokenizer, in_short
from orchestrator.cli.model_facts import ModelFacts, count_parameters
from orchestrator.cli.service_checks import ask_services
from specgate.types import ModelInfo
from tests.support.fake_services import FakeService
from tests.support.fakes import FakeDrafter, FakeVerifier
from tests.support.models import TOKENIZER_SIZE, rewrite_json, write_llama

Examine = Callable[..., tuple[int, dict[str, Finding]]]


@pytest.fixture(scope="module")
def good_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", TOKENIZER_SIZE + 5, layers=6, tokenizer=True, eos_token_id=3)
    write_llama(folder / "draft", TOKENIZER_SIZE, layers=1, hidden=16, tokenizer=True, eos_token_id=3)
    return folder


@pytest.fixture
def pair(good_pair: Path, tmp_path: Path) -> Path:
    """A pair to break."""
    return shutil.copytree(good_pair, tmp_path / "pair")


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Examine:
    """Run the doctor; return its exit code and its worst finding of each kind."""

    def run(pair: Path, *flags: str) -> tuple[int, dict[str, Finding]]:
        models = ["--target", str(pair / "target"), "--draft", str(pair / "draft")]
        code = cli.run(["doctor", *models, "--json", *flags])
        told = json.loads(capsys.readouterr().out)
        findings = [Finding(**{**finding, "status": Status(finding["status"])}) for finding in told["findings"]]
        assert told["healthy"] is (code == 0)
        badness = list(Status).index
        worst = sorted(findings, key=lambda finding: badness(finding.status))
        return code, {f"{finding.subject} {finding.check}": finding for finding in worst}

    return run


def test_a_good_pair(examine: Examine, pair: Path) -> None:
    code, found = examine(pair)
    assert code == 0
    assert {finding.status for finding in found.values() if finding.subject != "machine"} == {Status.OK}
    assert "the 5 rows of padding are never chosen" in found["target tokenizer"].message
    assert "only ids that both have are drafted" in found["pair vocabulary"].message
    assert "ends at token 3" in found["target end"].message


def test_the_report_for_people(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--target", str(pair / "target"), "--draft", str(pair / "nowhere")]
    assert cli.run(["doctor", *models]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "✓ " in shown
    assert "✗ " in shown
    assert "is not a folder on this machine" in shown
    assert "→ give the folder of a model" in shown
    assert "1 problem(s)" in shown


def other_tokenizer(pair: Path) -> None:
    file = pair / "draft" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    file.write_text(json.dumps(tokenizer))


def pickled(pair: Path) -> None:
    (pair / "draft" / "model.safetensors").rename(pair / "draft" / "pytorch_model.bin")


def no_weights(pair: Path) -> None:
    (pair / "draft" / "model.safetensors").unlink()


def code_of_its_own(pair: Path) -> None:
    rewrite_json(pair / "draft" / "config.json", auto_map={"AutoModelForCausalLM": "modeling.Model"})


def unknown_type(pair: Path) -> None:
    rewrite_json(pair / "draft" / "config.json", model_type="zorp")


def broken_config(pair: Path) -> None:
    (pair / "draft" / "config.json").write_text("{")


def no_config(pair: Path) -> None:
    (pair / "draft" / "config.json").unlink()


def broken_tokenizer(pair: Path) -> None:
    (pair / "draft" / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "where", "words", "advice"),
    [
        (other_tokenizer, "pair tokenizer", "merges differs: texts are cut into different tokens", "own family"),
        (pickled, "draft files", "weights are pickled (pytorch_model.bin)", "save_pretrained"),
        (no_weights, "draft files", "holds no weights", "safetensors"),
        (code_of_its_own, "draft architecture", "brings code of its own (auto_map)", "part of transformers"),
        (unknown_type, "draft config", "zorp", "newer transformers"),
        (broken_config, "draft config", "", "newer transformers"),
        (no_config, "draft files", "has no config.json", "point to the folder"),
        (broken_tokenizer, "draft tokenizer", "the tokenizer of", "copy the tokenizer's files"),
    ],
)
def test_what_is_wrong_is_named(
    examine: Examine, pair: Path, spoil: Callable[[Path], None], where: str, words: str, advice: str
) -> None:
    spoil(pair)
    code, found = examine(pair)
    assert code == 1
    assert found[where].status is Status.PROBLEM
    assert words in found[where].message
    assert advice in found[where].advice


def test_a_missing_end_is_a_warning(examine: Examine, pair: Path) -> None:
    (pair / "target" / "generation_config.json").write_text("not json")
    code, found = examine(pair)
    assert code == 0
    assert found["target end"].status is Status.WARNING


def test_a_pair_the_wrong_way_round_is_a_warning(examine: Examine, pair: Path) -> None:
    code, found = examine(pair, "--target", str(pair / "draft"), "--draft", str(pair / "target"))
    assert code == 0
    assert found["pair size"].status is Status.WARNING
    assert "are they swapped?" in found["pair size"].advice


def test_a_missing_device_is_named(examine: Examine, pair: Path) -> None:
    code, found = examine(pair, "--device", "cuda:63")
    assert code == 1
    assert "cuda:63 is not here" in found["machine device"].message


@pytest.mark.parametrize(
    ("model_type", "settings", "words"),
    [
        ("bloom", {}, "cannot be replaced"),
        ("gptj", {}, "cannot be replaced"),
        ("mamba", {}, "cannot be replaced"),
        ("falcon", {"alibi": True}, "position biases"),
        ("gpt_oss", {}, "attention sinks"),
        ("vit", {}, "no causal language model"),
    ],
)
def test_what_paged_attention_does_not_compute_is_refused(
    model_type: str, settings: dict[str, Any], words: str
) -> None:
    findings = list(check_architecture("target", AutoConfig.for_model(model_type, **settings)))
    assert {finding.status for finding in findings} == {Status.PROBLEM}
    assert any(words in finding.message for finding in findings)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt2", "gpt_neox", "opt", "phi3", "gemma2", "gemma3_text"])
def test_what_it_computes_is_let_pass(model_type: str) -> None:
    (finding,) = check_architecture("target", AutoConfig.for_model(model_type))
    assert finding.status is Status.OK


def test_a_tokenizer_that_is_too_large() -> None:
    (finding,) = check_tokenizer(ModelFacts("draft", "m", vocab_rows=10, tokenizer_size=12))
    assert finding.status is Status.PROBLEM
    assert finding.message == "12 tokens, but the model has 10 rows only"


def test_no_tokenizer_is_a_warning() -> None:
    (finding,) = check_tokenizer(ModelFacts("draft", "m", vocab_rows=10))
    assert finding.status is Status.WARNING


def test_a_short_draft_context_is_a_warning() -> None:
    target, draft = ModelFacts("target", "t", context_length=4096), ModelFacts("draft", "d", context_length=512)
    context = next(finding for finding in check_pair(target, draft) if finding.check == "context")
    assert context.status is Status.WARNING
    assert "ends at 512 tokens" in context.message


def test_parameters_are_counted_without_loading(pair: Path) -> None:
    from safetensors import safe_open

    with safe_open(pair / "target" / "model.safetensors", framework="pt") as file:
        expected = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert count_parameters(pair / "target") == expected
    (pair / "target" / "model.safetensors").write_bytes(b"no safetensors")
    assert count_parameters(pair / "target") is None


def test_memory() -> None:
    facts = [ModelFacts("target", "t", num_parameters=1000, kv_numbers_per_token=1)]
    needed = (1000 + 32_768) * 4
    (fits,) = check_memory(Machine(2, needed), facts, "float32", "cpu")
    (tight,) = check_memory(Machine(2, needed - 1), facts, "float32", "cpu")
    (on_gpu,) = check_memory(Machine(2, 1, (Gpu("g", needed),)), facts, "float32", "auto")
    assert (fits.status, tight.status, on_gpu.status) == (Status.OK, Status.PROBLEM, Status.OK)
    assert "--dtype bfloat16" in tight.advice


def test_one_core_and_an_unusable_gpu_are_warnings() -> None:
    cores, device = check_machine(Machine(1, None, has_driver=True), "auto")
    assert (cores.status, device.status) == (Status.WARNING, Status.WARNING)


def test_numbers_for_people() -> None:
    assert [in_short(number) for number in (12, 1200, 8.9e6, 7e9)] == ["12", "1.2 k", "8.9 M", "7.0 G"]


async def test_running_services_are_asked() -> None:
    verifier = FakeService("verifier", FakeVerifier)
    other = FakeService("verifier", FakeVerifier, model="another")
    await verifier.start()
    await other.start()
    try:
        endpoints = (verifier.endpoint, other.endpoint, "127.0.0.1:1")
        findings, facts = await ask_services("target", "verifier", endpoints, None)
        wrong_role, _ = await ask_services("draft", "drafter", (verifier.endpoint,), None)
    finally:
        await verifier.stop()
        await other.stop()
    assert [finding.status for finding in findings] == [Status.OK, Status.OK, Status.PROBLEM, Status.WARNING]
    assert "is it running" in findings[2].advice
    assert "a pool holds one model" in findings[3].advice
    assert facts is not None
    assert facts.name == f"fake-verifier at {verifier.endpoint}"
    assert "is not a drafter" in wrong_role[0].message


async def test_a_service_that_does_not_serve_is_a_problem() -> None:
    drafter = FakeService("drafter", FakeDrafter)
    await drafter.start()
    try:
        await drafter.server.set_ready(lambda: 1e9)
        findings, _ = await ask_services("draft", "drafter", (drafter.endpoint,), None)
    finally:
        await drafter.stop()
    assert findings[0].status is Status.PROBLEM
    assert "NOT SERVING" in findings[0].message


def test_services_and_files_can_be_compared() -> None:
    info = ModelInfo("m", "drafter", "A", "float32", "cpu", 9, 5, 7, {"vocabulary": "x"}, (), 1, 1, "v", "b")
    target = ModelFacts("target", "t", tokenizer_fingerprint={"vocabulary": "y"})
    findings = {finding.check: finding for finding in check_pair(target, ModelFacts.of_service("draft", "h:1", info))}
    assert findings["tokenizer"].status is Status.PROBLEM
