"""The flags for serving models, made from the settings of ``specgate.service.settings`` that a command may change."""

import inspect
from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, Any

import typer

from orchestrator.local.pair_settings import GivenSettings
from specgate.service.flags import help_of, type_of
from specgate.service.settings import DraftModelSettings, ModelSettings

PANEL = "How models are served"
NAMES = ("device", "dtype", "tokenizer", "threads", "kv_tokens", "method", "skip", "same_tokenizer", "run_ahead")
"""Each flag holds for both services; some for the drafter only. The configuration of `serve` has all settings."""


def parameters() -> Iterator[inspect.Parameter]:
    """Yield a typer parameter for each setting; its default is None."""
    for name in NAMES:
        setting, kind = DraftModelSettings.model_fields[name], type_of(DraftModelSettings.model_fields[name])
        dashed = name.replace("_", "-")
        names = (f"--{dashed}/--no-{dashed}",) if kind is bool else (f"--{dashed}",)
        whose = "" if name in ModelSettings.model_fields else "Drafter: "
        option = typer.Option(
            *names,
            help=f"{whose}{help_of(setting)}",
            show_default=False,
            rich_help_panel=PANEL,
        )
        annotated: Any = Annotated
        annotation = annotated[(kind | None, option)]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def taken_from(values: dict[str, Any]) -> GivenSettings:
    """Take the settings out of ``values``, a command's parameters by name."""
    taken = {name: values.pop(name) for name in NAMES}
    return GivenSettings(MappingProxyType({name: value for name, value in taken.items() if value is not None}))
