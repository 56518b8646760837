"""The flags of ``orchestrator serve`` over its file."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.api.settings.settings import BUNDLED_TARGET, Settings, load_settings
from orchestrator.cli.serve_options import ServeOptions
from orchestrator.terminal.option_groups import takes_groups
from specgate.errors import InvalidArgument
from tests.support.orchestrating import Cli


def settings_of_flags(*flags: str, file: Path | None = None, content: str = "") -> Any:
    received: list[Settings] = []
    app = typer.Typer()

    @app.command()
    @takes_groups
    def command(options: ServeOptions) -> None:
        received.append(load_settings(options.config, options.overrides(), options.service.given_to))

    if file is not None:
        file.write_text(content)
        flags = ("--config", str(file), *flags)
    CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False)
    return received[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_flags_are_over_the_file_and_set_is_over_both(file: Path) -> None:
    content = "{defaults: {max_tokens: 9}, gateway: {http: {port: 1}, grpc: {port: 1}}}"
    flags = ["--port", "2", "--grpc-port", "3", "--set", "gateway.http.port=4"]
    settings = settings_of_flags(*flags, file=file, content=content)
    assert settings.defaults.max_tokens == 9
    assert (settings.gateway.http.port, settings.gateway.grpc.port) == (4, 3)
    assert settings_of_flags() == Settings()


def test_services_that_are_named_are_used() -> None:
    settings = settings_of_flags("--verifier", "h:1", "--verifier", "h:2", "--drafter", "h:3")
    assert (settings.verifier.endpoints, settings.drafter.endpoints) == (("h:1", "h:2"), ("h:3",))


def test_a_flag_for_both_services_is_over_the_file_and_below_what_is_set_for_one(file: Path) -> None:
    both = settings_of_flags("--dtype", "bfloat16", "--threads", "3", "--run-ahead", "2")
    for service in (both.verifier, both.drafter):
        assert (service.dtype, service.threads) == ("bfloat16", 3)
    assert both.drafter.run_ahead == 2
    one = settings_of_flags("--dtype", "float16", "--set", "drafter.dtype=float32")
    assert (one.verifier.dtype, one.drafter.dtype) == ("float16", "float32")
    assert settings_of_flags("--threads", "2", "--set", "verifier={threads: 4}").verifier.threads == 4
    # It does not bring back a drafter that the file leaves out; a flag for the drafter does.
    left_out = settings_of_flags("--dtype", "float16", file=file, content="drafter: null")
    assert (left_out.verifier.dtype, left_out.drafter) == ("float16", None)
    models = ["--draft", "/x", "--target", "/y"]
    brought_back = settings_of_flags(*models, "--dtype", "float16", file=file, content="drafter: null")
    assert brought_back.drafter.dtype == "float16"
    with pytest.raises(InvalidArgument, match=r"^drafter: "):
        settings_of_flags("--dtype", "float16", file=file, content="drafter: 5")


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
    for draft in (["--draft", "/y"], ["--drafter", "h:1"], ["--set", "drafter=null"]):
        assert settings_of_flags("--target", "/x", *draft).verifier.model == "/x"
    assert settings_of_flags("--target", BUNDLED_TARGET) == Settings()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--set gamma=3", "gamma: is not a setting"),
        ("--set defaults.gamma=99", "defaults.gamma: "),
        ("--verifier here", "'here' is not HOST:PORT"),
        ("--set logs.folder=here", "logs: folder 'here' is relative"),
        ("--config /nowhere.yaml", "config: /nowhere.yaml cannot be read"),
    ],
)
def test_a_bad_flag_is_told_before_ray_is_started(orchestrator: Cli, flags: str, problem: str) -> None:
    code, _, told = orchestrator("serve", *flags.split())
    assert code == 2
    assert problem in told
