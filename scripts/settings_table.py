#!/usr/bin/env python3
"""Print docs/api/configuration.md: meanings from deploy/specgate.yaml, permitted values from the settings themselves.

A test keeps the page so.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.api.settings.settings import Settings
from specgate.service.flags import type_of

SETTINGS = Path(__file__).resolve().parent.parent / "deploy" / "specgate.yaml"
LINE = re.compile(r"(?P<indent> *)(?P<commented># )?(?P<name>\w+):(?P<value>[^#]*)(?:# (?P<meaning>.*))?")
INTRO = """\
<!-- Made by a script: .venv/bin/python scripts/settings_table.py > docs/api/configuration.md -->

# Configuration

The settings of `orchestrator serve` come from one YAML file. Flags and `--set KEY=VALUE` override the file. The tables
below list the defaults.

    orchestrator serve --config FILE --set verifier.replicas=2
    orchestrator config print --config FILE      # the result, as YAML
    orchestrator config check FILE               # exit code 2 names the first wrong key or value

[deploy/specgate.yaml](../../deploy/specgate.yaml) has every setting at its default. An unknown key is refused by name.
A key without a default below holds other keys. [Operations](../operations.md) says when to change what.
"""


class Setting(NamedTuple):
    """One row of the tables."""

    key: str
    default: str
    meaning: str


def settings() -> Iterator[Setting]:
    """Yield what the file says of each setting; what is like the verifier's is left out."""
    path: list[str] = []
    of_verifier: set[str] = set()
    for line in SETTINGS.read_text(encoding="utf-8").splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            continue
        path[len(found["indent"]) // 2 :] = [found["name"]]
        if path[0] == "verifier" and len(path) > 1:
            of_verifier.add(".".join(path[1:]))
        if (path[0] == "drafter" and ".".join(path[1:]) in of_verifier) or (
            path[:2] == ["gateway", "placement"] and len(path) > 2
        ):
            continue
        # A commented key shows an example, not the default.
        default = "" if found["commented"] else found["value"].strip()
        yield Setting(".".join(path), default, (found["meaning"] or "").strip())


def values_of(key: str) -> str:
    """Return which values the setting takes."""
    model: type[BaseModel] = Settings
    *above, name = key.split(".")
    for part in above:
        model = type_of(model.model_fields[part])
    field = model.model_fields[name]
    kind = type_of(field)
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(kind)
    return {bool: "true, false", int: f"integer {_range(field)}", float: f"number {_range(field)}"}.get(
        kind, ""
    ).strip()


def _range(field: FieldInfo) -> str:
    def limit(name: str) -> Any:
        return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)

    low, above, high = limit("ge"), limit("gt"), limit("le")
    least = f"above {above:g}" if above is not None else f"from {low:g}" if low is not None else ""
    return f"{least} to {high:,.0f}" if high is not None else least


def table(rows: list[Setting]) -> str:
    """Return some settings as a table of Markdown."""
    lines = (
        f"| `{row.key}` | {f'`{row.default}`' if row.default else ''} | {values_of(row.key)} | {row.meaning} |"
        for row in rows
    )
    return "\n".join(["| key | default | values | meaning |", "|---|---|---|---|", *lines]) + "\n"


def main() -> None:
    """Print the page: a section for each key at the top that holds others, the first one for those that hold none."""
    parts, plain = [INTRO], []
    for top, rows in groupby(settings(), lambda setting: setting.key.partition(".")[0]):
        first, *below = rows
        if below:
            parts.append(f"## {top}\n\n{first.meaning}\n\n{table(below)}")
        else:
            plain.append(first)
    parts.insert(1, f"## The whole system\n\n{table(plain)}")
    print("\n".join(parts), end="")


if __name__ == "__main__":
    main()
