"""The shipped configurations are what they say, and the scripts can at least be read by bash."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.api.settings.keys import all_keys
from orchestrator.api.settings.listen import NODE
from orchestrator.api.settings.settings import Settings, load_settings, settings_of

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
SCRIPTS = ("two_gpus.sh", "two_nodes.sh", "vllm/one_machine.sh", "vllm/two_machines.sh")


def test_specgate_yaml_is_the_defaults() -> None:
    assert load_settings(DEPLOY / "specgate.yaml") == Settings()


def test_specgate_yaml_shows_every_setting() -> None:
    """All but those that its comments show: the models, whose default is a path, and what stands below a null."""
    shown = set(_dotted(yaml.safe_load((DEPLOY / "specgate.yaml").read_text())))
    in_comments = re.compile(r".*\.(model|tls\..*|autoscaling\..*|operations\..*)|services_tls\..*")
    assert {key for key in all_keys(Settings) if not in_comments.fullmatch(key)} == shown


def _dotted(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")


def test_two_nodes_yaml_puts_the_two_models_on_different_nodes_that_reach_each_other() -> None:
    settings = load_settings(DEPLOY / "two_nodes.yaml")
    assert settings.drafter is not None
    labels = [service.placement.node_labels["role"] for service in (settings.verifier, settings.drafter)]
    assert len(set(labels)) == 2
    assert settings.verifier.listen.host == settings.drafter.listen.host == NODE
    script = (DEPLOY / "two_nodes.sh").read_text()
    assert all(f"--labels role={label} " in script for label in labels)


def test_local_yaml_is_a_configuration_of_ray_serve_with_settings_that_exist() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    deployed = schema.ServeDeploySchema.model_validate(yaml.safe_load((DEPLOY / "local.yaml").read_text()))
    assert deployed.proxy_location == "Disabled"
    (app,) = deployed.applications
    assert app.import_path == "orchestrator.app:build"
    assert settings_of(app.args).model_name == app.args["model_name"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_the_comment_at_the_top(script: str) -> None:
    told = subprocess.run([DEPLOY / script, "--help"], check=True, capture_output=True, text=True).stdout
    assert f"deploy/{script} " in told
    # What --help does not come to can at least be read by bash.
    subprocess.run(["bash", "-n", DEPLOY / script], check=True)
    assert "set -euo pipefail" not in told


def refusal_of(script: str, *words: str) -> str:
    done = subprocess.run([DEPLOY / script, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("two_gpus.sh", "--such"),
        ("two_gpus.sh", "--target"),
        ("two_nodes.sh", "such"),
        ("vllm/one_machine.sh", "--such"),
        ("vllm/two_machines.sh", "such"),
    ],
)
def test_a_wrong_word_is_named(script: str, word: str) -> None:
    assert word in refusal_of(script, word)
