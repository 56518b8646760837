"""``orchestrator tune`` and ``orchestrator tune layers``."""

import typer

from orchestrator.tune.layers.command import tune_layers
from orchestrator.tune.pair.command import tune_pair

tune = typer.Typer(name="tune", invoke_without_command=True)
tune.callback()(tune_pair)
tune.command("layers")(tune_layers)
