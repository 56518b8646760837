#!/usr/bin/env python3
"""Measure a GGUF file as we serve it, beside llama.cpp with the same file, on the same cores.

    python scripts/measure_gguf.py target.gguf --draft draft.gguf --cores 1 --json docs/results/gguf-q8-0-one-core.json

Greedy, one request at a time, all variants in turns over the same prompts. ``ours`` and ``llama.cpp`` are the target
alone: ours with one thread a service, the default, llama.cpp with one a core. Ours drafts by copying (suffix) and with
the draft model, under the gate auto, and llama.cpp with that model. Needs the package xllamacpp. First tokens are
medians: ours by this program's clock, over gRPC; llama.cpp's by its own, of the prompt alone. Memory is what a
variant's services hold after the last prompt; ours are asked from this program.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from orchestrator import GenerationRequest, SamplingParams, open_orchestrator
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.terminal.prompts import read_prompts
from specgate_lab.experiment import Sample, measure
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.report import ResultsFile
from specgate_lab.soak.processes import descendants, rss_mb
from specgate_lab.statistics import pooled_rate, ratio_interval
from specgate_lab.workload import full_requests

LLAMA_CPP = "specgate_lab.peers.llama_cpp"
OURS, SUFFIX, DRAFT, LLAMA, LLAMA_DRAFT = "ours", "ours, suffix", "ours, draft", "llama.cpp", "llama.cpp, draft"
ALONE = {OURS: OURS, SUFFIX: OURS, DRAFT: OURS, LLAMA: LLAMA, LLAMA_DRAFT: LLAMA}
"""Whose text a variant's is compared with."""
Run = Callable[[GenerationRequest], Awaitable[Sample]]


async def ours(orchestrator: Orchestrator, gamma: int | None, request: GenerationRequest) -> Sample:
    """Generate, and time what comes."""
    # Each text is computed from its beginning, as llama.cpp is asked to.
    request = replace(request, gamma=gamma, cache_salt=str(time.perf_counter_ns()))
    start, first, token_ids, num_first = time.perf_counter(), 0.0, [], 0
    async for delta in orchestrator.generate(request):
        token_ids += delta.token_ids
        if not first and token_ids:
            first, num_first = time.perf_counter(), len(token_ids)
    end = time.perf_counter()
    return Sample(len(token_ids) - num_first, end - first, tuple(token_ids), first_s=first - start)


async def start(options: argparse.Namespace, stack: AsyncExitStack) -> tuple[dict[str, Run], dict[str, set[int]]]:
    """Return how each variant runs, and its processes."""
    runs: dict[str, Run] = {}
    processes: dict[str, set[int]] = {}
    given: dict[str, dict[str, Any]] = {
        OURS: {}, SUFFIX: {"method": "suffix"}, DRAFT: {"draft": options.draft},
    }  # fmt: skip
    for name, settings in given.items():
        before = set(descendants(os.getpid()))
        opened = open_orchestrator(options.target, **settings)
        orchestrator = await stack.enter_async_context(opened)
        runs[name] = partial(ours, orchestrator, 0 if name == OURS else None)
        processes[name] = set(descendants(os.getpid())) - before
    for name, assistant in ((LLAMA, None), (LLAMA_DRAFT, options.draft)):
        before = set(descendants(os.getpid()))
        loop = BareLoopProcess(
            options.target, dtype="auto", device="cpu", threads=options.cores, assistant=assistant, module=LLAMA_CPP
        )
        runs[name] = (await stack.enter_async_context(loop)).run
        processes[name] = set(descendants(os.getpid())) - before
    return runs, processes


async def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all variants in turns, and return a row for each."""
    defaults = GenerationRequest((), SamplingParams(temperature=0.0), options.max_tokens)
    prompts = read_prompts(options.prompts, defaults)[: options.num_prompts]
    requests = full_requests(prompts, TextTokenizer.load(options.target))
    async with AsyncExitStack() as stack:
        runs, processes = await start(options, stack)
        with Progress(transient=True) as progress:
            bar = progress.add_task("measure", total=len(runs) * len(requests))
            samples = await measure(runs, requests, 1, partial(progress.advance, bar), warm_up=requests[:1])
        return [row(name, samples, processes[name]) for name in runs]


def row(name: str, samples: Mapping[str, Sequence[Sample]], pids: Iterable[int]) -> dict[str, Any]:
    """Return what a variant's samples come to."""
    own, alone = samples[name], samples[ALONE[name]]
    ratios = {
        "ratio_to_llama": None if name == LLAMA else ratio_interval(own, samples[LLAMA]),
        "ratio_to_ours": None if name == OURS else ratio_interval(own, samples[OURS]),
    }
    return {
        "name": name,
        "tokens_per_s": round(pooled_rate(own), 1),
        **{key: ratio and [round(value, 3) for value in ratio] for key, ratio in ratios.items()},
        "first_token_ms": round(median(one.first_s for one in own if one.first_s is not None) * 1000, 1),
        "memory_mb": round(sum(map(rss_mb, pids))),
        "texts_as_alone": sum(one.token_ids == other.token_ids for one, other in zip(own, alone, strict=True)),
        "texts": len(own),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--cores", type=int, default=1, help="all processes of a variant share so many")
    parser.add_argument("--prompts", type=Path, default=Path("docs/results/held-out-chats.jsonl"))
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    file = ResultsFile(options.json)
    rows = asyncio.run(measured(options))
    table = Table(*rows[0])
    for one in rows:
        table.add_row(*map(str, one.values()))
    Console().print(table)
    file.write({"cores": options.cores, "max_tokens": options.max_tokens, "rows": rows})


if __name__ == "__main__":
    main()
