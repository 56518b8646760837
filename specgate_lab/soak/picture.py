"""A soak as a picture: memory, descriptors, and what is held, over time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgate_lab.report import new_figure, save_figure
from specgate_lab.soak.samples import Log, Process

_COLOURS = {"verifier": "tab:blue", "drafter": "tab:green", "gateway": "tab:orange"}
_MINUTE_S = 60.0


def draw_soak(path: Path, log: Log, title: str) -> Path:
    """Draw three panels, a line a process; return ``path``. Raises InvalidArgument where it cannot be written."""
    figure = new_figure(8.0, 9.0)
    memory, descriptors, held = figure.subplots(3, 1, sharex=True)
    _draw_processes(memory, log, lambda one: one.rss_mb)
    _draw_processes(descriptors, log, lambda one: one.descriptors)
    minutes = [one.at_s / _MINUTE_S for one in log.samples]
    held.step(minutes, [one.held.sessions for one in log.samples], label="sessions", where="post")
    tokens = held.twinx()
    tokens.step(minutes, [one.held.kv_tokens for one in log.samples], color="tab:red", alpha=0.5, where="post")
    memory.set(ylabel="memory of a process, MB", ylim=(0, None), title=title)
    descriptors.set(ylabel="descriptors of a process", ylim=(0, None))
    held.set(xlabel="minutes; dotted: a replica is killed", ylabel="sessions of all services", ylim=(0, None))
    tokens.set(ylabel="tokens in pages (red)", ylim=(0, None))
    for axes in (memory, descriptors, held):
        axes.grid(alpha=0.3)
        for kill in log.kills:
            axes.axvline(kill.at_s / _MINUTE_S, color=_COLOURS[kill.role], linestyle=":", alpha=0.6)
    memory.legend(*_first_of_each(memory))
    return save_figure(figure, path, "out")


def _draw_processes(axes: Any, log: Log, value: Callable[[Process], float]) -> None:
    lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for sample in log.samples:
        for one in sample.processes:
            lines.setdefault((one.role, one.pid), []).append((sample.at_s / _MINUTE_S, value(one)))
    for (role, _), points in lines.items():
        axes.plot(*zip(*points, strict=True), color=_COLOURS[role], label=role)


def _first_of_each(axes: Any) -> tuple[list[Any], list[str]]:
    by_label = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(by_label.values()), list(by_label)
