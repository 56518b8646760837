"""The doctor names what is wrong with a pair, and what to do."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from orchestrator.cli.findings import Finding, Status
from orchestrator.cli.machine import Gpu, Machine, check_library, check_machine, check_memory, look_around
from orchestrator.cli.model_checks import check_architecture, check_pair, check_tokenizer
from orchestrator.cli.model_facts import ModelFacts, count_parameters
from orchestrator.cli.service_checks import ask_services
from specgate import cpu_library, memory
from specgate.cpu_library import VARIABLE
from tests.support.fake_services import model_info, serving
from tests.support.models import TOKENIZER_SIZE, rewrite_json, write_llama
from tests.support.orchestrating import Cli

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
def examine(orchestrator: Cli) -> Examine:
    """Run the doctor; return its exit code and its worst finding of each kind."""

    def run(pair: Path, *flags: str) -> tuple[int, dict[str, Finding]]:
        models = ["--target", str(pair / "target"), "--draft", str(pair / "draft")]
        code, shown, _ = orchestrator("doctor", *models, "--json", *flags)
        told = json.loads(shown)
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


def test_the_report_for_people(pair: Path, orchestrator: Cli) -> None:
    code, shown, _ = orchestrator("doctor", "--target", str(pair / "target"), "--draft", str(pair / "nowhere"))
    assert code == 1
    shown = " ".join(shown.split())
    for part in ("✓ ", "✗ ", "is not a folder on this machine", "→ give the folder of a model", "1 problem(s)"):
        assert part in shown
    assert re.search(r"machine C library (computes on the CPU, with|torch computes, more slowly: )", shown)


CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"


@pytest.mark.parametrize(
    ("file", "spoilt", "where", "words", "advice"),
    [
        (TOKENIZER, {"normalizer": {"type": "Lowercase"}}, "pair tokenizer", "normalizer differs", "own family"),
        (TOKENIZER, "{", "draft tokenizer", "the tokenizer of", "copy the tokenizer's files"),
        ("pytorch_model.bin", "", "draft files", "weights are pickled (pytorch_model.bin)", "save_pretrained"),
        (WEIGHTS, None, "draft files", "holds no weights", "safetensors"),
        (CONFIG, {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}, "draft architecture", "auto_map", "part of"),
        (CONFIG, {"model_type": "zorp"}, "draft config", "zorp", "newer transformers"),
        (CONFIG, "{", "draft config", "", "newer transformers"),
        (CONFIG, None, "draft files", "has no config.json", "point to the folder"),
    ],
)
def test_what_is_wrong_is_named(
    examine: Examine, pair: Path, file: str, spoilt: dict[str, Any] | str | None, where: str, words: str, advice: str
) -> None:
    """``spoilt`` is what the draft's file then holds: other values, a text, or None where it is missing."""
    path = pair / "draft" / file
    if isinstance(spoilt, dict):
        rewrite_json(path, **spoilt)
    elif spoilt is None:
        path.unlink()
    else:
        path.write_text(spoilt)
    if path.suffix == ".bin":
        path.with_name(WEIGHTS).unlink()
    code, found = examine(pair, "--same-tokenizer")
    assert code == 1
    assert found[where].status is Status.PROBLEM
    assert words in found[where].message
    assert advice in found[where].advice


def test_another_tokenizer_is_translated(examine: Examine, pair: Path) -> None:
    rewrite_json(pair / "draft" / TOKENIZER, normalizer={"type": "Lowercase"})
    code, found = examine(pair)
    assert (code, found["pair tokenizer"].status) == (0, Status.WARNING)
    assert "drafts are translated" in found["pair tokenizer"].message


def test_what_may_be_meant_so_is_a_warning(examine: Examine, pair: Path) -> None:
    (pair / "target" / "generation_config.json").write_text("not json")
    code, found = examine(pair, "--target", str(pair / "draft"), "--draft", str(pair / "target"))
    assert code == 0
    assert "are they swapped?" in found["pair size"].advice
    code, no_end = examine(pair)
    assert code == 0
    assert (found["pair size"].status, no_end["target end"].status) == (Status.WARNING, Status.WARNING)


def test_a_missing_device_is_named(examine: Examine, pair: Path) -> None:
    code, found = examine(pair, "--device", "cuda:63")
    assert code == 1
    assert "cuda:63 is missing" in found["machine device"].message


@pytest.mark.parametrize(
    ("model_type", "settings", "words"),
    [
        ("bloom", {}, "cannot be replaced"),
        ("mamba", {}, "cannot be replaced"),
        ("falcon", {"alibi": True}, "position biases"),
        ("gpt_oss", {}, "attention sinks"),
        ("vit", {}, "no causal language model"),
        *(
            (model_type, {}, None)
            for model_type in ("llama", "qwen3", "gpt2", "gpt_neox", "opt", "phi3", "gemma3_text")
        ),
    ],
)
def test_what_paged_attention_does_not_compute_is_refused(
    model_type: str, settings: dict[str, Any], words: str | None
) -> None:
    findings = list(check_architecture("target", AutoConfig.for_model(model_type, **settings)))
    assert {finding.status for finding in findings} == {Status.OK if words is None else Status.PROBLEM}
    assert words is None or any(words in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("tokenizer_size", "status", "told"),
    [(12, Status.PROBLEM, "12 tokens, but the model has 10 rows only"), (None, Status.WARNING, "there is none")],
)
def test_a_tokenizer_that_does_not_fit(tokenizer_size: int | None, status: Status, told: str) -> None:
    (finding,) = check_tokenizer(ModelFacts("draft", vocab_rows=10, tokenizer_size=tokenizer_size))
    assert (finding.status, finding.message) == (status, told)


