"""The process: what cannot be served ends it with one line that says why."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specgate.service.main import main
from tests.support.heard import kept_logging
from tests.support.models import write_model


@pytest.fixture(autouse=True)
def kept_process() -> Iterator[None]:
    """The process sets handlers; this one belongs to the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with kept_logging():
        yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_model_that_is_not_computed_ends_the_process_with_one_line(tmp_path: Path) -> None:
    full = "full_attention"
    write_model(tmp_path, "gpt_oss", num_local_experts=2, num_experts_per_tok=1, layer_types=[full, full])
    command = [sys.executable, "-m", "verifier_svc", "--model", str(tmp_path), "--device", "cpu", "--threads", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("verifier-svc: UNSUPPORTED_ARCHITECTURE: GptOssForCausalLM: ")
    assert last.endswith("passes s_aux to attention, which is not computed here")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--device", "cpu"], 1, "MODEL_LOAD_FAILED: {model}"),
        (["--kv-tokens", "1"], 2, "--kv-tokens: 1 is outside [16, "),
        (["--device", "cuda:77"], 2, "device: 'cuda:77' is not here"),
        (["--cpu", "9999"], 2, "--cpu: 9999 is not one of the cores"),
        (["--tls-key", "key.pem"], 2, "--tls-certificate: and --tls-key go together"),
        (["--log-file", "/proc/nowhere/log"], 2, "--log-file: /proc/nowhere/log cannot be written: No such file"),
    ],
)
def test_a_bad_flag_or_a_missing_model_is_named(
    flags: list[str], code: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "nowhere")
    assert main("verifier", ["--model", model, *flags]) == code
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"verifier-svc: {message.format(model=model)}")


def test_a_flag_that_is_not_known_exits_with_two() -> None:
    for flag in ("--unknown", "--dtype"):
        with pytest.raises(SystemExit) as exit_:
            main("verifier", ["--model", "x", flag, "int8"])
        assert exit_.value.code == 2
