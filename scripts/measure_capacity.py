#!/usr/bin/env python3
"""Measure how many clients one verifier serves, with the drafter on its own core and on another one.

    python scripts/measure_capacity.py --json capacity.json
    python scripts/measure_capacity.py --shape smollm2-135m --max-tokens 48 --json capacity.json

The verifier has one core. The drafter shares it ("together") or has the other one ("apart"), beside this process. So
many clients send a request at once, the same ones in every way; the next ones come when all are answered. The theory
(arXiv 2606.25091): a saturated verifier serves 1 + γ·t_draft/t_verify times the clients at the same time per token when
the drafter moves away, with the times of forwards as wide as all clients make them. Texts are held against those of the
target alone.

``--shape smollm2-135m`` is a pair without weights of its own: the target's shape is that of SmolLM2-135M, the draft has
four of its layers, and an acceptance of 80 % is planted, so that a forward takes far longer than a message.
"""

import argparse
import asyncio
import itertools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_day_steps.planted import Planted, write_pair
from pair_shapes import SMOLLM2_135M

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.cores import cores_for_pinning
from orchestrator.local.launch import Capacity, open_pair
from orchestrator.policy.auto.costs import forward_us
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import SamplingParams
from specgate_lab.drafters import drafter_service, started
from specgate_lab.report import ResultsFile
from specgate_lab.workload import BENCH_PROMPTS

CLIENTS = (1, 2, 4, 8, 16)
GAMMA = 4
DRAFT_LAYERS, ACCEPTANCE = 4, 0.8
DRAFTER_PRICE = 0.1
"""Of a second of the verifier, for the objective of cost."""
SHAPES = ("bundled", "smollm2-135m")


class Way(NamedTuple):
    """A way to serve: who drafts, under which gate."""

    name: str
    orchestrator: Orchestrator
    gate: Gate
    gamma: int | None


class Row(NamedTuple):
    """``clients`` at a time: tokens per second of all, and the median milliseconds of a token, over all repeats."""

    way: str
    clients: int
    tokens_per_s: float
    token_ms: float
    least_token_ms: float
    most_token_ms: float
    tokens_per_forward: float


async def at_a_time(way: Way, requests: Sequence[GenerationRequest]) -> tuple[float, list[float], list[Any]]:
    """Run the requests side by side; return seconds in all, seconds per token of each, and the generations."""

    async def one(request: GenerationRequest) -> tuple[float, Any]:
        start_s, generation = time.perf_counter(), way.orchestrator.generate(request)
        async for _ in generation:
            pass
        return (time.perf_counter() - start_s) / len(generation.token_ids), generation

    start_s = time.perf_counter()
    done = await asyncio.gather(*(one(replace(request, gate=way.gate, gamma=way.gamma)) for request in requests))
    return time.perf_counter() - start_s, [each for each, _ in done], [generation for _, generation in done]


async def measured(
    ways: Sequence[Way], prompts: Sequence[tuple[int, ...]], given: argparse.Namespace
) -> tuple[list[Row], int]:
    """Return a row for each way and number of clients, and how many texts were not those of the target alone."""
    noise, num = SamplingParams(temperature=given.temperature), len(prompts)
    alone: dict[int, tuple[int, ...]] = {}
    samples: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    num_wrong = 0
    cases = [(way, clients) for clients in given.clients for way in ways]
    for repeat in range(given.repeats + 1):
        for way, clients in track(cases, f"round {repeat} of {given.repeats}", console=Console(stderr=True)):
            chosen = [(repeat * clients + index) % num for index in range(clients)]
            requests = [GenerationRequest(prompts[i], noise, given.max_tokens, seed=i, ignore_eos=True) for i in chosen]
            seconds, each, generations = await at_a_time(way, requests)
            for seed, generation in zip(chosen, generations, strict=True):
                num_wrong += alone.setdefault(seed, generation.token_ids) != generation.token_ids
            if repeat:
                tokens = sum(len(one.token_ids) for one in generations)
                forwards = sum(one.stats.target_forwards for one in generations)
                samples.setdefault((way.name, clients), []).append((tokens / seconds, median(each), tokens / forwards))
    rows = []
    for (name, clients), own in samples.items():
        rates, times, per_forward = zip(*own, strict=True)
        spread = [round(1000 * value, 3) for value in (median(times), min(times), max(times))]
        rows.append(Row(name, clients, round(median(rates), 1), *spread, round(median(per_forward), 2)))
    return rows, num_wrong


