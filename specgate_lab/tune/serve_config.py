"""The configuration file for ``orchestrator serve`` that a choice stands for."""

import textwrap
from pathlib import Path
from typing import Any

import yaml

from orchestrator.api.settings.settings import settings_of
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import DraftMethod
from specgate_lab.report import write_whole
from specgate_lab.tune.advice import Advice


def write_config(path: Path, advice: Advice, models: ModelOptions, skip: str | None) -> None:
    """Write the file, the advice as a comment above it.

    Raises:
        InvalidArgument: it cannot be written, or ``serve`` would refuse it.
    """
    settings = _config(advice, models, skip)
    settings_of(settings)
    comment = "".join(f"# {part}\n" for line in advice.words() for part in textwrap.wrap(line, 100))
    write_whole(path, comment + yaml.safe_dump(settings, sort_keys=False), "out")


def _config(advice: Advice, models: ModelOptions, skip: str | None) -> dict[str, Any]:
    """Return what differs from the defaults of ``serve``."""
    verifier = models.service.given_to("verifier") | _model(models.target)
    settings: dict[str, Any] = {"verifier": verifier} if verifier else {}
    choice = advice.choice
    if choice is None:
        return settings | {"drafter": None, "defaults": {"gamma": 0, "verification": str(advice.verification)}}
    method = choice.drafter.method
    drafter = models.service.given_to("drafter") | {"method": str(method), "run_ahead": choice.drafter.run_ahead}
    if method is DraftMethod.LAYER_SKIP and skip is not None:
        drafter["skip"] = str(Path(skip).resolve())
    elif method.has_model:
        drafter |= _model(models.draft)
    defaults = {"gate": str(choice.gate.gate), "gamma": choice.gate.gamma, "verification": str(advice.verification)}
    return settings | {
        "drafter": drafter,
        "defaults": {name: value for name, value in defaults.items() if value is not None},
    }


def _model(name: str | None) -> dict[str, str]:
    """Return where a model is: a folder by its whole path, since ``serve`` may run elsewhere."""
    if name is None:
        return {}
    return {"model": str(Path(name).resolve()) if Path(name).is_dir() else name}
