"""Command-line flags made from the fields of a settings model, and settings made into flags again."""

import argparse
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from specgate.errors import InvalidArgument

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Settings = TypeVar("Settings", bound=BaseModel)
_OUT_OF_RANGE = frozenset({"greater_than_equal", "less_than_equal", "finite_number"})


def flag_of(name: str) -> str:
    """Return the flag that sets the field ``name``."""
    return "--" + name.replace("_", "-")


def type_of(field: FieldInfo) -> Any:
    """Return a field's type, without the None that says it may be absent."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    return kinds[0] if kinds else field.annotation


def help_of(field: FieldInfo) -> str:
    """Return what a field means, and its default where it has one."""
    default = "" if field.is_required() or field.default in (None, "") else f" (default: {field.default})"
    return f"{field.description or ''}{default}"


def add_flags(parser: argparse.ArgumentParser, settings: type[BaseModel]) -> None:
    """Give ``parser`` a flag for each field. A flag that is not given leaves its field out of the namespace."""
    for name, field in settings.model_fields.items():
        kind = type_of(field)
        options: dict[str, Any] = {"help": help_of(field).replace("%", "%%"), "default": argparse.SUPPRESS}
        if kind is bool:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, **options)
            continue
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            options["choices"] = [str(member) for member in kind]
            kind = str
        parser.add_argument(flag_of(name), type=kind, required=field.is_required(), **options)


def to_flags(settings: BaseModel) -> list[str]:
    """Return the flags that make these settings: one for each field that differs from its default."""
    return [flag for name, field in type(settings).model_fields.items() for flag in _flags(settings, name, field)]


def _flags(settings: BaseModel, name: str, field: FieldInfo) -> Iterator[str]:
    value, flag = getattr(settings, name), flag_of(name)
    if value is None or (not field.is_required() and value == field.default):
        return
    if isinstance(value, bool):
        yield flag if value else "--no-" + flag.removeprefix("--")
        return
    yield from (flag, str(value))


def validated(settings: type[Settings], values: Mapping[str, object]) -> Settings:
    """Return settings that were checked.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise _invalid_argument(error, settings) from None


def _invalid_argument(error: ValidationError, settings: type[BaseModel]) -> InvalidArgument:
    """Return the first thing that is wrong with ``settings``, under its flag's name."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    return InvalidArgument(flag_of(name), problem_of(first, settings.model_fields.get(name)))


def problem_of(error: "ErrorDetails", field: FieldInfo | None) -> str:
    """Return what is wrong with a value, in one line with the value and the limits."""
    value = error["input"]
    if error["type"] in _OUT_OF_RANGE and field is not None:
        low, high = (_bound(field, name) for name in ("ge", "le"))
        return f"{value} is outside [{low}, {high}]"
    if error["type"] == "enum" and field is not None:
        return f"{value!r} is not one of {', '.join(type_of(field))}"
    if error["type"] == "string_pattern_mismatch" and field is not None:
        return f"{value!r} is not one of {(field.description or '').rstrip('.')}"
    return f"{error['msg']}; it is {value!r}"


def _bound(field: FieldInfo, name: str) -> Any:
    return next((getattr(limit, name) for limit in field.metadata if hasattr(limit, name)), None)