def clients_at(rows: Sequence[Row], way: str, token_ms: float) -> float | None:
    """Return how many clients get a token in so many milliseconds, on straight lines; None outside them."""
    own = sorted((one for one in rows if one.way == way), key=lambda one: one.clients)
    for before, after in itertools.pairwise(own):
        if before.token_ms <= token_ms <= after.token_ms:
            share = (token_ms - before.token_ms) / (after.token_ms - before.token_ms)
            return before.clients + share * (after.clients - before.clients)
    return None


async def run(given: argparse.Namespace, models: ModelOptions) -> dict[str, Any]:
    """Start the services, measure, and return what the results file holds."""
    log, cores = Console(stderr=True), cores_for_pinning()
    if cores is None:
        raise SystemExit("two cores are needed")
    capacity = Capacity(max(given.clients), 1024)
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(open_pair(models, with_draft=True, capacity=capacity, log=log))
        beside = replace(drafter_service(pair, models, models.draft_model or "", capacity), cpu=cores[1])
        together = await stack.enter_async_context(started(beside, log))
        os.sched_setaffinity(0, {cores[0]})

        async def connected(drafter: str, price: float | None = None) -> Orchestrator:
            pools = StaticPool(pair.verifiers), StaticPool([drafter])
            connecting = Orchestrator.connect(*pools, pair.tokenizer, drafter_price=price)
            return await stack.enter_async_context(await connecting)

        apart = pair.drafters[0]
        ways = [
            Way("alone", await connected(apart), Gate.NONE, 0),
            Way("together", await connected(together), Gate.NONE, GAMMA),
            Way("apart", await connected(apart), Gate.NONE, GAMMA),
            Way("together, auto", await connected(together), Gate.AUTO, None),
            Way("apart, auto", await connected(apart), Gate.AUTO, None),
            Way("apart, auto for cost", await connected(apart, DRAFTER_PRICE), Gate.AUTO, None),
        ]
        prompts = [
            tuple(pair.tokenizer.encode(text)) if pair.tokenizer else (index + 1, 2, 3)
            for index, text in enumerate(BENCH_PROMPTS)
        ]
        rows, num_wrong = await measured(ways, prompts, given)
        costs = ways[0].orchestrator.measured_costs()
    theory = {}
    for clients in given.clients:
        draft_us, verify_us = forward_us(costs.draft, clients), forward_us(costs.target, clients * (1 + GAMMA))
        theory[clients] = round(1 + GAMMA * draft_us / verify_us, 3)
    by = {(one.way, one.clients): one for one in rows}
    gains = [
        {
            "clients": clients,
            "throughput_ratio": round(by["apart", clients].tokens_per_s / by["together", clients].tokens_per_s, 3),
            "clients_ratio": round(equal / clients, 3)
            if (equal := clients_at(rows, "apart", by["together", clients].token_ms))
            else None,
            "theory": theory[clients],
        }
        for clients in given.clients
    ]
    return {
        "shape": given.shape,
        "gamma": GAMMA,
        "rows": [one._asdict() for one in rows],
        "gains": gains,
        "texts_differ": num_wrong,
    }


def planted(folder: Path) -> ModelOptions:
    """Write the planted pair and return it."""
    draft = SMOLLM2_135M | {"num_hidden_layers": DRAFT_LAYERS, "vocab_size": 49152}
    target = SMOLLM2_135M | {"vocab_size": 49152}
    write_pair(folder, target, {"draft": Planted(draft, ACCEPTANCE)}, torch.device("cpu"), torch.float32)
    return ModelOptions(target=str(folder / "target"), draft=str(folder / "draft"), pin=True)


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    table = Table("way", "clients", "tokens/s", "ms a token", "least..most", "tokens a forward")
    for one in report["rows"]:
        spread = f"{one['least_token_ms']:.2f}..{one['most_token_ms']:.2f}"
        table.add_row(
            one["way"],
            str(one["clients"]),
            f"{one['tokens_per_s']:.0f}",
            f"{one['token_ms']:.2f}",
            spread,
            f"{one['tokens_per_forward']:.2f}",
        )
    gains = Table("clients", "apart / together, tokens/s", "clients at equal time", "theory")
    for one in report["gains"]:
        gains.add_row(*(str(one[name]) for name in ("clients", "throughput_ratio", "clients_ratio", "theory")))
    console = Console()
    console.print(table, gains, f"texts that differ from the target's alone: {report['texts_differ']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="bundled")
    parser.add_argument("--clients", type=lambda text: tuple(map(int, text.split(","))), default=CLIENTS)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    file = ResultsFile(given.json, "json") if given.json else None
    with TemporaryDirectory() as folder:
        models = planted(Path(folder)) if given.shape != "bundled" else ModelOptions(pin=True)
        report = asyncio.run(run(given, models))
    show(report)
    if file is not None:
        file.write(report)


if __name__ == "__main__":
    main()
