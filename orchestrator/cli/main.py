"""The command line, ``orchestrator COMMAND``.

A command imports a heavy library when it runs, not before.
"""

import os
import re
import sys
from dataclasses import fields
from typing import Annotated

import typer

from orchestrator.bench.command import bench
from orchestrator.bench.gates.compare_gates import compare_gates
from orchestrator.bench.gates.options import GateOptions
from orchestrator.bench.load.options import LoadOptions
from orchestrator.bench.network.options import NetworkOptions
from orchestrator.bench.proof.prove import prove
from orchestrator.bench.soak.options import SoakOptions
from orchestrator.cli.chat import chat
from orchestrator.cli.config import config
from orchestrator.cli.demo import demo
from orchestrator.cli.doctor import doctor
from orchestrator.cli.generate import generate
from orchestrator.cli.keys import keys
from orchestrator.cli.serve import serve
from orchestrator.cli.status import status
from orchestrator.terminal import service_flags
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions
from orchestrator.terminal.system_options import SystemOptions
from orchestrator.tune.command import tune
from orchestrator.tune.layers.options import LayerOptions
from orchestrator.tune.pair.options import TuneOptions
from orchestrator.tune.train_draft import train_draft
from specgate import __version__
from specgate.distill.recipe import Recipe
from specgate.errors import InvalidArgument, SpecgateError
from specgate.logs import LogLevel, configure_logs

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
_GROUPS = (
    SystemOptions,
    DraftingOptions,
    SamplingOptions,
    LoadOptions,
    NetworkOptions,
    SoakOptions,
    GateOptions,
    LayerOptions,
    TuneOptions,
)
_OWN_FLAGS = {"prompts", "repeats", "samples", "json", "assisted", "observed", "out"}
_RECIPE = {field.name for field in fields(Recipe)}
_FLAGS = {field.name for group in _GROUPS for field in fields(group)} | _OWN_FLAGS | _RECIPE | {*service_flags.NAMES}
_OF_SETTINGS = frozenset({"config", "serve", "status"})
"""Commands whose field names are keys of the configuration; the settings of all services are their flags."""
_FIELDS_OF_OTHER_NAMES = {"stop_token_ids": "stop_token_id"}
for _command in (generate, chat, bench, compare_gates, prove, doctor, demo, serve, status, train_draft):
    app.command()(_command)
app.add_typer(config)
app.add_typer(keys)
app.add_typer(tune)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specgate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit with 0, 1 for a failure, 2 for wrong input, 130 after Ctrl-C."""
    configure_logs(f"orchestrator-{os.getpid()}", level=LogLevel.WARNING)
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code. An error is one line on standard error."""
    try:
        return app(argv, standalone_mode=False) or 0
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
    name = _FIELDS_OF_OTHER_NAMES.get(name, name)
    return f"--{name.replace('_', '-')}" if name in _FLAGS else field


def _tell(problem: str, code: int) -> int:
    # Where no command is given the help has been shown already.
    if problem:
        print(f"orchestrator: {problem}", file=sys.stderr)
    return code
