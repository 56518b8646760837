"""Both real services as child processes, and what is asked of them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

from gpu_day_steps.step import Context
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.local_services import LocalService, Supervised
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.terminal.results import overhead_us
from specgate.errors import ModelLoadError
from specgate_lab.arrivals import all_of
from specgate_lab.experiment import Sample
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.proof.runs import PATIENT
from specgate_lab.statistics import pooled_rate
from specgate_lab.workload import BENCH_PROMPTS

Prompts = Sequence[tuple[int, ...]]

KV_TOKENS = 32_768


@asynccontextmanager
async def started(context: Context, services: Mapping[str, LocalService]) -> AsyncIterator[dict[str, str]]:
    """Start all services side by side; yield their endpoints by their names."""
    supervised = {name: Supervised(one, partial(_tell, context, name)) for name, one in services.items()}
    context.progress(f"starting {len(services)} services")
    try:
        await all_of(one.start(partial(_on_loading, context, name)) for name, one in supervised.items())
        yield {name: one.endpoint for name, one in supervised.items()}
    finally:
        await asyncio.gather(*(one.stop() for one in supervised.values()))


def _tell(context: Context, name: str, notice: str) -> None:
    context.progress(f"{name}: {notice}")


def _on_loading(context: Context, name: str, role: str, stage: str, done: int, total: int) -> None:
    # Which kernel serves is told once, as a stage of its own; the stages before it are too many to show.
    if stage.startswith("attention by"):
        _tell(context, name, stage)


async def connected(verifier: str, drafter: str | None = None) -> Orchestrator:
    """Return an orchestrator over these endpoints; it waits long for a slow drafter, as its figures are wanted."""
    verifiers = StaticPool((verifier,), grpc_health(None), field="verifier")
    drafters = None if drafter is None else StaticPool((drafter,), grpc_health(None), field="drafter")
    return await Orchestrator.connect(verifiers, drafters, timeouts=PATIENT)


def service(context: Context, role: str, model: str, **options: Any) -> LocalService:
    """Return a service on the day's device; in its fast number format where ``options`` name no other.

    Several share a card, so none takes the memory that it finds free.
    """
    usual = {"device": context.where.device, "dtype": context.where.dtype, "kv_tokens": KV_TOKENS}
    return LocalService.of(role, model, **(usual | options))


def prompts_of(model: str, number: int) -> Prompts:
    """Return the beginnings of Python code, as a model reads them."""
    tokenizer = TextTokenizer.load(model)
    if tokenizer is None:
        raise ModelLoadError(f"{model} has no tokenizer")
    return [tokenizer.encode(text) for text in BENCH_PROMPTS[:number]]


def planted_prompts(number: int, vocab_size: int) -> Prompts:
    """Return token ids far from each other; a planted pair goes on from the last of each."""
    return [tuple((1 + 997 * index + 31 * place) % vocab_size for place in range(32)) for index in range(number)]


def figures_of(samples: Collection[Sample]) -> dict[str, Any]:
    """Return what a way to decode was worth: tokens a second over all its prompts, medians over rounds."""
    counted = [stats for sample in samples for stats in sample.stats]
    return {"tokens_per_s": round(pooled_rate(list(samples)), 1), **_round_figures(counted)}


def _round_figures(counted: Sequence[MeasuredStats]) -> dict[str, Any]:
    if not sum(stats.rounds for stats in counted):
        return _medians({"solo_us": [us for stats in counted for us in stats.solo_us]})
    told = {
        "acceptance": _share([(stats.accepted, stats.drafted) for stats in counted]),
        "tokens_per_forward": _share([(stats.completion_tokens, stats.target_forwards) for stats in counted]),
        "ahead": _share([(sum(stats.prepared), stats.rounds) for stats in counted]),
        "solo": _share([(stats.solo_tokens, stats.completion_tokens) for stats in counted]),
    }
    return told | _medians(
        {
            "round_us": [us for stats in counted for us in stats.round_us],
            "draft_us": [us for stats in counted for us in stats.draft_us],
            "verify_us": [us for stats in counted for us in stats.verify_us],
            "forward_us": [us for stats in counted for _, us in stats.forwards_us],
            "overhead_us": [us for stats in counted for us in overhead_us(stats)],
        }
    )


def _share(parts: Sequence[tuple[int, int]]) -> float:
    some, whole = (sum(column) for column in zip(*parts, strict=True))
    return round(some / whole, 3) if whole else 0.0


def _medians(taken: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    return {name: round(median(values)) for name, values in taken.items() if values}
