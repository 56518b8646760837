"""The dotted keys of a configuration model, and which of them a wrong one was meant to be."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting, also of those that hold others."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from all_keys(inner, f"{prefix}{name}.")


def nearest_key(model: type[BaseModel], path: Sequence[str]) -> str | None:
    """Return the valid key that an unknown one was most likely meant to be: a neighbour, else a namesake elsewhere."""
    parent, name = ".".join(path[:-1]), path[-1]
    keys = [(key.rpartition("."), key) for key in all_keys(model)]
    neighbours = {own: key for (above, _, own), key in keys if above == parent}
    for match in get_close_matches(name, neighbours, 1):
        return neighbours[match]
    return next((key for (_, _, own), key in keys if own == name), None)
