#!/usr/bin/env python3
"""What a forward costs on a CPU: by torch's products, as the services run it, and the floor of reading the weights.

    .venv/bin/python scripts/measure_cpu.py                          # the bundled target and draft
    .venv/bin/python scripts/measure_cpu.py FOLDER --json FILE.json  # any model, and a file for docs/results

Each model is measured on one core and on two, in a process of its own that stays on them. "Before" keeps the weights
in float32 and multiplies by torch, with its forwards recorded; "after" is what the services do by default. Both, and a
copy of memory, take turns, so that a neighbour's noise hits all. Ratios and the floor are of the least times: whatever
else runs only adds to them. The floor is what a copy of memory takes to read and write as many bytes as a forward
reads: all weights as they are stored, a tied embedding once.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.terminal.render import output_console
from specgate import cpu_library
from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.cpu.packing import bytes_of
from specgate.runtime.engine.forward_costs import CONTEXT_TOKENS
from specgate.runtime.engine.serving_path import build
from specgate.runtime.loading import load
from specgate.runtime.scheduler import Rows
from specgate.runtime.stored_weights import weight_of
from specgate.service.loading import CPU_PAGE_SIZE, CPU_PREFILL_CHUNK, LONE_CHUNKS
from specgate_lab.report import ResultsFile

ROWS = (1, 2, 4, 6, 8, 17)
PROMPTS = (512, 1000)
CHUNK = LONE_CHUNKS * CPU_PREFILL_CHUNK
COPIED_BYTES = 1 << 28
"""More than caches hold."""
CPU = torch.device("cpu")
FORWARDS = "Forwards of one sequence, least / median / 90 % below, µs"
PREFILLS = "Prompts, best / median, tokens/s"
WEIGHTS = "Weights and copies of memory"

Taken = Mapping[Any, Sequence[float]]
Shown = dict[str, Any]
"""A row of a table, by its columns' headings."""


class Served:
    """A model on its serving path, with one open sequence, as long as the longest prompt that its context holds."""

    def __init__(self, model: str, *, packs: bool) -> None:
        self.loaded = load(model, CPU, torch.float32, _ignore, keeps_stored=packs)
        self.read_bytes = bytes_of(self.loaded.model) - _looked_up_bytes(self.loaded.model)
        self.prompts = [length for length in PROMPTS if length <= self.loaded.context_length]
        page_size = min(CPU_PAGE_SIZE, self.loaded.context_length)
        self.runner = build(
            self.loaded, kernels_for("auto", self.loaded), kv_tokens=4 * page_size, page_size=page_size,
            max_sessions=1, capturer=None, packs=packs, progress=_ignore,
        )  # fmt: skip
        length = max([*self.prompts, CONTEXT_TOKENS + ROWS[-1]])
        token_ids = [5 * place % self.loaded.vocab_size for place in range(length)]
        self._sequence = self.runner.pool.open(token_ids, length)
        self.runner.pool.extend(self._sequence, length)
        self.prefill(length)

    def forward(self, num_rows: int) -> torch.Tensor:
        """Return the logits of so many rows behind the context, [rows, vocabulary]."""
        self._sequence.num_cached = CONTEXT_TOKENS
        return self.runner.forward([Rows(self._sequence, num_rows, num_rows)])[0]

    def prefill(self, length: int) -> None:
        """Run a prompt in the chunks of a service that has nothing else to do."""
        self._sequence.num_cached = 0
        while left := length - self._sequence.num_cached:
            self.runner.forward([Rows(self._sequence, min(CHUNK, left), int(left <= CHUNK))])


