#!/usr/bin/env python3
"""Measure how decoding, first tokens, another stream's gaps and memory change with the length of a context.

    python scripts/measure_contexts.py --json contexts.json
    python scripts/measure_contexts.py --lengths 512,8192 --json /tmp/contexts.json

The pair has the bundled pair's shapes, a context of 32,768 tokens, and a planted acceptance of 80 %, whatever the
length: its layers compute, and do not change what is said. All variants run in turns, greedy and with a seed at
temperature 1. Then a verifier is killed in the middle of a stream, beside another one; and a conversation of twenty
turns is held, with what was computed for the turns before and without. Over gRPC, one thread a service.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from operator import eq
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_day_steps.planted import Planted, followers_of, write_pair
from pair_shapes import PAIRS

from orchestrator import GenerationRequest, SamplingParams, open_orchestrator
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate_lab.report import ResultsFile
from specgate_lab.soak.processes import descendants, rss_mb

ACCEPTANCE = 0.8
CONTEXT_LENGTH = 32_768
LENGTHS = (512, 2048, 8192, 16_384, 32_000)
SEEDED_AT_MOST = 8192
"""Tokens of context up to which texts at temperature 1 are compared, too."""
REPEATED_AT_MOST = 16_384
"""A longer prompt takes minutes to read."""
LOST_AT = (512, 8192)
ANSWER, TURN, NUM_TURNS = 96, 250, 20
"""Tokens of an answer and of what is added by each turn of the conversation."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "alone": {"gamma": 0, "gate": Gate.NONE},
    "spec": {"gamma": 4, "gate": Gate.NONE},
    "auto": {"gate": Gate.AUTO},
}


class Timed(NamedTuple):
    """One answer: seconds to its first token, its rate after it, its longest gap, its tokens and what was known."""

    first_s: float
    tokens_per_s: float
    gap_s: float
    token_ids: tuple[int, ...]
    cached_tokens: int


async def timed(orchestrator: Orchestrator, request: GenerationRequest) -> Timed:
    """Generate an answer."""
    at, token_ids, num_first = [time.perf_counter()], [], 0
    generation = orchestrator.generate(request)
    async for delta in generation:
        if delta.token_ids:
            at.append(time.perf_counter())
            token_ids += delta.token_ids
            num_first = num_first or len(token_ids)
    rate = (len(token_ids) - num_first) / (at[-1] - at[1])
    gaps = [later - earlier for earlier, later in pairwise(at[1:])]
    return Timed(at[1] - at[0], rate, max(gaps), tuple(token_ids), generation.stats.cached_tokens)


class Prompts:
    """Texts along the cycle that the pair says, each from another place: none has a beginning that is known."""

    def __init__(self, vocab_size: int) -> None:
        self._followers = followers_of(vocab_size, 1.0).tolist()
        self._random = random.Random(0)

    def draw(self, length: int) -> tuple[int, ...]:
        return self.after(self._random.randrange(len(self._followers)), length)

    def after(self, token_id: int, length: int) -> tuple[int, ...]:
        text = [token_id]
        while len(text) <= length:
            text.append(self._followers[text[-1]])
        return tuple(text[1:])


def request_of(
    prompt: tuple[int, ...], number: int, variant: str, max_tokens: int = ANSWER, temperature: float = 0.0
) -> GenerationRequest:
    """Return a request that shares no pages with others."""
    return GenerationRequest(
        prompt,
        SamplingParams(temperature=temperature),
        max_tokens,
        seed=1,
        ignore_eos=True,
        cache_salt=str(number),
        **VARIANTS[variant],
    )


