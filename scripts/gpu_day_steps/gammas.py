"""Is a text of short numbers the same to the bit whatever γ is? With the bundled pair, and with real weights."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from gpu_day_steps.here import joined, loaded
from gpu_day_steps.serving import Prompts, prompts_of
from gpu_day_steps.sizes import sizes
from gpu_day_steps.step import CheckFailed, Context
from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.policy.gates import Gate
from scripts import real_model
from specgate_lab.gate_choice import GateChoice
from specgate_lab.proof.plan import greedy_request
from specgate_lab.proof.runs import record_all
from specgate_lab.proof.texts import drafts_of

GAMMAS = range(9)
CARRIED = ".gpu_weights"
"""What ``scripts/real_model --carry`` fills, in the project's folder."""


def bundled(context: Context) -> str:
    """Fail where a text of the bundled pair depends on γ."""
    return _checked(context, BUNDLED_TARGET, BUNDLED_DRAFT)


def real(context: Context) -> str:
    """The same with SmolLM2-135M and 24 of its layers as the draft; a dry walk has the bundled pair."""
    if context.where.dry:
        return f"{bundled(context)}; dry: the bundled pair"
    context.progress("making the real models")
    folder, carried = context.where.scratch / "real", context.where.root / CARRIED
    folder.mkdir(exist_ok=True)
    real_model.make([real_model.TARGET, real_model.DRAFT], folder, carried if carried.is_dir() else None)
    return _checked(context, *(str(folder / one.name) for one in (real_model.TARGET, real_model.DRAFT)))


def _checked(context: Context, target: str, draft: str) -> str:
    of = sizes(context)
    return asyncio.run(_by_gamma(context, target, draft, prompts_of(target, of.prompts)))


async def _by_gamma(context: Context, target: str, draft: str, prompts: Prompts) -> str:
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(loaded(context, "verifier", target))
        drafter = await stack.enter_async_context(loaded(context, "drafter", draft, run_ahead=0))
        pair = await stack.enter_async_context(await joined(verifier, drafter))
        alone = [replace(greedy_request(ids, sizes(context).tokens), logprobs=None) for ids in prompts]
        expected, parted = await _texts(context, pair, alone, 0), list[int]()
        for gamma in GAMMAS[1:]:
            if await _texts(context, pair, alone, gamma) != expected:
                parted.append(gamma)
    if parted:
        raise CheckFailed(f"with γ {', '.join(map(str, parted))} a text is another than the target's alone")
    return f"{len(prompts)} texts equal to the bit with γ 0 to {GAMMAS[-1]}"


async def _texts(
    context: Context, pair: Orchestrator, alone: Sequence[GenerationRequest], gamma: int
) -> list[tuple[int, ...]]:
    """Return the texts with this γ; tell how fast they were and how much of the drafts was accepted."""
    start_s = time.perf_counter()
    records = await record_all(pair, [GateChoice(Gate.NONE, gamma).of(request) for request in alone], 1)
    seconds = time.perf_counter() - start_s
    drafted, accepted = drafts_of(records)
    num_tokens = sum(len(one.token_ids) for one in records)
    context.row(
        gamma=gamma, tokens_per_s=round(num_tokens / seconds, 1), acceptance=round(accepted / max(drafted, 1), 3)
    )
    return [one.token_ids for one in records]
