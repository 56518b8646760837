"""The flags of ``orchestrator serve`` over its file."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.api.settings.settings import BUNDLED_TARGET, Settings, load_settings
from orchestrator.cli import main as cli
from orchestrator.cli.serve_options import ServeOptions
from orchestrator.policy.gates import Gate
from orchestrator.terminal.option_groups import takes_groups
from specgate.errors import InvalidArgument


def settings_of_flags(*flags: str) -> Settings:
    received: list[Any] = []
    app = typer.Typer()

    @app.command()
    @takes_groups
    def command(options: ServeOptions) -> None:
        received.append(load_settings(options.config, options.overrides(), options.service.given_to))

    CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False)
    return received[0]


def test_without_flags_the_bundled_pair_is_served() -> None:
    assert settings_of_flags() == Settings()


def test_flags_are_over_the_file_and_set_is_over_both(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("{defaults: {gamma: 2, max_tokens: 9}, gateway: {http: {port: 1}}}")
    flags = ["--config", str(file), "--gamma", "3", "--port", "2", "--gate", "none", "--set", "gateway.http.port=4"]
    settings = settings_of_flags(*flags)
    assert (settings.defaults.gamma, settings.defaults.max_tokens, settings.defaults.gate) == (3, 9, Gate.NONE)
    assert settings.gateway.http.port == 4


def test_services_that_are_named_are_used() -> None:
    settings = settings_of_flags("--verifier", "h:1", "--verifier", "h:2", "--drafter", "h:3")
    assert settings.verifier.endpoints == ("h:1", "h:2")
    assert settings.drafter is not None
    assert settings.drafter.endpoints == ("h:3",)


def test_every_setting_of_a_service_is_a_flag_for_both() -> None:
    settings = settings_of_flags("--dtype", "bfloat16", "--attention", "sdpa", "--no-cpu-graphs", "--run-ahead", "2")
    for service in (settings.verifier, settings.drafter):
        assert service is not None
        assert (service.dtype, service.attention, service.cpu_graphs) == ("bfloat16", "sdpa", False)
    assert settings.drafter is not None
    assert settings.drafter.run_ahead == 2


def test_a_drafter_that_the_file_leaves_out_is_not_brought_back_by_a_flag_for_both(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("drafter: null")
    settings = settings_of_flags("--config", str(file), "--dtype", "float16")
    assert (settings.verifier.dtype, settings.drafter) == ("float16", None)
    brought = settings_of_flags("--config", str(file), "--draft", "/x", "--target", "/y", "--dtype", "float16")
    assert brought.drafter is not None
    assert brought.drafter.dtype == "float16"


def test_what_is_set_for_one_service_is_over_what_a_flag_says_for_both() -> None:
    settings = settings_of_flags("--dtype", "float16", "--set", "drafter.dtype=float32")
    assert settings.drafter is not None
    assert (settings.verifier.dtype, settings.drafter.dtype) == ("float16", "float32")
    assert settings_of_flags("--threads", "2", "--set", "verifier={threads: 4}").verifier.threads == 4


def test_a_file_that_is_wrong_is_refused_with_a_flag_for_both_too(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("drafter: 5")
    with pytest.raises(InvalidArgument, match=r"^drafter: "):
        settings_of_flags("--config", str(file), "--dtype", "float16")


def test_a_door_beyond_loopback_needs_a_word() -> None:
    with pytest.raises(InvalidArgument, match="beyond loopback"):
        settings_of_flags("--host", "0.0.0.0")
    settings = settings_of_flags("--host", "0.0.0.0", "--grpc-host", "0.0.0.0", "--insecure")
    assert settings.gateway.http.insecure
    assert settings.gateway.grpc.insecure
    assert not settings.verifier.listen.insecure


def test_a_target_of_ones_own_needs_its_draft() -> None:
    with pytest.raises(InvalidArgument, match="the bundled draft does not go with the target /x"):
        settings_of_flags("--target", "/x")
    assert settings_of_flags("--target", "/x", "--draft", "/y").verifier.model == "/x"
    assert settings_of_flags("--target", "/x", "--drafter", "h:1").verifier.model == "/x"
    assert settings_of_flags("--target", "/x", "--set", "drafter=null").drafter is None
    assert settings_of_flags("--target", BUNDLED_TARGET) == Settings()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--set", "gamma=3"], "gamma: is not a setting"),
        (["--gamma", "99"], "defaults.gamma: "),
        (["--verifier", "here"], "'here' is not HOST:PORT"),
        (["--config", "/nowhere.yaml"], "config: /nowhere.yaml cannot be read"),
    ],
)
def test_a_bad_flag_is_told_before_ray_is_started(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["serve", *flags]) == 2
    assert problem in capsys.readouterr().err
