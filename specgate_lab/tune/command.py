"""``orchestrator tune`` and ``orchestrator tune layers``."""

import typer

from specgate_lab.tune.layers.command import tune_layers
from specgate_lab.tune.pair.command import tune_pair

tune = typer.Typer(name="tune", invoke_without_command=True)
tune.callback()(tune_pair)
tune.command("layers")(tune_layers)