def test_parameters_are_counted_without_loading(pair: Path) -> None:
    from safetensors import safe_open

    with safe_open(pair / "target" / "model.safetensors", framework="pt") as file:
        expected = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert count_parameters(pair / "target") == expected
    (pair / "target" / "model.safetensors").write_bytes(b"no safetensors")
    assert count_parameters(pair / "target") is None


def test_memory() -> None:
    facts = [ModelFacts("target", num_parameters=1000, kv_numbers_per_token=1)]
    needed = (1000 + 32_768) * 4
    (fits,) = check_memory(Machine(2, needed), facts, "float32", "cpu")
    (tight,) = check_memory(Machine(2, needed - 1), facts, "float32", "cpu")
    (on_gpu,) = check_memory(Machine(2, 1, (Gpu("g", needed),)), facts, "float32", "auto")
    assert (fits.status, tight.status, on_gpu.status) == (Status.OK, Status.PROBLEM, Status.OK)
    assert "fewer --kv-tokens" in tight.advice


def test_in_a_container_its_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"limit": "4000", "usage": "1000", "stat": "inactive_file 500"}.items():
        (tmp_path / name).write_text(text, "ascii")
    cgroup = memory.Cgroup(tmp_path / "limit", tmp_path / "usage", tmp_path / "stat", "inactive_file")
    monkeypatch.setattr(memory, "_CGROUPS", (cgroup,))
    assert look_around().free_bytes == 3500


def test_the_context_is_what_a_service_would_have(pair: Path) -> None:
    one_each = {"short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    config = AutoConfig.for_model("llama", rope_parameters={**rope, **one_each})
    assert ModelFacts.of_folder("target", pair / "target", config).context_length == 128


def test_one_core_and_an_unusable_gpu_are_warnings() -> None:
    cores, device = check_machine(Machine(1, 0, has_driver=True), "auto")
    assert (cores.status, device.status) == (Status.WARNING, Status.WARNING)


def test_the_library_that_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_library, "load", lambda: SimpleNamespace(specgate_cpu_best=lambda: 2))
    monkeypatch.delenv(VARIABLE, raising=False)
    best = check_library(Machine(2, 0), "auto")
    assert (best.status, best.message) == (Status.OK, "computes on the CPU, with avx512")
    monkeypatch.setenv(VARIABLE, "neon")
    wrong = check_library(Machine(2, 0), "auto")
    assert wrong.status is Status.PROBLEM
    assert f"{VARIABLE}: this processor lacks 'neon'" in wrong.message


@pytest.mark.parametrize(
    ("gpus", "device", "status"),
    [((), "auto", Status.WARNING), ((Gpu("g", 1),), "cpu", Status.WARNING), ((Gpu("g", 1),), "auto", Status.OK)],
)
def test_without_the_library_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: tuple[Gpu, ...], device: str, status: Status
) -> None:
    """It is a warning where a CPU computes."""
    monkeypatch.setattr(cpu_library, "library_path", lambda: tmp_path / "nowhere")
    monkeypatch.setattr(cpu_library, "load", lambda: None)
    finding = check_library(Machine(2, 0, gpus), device)
    assert finding.status is status
    assert "torch computes" in finding.message
    assert "install a C compiler" in finding.message


async def test_running_services_are_asked() -> None:
    async with (
        serving("verifier") as verifier,
        serving("verifier", model="another") as other,
        serving("drafter") as drafter,
    ):
        await drafter.server.set_ready(lambda: 1e9)
        endpoints = (verifier.endpoint, other.endpoint, "127.0.0.1:1")
        findings, facts = await ask_services("target", "verifier", endpoints, None)
        wrong_role, _ = await ask_services("draft", "drafter", (verifier.endpoint,), None)
        dead_engine, _ = await ask_services("draft", "drafter", (drafter.endpoint,), None)
    assert [finding.status for finding in findings] == [Status.OK, Status.OK, Status.PROBLEM, Status.WARNING]
    assert "is it running" in findings[2].advice
    assert "a pool holds one model" in findings[3].advice
    assert facts is not None
    assert facts.context_length == 512
    assert "is not a drafter" in wrong_role[0].message
    assert dead_engine[0].status is Status.PROBLEM
    assert "NOT SERVING" in dead_engine[0].message


def test_services_and_files_can_be_compared() -> None:
    info = model_info("drafter", tokenizer_fingerprint={"vocabulary": "x"})
    target = ModelFacts("target", context_length=4096, tokenizer_fingerprint={"vocabulary": "y"})
    findings = {finding.check: finding for finding in check_pair(target, ModelFacts.of_service("draft", info))}
    assert findings["tokenizer"].status is Status.PROBLEM
    translated = {one.check: one for one in check_pair(target, ModelFacts.of_service("draft", info), translates=True)}
    assert translated["tokenizer"].status is Status.WARNING
    assert "draft 512: of a longer text the draft reads the end alone" in findings["context"].message
