"""Answers as JSON: short ones at once, long ones in pieces."""

import json
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

MANY = 64
"""Entries of a list that are encoded at once. The interpreter runs no other thread meanwhile."""

to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json_in_pieces(value: Any) -> str:
    """Return what ``to_json`` returns. Other threads may run meanwhile, such as that of the event loop."""
    return "".join(_pieces(value))


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for mark, (key, one) in zip(chain("{", repeat(",")), value.items(), strict=False):
            yield f"{mark}{to_json(key)}:"
            yield from _pieces(one)
        yield "}"
    elif isinstance(value, list | tuple) and value:
        for mark, first in zip(chain("[", repeat(",")), range(0, len(value), _step(value)), strict=False):
            yield mark
            yield from [to_json(value[first : first + MANY])[1:-1]] if len(value) > MANY else _pieces(value[first])
        yield "]"
    else:
        yield to_json(value)


def _step(value: list[Any] | tuple[Any, ...]) -> int:
    """Return how many entries go together: one at a time in a short list, because one of them may be long."""
    return MANY if len(value) > MANY else 1
