"""The origin experiment's table on a planted pair through services: what speculation is worth at a known acceptance."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from gpu_day_steps.estimates import OVER_GRPC
from gpu_day_steps.serving import connected, service, started
from gpu_day_steps.sizes import MIDDLE, Sizes, draft_name, planted_pair, sizes
from gpu_day_steps.step import Context
from gpu_day_steps.ways import TARGET, TARGET_HF, Way, drafts_of, gates_of, measure, told_of
from orchestrator.local.local_services import LocalService
from specgate_lab.arrivals import all_of
from specgate_lab.gate_choice import TARGET_ALONE
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import SCHEDULES
from specgate_lab.variants import pair_variant

RUN_AHEAD = (0, 4)
SESSIONS = 2
"""Fewer sessions need fewer graphs, and a service starts sooner."""
FIXED_SCHEDULE = "gamma5"


def table(context: Context) -> str:
    """Measure all ways in order; return what the best with each draft is worth."""
    return asyncio.run(measure(context, _ways(context, planted_pair(context)), OVER_GRPC))


async def _ways(context: Context, folder: Path) -> AsyncGenerator[Way, None]:
    """Start everything at once, and keep it up: an idle process takes nothing from the one that is measured."""
    of = sizes(context)
    loops = {
        acceptance: BareLoopProcess(
            str(folder / "target"),
            dtype=context.where.dtype,
            device=context.where.device,
            threads=1,
            assistant=str(folder / draft_name(acceptance)),
        )
        for acceptance in of.acceptances
    }
    async with AsyncExitStack() as stack:
        for loop in loops.values():
            stack.push_async_callback(loop.stop)
        services = stack.enter_async_context(started(context, _services(context, folder, of)))
        at, *_ = await all_of([services, *(loop.start() for loop in loops.values())])
        alone = await stack.enter_async_context(await connected(at[TARGET]))
        yield Way({"way": TARGET}, pair_variant(alone, TARGET_ALONE))
        yield Way({"way": TARGET_HF}, loops[MIDDLE].run)
        for draft in drafts_of(of):
            async for way in _ours(stack, at, draft, of):
                yield way
        # Last, as they take longest.
        for draft in drafts_of(of):
            for way in _theirs(draft, loops):
                yield way


def _services(context: Context, folder: Path, of: Sizes) -> dict[str, LocalService]:
    common = {"max_sessions": SESSIONS, "kv_tokens": SESSIONS * 2048}
    services = {TARGET: service(context, "verifier", str(folder / "target"), **common)}
    for draft in drafts_of(of):
        for rows in RUN_AHEAD:
            services[f"{draft} {rows}"] = service(context, "drafter", str(folder / draft), run_ahead=rows, **common)
    return services


def _theirs(draft: str, loops: Mapping[float, BareLoopProcess]) -> Iterator[Way]:
    """Yield HuggingFace's own speculation, with all schedules at the middle acceptance alone: it takes long."""
    for acceptance, loop in loops.items():
        if draft == draft_name(acceptance) and loop.has_assistant:
            for schedule in SCHEDULES if acceptance == MIDDLE else [FIXED_SCHEDULE]:
                yield Way(
                    {"way": "hf-assisted", "draft": draft, "schedule": schedule}, partial(loop.run, schedule=schedule)
                )


async def _ours(stack: AsyncExitStack, at: Mapping[str, str], draft: str, of: Sizes) -> AsyncGenerator[Way, None]:
    for rows in RUN_AHEAD:
        pair = await stack.enter_async_context(await connected(at[TARGET], at[f"{draft} {rows}"]))
        for choice in gates_of(of, draft):
            yield Way(told_of(draft, rows, choice), pair_variant(pair, choice))
