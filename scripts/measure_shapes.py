#!/usr/bin/env python3
"""Measure what models of known shapes would take on this CPU, and predict their pairs: before anything is downloaded.

    python scripts/measure_shapes.py --json shapes.json
    python scripts/measure_shapes.py --pairs pythia-1.4b:pythia-160m --json /tmp/shapes.json

A model has the published sizes and weights without a meaning, in bfloat16, on one thread, in a process of its own: its
forwards are measured as a service measures its own. A pair's rate follows from how often a draft token is accepted, at
the γ that is best then, as ``train-draft`` predicts it: without the time between the services.
"""

import argparse
import resource
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.policy.auto.costs import MeasuredCosts
from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.engine.forward_costs import measure_forwards
from specgate.runtime.engine.serving_path import build
from specgate.runtime.loading import LoadedModel
from specgate.runtime.stored_weights import keep_short
from specgate.service.loading import CPU_PAGE_SIZE
from specgate.types import ForwardCost
from specgate_lab.report import ResultsFile
from specgate_lab.train.gain import Gain, tokens_at

SHAPES: Mapping[str, Any] = {
    "pythia-1.4b": GPTNeoXConfig(
        hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, intermediate_size=8192, vocab_size=50304
    ),
    "pythia-160m": GPTNeoXConfig(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=50304
    ),
    "Llama-2-7B": LlamaConfig(max_position_embeddings=4096),
    "TinyLlama-1.1B": LlamaConfig(
        hidden_size=2048, num_hidden_layers=22, num_key_value_heads=4, intermediate_size=5632
    ),
}
"""By their configurations; what is not given is the library's default, which is theirs."""
PAIRS = ("pythia-1.4b:pythia-160m", "Llama-2-7B:TinyLlama-1.1B")
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8)


def measured(name: str) -> tuple[int, int, list[ForwardCost]]:
    """Return a model's parameters, the most memory of its process in MB, and its forwards."""
    torch.set_num_threads(1)
    config = SHAPES[name]
    config._attn_implementation = "eager"
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    keep_short(model)
    loaded = LoadedModel(
        name=name,
        model=model,
        dtype=torch.float32,
        device=torch.device("cpu"),
        vocab_size=config.vocab_size,
        context_length=CPU_PAGE_SIZE,
        eos_token_ids=(),
        num_parameters=int(model.num_parameters()),
    )
    kernels = kernels_for("auto", loaded)
    pages = {"kv_tokens": CPU_PAGE_SIZE, "page_size": CPU_PAGE_SIZE, "max_sessions": 1, "capturer": None}
    runner = build(loaded, kernels, **pages, progress=lambda *_: None)
    costs = [*measure_forwards(runner)]
    return loaded.num_parameters, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, costs


def in_a_process(name: str) -> tuple[int, int, list[ForwardCost]]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, name).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=",".join(PAIRS), help="TARGET:DRAFT,...")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    file, pairs = ResultsFile(options.json), [one.split(":") for one in options.pairs.split(",")]
    names = dict.fromkeys(name for pair in pairs for name in pair)
    found = {name: in_a_process(name) for name in track(names, "shapes", console=Console(stderr=True))}
    shapes = [
        {
            "name": name, "parameters, M": round(num / 1e6), "memory_mb": memory,
            "tokens_per_s": round(1e6 / costs[0].forward_us, 1),
            "µs of 4 rows / 1": round(_at(costs, 4) / costs[0].forward_us, 2),
            "µs for 1,024 tokens": costs[0].context_us,
        }
        for name, (num, memory, costs) in found.items()
    ]  # fmt: skip
    rows = []
    for target, draft in pairs:
        gains = [Gain.of(MeasuredCosts(found[target][2], found[draft][2]), tokens_at(one)) for one in ACCEPTANCES]
        told = [f"{one.ratio:.2f}, γ {one.gamma}" for one in gains]
        at = {f"at {acceptance:.0%}": one for acceptance, one in zip(ACCEPTANCES, told, strict=True)}
        rows.append({"target": target, "draft": draft, **at})
    for part in (shapes, rows):
        table = Table(*part[0])
        for row in part:
            table.add_row(*map(str, row.values()))
        Console().print(table)
    file.write({"shapes": shapes, "pairs": rows})


def _at(costs: list[ForwardCost], rows: int) -> int:
    return next(one.forward_us for one in costs if one.rows == rows)


if __name__ == "__main__":
    main()
