"""``orchestrator config print | check``: what the served system would run with."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax

from orchestrator.api.settings.settings import load_settings, parse_set, to_yaml

config = typer.Typer(
    name="config",
    help="Show or check the configuration of the served system.",
    no_args_is_help=True,
)


@config.command("print")
def print_config(
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML; what it leaves out is default.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Over the file, such as verifier.replicas=2. Repeatable."),
    ] = None,
) -> None:
    """Show file and flags merged over the defaults, as YAML that --config takes."""
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
    """Check every key and value of a file; leave with 0, or with 2 and the first problem."""
    load_settings(file)
    print(f"{file}: every key and value is fine")
