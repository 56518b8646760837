"""One YAML file, flags over it, every key checked by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.api.settings.keys import GONE, all_keys, nearest_key, read_yaml
from orchestrator.api.settings.settings import (
    Defaults,
    Settings,
    load_settings,
    parse_set,
    settings_of,
    to_yaml,
)
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import Verification
from tests.support.orchestrating import Cli

OLD_FILE = Path(__file__).parents[3] / "contract" / "0.1.0" / "specgate.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "specgate.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_nothing_given_is_the_bundled_pair_on_loopback() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert Path(settings.verifier.model).name == "target"
    assert Path(settings.drafter.model).name == "draft"
    doors = (settings.gateway.http, settings.gateway.grpc)
    assert [(door.host, door.port) for door in doors] == [("127.0.0.1", 8000), ("127.0.0.1", 8001)]
    assert settings.defaults == Defaults(
        gamma=None, gate=Gate.AUTO, gate_threshold=None, verification=Verification.SHARED_NOISE, max_tokens=128
    )


def test_flags_go_over_the_file_and_the_file_over_the_defaults(file: Any) -> None:
    path = file("verifier: {replicas: 3, max_sessions: 4}\ndefaults: {gamma: 2}\n")
    settings = load_settings(path, {"verifier.replicas": 2, "gateway.http.port": 9000})
    assert (settings.verifier.replicas, settings.verifier.max_sessions) == (2, 4)
    assert (settings.defaults.gamma, settings.defaults.max_tokens) == (2, 128)
    assert (settings.gateway.http.port, settings.gateway.grpc.port) == (9000, 8001)
    assert settings.verifier.model == Settings().verifier.model
    assert load_settings(file("# nothing\n")) == Settings()


def test_no_drafter(file: Any) -> None:
    path = file("drafter: null\n")
    assert load_settings(path).drafter is None
    assert load_settings(overrides={"drafter": None}).drafter is None
    # Who says something of the drafter wants one. A section that is off by default begins with its own defaults, too.
    again = load_settings(path, {"drafter.replicas": 2, "drafter.autoscaling.max_replicas": 3}).drafter
    assert (again.replicas, again.model) == (2, Settings().drafter.model)
    scaled = again.autoscaling
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
        ({"verifier": {"device": "tpu"}}, "verifier.device", "it is 'tpu'"),
        ({"verifier": 3}, "verifier", "it is 3"),
        ({"verifier": {"endpoints": "h:1"}}, "verifier.endpoints", "it is 'h:1'"),
        ({"gateway": {"grpc": {"port": 65536}}}, "gateway.grpc.port", "it is 65536"),
        ({"defaults": {"gate": "maybe"}}, "defaults.gate", "'none', 'target_confidence', 'draft_confidence' or 'auto'"),
        ({"drain_s": float("inf")}, "drain_s", "finite"),
        ({"gateway": {"http": {"host": "0.0.0.0"}}}, "gateway.http", "host '0.0.0.0' is beyond loopback"),
        ({"verifier": {"metrics": {"host": "0.0.0.0"}}}, "verifier.metrics", "beyond loopback: give insecure: true"),
        ({"drafter": {"metrics": {"host": "node"}}}, "drafter.metrics", "host 'node' is beyond loopback"),
        ({"gateway": {"http": {"hosts": ["a:8000"]}}}, "gateway.http.hosts.0", "it is 'a:8000'"),
        ({"verifier": {"autoscaling": {"min_replicas": 3}}}, "verifier.autoscaling", "3 is above max_replicas 1"),
        ({1: 2}, "1", "Keys should be strings"),
        ({"drafter": {"method": "copy"}}, "drafter.method", "it is 'copy'"),
        ({"drafter": {"method": "layer-skip"}}, "drafter.skip", "is needed for the method layer-skip"),
        ({"drafter": {"skip": "f"}}, "drafter.skip", "'f' is for the method layer-skip, not for model"),
        ({"drafter": {"method": "suffix", "model": "m"}}, "drafter.model", "'m' is not for the method suffix"),
    ],
)
def test_what_is_wrong_is_named(values: dict[Any, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        settings_of(values)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert "\n" not in caught.value.problem


def test_a_file_of_an_old_release_is_told_of_all_its_keys_that_are_gone() -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_settings(OLD_FILE, {"gateway.http.prot": 1, "drain_s": -1})
    assert str(caught.value).split("; ") == [
        "drafter.answer_memory_bytes: is not a setting any more: nothing is drafted from past answers",
        "gateway.http.head_timeout_s: is not a setting any more: it is always 10 s",
        "gateway.http.body_timeout_s: is not a setting any more: it is always 30 s",
        "gateway.http.max_connections_per_address: is not a setting any more: it is always half of max_connections",
        "gateway.http.prot: is not a setting",
        "did you mean gateway.http.port?",
        "drain_s: Input should be greater than or equal to 0",
        "it is -1",
    ]
    # All others mean what they meant.
    kept = read_yaml(OLD_FILE)
    for key in GONE:
        section, *inner, name = key.split(".")
        del (kept[section][inner[0]] if inner else kept[section])[name]
    assert settings_of(kept) == Settings()


def test_a_method_brings_the_model_that_it_needs() -> None:
    skipping = {"method": "layer-skip", "skip": "f"}
    asked = [{"method": "suffix"}, skipping, {"method": "model"}]
    drafters = [
        settings_of({"verifier": {"model": "t"}, "drafter": one | more}).drafter
        for one, more in zip(asked, ({}, {}, {"model": "d"}), strict=True)
    ]
    assert [one and one.model for one in drafters] == ["", "t", "d"]


def test_beyond_loopback_with_consent_or_tls() -> None:
    open_to_all = {"host": "0.0.0.0", "insecure": True}
    encrypted = {"host": "0.0.0.0", "tls": {"certificate": "c.pem", "key": "k.pem"}}
    settings = settings_of({"gateway": {"http": open_to_all, "grpc": encrypted}, "verifier": {"metrics": open_to_all}})
    assert settings.gateway.http.insecure
    assert settings.gateway.grpc.tls.key == Path("k.pem")
    assert settings.verifier.metrics.insecure


NO_MAPPING = ["- 1\n- 2\n", "[]", "0", "just words"]
NO_YAML = ["verifier: [1", "a: b: c", "drain_s: 2026-13-01", "[" * 100_000, b"\x80\x04\x95\xff\x00", b"\x00\x01\x02"]
CODE = "!!python/object/apply:os.getcwd []"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *((content, "holds no mapping of settings") for content in NO_MAPPING),
        *((content, "is not YAML: ") for content in (*NO_YAML, CODE)),
    ],
    ids=lambda content: repr(content)[:30],
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


def test_the_command_prints_what_would_be_used(orchestrator: Cli, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("verifier: {replicas: 3}\n")
    command = ["config", "print", "--config", str(path), "--set", "drafter=null"]
    code, shown, told = orchestrator(*command)
    assert (code, told) == (0, "")
    assert settings_of(yaml.safe_load(shown)) == load_settings(path, {"drafter": None})
    # With colours on a terminal, and not cut at its edge.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    _, shown, _ = orchestrator(*command)
    assert "\x1b[" in shown
    assert str(Path("demo_pair") / "target") in shown


def test_the_command_checks_a_file_and_tells_what_is_wrong(orchestrator: Cli, file: Any) -> None:
    path = file("drain_s: 5\n")
    assert orchestrator("config", "check", str(path)) == (0, f"{path}: every key and value is valid\n", "")
    # A flag of other commands, which is of no concern here.
    path = file("gamma: 3")
    for command in (["check", str(path)], ["print", "--config", str(path)]):
        code, shown, told = orchestrator("config", *command)
        assert (code, shown) == (2, "")
        assert told.startswith("orchestrator: gamma: is not a setting")
    assert orchestrator("config", "print", "--set", "x") == (2, "", "orchestrator: --set: 'x' is not KEY=VALUE\n")


@pytest.mark.parametrize(
    ("overrides", "wait_s"),
    [
        ({}, 60.0),
        ({"verifier.endpoints": ["h:1"]}, 10.0),
        ({"verifier.endpoints": ["h:1"], "gateway.verifier_wait_s": 2}, 2.0),
    ],
)
def test_a_replica_is_waited_for_longer_than_an_endpoint(overrides: dict[str, object], wait_s: float) -> None:
    assert load_settings(None, overrides).verifier_wait_s == wait_s
