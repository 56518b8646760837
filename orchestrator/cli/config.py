"""``orchestrator config print | check``: the configuration that the served system runs with."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax

from orchestrator.api.settings.settings import load_settings, parse_set, to_yaml
from orchestrator.cli.serve_options import CONFIG, SET

config = typer.Typer(
    name="config",
    help="Show or check the configuration of the served system.",
    no_args_is_help=True,
)


@config.command("print")
def print_config(
    file: Annotated[Path | None, CONFIG] = None,
    overrides: Annotated[list[str] | None, SET] = None,
) -> None:
    """Print the defaults merged with file and flags, as YAML for --config."""
    shown = to_yaml(load_settings(file, parse_set(overrides or ())))
    console = Console()
    if console.is_terminal:
        # As text, because a Syntax would cut long lines at the terminal's edge.
        painter = Syntax("", "yaml", theme="ansi_dark", background_color="default")
        console.print(painter.highlight(shown), soft_wrap=True, end="")
    else:
        print(shown, end="")


@config.command("check")
def check_config(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Check every key and value of a file. Exit code 0, or 2 with the first problem."""
    load_settings(file)
    print(f"{file}: every key and value is valid")
