"""What ``tune`` leaves: a table, a picture, and the configuration file for ``orchestrator serve``."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from orchestrator.api.settings.settings import settings_of
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.tables import number, table_of
from specgate.types import DraftMethod
from specgate_lab.bench.table import interval
from specgate_lab.report import new_figure, save_figure, write_whole
from specgate_lab.tune.advice import Advice
from specgate_lab.tune.versus_target import Gain

_COLUMNS: tuple[tuple[str, Callable[[Gain], str]], ...] = (
    ("way to draft", lambda gain: gain.name),
    ("tokens/s", lambda gain: f"{gain.tokens_per_s:.1f}"),
    ("× target", lambda gain: f"{gain.ratio:.2f}"),
    ("95 %", lambda gain: interval(gain.interval)),
    ("accepted", lambda gain: number(gain.acceptance, ".0%")),
)


def print_choices(console: Console, advice: Advice) -> None:
    """Print every way to draft, the fastest first; finalists with their gain in the final round."""
    found = {one.choice: one.gain for one in advice.tried} | dict(advice.finals)
    styles = {**dict.fromkeys(map(str, found), "dim"), **dict.fromkeys(map(str, advice.finals), "")}
    styles[str(advice.choice)] = "bold green"
    gains = sorted(found.values(), key=lambda gain: -gain.ratio)
    console.print(table_of(gains, _COLUMNS, style_of=lambda gain: styles[gain.name]))
    console.print("dim: tried for a short time alone", style="dim")


def draw_advice(path: Path, advice: Advice) -> None:
    """Draw the gain of every way to draft over the target alone. Raises as ``save_figure`` does."""
    tried = sorted(advice.tried, key=lambda one: one.gain.ratio)
    names = [str(one.choice) for one in tried]
    figure = new_figure(11.0, 1.5 + 0.32 * len(tried))
    axes = figure.subplots()
    axes.barh(names, [one.gain.ratio for one in tried], color="lightsteelblue", label="tried for a short time")
    for choice, found in advice.finals.items():
        colour = "tab:green" if choice == advice.choice else "tab:blue"
        low, high = found.interval or (found.ratio, found.ratio)
        axes.plot([low, high], [str(choice)] * 2, color=colour, linewidth=2)
        axes.plot([found.ratio], [str(choice)], "o", color=colour)
    axes.axvline(1.0, color="k", linewidth=0.8)
    axes.set(xlabel="× the target alone; dots and lines: finalists and their 95 % intervals, green is the advice")
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path, "out")


def write_config(path: Path, advice: Advice, models: ModelOptions, skip: str | None) -> None:
    """Write the file, the advice as a comment above it.

    Raises:
        InvalidArgument: it cannot be written, or ``serve`` would refuse it.
    """
    settings = _config(advice, models, skip)
    settings_of(settings)
    comment = "".join(f"# {part}\n" for line in advice.words() for part in textwrap.wrap(line, 100))
    write_whole(path, comment + yaml.safe_dump(settings, sort_keys=False), "out")


def _config(advice: Advice, models: ModelOptions, skip: str | None) -> dict[str, Any]:
    """Return what differs from the defaults of ``serve``."""
    verifier = models.service.given_to("verifier") | _model(models.target)
    settings: dict[str, Any] = {"verifier": verifier} if verifier else {}
    choice = advice.choice
    if choice is None:
        return settings | {"drafter": None, "defaults": {"gamma": 0, "verification": str(advice.verification)}}
    method = choice.drafter.method
    drafter = models.service.given_to("drafter") | {"method": str(method), "run_ahead": choice.drafter.run_ahead}
    if method is DraftMethod.LAYER_SKIP and skip is not None:
        drafter["skip"] = str(Path(skip).resolve())
    elif method.has_model:
        drafter |= _model(models.draft)
    gate, gamma, threshold, draft_threshold = choice.gate
    defaults = {
        "gate": str(gate),
        "gamma": gamma,
        "gate_threshold": threshold,
        "draft_threshold": draft_threshold,
        "verification": str(advice.verification),
    }
    return settings | {
        "drafter": drafter,
        "defaults": {name: value for name, value in defaults.items() if value is not None},
    }


def _model(name: str | None) -> dict[str, str]:
    """Return where a model is: a folder by its whole path, since ``serve`` may run elsewhere."""
    if name is None:
        return {}
    return {"model": str(Path(name).resolve()) if Path(name).exists() else name}
