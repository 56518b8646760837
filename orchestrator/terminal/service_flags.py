"""The flags for serving models: one for each setting of ``specgate.service.settings``."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

import typer

from orchestrator.terminal.cores import num_usable_cores
from specgate.errors import InvalidArgument
from specgate.service.flags import help_of, type_of
from specgate.service.settings import DraftModelSettings, ModelSettings, settings_class, settings_of
from specgate.types import DraftMethod

PANEL = "How models are served"
NAMES = tuple(name for name in DraftModelSettings.model_fields if name != "model")
"""Each flag holds for both services; some for the drafter only."""
SIZED = frozenset({"max_sessions", "kv_tokens"})
"""A command that starts services sizes these for its own requests unless a flag is given."""


@dataclass(frozen=True, slots=True)
class ServiceFlags:
    """The settings that the command line gives; ``given`` holds no defaults.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        try:
            settings_of("drafter", model="given elsewhere" if self.method.has_model else "", **self.given)
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("--").replace("-", "_"), error.problem) from None

    @property
    def method(self) -> DraftMethod:
        """Where drafts come from."""
        given = self.given.get("method", DraftMethod.MODEL)
        # What is no method is refused with the other settings.
        return DraftMethod(given) if given in list(DraftMethod) else DraftMethod.MODEL

    def value(self, name: str) -> Any:
        """Return a setting as given, or its default.

        The default of ``run_ahead`` is 0 on a single core, where drafting ahead delays the target.
        """
        default = DraftModelSettings.model_fields[name].default
        if name == "run_ahead" and num_usable_cores() == 1 and not str(self.value("device")).startswith("cuda"):
            default = 0
        return self.given.get(name, default)

    def given_to(self, role: str) -> dict[str, Any]:
        """Return the given settings of a "drafter" or a "verifier"."""
        return {name: value for name, value in self.given.items() if name in settings_class(role).model_fields}


def parameters() -> Iterator[inspect.Parameter]:
    """Yield a typer parameter for each setting; its default is None."""
    for name in NAMES:
        setting, kind = DraftModelSettings.model_fields[name], type_of(DraftModelSettings.model_fields[name])
        dashed = name.replace("_", "-")
        names = (f"--{dashed}/--no-{dashed}",) if kind is bool else (f"--{dashed}",)
        whose = "" if name in ModelSettings.model_fields else "Drafter: "
        option = typer.Option(
            *names,
            help=f"{whose}{setting.description if name in SIZED else help_of(setting)}",
            show_default=False,
            rich_help_panel=PANEL,
        )
        annotated: Any = Annotated
        annotation = annotated[(kind | None, option)]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def taken_from(values: dict[str, Any]) -> ServiceFlags:
    """Take the settings out of ``values``, a command's parameters by name."""
    taken = {name: values.pop(name) for name in NAMES}
    return ServiceFlags(MappingProxyType({name: value for name, value in taken.items() if value is not None}))
