"""Flags that several commands share are declared once, as the fields of a frozen dataclass.

A field's flag is in its annotation, or under its name in the class's ``OPTIONS``.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from orchestrator.local.pair_settings import GivenSettings
from orchestrator.terminal import service_flags


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a typer command take option groups: a parameter whose type is a dataclass becomes that class's flags."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters = [
        flag
        for parameter in inspect.signature(command).parameters.values()
        for flag in _flags(parameter.replace(annotation=hints[parameter.name]), groups)
    ]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        command(**{name: _build(group, values) for name, group in groups.items()}, **values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _flags(parameter: inspect.Parameter, groups: dict[str, Any]) -> Iterator[inspect.Parameter]:
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if parameter.name not in groups:
        yield parameter.replace(kind=keyword_only)
        return
    group = groups[parameter.name]
    hints = get_type_hints(group, include_extras=True)
    options = getattr(group, "OPTIONS", {})
    for field in dataclasses.fields(group):
        hint = hints[field.name]
        if hint is GivenSettings:
            yield from service_flags.parameters()
            continue
        kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint, options[field.name])
        if get_origin(kind) is tuple:
            # ``tuple[X, ...]`` is what a frozen dataclass holds; ``list[X]`` is how typer writes a repeatable flag.
            kind = GenericAlias(list, get_args(kind)[:1])
        annotated: Any = Annotated
        yield inspect.Parameter(field.name, keyword_only, default=field.default, annotation=annotated[(kind, *extras)])


def _build(group: Any, values: dict[str, Any]) -> Any:
    """Take the group's own flags out of ``values``."""
    hints = get_type_hints(group)
    taken = {
        field.name: service_flags.taken_from(values) if hints[field.name] is GivenSettings else values.pop(field.name)
        for field in dataclasses.fields(group)
    }
    return group(**{name: tuple(v) if isinstance(v, list) else v for name, v in taken.items()})
