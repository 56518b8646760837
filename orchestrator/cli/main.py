"""The command line, ``orchestrator COMMAND``.

A command imports a heavy library when it runs, not before. Other packages bring commands by the entry points of
``COMMANDS``: those that measure and train come so, and a machine that serves may lack them.
"""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from orchestrator.cli.chat import chat
from orchestrator.cli.config import config
from orchestrator.cli.doctor import doctor
from orchestrator.cli.generate import generate
from orchestrator.cli.keys import keys
from orchestrator.cli.serve import serve
from orchestrator.cli.status import status
from orchestrator.terminal import service_flags
from specgate.errors import InvalidArgument, SpecgateError
from specgate.logs import LogLevel, configure_logs
from specgate.version import one_line

FAILURE = 1
BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    name="orchestrator",
    help="Speculative decoding across two services: the draft proposes, the target verifies, the text is the target's.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = "specgate.commands"
"""The group of entry points. Each is a function, or a typer app for a command with others below it."""
_OF_SETTINGS = frozenset({"config", "serve", "status"})
"""Commands whose field names are keys of the configuration; the settings of all services are their flags."""


def _add(command: Any) -> str:
    """Add a function or a typer app, and return its name."""
    if isinstance(command, typer.Typer):
        app.add_typer(command)
        return str(command.info.name)
    app.command()(command)
    return str(command.__name__)


_OWN = frozenset(map(_add, (generate, chat, serve, status, doctor, config, keys)))


@cache
def with_found_commands() -> typer.Typer:
    """Return the application with the commands of other packages; of those that are here."""
    for entry in entry_points(group=COMMANDS):
        if find_spec(entry.module.partition(".")[0]):
            _add(entry.load())
    return app


_OPTIONS = {"stop_token_ids": "stop_token_id"}
"""The option that gives a field of another name, one value at a time."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(one_line())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print version, commit and build, and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit with 0, 1 for a failure, 2 for wrong input, 130 after Ctrl-C."""
    configure_logs(f"orchestrator-{os.getpid()}", level=LogLevel.WARNING)
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code. An error is one line on standard error."""
    # What serves starts without what measures, and also where that is broken.
    commands = app if _OWN.intersection(argv[:1]) else with_found_commands()
    try:
        return commands(argv, standalone_mode=False) or 0
    except InvalidArgument as error:
        is_key = _OF_SETTINGS.intersection(argv[:1]) and error.field not in service_flags.NAMES
        field = error.field if is_key else _flag(error.field)
        return _tell(f"{field}: {error.problem}", BAD_INPUT)
    except SpecgateError as error:
        return _tell(str(error), FAILURE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # typer's own errors; which class they share has changed between its releases.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _tell(format_message(), getattr(error, "exit_code", BAD_INPUT))


def _flag(field: str) -> str:
    """Return the flag that a field's value came from; a field that is no flag, as in a prompts file, as it is."""
    name = re.split(r"[ \[]", field)[0].replace(".", "_")
    name = _OPTIONS.get(name, name)
    return dict(_flags(typer.main.get_command(app))).get(name, field)


def _flags(command: Any) -> Iterator[tuple[str, str]]:
    """Yield name and flag of all options of a command and of those below it."""
    for below in getattr(command, "commands", {}).values():
        yield from _flags(below)
    for option in command.params:
        if option.opts[0].startswith("--"):
            yield option.name, option.opts[0]


def _tell(problem: str, code: int) -> int:
    # Where no command is given the help has been shown already.
    if problem:
        print(f"orchestrator: {problem}", file=sys.stderr)
    return code