async def by_length(
    orchestrator: Orchestrator, prompts: Prompts, lengths: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """Return a row for each length and variant."""
    rows = []
    for length in track(lengths, "lengths", console=Console(stderr=True)):
        found: dict[str, list[Timed]] = {name: [] for name in VARIANTS}
        texts: dict[str, list[tuple[int, ...]]] = {name: [] for name in VARIANTS}
        for number in range(repeats if length <= REPEATED_AT_MOST else 1):
            prompt = prompts.draw(length)
            for place, name in enumerate(VARIANTS):
                found[name].append(await timed(orchestrator, request_of(prompt, 10 * number + place, name)))
                texts[name].append(found[name][-1].token_ids)
                if length <= SEEDED_AT_MOST:
                    seeded = request_of(prompt, 10 * number + place, name, temperature=1.0)
                    texts[name].append((await timed(orchestrator, seeded)).token_ids)
        assert all(
            found[name][i].token_ids == found["alone"][i].token_ids
            for name in VARIANTS
            for i in range(len(found["alone"]))
        )
        gap_s = await gap_beside(orchestrator, prompts, length)
        memory = round(sum(map(rss_mb, descendants(os.getpid()))))
        alone = [one.tokens_per_s for one in found["alone"]]
        for name, runs in found.items():
            ratios = [one.tokens_per_s / base for one, base in zip(runs, alone, strict=True)]
            rows.append({
                "context": length, "name": name,
                "tokens_per_s": round(median(one.tokens_per_s for one in runs), 1),
                "ratio_to_target": round(median(ratios), 3),
                "ratio_to_target_runs": sorted(round(one, 3) for one in ratios),
                "first_token_s": round(median(one.first_s for one in runs), 3),
                "gap_beside_ms": round(gap_s * 1000, 1), "memory_mb": memory,
                "texts_as_alone": f"{sum(map(eq, texts[name], texts['alone']))} of {len(texts[name])}",
            })  # fmt: skip
    return rows


async def gap_beside(orchestrator: Orchestrator, prompts: Prompts, length: int) -> float:
    """Return the longest gap of a short stream while a long prompt is computed."""
    short = request_of(prompts.draw(64), -1, "alone", max_tokens=4096)
    deltas, at = orchestrator.generate(short), [0.0]
    long = asyncio.create_task(timed(orchestrator, request_of(prompts.draw(length), -2, "alone", max_tokens=8)))
    gap_s = 0.0
    async for _ in deltas:
        now = time.perf_counter()
        gap_s = max(gap_s, now - at[-1]) if at[-1] else 0.0
        at.append(now)
        if long.done():
            break
    await deltas.aclose()
    await long
    return gap_s


class OwnVerifier:
    """A verifier that can be killed."""

    def __init__(self, model: Path, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "verifier_svc", "--model", str(model), "--port", "0", "--threads", "1"]
        flags = ["--kv-tokens", str(CONTEXT_LENGTH), "--json-events"]
        self._process = stack.enter_context(
            subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
        stack.callback(self._process.kill)
        assert self._process.stdout is not None
        events = map(json.loads, self._process.stdout)
        self.endpoint = next(event["endpoint"] for event in events if "endpoint" in event)

    @property
    def ticks(self) -> int:
        """CPU time that it took."""
        return int(Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11])

    def kill(self) -> None:
        self._process.kill()


async def pause_at_a_loss(folder: Path, prompts: Prompts, length: int) -> dict[str, Any]:
    """Kill the verifier of a stream; return how long the stream stands still while another one takes over."""
    with ExitStack() as stack:
        verifiers = [OwnVerifier(folder / "target", stack) for _ in range(2)]
        async with open_orchestrator(verifiers=[one.endpoint for one in verifiers]) as orchestrator:
            before = [one.ticks for one in verifiers]
            generation, at = orchestrator.generate(request_of(prompts.draw(length), 0, "alone")), list[float]()
            async for _ in generation:
                at.append(time.perf_counter())
                if len(at) == ANSWER // 4:
                    served = max(zip(verifiers, before, strict=True), key=lambda both: both[0].ticks - both[1])[0]
                    served.kill()
        assert generation.stats.verifier_failovers == 1
        assert len(generation.token_ids) == ANSWER
    pause_s = max(later - earlier for earlier, later in pairwise(at[1:]))
    return {"name": f"a verifier killed at {length} tokens", "prompt_tokens": length, "pause_s": round(pause_s, 3)}


async def conversation(orchestrator: Orchestrator, prompts: Prompts, *, is_known: bool) -> dict[str, Any]:
    """Hold a conversation; without ``is_known`` each turn is computed from its beginning."""
    text = prompts.draw(TURN)
    firsts, cached = [], []
    for turn in range(NUM_TURNS):
        request = request_of(text, 1000 if is_known else 2000 + turn, "auto")
        answer = await timed(orchestrator, request)
        firsts.append(answer.first_s)
        cached.append(answer.cached_tokens)
        text += answer.token_ids
        text += prompts.after(text[-1], TURN)
    return {
        "name": "twenty turns" if is_known else "twenty turns, nothing known", "prompt_tokens": len(text),
        "first_token_s": round(sum(firsts), 3), "last_first_token_s": round(firsts[-1], 3),
        "cached_tokens": sum(cached), "last_cached_tokens": cached[-1],
    }  # fmt: skip


async def measured(folder: Path, lengths: Sequence[int], repeats: int) -> dict[str, Any]:
    """Write the pair, and measure it."""
    shapes = PAIRS["bundled"]
    longest = {"max_position_embeddings": CONTEXT_LENGTH}
    target = {**shapes.target, **longest, "vocab_size": shapes.vocab_size}
    draft = Planted({**shapes.draft, **longest}, ACCEPTANCE)
    write_pair(folder, target, {"draft": draft}, torch.device("cpu"), torch.float32)
    prompts = Prompts(shapes.vocab_size)
    pair = open_orchestrator(
        str(folder / "target"), str(folder / "draft"), max_sessions=2, tokens_a_session=CONTEXT_LENGTH
    )
    async with pair as orchestrator:
        await timed(orchestrator, request_of(prompts.draw(300), 0, "auto"))
        rows = await by_length(orchestrator, prompts, lengths, repeats)
        turns = [await conversation(orchestrator, prompts, is_known=one) for one in (True, False)]
    turns += [await pause_at_a_loss(folder, prompts, length) for length in LOST_AT]
    return {"acceptance": ACCEPTANCE, "rows": rows, "conversations": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    file = ResultsFile(options.json)
    with TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder), [int(one) for one in options.lengths.split(",")], options.repeats))
    for rows in (found["rows"], found["conversations"]):
        table = Table(*dict.fromkeys(column for row in rows for column in row))
        for row in rows:
            table.add_row(*(str(row.get(column.header, "")) for column in table.columns))
        Console().print(table)
    file.write(found)


if __name__ == "__main__":
    main()
