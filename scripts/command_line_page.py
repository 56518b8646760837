#!/usr/bin/env python3
"""Print docs/api/command-line.md from the commands themselves; a test keeps it so.

A flag that at least MIN_COMMANDS commands have with the same help is described once, under its panel.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import typer
from pydantic.fields import FieldInfo

from orchestrator.cli.main import with_found_commands
from specgate.service.config import DrafterConfig, ServiceConfig
from specgate.service.flags import flag_of, help_of, type_of

MIN_COMMANDS = 2
INTRO = """\
<!-- Made by a script: .venv/bin/python scripts/command_line_page.py > docs/api/command-line.md -->

# Command line

`orchestrator` runs everything. `drafter-svc` and `verifier-svc` start one service by hand. This page is made from the
commands; `COMMAND --help` prints the same text.

Exit codes of `orchestrator`: 0 success, 1 failure, 2 wrong input, 130 after Ctrl-C. An error is one line on standard
error.

Each command lists its own flags first. Flags that several commands have are under [Shared flags](#shared-flags).
"""


class Flag(NamedTuple):
    """One row of a table."""

    panel: str
    names: str
    meaning: str


class Command(NamedTuple):
    """One command: its words, the argument that it takes, what it does, its flags."""

    words: str
    arguments: list[Flag]
    meaning: str
    flags: list[Flag]


def commands(group: Any, words: str) -> Iterator[Command]:
    """Yield all commands below ``group``, in the order of its help; a group that runs by itself is one of them."""
    for name, command in group.commands.items():
        inner = f"{words} {name}"
        subcommands = hasattr(command, "commands")
        if command.params or not subcommands:
            yield _command(command, inner)
        if subcommands:
            yield from commands(command, inner)


def _command(command: Any, words: str) -> Command:
    context = typer.Context(command, info_name=words)
    rows: dict[str, list[Flag]] = {"argument": [], "option": []}
    for param in command.params:
        names, meaning = param.get_help_record(context)
        rows[param.param_type_name].append(Flag(param.rich_help_panel or "", names, " ".join(meaning.split())))
    return Command(words, rows["argument"], " ".join((command.help or "").split()), rows["option"])


def table(head: str, flags: Iterable[Flag]) -> str:
    """Return the rows as a table of Markdown."""
    rows = (f"| `{_cell(flag.names)}` | {_cell(flag.meaning)} |" for flag in flags)
    return "\n".join([f"| {head} | meaning |", "|---|---|", *rows]) + "\n"


def _cell(text: str) -> str:
    # A bar would end the cell; whether a backslash helps differs between renderers.
    return text.replace("|", "/")


def shared_panels(all_commands: list[Command]) -> dict[str, list[Flag]]:
    """Return the flags that are described once, by panel, in the order in which they come."""
    counts = Counter(flag for command in all_commands for flag in command.flags if flag.panel)
    panels: dict[str, list[Flag]] = {}
    for flag, count in counts.items():
        if count >= MIN_COMMANDS:
            panels.setdefault(flag.panel, []).append(flag)
    return panels


def section(command: Command, panels: dict[str, list[Flag]]) -> str:
    """Return what the page says of one command."""
    own = [flag for flag in command.flags if flag not in panels.get(flag.panel, ())]
    parts = [f"## {command.words}\n", command.meaning + "\n"]
    if command.arguments:
        parts.append(table("argument", command.arguments))
    if own:
        parts.append(table("flag", own))
    borrowed = "; ".join(_borrowed(command, panels))
    if borrowed:
        parts.append(f"Shared flags: {borrowed}.\n")
    return "\n".join(parts)


def _borrowed(command: Command, panels: dict[str, list[Flag]]) -> Iterator[str]:
    """Yield a link for each panel that the command has flags of, with their names where it has not all."""
    for panel, shared in panels.items():
        names = [f"`{flag.names.split()[0]}`" for flag in shared if flag in command.flags]
        if names:
            link = f"[{panel}](#{panel.lower().replace(' ', '-')})"
            yield link if len(names) == len(shared) else f"{link} ({', '.join(names)})"


def shared_section(panels: dict[str, list[Flag]]) -> Iterator[str]:
    """Yield the section of shared flags, a table for each panel."""
    yield "## Shared flags\n"
    for panel, flags in panels.items():
        yield f"### {panel}\n"
        yield table("flag", flags)


def services_section() -> Iterator[str]:
    """Yield the section of the two services, whose flags are made from their settings."""
    common, drafter = ServiceConfig.model_fields, DrafterConfig.model_fields
    yield "## drafter-svc and verifier-svc\n"
    yield "Each serves one HuggingFace model over gRPC.\n"
    yield table("flag", (_service_flag(*setting) for setting in common.items()))
    yield "`drafter-svc` also has:\n"
    yield table("flag", (_service_flag(*setting) for setting in drafter.items() if setting[0] not in common))


def _service_flag(name: str, field: FieldInfo) -> Flag:
    kind, flag = type_of(field), flag_of(name)
    if kind is bool:
        return Flag("", f"{flag} / --no-{flag.removeprefix('--')}", help_of(field))
    values = "|".join(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else kind.__name__
    return Flag("", f"{flag} <{values}>", help_of(field))


def main() -> None:
    """Print the page."""
    every = list(commands(typer.main.get_command(with_found_commands()), "orchestrator"))
    panels = shared_panels(every)
    parts = [INTRO, *(section(command, panels) for command in every), *shared_section(panels), *services_section()]
    print("\n".join(parts), end="")


if __name__ == "__main__":
    main()
