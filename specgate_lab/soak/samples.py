"""What a served system holds, sampled every few seconds while replicas are killed, and drawn."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from specgate_lab.report import new_figure, save_figure
from specgate_lab.soak.clients import Tally
from specgate_lab.soak.processes import num_descriptors, rss_mb
from specgate_lab.soak.replicas import ROLES, Held, held_by, replicas_under

SAMPLE_EVERY_S = 5.0
KILL_EVERY_S = 60.0
_COLOURS = {"verifier": "tab:blue", "drafter": "tab:green", "gateway": "tab:orange"}
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """One replica at one moment."""

    pid: int
    role: str
    rss_mb: float
    descriptors: int


@dataclass(frozen=True, slots=True)
class HoldingSample:
    """All replicas at one moment, seconds from the start, and how much was answered until then."""

    at_s: float
    processes: tuple[Process, ...]
    held: Held
    whole: int
    tokens: int


class Kill(NamedTuple):
    """When a replica was killed, seconds from the start."""

    at_s: float
    role: str


@dataclass(slots=True)
class Log:
    """All samples and kills of one soak."""

    start_s: float = field(default_factory=time.monotonic)
    samples: list[HoldingSample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.start_s

    async def sample(self, pid: int, tally: Tally) -> Held:
        """Take one sample of the system that ``pid`` serves; return what is held."""
        replicas = await asyncio.to_thread(replicas_under, pid)
        processes = tuple(Process(one.pid, one.role, rss_mb(one.pid), num_descriptors(one.pid)) for one in replicas)
        held = await held_by(replicas)
        self.samples.append(HoldingSample(self.now_s, processes, held, tally.whole, tally.tokens))
        return held

    def to_object(self) -> dict[str, Any]:
        """Return samples and kills as the file holds them."""
        samples = [{**asdict(one), "held": one.held._asdict()} for one in self.samples]
        return {"samples": samples, "kills": [one._asdict() for one in self.kills]}


async def keep_sampling(log: Log, pid: int, tally: Tally, every_s: float) -> None:
    """Sample until cancelled."""
    while True:
        await log.sample(pid, tally)
        await asyncio.sleep(every_s)


async def kill_now_and_then(log: Log, pid: int, every_s: float = KILL_EVERY_S) -> None:
    """Kill a drafter or a verifier, in turns, until cancelled."""
    rng = random.Random(0)
    for role in cycle(ROLES):
        await asyncio.sleep(every_s)
        found = [one for one in await asyncio.to_thread(replicas_under, pid) if one.role == role]
        if found:
            # It may have died by itself since.
            with suppress(ProcessLookupError):
                os.kill(rng.choice(found).pid, signal.SIGKILL)
            log.kills.append(Kill(log.now_s, role))


def draw_soak(path: Path, log: Log, title: str) -> Path:
    """Draw three panels, a line for each process; return ``path``. Raises as ``save_figure`` does."""
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
    # One entry for each role.
    handles, labels = memory.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    memory.legend(by_label.values(), by_label.keys())
    return save_figure(figure, path, "out")


def _draw_processes(axes: Any, log: Log, value: Callable[[Process], float]) -> None:
    lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for sample in log.samples:
        for one in sample.processes:
            lines.setdefault((one.role, one.pid), []).append((sample.at_s / _MINUTE_S, value(one)))
    for (role, _), points in lines.items():
        axes.plot(*zip(*points, strict=True), color=_COLOURS[role], label=role)
