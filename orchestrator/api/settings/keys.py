"""The values of a configuration: YAML, dotted keys, overrides, and the valid key nearest to a wrong one."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from specgate.errors import InvalidArgument

NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""What PyYAML raises: a date such as 2026-13-01 is a ValueError, brackets without end a RecursionError."""
GONE = {
    "drafter.answer_memory_bytes": "nothing is drafted from past answers",
    "gateway.http.head_timeout_s": "it is always 10 s",
    "gateway.http.body_timeout_s": "it is always 30 s",
    "gateway.http.max_connections_per_address": "it is always half of max_connections",
}
"""Keys of earlier releases, and what holds in their place."""


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting, also of settings that hold others."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from all_keys(inner, f"{prefix}{name}.")


def nearest_key(model: type[BaseModel], path: Sequence[str]) -> str | None:
    """Return the valid key nearest to an unknown one: a similar name beside it, else the same name elsewhere."""
    parent, name = ".".join(path[:-1]), path[-1]
    keys = [(key.rpartition("."), key) for key in all_keys(model)]
    neighbours = {own: key for (above, _, own), key in keys if above == parent}
    for match in get_close_matches(name, neighbours, 1):
        return neighbours[match]
    return next((key for (_, _, own), key in keys if own == name), None)


def merge(defaults: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults`` with ``values`` over them, mapping by mapping."""
    result = dict(defaults)
    for key, value in values.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a file. Raises InvalidArgument: it cannot be read, or holds something else."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument("config", f"{file} cannot be read: {error.strerror}") from None
    except NOT_YAML as error:
        raise InvalidArgument("config", f"{file} is not YAML: {one_line(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidArgument("config", f"{file} holds no mapping of settings")
    return values


def one_line(error: Exception) -> str:
    """Return the message without line breaks."""
    return " ".join(str(error).split())


def overridden(values: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """Return ``values`` with ``overrides``, which are by dotted key, over them."""
    changed = dict(values)
    for key, value in overrides.items():
        _put(changed, key.split("."), value)
    return changed


def _put(values: dict[str, Any], path: list[str], value: object) -> None:
    for part in path[:-1]:
        inner = values.get(part)
        values[part] = values = dict(inner) if isinstance(inner, dict) else {}
    values[path[-1]] = value
