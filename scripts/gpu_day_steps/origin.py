"""The origin experiment's table on a planted pair: what speculation is worth at a known acceptance."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpu_day_steps.serving import connected, figures_of, planted_prompts, service, started
from gpu_day_steps.sizes import MIDDLE, Sizes, draft_name, planted_pair, sizes
from gpu_day_steps.step import CheckFailed, Context
from orchestrator.bench.load.arrivals import all_of
from orchestrator.bench.peers.bare_loop import BareLoopProcess
from orchestrator.bench.peers.hf_assisted import SCHEDULES
from orchestrator.bench.proof.plan import greedy_request
from orchestrator.bench.throughput.runs import WARM_UP_TOKENS, Decode, bare_way, pair_way
from orchestrator.bench.throughput.samples import Sample
from orchestrator.bench.throughput.traffic import Traffic
from orchestrator.decode.request import GenerationRequest
from orchestrator.local.local_services import LocalService
from orchestrator.policy.gates import Gate

RUN_AHEAD = (0, 4)
MARGIN_S = 8.0
"""Left for ending the services."""
LEAST_WAYS = 5
"""The target alone, HuggingFace's three, and one of ours."""
SESSIONS = 2
"""Fewer sessions need fewer graphs, and a service starts sooner."""
TARGET, TARGET_HF = "target", "target-hf"
FIXED_SCHEDULE = "gamma5"


Told = dict[str, Any]


class Way(NamedTuple):
    """One line of the table: what it is, and how it decodes."""

    told: Told
    decode: Decode

    @property
    def name(self) -> str:
        """Return all that is told of it."""
        return ", ".join(f"{key} {value}" for key, value in self.told.items() if key != "way")


class Table:
    """The lines so far. All must have the text of the first, which is the target's alone."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: list[Told] = []
        self._text: list[tuple[int, ...]] = []
        self.parted: list[str] = []

    def add(self, way: Way, samples: Sequence[Sample]) -> None:
        """Tell a line, with its ratios to the target alone and to HuggingFace's loop."""
        text = [sample.token_ids for sample in samples]
        self._text = self._text or text
        if text != self._text:
            self.parted.append(way.name)
        told = {**way.told, **figures_of(samples), "same_text": text == self._text}
        self._told.append(told)
        told |= {f"x_{base}": self._ratio(told, base) for base in (TARGET, TARGET_HF)}
        self._context.row(**told)

    def best_of_each(self) -> str:
        """Return, for each draft, ours and HuggingFace's best with it. What ``auto`` makes of it may be no draft."""
        best: dict[str, Told] = {}
        for told in self._told:
            if "draft" in told and told.get("gate") != Gate.AUTO:
                name = f"{told['way']} {told['draft']}"
                best[name] = max(best.get(name, told), told, key=lambda one: one["tokens_per_s"])
        return "; ".join(f"{name} {told[f'x_{TARGET}']:.2f} × target" for name, told in best.items())

    def _ratio(self, told: Told, base: str) -> float | None:
        rates = [one["tokens_per_s"] for one in self._told if one["way"] == base]
        return round(told["tokens_per_s"] / rates[0], 3) if rates and rates[0] else None


def table(context: Context) -> str:
    """Measure all ways in order; return what the best with each draft is worth."""
    return asyncio.run(_table(context, planted_pair(context)))


async def _table(context: Context, folder: Path) -> str:
    of, lines, measured, longest_s = sizes(context), Table(context), 0, 0.0
    prompts = planted_prompts(of.timed_prompts, of.target["vocab_size"])
    requests = [replace(greedy_request(ids, of.tokens), logprobs=None) for ids in prompts]
    async with _ways(context, folder) as ways:
        for way in ways:
            left_s = context.left_s
            if left_s < MARGIN_S + longest_s:
                break
            lines.add(way, await _measured(way.decode, requests))
            measured, longest_s = measured + 1, max(longest_s, left_s - context.left_s)
    if lines.parted:
        raise CheckFailed(f"another text than the target's from {'; '.join(lines.parted)}")
    if measured < LEAST_WAYS:
        raise CheckFailed(f"time for {measured} of {len(ways)} ways alone")
    return f"{lines.best_of_each()} ({measured} of {len(ways)} ways)"


async def _measured(decode: Decode, requests: Sequence[GenerationRequest]) -> list[Sample]:
    """Return a sample of each request; a short run goes before and is thrown away."""
    await decode(replace(requests[0], max_tokens=min(WARM_UP_TOKENS, requests[0].max_tokens)))
    return [await decode(request) for request in requests]


@asynccontextmanager
async def _ways(context: Context, folder: Path) -> AsyncIterator[list[Way]]:
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
        ways = [Way({"way": TARGET}, pair_way(alone, _like(0), Traffic()))]
        ways.append(Way({"way": TARGET_HF}, bare_way(loops[MIDDLE])))
        for draft in _drafts(of):
            ways += _theirs(draft, loops)
            ways += [way async for way in _ours(stack, at, draft, of)]
        yield ways


def _services(context: Context, folder: Path, of: Sizes) -> dict[str, LocalService]:
    common = {"max_sessions": SESSIONS, "kv_tokens": SESSIONS * 2048}
    services = {TARGET: service(context, "verifier", str(folder / "target"), **common)}
    for draft in _drafts(of):
        for rows in RUN_AHEAD:
            services[f"{draft} {rows}"] = service(context, "drafter", str(folder / draft), run_ahead=rows, **common)
    return services


def _drafts(of: Sizes) -> list[str]:
    """Return the drafts, those of the middle acceptance first: what comes last may find no time left."""
    in_order = sorted(of.acceptances, key=lambda one: abs(one - MIDDLE))
    return [draft_name(MIDDLE), draft_name(MIDDLE, thin=True), *(draft_name(one) for one in in_order[1:])]


def _theirs(draft: str, loops: Mapping[float, BareLoopProcess]) -> Iterator[Way]:
    """Yield HuggingFace's own speculation, with all schedules at the middle acceptance alone: it takes long."""
    for acceptance, loop in loops.items():
        if draft == draft_name(acceptance) and loop.has_assistant:
            for schedule in SCHEDULES if acceptance == MIDDLE else [FIXED_SCHEDULE]:
                yield Way({"way": "hf-assisted", "draft": draft, "schedule": schedule}, bare_way(loop, schedule))


async def _ours(stack: AsyncExitStack, at: Mapping[str, str], draft: str, of: Sizes) -> AsyncIterator[Way]:
    for rows in RUN_AHEAD:
        pair = await stack.enter_async_context(await connected(at[TARGET], at[f"{draft} {rows}"]))
        for like in _likes(of, gated=draft in (draft_name(MIDDLE), draft_name(MIDDLE, thin=True))):
            told = {"way": "spec", "draft": draft, "run_ahead": rows, "gate": str(like.gate), "gamma": like.gamma}
            yield Way(told, pair_way(pair, like, Traffic()))


def _likes(of: Sizes, *, gated: bool) -> Iterator[GenerationRequest]:
    """Yield the requests whose γ and gate are measured, the gated ones at the first γ alone.

    A planted target is always sure, so a gate on its confidence stays open: what is seen is what the gate costs.
    """
    for gamma in of.gammas:
        yield _like(gamma)
    if gated:
        yield replace(_like(of.gammas[0]), gate=Gate.TARGET_CONFIDENCE)
        yield replace(_like(of.gammas[0]), gate=Gate.AUTO, gamma=None)


def _like(gamma: int) -> GenerationRequest:
    return GenerationRequest((0,), gamma=gamma, gate=Gate.NONE)
