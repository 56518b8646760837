"""The origin experiment's table with both models in one process: what a card gives where no message is sent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

from gpu_day_steps.estimates import ONE_PROCESS
from gpu_day_steps.here import joined, loaded
from gpu_day_steps.sizes import planted_pair, sizes
from gpu_day_steps.step import Context
from gpu_day_steps.ways import TARGET, Way, drafts_of, gates_of, measure, told_of
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.variants import pair_variant

COMMON = {"max_sessions": 2, "kv_tokens": 4096}


def table(context: Context) -> str:
    """Measure all drafts in order; return what the best with each is worth."""
    return asyncio.run(measure(context, _ways(context, planted_pair(context)), ONE_PROCESS))


async def _ways(context: Context, folder: Path) -> AsyncGenerator[Way, None]:
    of = sizes(context)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(loaded(context, "verifier", str(folder / "target"), **COMMON))
        alone = await stack.enter_async_context(await joined(target))
        yield Way({"way": TARGET}, pair_variant(alone, TARGET_ALONE))
        for name in drafts_of(of):
            draft = await stack.enter_async_context(
                loaded(context, "drafter", str(folder / name), run_ahead=0, **COMMON)
            )
            pair = await stack.enter_async_context(await joined(target, draft))
            for choice in gates_of(of, name):
                yield Way(told_of(name, 0, choice), pair_variant(pair, choice))
