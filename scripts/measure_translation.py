#!/usr/bin/env python3
"""Compare the two ways to draft with another tokenizer, on one pair: the tokens that both have, and strings.

    python scripts/measure_translation.py ~/.cache/specgate/other-draft --json translation.json
    python scripts/measure_translation.py DRAFT --target TARGET --prompts prompts.jsonl --json FILE.json

Both models run in this process, greedy and at temperature 1, each text drafted by both ways with γ 4 in every round and
compared with the target alone. Rates are not told: `orchestrator bench` measures them, between services.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from operator import eq
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from orchestrator import GenerationRequest, SamplingParams, open_orchestrator
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.policy.gates import Gate
from specgate.runtime import translation
from specgate.types import Verification
from specgate_lab.report import ResultsFile

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
MAX_TOKENS, GAMMA = 64, 4
WAYS = {"tokens that both have": 0.0, "strings": 2.0}
"""What must be shared for the first way, so that each one serves."""


CASES = ((0.0, Verification.SHARED_NOISE), (1.0, Verification.SHARED_NOISE), (1.0, Verification.REJECTION))
Texts = dict[tuple[float, Verification], list[tuple[int, ...]]]


async def generated(orchestrator: Orchestrator, requests: Sequence[GenerationRequest], told: str) -> list[Generation]:
    """Run the requests one after the other."""
    generations = []
    for one in track(requests, told, console=Console(stderr=True)):
        generation = orchestrator.generate(one)
        async for _ in generation:
            pass
        generations.append(generation)
    return generations


async def measured(options: argparse.Namespace, prompts: Sequence[str], way: str, alone: Texts) -> list[dict[str, Any]]:
    """Return a row for each case; ``alone`` has the target's own texts, once they are there."""
    rows = []
    async with open_orchestrator(options.target, str(options.draft), in_process=True) as orchestrator:
        for case in CASES:
            temperature, verification = case
            given = {"gamma": GAMMA, "gate": Gate.NONE, "verification": verification, "ignore_eos": True}
            requests = [
                GenerationRequest(
                    orchestrator.encode(text), SamplingParams(temperature=temperature), MAX_TOKENS, seed, **given
                )
                for seed, text in enumerate(prompts)
            ]
            if case not in alone:
                solo = [replace(one, gamma=0) for one in requests]
                alone[case] = [one.token_ids for one in await generated(orchestrator, solo, "alone")]
            found = await generated(orchestrator, requests, f"{way}, temperature {temperature:g}, {verification}")
            sums = {name: sum(getattr(one.stats, name) for one in found) for name in ("rounds", "accepted", "drafted")}
            equal = f"{sum(map(eq, (one.token_ids for one in found), alone[case]))} of {len(found)}"
            rows.append({
                "name": way, "temperature": temperature, "verification": str(verification), **sums,
                "tokens_per_forward": round(len(found) * MAX_TOKENS / sums["rounds"], 3),
                # In rejection a text is not that of its seed.
                "texts_as_alone": None if verification is Verification.REJECTION else equal,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="folder of a draft with a tokenizer of its own")
    parser.add_argument("--target")
    parser.add_argument("--prompts", type=Path, default=FOLDER / "held-out-code.jsonl")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    file, alone, rows = ResultsFile(options.json), Texts(), list[dict[str, Any]]()
    prompts = [json.loads(line)["prompt"] for line in options.prompts.read_text("utf-8").splitlines()]
    for way, least_shared in WAYS.items():
        translation.LEAST_SHARED = least_shared
        rows += asyncio.run(measured(options, prompts, way, alone))
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    file.write({"translations": rows})


if __name__ == "__main__":
    main()
