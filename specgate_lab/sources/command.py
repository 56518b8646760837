"""``orchestrator bench --sources``: every draft source under ``auto``, beside HuggingFace's own ways."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Capacity, Pair, open_pair
from orchestrator.policy.gates import Gate
from orchestrator.terminal.counting_bar import counting_bar
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import with_token_ids
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod
from specgate_lab.drafters import source_service, with_drafter
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import LOOKUP
from specgate_lab.sources.options import SourceOptions
from specgate_lab.sources.prompt_sets import prompt_set
from specgate_lab.throughput.agreement import TextAgreement, promised_agreement
from specgate_lab.throughput.rows import Row, rows_of
from specgate_lab.throughput.runs import Decode, bare_way, measure, pair_way
from specgate_lab.throughput.samples import HF_ASSISTED, TARGET, TARGET_HF
from specgate_lab.throughput.table import print_rows
from specgate_lab.throughput.traffic import Traffic
from specgate_lab.workload import full_length, request_object

HF_LOOKUP = "hf-prompt-lookup"
PROMPT_TOKENS = 512
"""No prompt of the sets has more."""


def row_name(method: DraftMethod) -> str:
    """Return the name of a source's row."""
    return f"{method}+auto"


ROW_NAMES = (TARGET_HF, HF_LOOKUP, HF_ASSISTED, TARGET, *map(row_name, DraftMethod))


@dataclass(frozen=True, slots=True)
class SourcesReport:
    """The rows of each prompt set, and for how many prompts the texts were equal where they must be."""

    request: GenerationRequest
    models: Mapping[str, Any]
    rows: Mapping[str, Sequence[Row]]
    agreements: Mapping[str, TextAgreement | None]

    def to_object(self) -> dict[str, Any]:
        """Return all of it as ``--json`` writes it."""
        sets = {
            name: {
                "rows": [row.to_object() for row in rows],
                "agreement": asdict(agreement) if (agreement := self.agreements[name]) else None,
            }
            for name, rows in self.rows.items()
        }
        return {"request": request_object(self.request), "models": self.models, "prompt_sets": sets}


def run_sources(
    models: ModelOptions, options: SourceOptions, request: GenerationRequest, repeats: int
) -> SourcesReport:
    """Measure every source on every prompt set, and print a table of each set.

    Raises:
        InvalidArgument: a service is somebody else's, or the target has no tokenizer.
    """
    if models.drafter or models.verifier:
        raise InvalidArgument("sources", "need services that are started here")
    report = asyncio.run(_run(models, options, request, repeats))
    console = output_console()
    for name, rows in report.rows.items():
        console.print(f"\nprompt set: {name}", style="bold")
        print_rows(console, rows, report.agreements[name])
        console.print(against_lookup(rows), style="dim", soft_wrap=True)
    return report


def against_lookup(rows: Sequence[Row]) -> str:
    """Return what suffix drafts bring over our target alone, over what prompt lookup brings over HuggingFace's."""
    rates = {row.name: row.rate.median for row in rows}
    names = (row_name(DraftMethod.SUFFIX), TARGET, HF_LOOKUP, TARGET_HF)
    if not all(rates.get(name) for name in names):
        return ""
    suffix, target, lookup, bare = (rates[name] for name in names)
    return f"{names[0]}: {suffix / target:.2f} × {TARGET}; {HF_LOOKUP}: {lookup / bare:.2f} × {TARGET_HF}"


async def _run(models: ModelOptions, options: SourceOptions, request: GenerationRequest, repeats: int) -> SourcesReport:
    log, capacity = Console(stderr=True), Capacity(2, PROMPT_TOKENS + request.max_tokens, 1)
    rows: dict[str, Sequence[Row]] = {}
    agreements: dict[str, TextAgreement | None] = {}
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(open_pair(models, with_draft=False, capacity=capacity, log=log))
        if pair.tokenizer is None:
            raise InvalidArgument("sources", "need a target with a tokenizer")
        hf = await stack.enter_async_context(_hf_ways(models, pair))
        for name in options.prompt_sets:
            prompts = prompt_set(name, request, pair.tokenizer)
            requests = [full_length(with_token_ids(one, pair.tokenizer)) for one in prompts]
            # Drafters and learners that have seen nothing of the other sets.
            async with AsyncExitStack() as of_set:
                started = [_way(pair, models, method, options, capacity, log) for method in options.methods]
                entered = [await of_set.enter_async_context(one) for one in started]
                ours = dict(zip(map(row_name, options.methods), entered, strict=True))
                ways = hf | {TARGET: pair_way(pair.orchestrator, replace(request, gamma=0), Traffic())} | ours
                with counting_bar(log, name, len(ways) * len(requests) * repeats) as on_turn:
                    samples = await measure(ways, requests, repeats, on_turn)
            # HuggingFace draws in its own way.
            same = (HF_LOOKUP,) if request.sampling.greedy else ()
            rows[name] = rows_of(samples, ROW_NAMES)
            agreements[name] = promised_agreement(samples, requests, (*same, TARGET, *ours))
        return SourcesReport(request, pair.models, rows, agreements)


@asynccontextmanager
async def _way(
    pair: Pair, models: ModelOptions, method: DraftMethod, options: SourceOptions, capacity: Capacity, log: Console
) -> AsyncIterator[Decode]:
    """Start the drafter of a source, on the core of the pair's own, and yield the way to decode with it."""
    service = source_service(pair, models, method, options.source_skip, capacity)
    auto = GenerationRequest((0,), gate=Gate.AUTO)
    async with with_drafter(pair, service, log) as orchestrator:
        yield pair_way(orchestrator, auto, Traffic())


@asynccontextmanager
async def _hf_ways(models: ModelOptions, pair: Pair) -> AsyncIterator[dict[str, Decode]]:
    """Start HuggingFace's loop of the target, and yield its ways: alone, with prompt lookup, with the draft model."""
    loop = BareLoopProcess(
        models.target_model or "",
        dtype=models.service.value("dtype"),
        device=models.service.value("device"),
        threads=models.service.value("threads"),
        cpu=pair.cores[1] if pair.cores else None,
        assistant=models.draft_model or None,
    )
    await loop.start()
    try:
        ways = {TARGET_HF: bare_way(loop), HF_LOOKUP: bare_way(loop, LOOKUP)}
        if loop.has_assistant:
            ways[HF_ASSISTED] = bare_way(loop, "default")
        yield ways
    finally:
        await loop.stop()