def main() -> None:
    """Measure, print the tables, and write them where asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[BUNDLED_TARGET, BUNDLED_DRAFT], help="default: the bundled pair")
    parser.add_argument("--cores", type=int, default=2, help="each on one, and so on up to so many")
    parser.add_argument("--turns", type=int, default=30, help="timed forwards a figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables, and what measured them")
    arguments = parser.parse_args()
    results = ResultsFile(arguments.json) if arguments.json else None
    usable = sorted(os.sched_getaffinity(0))
    numbers = range(1, min(arguments.cores, len(usable)) + 1)
    cases = [(model, usable[:number]) for model in arguments.models for number in numbers]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        told = [fresh.submit(measure, *case, arguments.turns).result() for case in cases]
    tables = {title: [row for each in told for row in each[title]] for title in (FORWARDS, PREFILLS, WEIGHTS)}
    for title, rows in tables.items():
        output_console().print(_table(title, rows))
    if results:
        results.write({"turns": arguments.turns, "tables": tables})


def measure(model: str, cores: Sequence[int], turns: int) -> dict[str, list[Shown]]:
    """Return each table's rows for a model on these cores, which this process stays on from now on."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    case = {"model": _name(model), "cores": len(cores)}
    told = f"{case['model']} on {case['cores']}"
    before, after = ways = Served(model, packs=False), Served(model, packs=True)
    source, target = torch.ones(2, COPIED_BYTES // 4)
    copy = {"copy": lambda: target.copy_(source)}
    forwards = seconds_of(copy | _runs(ways, "forward", ROWS), turns, f"{told}: forwards")
    # A prompt takes as long as many forwards.
    prefills = seconds_of(_runs(ways, "prefill", after.prompts), max(turns // 6, 1), f"{told}: prompts")
    bytes_a_second = 2 * COPIED_BYTES / min(forwards["copy"])
    rows = {
        FORWARDS: _forward_rows(forwards, 1e6 * after.read_bytes / bytes_a_second),
        PREFILLS: [_prefill_row(prefills, length) for length in after.prompts],
        WEIGHTS: [_weights(before, after) | {"copies, GB/s": bytes_a_second / 1e9}],
    }
    return {title: [case | row for row in own] for title, own in rows.items()}


def seconds_of(runs: Mapping[Any, Callable[[], Any]], turns: int, told: str) -> Taken:
    """Return what each run took in each turn. It runs twice, and the second time counts: the caches are its own."""
    taken: dict[Any, list[float]] = {key: [] for key in runs}
    for _ in track(range(turns), told, console=Console(stderr=True)):
        for key, run in runs.items():
            run()
            start_s = time.perf_counter()
            run()
            taken[key].append(time.perf_counter() - start_s)
    return taken


def _runs(ways: tuple[Served, Served], what: str, sizes: Sequence[int]) -> dict[Any, Callable[[], Any]]:
    """Return what is run of each size, by "before" or "after" and the size."""
    named = dict(zip(("before", "after"), ways, strict=True))
    return {(name, size): partial(getattr(way, what), size) for size in sizes for name, way in named.items()}


def _forward_rows(taken: Taken, floor_us: float) -> list[Shown]:
    least = {key: 1e6 * min(each) for key, each in taken.items()}
    return [
        {
            "rows": rows,
            "before": _times_us(taken["before", rows]),
            "after": _times_us(taken["after", rows]),
            "floor": floor_us,
            "after / before": least["after", rows] / least["before", rows],
            "after / 1 row": least["after", rows] / least["after", 1],
            "after / floor": least["after", rows] / floor_us,
        }
        for rows in ROWS
    ]


def _times_us(taken: Sequence[float]) -> dict[str, float]:
    below = quantiles(taken, n=10)[-1] if len(taken) > 1 else taken[0]
    return {"least": 1e6 * min(taken), "median": 1e6 * median(taken), "90 % below": 1e6 * below}


def _prefill_row(taken: Taken, length: int) -> Shown:
    before, after = (
        {"best": length / min(each), "median": length / median(each)}
        for each in (taken["before", length], taken["after", length])
    )
    return {"prompt tokens": length, "before": before, "after": after, "after / before": after["best"] / before["best"]}


def _weights(before: Served, after: Served) -> Shown:
    """Return bytes, what runs the layers, and the relative Frobenius error of one way's logits to the other's."""
    expected, actual = before.forward(ROWS[-1]), after.forward(ROWS[-1])
    return {
        "before, MB": bytes_of(before.loaded.model) / 1e6,
        "after, MB": bytes_of(after.loaded.model) / 1e6,
        "a forward reads, MB": after.read_bytes / 1e6,
        "before by": before.runner.kernel.name,
        "after by": f"{after.runner.kernel.name}, {cpu_library.instruction_set()}",
        "logits apart": f"{float((actual - expected).norm() / expected.norm()):.1e}",
    }


def _looked_up_bytes(model: Any) -> int:
    """Return the bytes of an embedding that is not the head too: a forward reads a few of its rows."""
    embedding, head = map(weight_of, (model.get_input_embeddings(), model.get_output_embeddings()))
    return 0 if embedding.data_ptr() == head.data_ptr() else embedding.nbytes


def _name(model: str) -> str:
    bundled = {BUNDLED_TARGET: "bundled target", BUNDLED_DRAFT: "bundled draft"}
    return bundled.get(str(Path(model).resolve()), Path(model).name)


def _ignore(*stage: Any) -> None:
    """Loading takes seconds, and tells of stages."""


def _table(title: str, rows: Sequence[Shown]) -> Table:
    table = Table(*(Column(heading, overflow="fold") for heading in rows[0]), title=title)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(f"{one:.0f}" for one in value.values())
    return f"{value:.{0 if value >= 100 else 2}f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
