#!/usr/bin/env python3
"""Measure what `auto` writes over bad ways to both services, after a request's first second, against the target alone.

    python scripts/measure_bad_ways.py --target FOLDER --method suffix --prompts docs/results/held-out-copies.jsonl

Each way has a proxy before the drafter and one before the verifier. Requests run one by one, each by the target
alone and by `auto` in turns, over the same proxies; texts are held against each other.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair, open_pair
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import SamplingParams
from specgate_lab.report import ResultsFile
from specgate_lab.workload import BENCH_PROMPTS
from tests.support.chaos_proxy import BadLine

WAYS: dict[str, dict[str, Any]] = {
    "good": {},
    "each piece up to 25 ms late": {"jitter_s": 0.025},
    "nothing passes for 200 ms of each second": {"freeze_s": 0.2},
    "three connections reset": {"num_resets": 3, "max_bytes": 1 << 14},
}
FIRST_S = 1.0


class Late(NamedTuple):
    """What came after a request's first second, and its whole text."""

    tokens: int
    seconds: float
    token_ids: tuple[int, ...]


async def after_a_second(orchestrator: Orchestrator, request: GenerationRequest) -> Late:
    """Run a request; the tokens of its first second count as none."""
    start_s, generation, early = time.perf_counter(), orchestrator.generate(request), 0
    async for delta in generation:
        if time.perf_counter() - start_s < FIRST_S:
            early += len(delta.token_ids)
    late_s = time.perf_counter() - start_s - FIRST_S
    return Late(len(generation.token_ids) - early, max(late_s, 0.0), generation.token_ids)


async def over(pair: Pair, faults: dict[str, Any], requests: Sequence[GenerationRequest], name: str) -> dict[str, Any]:
    """Return a row: tokens/s after the first second of the target alone and of `auto`."""
    drafter = BadLine(pair.drafters[0], **faults)
    # The verifier's way is not broken off: one that has no other verifier then waits for it, drafts or not.
    verifier = BadLine(pair.verifiers[0], **faults | {"num_resets": 0})
    async with drafter, verifier:
        pools = StaticPool([verifier.endpoint]), StaticPool([drafter.endpoint])
        async with await Orchestrator.connect(*pools, pair.tokenizer) as orchestrator:
            alone, auto = [], []
            for request in track(requests, name, console=Console(stderr=True)):
                alone.append(await after_a_second(orchestrator, replace(request, gate=Gate.NONE, gamma=0)))
                auto.append(await after_a_second(orchestrator, replace(request, gate=Gate.AUTO)))
    seconds = [sum(one.seconds for one in some) for some in (alone, auto)]
    if not all(seconds):
        raise SystemExit(f"no request lasted {FIRST_S:g} s: a larger --target or --max-tokens")
    rates = [sum(one.tokens for one in some) / own for some, own in zip((alone, auto), seconds, strict=True)]
    return {
        "way": name,
        "alone_tokens_per_s": round(rates[0], 1),
        "auto_tokens_per_s": round(rates[1], 1),
        "ratio_to_target": round(rates[1] / rates[0], 3),
        "texts_differ": sum(one.token_ids != other.token_ids for one, other in zip(alone, auto, strict=True)),
    }


async def run(given: argparse.Namespace) -> list[dict[str, Any]]:
    models = ModelOptions(pin=True, target=given.target, service=GivenSettings({"method": given.method}))
    texts = [json.loads(line)["prompt"] for line in given.prompts.open()] if given.prompts else BENCH_PROMPTS
    async with AsyncExitStack() as stack:
        capacity = Capacity(4, 2048)
        log = Console(stderr=True)
        pair = await stack.enter_async_context(open_pair(models, with_draft=True, capacity=capacity, log=log))
        assert pair.tokenizer is not None
        noise = SamplingParams(temperature=given.temperature)
        requests = [
            GenerationRequest(tuple(pair.tokenizer.encode(text)), noise, given.max_tokens, seed=seed, ignore_eos=True)
            for seed, text in enumerate(texts[: given.requests])
        ]
        return [await over(pair, faults, requests, name) for name, faults in WAYS.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=None)
    parser.add_argument("--method", default="model")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=900)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    file = ResultsFile(given.json, "json") if given.json else None
    rows = asyncio.run(run(given))
    table = Table("way", "alone, tokens/s", "auto", "auto / alone", "texts that differ")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if file is not None:
        file.write({"target": Path(given.target or "bundled").name, "method": given.method, "rows": rows})


if __name__ == "__main__":
    main()
