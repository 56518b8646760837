"""Tokens a second of 1, 8 and 16 sessions at a time, with speculation off and on."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_day_steps.serving import connected, planted_prompts, service, started
from gpu_day_steps.sizes import MIDDLE, draft_name, planted_pair, sizes
from gpu_day_steps.step import CheckFailed, Context
from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from specgate_lab.proof.plan import greedy_request
from specgate_lab.proof.runs import record_all

GAMMA = 3
SPARE_SESSIONS = 2
"""A session that has just ended holds its place for a moment."""


def table(context: Context) -> str:
    """Return what the most sessions make of one session's tokens a second, without speculation and with it."""
    return asyncio.run(_table(context, planted_pair(context)))


async def _table(context: Context, folder: Path) -> str:
    of = sizes(context)
    most = max(of.sessions) + SPARE_SESSIONS
    services = {
        "verifier": service(context, "verifier", str(folder / "target"), max_sessions=most),
        "drafter": service(context, "drafter", str(folder / draft_name(MIDDLE)), max_sessions=most),
    }
    prompts = planted_prompts(max(of.sessions), of.target["vocab_size"])
    alone = [replace(greedy_request(ids, of.tokens), logprobs=None) for ids in prompts]
    ways = {
        "off": alone,
        f"γ {GAMMA}": [replace(one, gamma=GAMMA) for one in alone],
        "auto": [replace(one, gamma=None, gate=Gate.AUTO) for one in alone],
    }
    async with started(context, services) as at, await connected(at["verifier"], at["drafter"]) as pair:
        rates = {way: await _rates(context, pair, way, requests) for way, requests in ways.items()}
    return "; ".join(f"{way}: {', '.join(f'{rate:.0f}' for rate in each)} tokens/s" for way, each in rates.items())


async def _rates(context: Context, pair: Orchestrator, way: str, requests: Sequence[GenerationRequest]) -> list[float]:
    """Measure each number of sessions; their prefills are counted in."""
    rates = []
    await record_all(pair, requests[:1], 1)
    for number in sizes(context).sessions:
        start_s = time.perf_counter()
        traces = await record_all(pair, requests[:number], number)
        seconds = time.perf_counter() - start_s
        tokens = sum(len(trace.token_ids) for trace in traces)
        if tokens != number * requests[0].max_tokens:
            raise CheckFailed(f"{tokens} tokens of {number} sessions of {requests[0].max_tokens}")
        rates.append(tokens / seconds)
        context.row(speculation=way, sessions=number, tokens_per_s=rates[-1])
    return rates
