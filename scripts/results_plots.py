"""Draw the plots of docs/results as SVG files. Needs matplotlib, of the extra ``bench``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

Results = Mapping[str, Mapping[str, Any]]
TARGET_ALONE = "× the target alone, in the same run; the line is the target alone"
BENCHES = {
    "bundled-greedy": "bundled pair, greedy",
    "bundled-temperature-1": "bundled pair, temperature 1",
    "smollm2-135m-24-layers": "SmolLM2-135M, draft of 24 layers",
}
BENCH_ROWS = ("hf-assisted-all-cores", "spec", "spec+gate", "spec+run-ahead", "spec+run-ahead+auto")
SOURCES = {
    "sources-smollm2-135m-copies": "SmolLM2-135M, copies",
    "sources-smollm2-135m-chats": "SmolLM2-135M, chats",
    "sources-bundled-code": "bundled pair, code",
}
SOURCE_ROWS = ("hf-prompt-lookup", "hf-assisted", "model+auto", "suffix+auto")
CALIBRATIONS = {"calibration-bundled": "bundled pair", "calibration-smollm2": "SmolLM2-135M, trained draft"}
SIGNALS = {"draft": "the draft's probability of it", "target": "the target's confidence before it"}
DISTANCES = {
    "distance-bundled": "bundled, greedy",
    "distance-bundled-t1": "bundled, temperature 1",
    "distance-smollm2-copies": "SmolLM2-135M, copies",
}
DISTANCE_ROWS = {"spec+run-ahead+auto": "auto", "spec+run-ahead": "asked for, γ 4"}
CONTEXT_ROWS = {"alone": "target alone", "spec": "γ 4", "auto": "auto"}
GPU_DAY = "h200"
GPU_DRAFTS = {
    "draft-0.7": "30 layers, acceptance 0.7",
    "draft-0.8": "30 layers, acceptance 0.8",
    "draft-0.9": "30 layers, acceptance 0.9",
    "draft-thin-0.8": "4 layers, acceptance 0.8",
}
SAMPLE_STEP = 4
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "specgate", "font.size": 9.0}
"""Text stays text: files are small, and a test reads it."""


class Bar(NamedTuple):
    """A ratio with the bounds of its interval, where one was measured."""

    label: str
    value: float
    bounds: Sequence[float] | None = None


def draw_plots(results: Results, folder: Path) -> None:
    """Write every plot that ``results`` has the files for."""
    draws = {
        "one-request": _one_request,
        "draft-sources": _draft_sources,
        "gpu": _gpu,
        "soak": _soak,
        "calibration": _calibration,
        "contexts": _contexts,
        "distance": _distance,
    }
    for name, draw in draws.items():
        with rc_context(STYLE):
            figure = draw(results)
            figure.savefig(folder / f"{name}.svg", format="svg", metadata={"Date": None})


def _one_request(results: Results) -> Figure:
    return _benches(results, BENCHES, BENCH_ROWS)


def _draft_sources(results: Results) -> Figure:
    return _benches(results, SOURCES, SOURCE_ROWS)


def _benches(results: Results, titles: Mapping[str, str], rows: Sequence[str]) -> Figure:
    return _bars({title: _bars_of(results[name]["rows"], rows) for name, title in titles.items()})


def _gpu(results: Results) -> Figure:
    (table,) = [step for step in results[GPU_DAY]["steps"] if step["name"] == "one process"]
    ways = [row for row in table["rows"] if row.get("way") == "spec"]
    return _bars(
        {
            title: [Bar(_way(row), row["x_target"]) for row in ways if row["draft"] == draft]
            for draft, title in GPU_DRAFTS.items()
        }
    )


def _way(row: Mapping[str, Any]) -> str:
    gamma = f" γ {row['gamma']}" if row["gamma"] is not None else ""
    return f"{row['gate']}{gamma}{', run-ahead' if row['run_ahead'] else ''}"


def _bars_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Bar]:
    by_name = {row["name"]: row for row in rows}
    own = [by_name[name] for name in names if name in by_name]
    return [Bar(row["name"], row["ratio_to_target"], row["ratio_to_target_95"]) for row in own]


def _bars(panels: Mapping[str, Sequence[Bar]]) -> Figure:
    """Return a figure with a panel of horizontal bars for each title, the first bar at the top."""
    columns = 2
    rows = -(-len(panels) // columns)
    longest = max(len(bars) for bars in panels.values())
    figure = Figure(figsize=(4.2 * columns, (0.26 * longest + 0.6) * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axes, (title, bars) in zip(grid.flat, panels.items(), strict=False):
        _draw_bars(axes, bars)
        axes.set_title(title, fontsize=9.0, loc="left")
    figure.supxlabel(TARGET_ALONE, fontsize=9.0)
    return figure


def _draw_bars(axes: Any, bars: Sequence[Bar]) -> None:
    colours = ["tab:green" if bar.value >= 1 else "tab:red" for bar in bars]
    drawn = axes.barh([bar.label for bar in bars], [bar.value for bar in bars], color=colours, alpha=0.7)
    axes.bar_label(drawn, [f"{bar.value:.2f}" for bar in bars], label_type="center")
    for place, bar in enumerate(bars):
        if bar.bounds:
            axes.plot(bar.bounds, [place, place], color="black", linewidth=1)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()


def _calibration(results: Results) -> Figure:
    """Return how often draft tokens are accepted, by each confidence: a panel for each pair and temperature."""
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    panels = figure.subplots(len(CALIBRATIONS), 2, sharex=True, sharey=True)
    for row, (name, title) in zip(panels, CALIBRATIONS.items(), strict=True):
        for axes, one in zip(row, results[name]["temperatures"], strict=True):
            axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
            for signal, label in SIGNALS.items():
                bins = one["all"][signal]["bins"]
                axes.plot(
                    [confidence for confidence, *_ in bins], [share for _, share, _ in bins], marker="o", label=label
                )
            axes.set_title(f"{title}, temperature {one['temperature']:g}", fontsize=9.0, loc="left")
    panels[0][0].legend(loc="lower right")
    figure.supxlabel("confidence; a point is a tenth of the draft tokens", fontsize=9.0)
    figure.supylabel("accepted", fontsize=9.0)
    return figure


def _contexts(results: Results) -> Figure:
    """Return rates and times to the first token, by the length of the context."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    rates, firsts = figure.subplots(1, 2)
    rows = results["contexts"]["rows"]
    for name, label in CONTEXT_ROWS.items():
        own = [row for row in rows if row["name"] == name]
        lengths = [row["context"] for row in own]
        rates.plot(lengths, [row["tokens_per_s"] for row in own], marker="o", label=label)
        firsts.plot(lengths, [row["first_token_s"] for row in own], marker="o", label=label)
    for axes, title in ((rates, "tokens/s"), (firsts, "first token, s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(title, fontsize=9.0, loc="left")
    rates.legend()
    figure.supxlabel("tokens of context", fontsize=9.0)
    return figure


def _distance(results: Results) -> Figure:
    """Return the rates of speculation over the target alone, by the round trip to both services."""
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(DISTANCES), sharey=True), DISTANCES.items(), strict=True):
        for row, label in DISTANCE_ROWS.items():
            own = [one for one in results[name]["rows"] if one["name"] == row]
            ratios = [one["ratio_to_target"] for one in own]
            axes.plot([one["added_delay_ms"] for one in own], ratios, marker="o", label=label)
        axes.axhline(1.0, color="k", linewidth=0.8)
        axes.set_title(title, fontsize=9.0, loc="left")
    axes.legend()
    figure.supxlabel(f"added round trip to both services, ms; y: {TARGET_ALONE}", fontsize=9.0)
    return figure


def _soak(results: Results) -> Figure:
    """Return the memory of each process over time."""
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    axes = figure.subplots()
    colours = {"verifier": "tab:blue", "drafter": "tab:green", "gateway": "tab:orange"}
    lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for sample in results["soak"]["samples"][::SAMPLE_STEP]:
        for one in sample["processes"]:
            lines.setdefault((one["role"], one["pid"]), []).append((sample["at_s"] / 60, one["rss_mb"]))
    for (role, _), points in lines.items():
        axes.plot(*zip(*points, strict=True), color=colours[role])
    for role, colour in colours.items():
        axes.plot([], [], color=colour, label=role)
    axes.set(xlabel="minutes; a line ends where its process is killed", ylabel="memory, MB", ylim=(0, None))
    axes.legend(loc="lower right")
    return figure
