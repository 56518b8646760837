"""One YAML file, flags over it, every key checked by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.api.settings.keys import all_keys, nearest_key
from orchestrator.api.settings.settings import Defaults, Settings, load_settings, parse_set, settings_of, to_yaml
from orchestrator.cli import main as cli
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import Verification

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "specgate.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def orchestrator(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.run(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_nothing_given_is_the_bundled_pair_on_loopback() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert Path(settings.verifier.model).name == "target"
    assert Path(settings.drafter.model).name == "draft"
    doors = (settings.gateway.http, settings.gateway.grpc)
    assert [(door.host, door.port) for door in doors] == [("127.0.0.1", 8000), ("127.0.0.1", 8001)]
    assert settings.defaults == Defaults(
        gamma=None,
        gate=Gate.AUTO,
        gate_threshold=None,
        verification=Verification.SHARED_NOISE,
        max_tokens=128,
    )


def test_flags_go_over_the_file_and_the_file_over_the_defaults(file: Any) -> None:
    path = file("verifier: {replicas: 3, max_sessions: 4}\ndefaults: {gamma: 2}\n")
    settings = load_settings(path, {"verifier.replicas": 2, "gateway.http.port": 9000})
    assert (settings.verifier.replicas, settings.verifier.max_sessions) == (2, 4)
    assert (settings.defaults.gamma, settings.defaults.max_tokens) == (2, 128)
    assert (settings.gateway.http.port, settings.gateway.grpc.port) == (9000, 8001)
    assert settings.verifier.model == Settings().verifier.model


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n"])
def test_an_empty_file_changes_nothing(file: Any, content: str) -> None:
    assert load_settings(file(content)) == Settings()


def test_no_drafter(file: Any) -> None:
    path = file("drafter: null\n")
    assert load_settings(path).drafter is None
    assert load_settings(overrides={"drafter": None}).drafter is None
    # Who says something of the drafter wants one.
    again = load_settings(path, {"drafter.replicas": 2}).drafter
    assert (again.replicas, again.model) == (2, Settings().drafter.model)


def test_a_section_that_is_off_by_default_begins_with_its_own_defaults() -> None:
    scaled = load_settings(overrides={"drafter.autoscaling.max_replicas": 3}).drafter.autoscaling
    assert (scaled.min_replicas, scaled.max_replicas, scaled.target_sessions) == (1, 3, 8)


@pytest.mark.parametrize(
    ("values", "field", "problem"),
    [
        ({"verifer": {}}, "verifer", "is not a setting; did you mean verifier?"),
        ({"verifier": {"replica": 2}}, "verifier.replica", "did you mean verifier.replicas?"),
        ({"gateway": {"http": {"prot": 1}}}, "gateway.http.prot", "did you mean gateway.http.port?"),
        ({"drafter": {"placement": {"gpus": 1}}}, "drafter.placement.gpus", "mean drafter.placement.num_gpus?"),
        ({"gamma": 3}, "gamma", "did you mean defaults.gamma?"),
        ({"xyzzy": 3}, "xyzzy", "is not a setting"),
        ({"verifier": {"replicas": 0}}, "verifier.replicas", "greater than or equal to 1; it is 0"),
        ({"verifier": {"replicas": "two"}}, "verifier.replicas", "it is 'two'"),
        ({"verifier": {"device": "tpu"}}, "verifier.device", "it is 'tpu'"),
        ({"verifier": {"device": "cuda:x"}}, "verifier.device", "it is 'cuda:x'"),
        ({"verifier": 3}, "verifier", "it is 3"),
        ({"verifier": None}, "verifier", "it is None"),
        ({"verifier": {"endpoints": "h:1"}}, "verifier.endpoints", "it is 'h:1'"),
        ({"gateway": {"grpc": {"port": 65536}}}, "gateway.grpc.port", "it is 65536"),
        ({"defaults": {"gate": "maybe"}}, "defaults.gate", "'none', 'target_confidence', 'draft_confidence' or 'auto'"),
        ({"defaults": {"gamma": 65}}, "defaults.gamma", "it is 65"),
        ({"drain_s": float("inf")}, "drain_s", "finite"),
        ({"drain_s": float("nan")}, "drain_s", "it is nan"),
        ({"gateway": {"http": {"host": "0.0.0.0"}}}, "gateway.http", "host '0.0.0.0' is beyond loopback"),
        (
            {"verifier": {"autoscaling": {"min_replicas": 3}}},
            "verifier.autoscaling",
            "min_replicas 3 is above max_replicas 1",
        ),
        ({1: 2}, "1", "Keys should be strings"),
    ],
)
def test_what_is_wrong_is_named(values: dict[Any, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings_of(values)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert "\n" not in caught.value.problem


def test_beyond_loopback_with_consent_or_tls() -> None:
    open_to_all = {"host": "0.0.0.0", "insecure": True}
    encrypted = {"host": "0.0.0.0", "tls": {"certificate": "c.pem", "key": "k.pem"}}
    gateway = settings_of({"gateway": {"http": open_to_all, "grpc": encrypted}}).gateway
    assert gateway.http.insecure
    assert gateway.grpc.tls.key == Path("k.pem")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- 1\n- 2\n", "holds no mapping of settings"),
        ("[]", "holds no mapping of settings"),
        ("0", "holds no mapping of settings"),
        ("just words", "holds no mapping of settings"),
        ("verifier: [1", "is not YAML: "),
        ("a: b: c", "is not YAML: "),
        ("drain_s: 2026-13-01", "is not YAML: "),
        ("!!python/object/apply:os.getcwd []", "is not YAML: "),
        ("[" * 100_000, "is not YAML: "),
        (b"\x80\x04\x95\xff\x00", "is not YAML: "),
        (b"\x00\x01\x02", "is not YAML: "),
    ],
)
def test_a_file_that_is_no_configuration(file: Any, content: str | bytes, problem: str) -> None:
    path = file(content)
    with pytest.raises(InvalidArgument) as caught:
        load_settings(path)
    assert caught.value.field == "config"
    assert caught.value.problem.startswith(f"{path} {problem}")
    assert "\n" not in caught.value.problem


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(InvalidArgument, match=f"{path} cannot be read: "):
            load_settings(path)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"drafter": None, "drain_s": 0.5},
        {"verifier.endpoints": ["127.0.0.1:7001", "[::1]:7002"], "verifier.placement.resources": {"big": 0.5}},
        {"gateway.grpc.tls": {"certificate": "c.pem", "key": "k.pem"}, "defaults.gate": "draft_confidence"},
    ],
)
def test_what_is_printed_is_read_back(file: Any, overrides: dict[str, object]) -> None:
    settings = load_settings(overrides=overrides)
    assert load_settings(file(to_yaml(settings))) == settings
    assert settings_of(yaml.safe_load(to_yaml(settings))) == settings


def test_pairs_are_yaml() -> None:
    pairs = ["a.b=2", "c=text", "d=null", "e=", "f=[h:1, h:2]", "g={x: 0.5}", "h=a=b", " j =1"]
    assert parse_set(pairs) == {
        "a.b": 2, "c": "text", "d": None, "e": None, "f": ["h:1", "h:2"], "g": {"x": 0.5}, "h": "a=b", "j": 1,
    }  # fmt: skip
    assert parse_set(["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize("pair", ["", "verifier.replicas", "=3", " =3", "a=[1", "a=2026-13-01", "a=!!python/none"])
def test_a_pair_that_is_none_is_named(pair: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_set(["a=1", pair])
    assert caught.value.field == "--set"
    assert repr(pair) in caught.value.problem


def test_every_key_is_known_and_nearest_to_itself() -> None:
    keys = list(all_keys(Settings))
    assert {"model_name", "verifier.placement.num_gpus", "drafter.autoscaling.max_replicas"} <= set(keys)
    assert len(keys) == len(set(keys))
    assert [nearest_key(Settings, key.split(".")) for key in keys] == keys


def test_the_command_prints_what_would_be_used(orchestrator: Cli, file: Any) -> None:
    path = file("verifier: {replicas: 3}\n")
    code, shown, told = orchestrator("config", "print", "--config", str(path), "--set", "drafter=null")
    assert (code, told) == (0, "")
    assert settings_of(yaml.safe_load(shown)) == load_settings(path, {"drafter": None})


def test_the_command_colours_on_a_terminal(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    _, shown, _ = orchestrator("config", "print")
    assert "\x1b[" in shown
    # Not cut at the terminal's edge.
    assert str(Path("demo_pair") / "target") in shown


def test_the_command_checks_a_file(orchestrator: Cli, file: Any) -> None:
    path = file("drain_s: 5\n")
    assert orchestrator("config", "check", str(path)) == (0, f"{path}: every key and value is fine\n", "")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        # Both are flags of other commands, which is of no concern here.
        ("gamma: 3", "gamma: is not a setting; did you mean defaults.gamma?"),
        ("verifier: 3", "verifier: Input should be a valid dictionary or instance of ServiceSettings; it is 3"),
    ],
)
def test_the_command_tells_what_is_wrong(orchestrator: Cli, file: Any, content: str, told: str) -> None:
    path = file(content)
    for command in (["check", str(path)], ["print", "--config", str(path)]):
        assert orchestrator("config", *command) == (2, "", f"orchestrator: {told}\n")


def test_the_command_names_a_wrong_pair(orchestrator: Cli) -> None:
    assert orchestrator("config", "print", "--set", "x") == (2, "", "orchestrator: --set: 'x' is not KEY=VALUE\n")
