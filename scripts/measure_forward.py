#!/usr/bin/env python3
"""What a forward costs on this device: the serving path, HuggingFace's eager model, and the floor of reading weights.

    python scripts/measure_forward.py                         # SmolLM2-1.7B and -135M shapes, random weights
    python scripts/measure_forward.py --tiny --device cpu     # seconds, to try the script out

Needs torch, transformers and rich, and runs from the source tree. Each figure is the median microseconds of a forward
in which so many sequences, each behind the same context, bring so many rows and get the logits of all of them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pair_shapes import PAIRS, SMOLLM2_1_7B, SMOLLM2_135M
from rich.console import Console
from rich.table import Table
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specgate.devices import pick_device
from specgate.runtime.attention.kernels import kernels_for
from specgate.runtime.attention.reference import varlen_attention
from specgate.runtime.attention.varlen import VarlenKernel
from specgate.runtime.cuda.decoder.drafting import StepLauncher
from specgate.runtime.cuda.graphs import CudaCapturer
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.engine.serving_path import build
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.loading import LoadedModel, pick_dtype
from specgate.runtime.scheduler import Rows
from specgate.types import Dtype
from tests.support.tape import EagerCapturer

VOCAB_SIZE = PAIRS["smollm2"].vocab_size
SHAPES = {
    "SmolLM2-1.7B": {**SMOLLM2_1_7B, "vocab_size": VOCAB_SIZE},
    "SmolLM2-135M": {**SMOLLM2_135M, "vocab_size": VOCAB_SIZE},
}
TINY = {"tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256}}  # fmt: skip
ROWS, SEQUENCES = (1, 4, 6, 8), (1, 8, 32)
PAGE_SIZE = 256
COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class Measured:
    """Median microseconds of a forward; what could not be measured is None."""

    model: str
    sequences: int
    rows: int
    floor_us: float
    graphs_us: float | None
    eager_us: float
    huggingface_us: float


def main() -> None:
    """Measure all shapes and print a table, and JSON where asked for."""
    arguments = _arguments()
    device = pick_device(arguments.device)
    dtype = pick_dtype(arguments.dtype, device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    bandwidth = copy_bandwidth(device, 1 << 24 if arguments.tiny else COPY_BYTES)
    results: list[Measured] = []
    for name, shape in (TINY if arguments.tiny else SHAPES).items():
        loaded = random_model(name, shape, device, dtype)
        huggingface = dict(huggingface_us(loaded, list(_cases(arguments)), arguments))
        runner = serving_runner(loaded, arguments)
        print(f"{name}: attention by {runner.kernel.name}, {len(runner.buckets)} graphs", file=sys.stderr)
        floor_us = 1e6 * read_bytes(loaded) / bandwidth
        for case in _cases(arguments):
            timed = serving_us(runner, *case, arguments)
            results.append(Measured(name, *case, floor_us, *timed, huggingface[case]))
    if arguments.json:
        print(json.dumps(_report(device, arguments, bandwidth, results), indent=1))
    else:
        _print_table(device, arguments, bandwidth, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="bfloat16", choices=list(Dtype))
    parser.add_argument("--attention", default="auto", choices=["auto", "varlen", "sdpa"])
    parser.add_argument("--context", type=int, default=512, help="cached tokens before a sequence's rows")
    parser.add_argument("--repeats", type=int, default=30, help="timed forwards a figure")
    parser.add_argument("--threads", type=int, help="torch threads; torch's own choice where absent")
    parser.add_argument("--tiny", action="store_true", help="a tiny model; graphs are mimicked on the CPU")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.context, arguments.repeats = min(arguments.context, 16), min(arguments.repeats, 2)
    return arguments


def _cases(arguments: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Yield (sequences, rows of each)."""
    for sequences in SEQUENCES[:2] if arguments.tiny else SEQUENCES:
        for rows in ROWS:
            yield sequences, rows


def random_model(name: str, shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> LoadedModel:
    torch.manual_seed(0)
    config = LlamaConfig(**shape, max_position_embeddings=8192, tie_word_embeddings=True)
    config._attn_implementation = "eager"
    with device:
        model = LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)
    return LoadedModel(
        name=name,
        model=model,
        dtype=dtype,
        device=device,
        vocab_size=shape["vocab_size"],
        context_length=2048,
        eos_token_ids=(),
        num_parameters=int(model.num_parameters()),
    )


def read_bytes(loaded: LoadedModel) -> int:
    """Bytes of weights that a forward reads; embedding and head are one matrix, which the head reads whole."""
    return sum(parameter.nbytes for parameter in loaded.model.parameters())


