"""The process: what cannot be served ends it with one line that says why."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import drafter_svc.__main__
import verifier_svc.__main__
from specgate.service import main as process
from tests.models import write_llama, write_model

GPT_OSS = {"num_local_experts": 2, "num_experts_per_tok": 1, "layer_types": ["full_attention", "full_attention"]}
REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "gpt_oss": (GPT_OSS, ("GptOss", "s_aux", "not computed here")),
    "bloom": ({}, ("BloomForCausalLM", "ignores AttentionInterface")),
    "falcon": ({}, ("FalconForCausalLM", "ignores AttentionInterface")),
    "gptj": ({}, ("GPTJForCausalLM", "ignores AttentionInterface")),
}


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    """The process sets handlers; this one belongs to the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_verifier(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["verifier-svc", *flags])
    return verifier_svc.__main__.main()


@pytest.mark.parametrize("model_type", REFUSALS)
def test_a_model_that_is_not_computed_ends_the_service(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config, words = REFUSALS[model_type]
    write_model(tmp_path, model_type, **config)
    assert run_verifier(monkeypatch, "--model", str(tmp_path), "--device", "cpu") == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("verifier-svc: UNSUPPORTED_ARCHITECTURE: ")
    assert all(word in last for word in words), last


def test_a_refusal_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_model(tmp_path, "gpt_oss", **GPT_OSS)
    command = [sys.executable, "-m", "verifier_svc", "--model", str(tmp_path), "--device", "cpu", "--threads", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        "verifier-svc: UNSUPPORTED_ARCHITECTURE: "
        "GptOssForCausalLM: GptOssAttention passes s_aux to attention, which is not computed here"
    )


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--kv-tokens", "1"], 2, "--kv-tokens: 1 is outside [16, "),
        (["--max-sessions", "0"], 2, "--max-sessions: 0 is outside [1, "),
        (["--port", "70000"], 2, "--port: 70000 is outside [0, 65535]"),
        (["--device", "cuda:77"], 2, "device: 'cuda:77' is not here"),
        (["--cpu", "9999"], 2, "--cpu: 9999 is not one of the cores"),
        (["--tls-key", "key.pem"], 2, "--tls-certificate: and --tls-key go together"),
    ],
)
def test_a_bad_flag_is_named(
    flags: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_llama(tmp_path)
    assert run_verifier(monkeypatch, "--model", str(tmp_path), *flags) == code
    assert f"verifier-svc: {message}" in capfd.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize("flag", ["--unknown", "--dtype"])
def test_a_flag_that_is_not_known_exits_with_two(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as exit_:
        run_verifier(monkeypatch, "--model", "x", flag, "int8")
    assert exit_.value.code == 2


def test_a_missing_model_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_verifier(monkeypatch, "--model", str(tmp_path / "nowhere"), "--device", "cpu") == 1
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("verifier-svc: MODEL_LOAD_FAILED: ")
    assert "nowhere" in last


def test_both_programs_serve_their_own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def serve(role: str) -> int:
        calls.append(role)
        return 0

    monkeypatch.setattr(process, "main", serve)
    assert (drafter_svc.__main__.main(), verifier_svc.__main__.main()) == (0, 0)
    assert calls == ["drafter", "verifier"]