def copy_bandwidth(device: torch.device, num_bytes: int) -> float:
    """Return bytes a second, read and written, of the device's own copy."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = median_us(lambda: target.copy_(source), device, 10) / 1e6
    return 2 * num_bytes / seconds


def serving_runner(
    loaded: LoadedModel, arguments: argparse.Namespace, launcher: StepLauncher | None = None
) -> ModelRunner:
    """Return the runner that serves; a drafter's where there is a ``launcher``, see ``serving_path.build``."""
    on_cuda = loaded.device.type == "cuda"
    kernels = kernels_for(arguments.attention, loaded)
    if arguments.tiny and not on_cuda:
        kernels = [VarlenKernel(varlen_attention, loaded.context_length)]
    largest = max(SEQUENCES)
    pages_each = -(-(arguments.context + max(ROWS)) // PAGE_SIZE)
    return build(
        loaded,
        kernels,
        kv_tokens=largest * pages_each * PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_sessions=2 if arguments.tiny else largest,
        capturer=CudaCapturer(loaded.device) if on_cuda else EagerCapturer(),
        launcher=launcher,
        # Where CUDA graphs are mimicked, no others take their place.
        cpu_graphs=not arguments.tiny,
        packs=arguments.attention == "auto" and not arguments.tiny,
        progress=lambda *stage: None,
    )


def serving_us(
    runner: ModelRunner, num_sequences: int, rows: int, arguments: argparse.Namespace
) -> tuple[float | None, float]:
    """Time the serving path, with a graph where one holds the batch, and without."""
    sequences = [behind_context(runner, arguments.context, rows, i) for i in range(num_sequences)]
    batch = [Rows(sequence, rows, rows) for sequence in sequences]

    def forward(use_graphs: bool) -> None:
        for sequence in sequences:
            sequence.num_cached = arguments.context
        runner.forward(batch, use_graphs=use_graphs)

    try:
        eager = median_us(lambda: forward(False), runner.device, arguments.repeats)
        if not any(bucket.holds(batch) for bucket in runner.buckets):
            return None, eager
        return median_us(lambda: forward(True), runner.device, arguments.repeats), eager
    finally:
        for sequence in sequences:
            runner.pool.free(sequence)


def behind_context(runner: ModelRunner, context: int, rows: int, index: int, more: int = 0) -> KVSequence:
    """Open a sequence whose context is cached, with room for ``more``; its own salt keeps its pages its own."""
    ids = [(17 * index + 5 * place) % runner.vocab_size for place in range(context + rows)]
    sequence = runner.pool.open(ids, len(ids) + more, salt=str(index))
    if not runner.pool.extend(sequence, len(ids) + more):
        raise RuntimeError("too few pages")
    runner.forward([Rows(sequence, context, 0)], use_graphs=False)
    return sequence


@torch.inference_mode()
def huggingface_us(
    loaded: LoadedModel, cases: list[tuple[int, int]], arguments: argparse.Namespace
) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield each case's time by the model as it is, with a cache of its own that is cut back after every forward."""
    for num_sequences, rows in cases:
        cache = DynamicCache(config=loaded.model.config)
        context = torch.zeros(num_sequences, arguments.context, dtype=torch.int64, device=loaded.device)
        loaded.model(context, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids = context[:, :rows]

        def forward(ids: torch.Tensor = ids, cache: DynamicCache = cache) -> None:
            loaded.model(ids, past_key_values=cache, use_cache=True)
            cache.crop(arguments.context - cache.get_seq_length())

        yield (num_sequences, rows), median_us(forward, loaded.device, arguments.repeats)


def median_us(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    for repeat in range(repeats + 3):
        wait()
        start = time.perf_counter()
        run()
        wait()
        if repeat >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _report(
    device: torch.device, arguments: argparse.Namespace, bandwidth: float, results: list[Measured]
) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    head = {"device": name, "dtype": arguments.dtype, "context": arguments.context, "torch": torch.__version__}
    return {**head, "copy_bytes_a_second": bandwidth, "forwards": [vars(one) for one in results]}


def _print_table(
    device: torch.device, arguments: argparse.Namespace, bandwidth: float, results: list[Measured]
) -> None:
    head = _report(device, arguments, bandwidth, [])
    title = f"{head['device']}, {arguments.dtype}, {arguments.context} cached tokens, copies {bandwidth / 1e9:.0f} GB/s"
    table = Table(title=title, caption="microseconds a forward, median; × is with graphs against the floor")
    for column in ("model", "sequences", "rows each", "floor", "graphs", "×", "no graphs", "HuggingFace eager"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for one in results:
        graphs = (
            ("–", "–") if one.graphs_us is None else (f"{one.graphs_us:.0f}", f"{one.graphs_us / one.floor_us:.2f}")
        )
        times = (f"{one.eager_us:.0f}", f"{one.huggingface_us:.0f}")
        table.add_row(one.model, str(one.sequences), str(one.rows), f"{one.floor_us:.0f}", *graphs, *times)
    Console().print(table)


if __name__ == "__main__":
    main()
