"""``orchestrator bench --sources``: every draft source under ``auto``, beside HuggingFace's own ways."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Pair, capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate.types import DraftMethod
from specgate_lab.bench.row_names import HF_ASSISTED, TARGET, TARGET_HF
from specgate_lab.bench.rows import Row, RowsReport, promised_agreement, rows_of
from specgate_lab.bench.table import print_rows
from specgate_lab.drafters import source_service, with_drafter
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE
from specgate_lab.options import names_of
from specgate_lab.peers.bare_loop import BareLoopProcess
from specgate_lab.peers.hf_assisted import LOOKUP
from specgate_lab.progress import counting_bar
from specgate_lab.variants import Decode, decode_in_turns, pair_variant
from specgate_lab.workload import full_requests

HF_LOOKUP = "hf-prompt-lookup"
_flag = partial(typer.Option, rich_help_panel="Draft sources")


def row_name(method: DraftMethod) -> str:
    """Return the name of a source's row."""
    return f"{method}+auto"


ROW_NAMES = (TARGET_HF, HF_LOOKUP, HF_ASSISTED, TARGET, *map(row_name, DraftMethod))


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Which sources are measured.

    Raises:
        InvalidArgument: there is no such source; names it.
    """

    sources: Annotated[
        str | None,
        _flag(
            metavar="METHOD,...",
            help=f"Measure draft sources under the gate auto: some of {', '.join(DraftMethod)}.",
        ),
    ] = None
    source_skip: Annotated[str | None, _flag(metavar="FILE", help="Skip file for the source layer-skip.")] = None

    def __post_init__(self) -> None:
        if self.source_skip is None and DraftMethod.LAYER_SKIP in self.methods:
            raise InvalidArgument("source_skip", "is needed for the source layer-skip")

    @property
    def is_wanted(self) -> bool:
        return self.sources is not None

    @property
    def methods(self) -> tuple[DraftMethod, ...]:
        """The sources, as they were given."""
        return tuple(map(DraftMethod, names_of("sources", self.sources, DraftMethod)))


async def run_sources(
    models: ModelOptions, options: SourceOptions, prompts: Sequence[Prompt], request: GenerationRequest, repeats: int
) -> dict[str, Any]:
    """Measure every source on the prompts, and print the table; return the results.

    Raises:
        InvalidArgument: a service is somebody else's.
    """
    if models.drafter or models.verifier:
        raise InvalidArgument("sources", "need services that are started here")
    log, capacity = Console(stderr=True), capacity_for(prompts, 1)
    async with (
        open_pair(models, with_draft=False, capacity=capacity, log=log) as pair,
        _hf_variants(models, pair) as hf,
        AsyncExitStack() as drafters,
    ):
        ours: dict[str, Decode] = {}
        for method in options.methods:
            service = source_service(pair, models, method, options.source_skip, capacity)
            drafting = await drafters.enter_async_context(with_drafter(pair, service, log))
            ours[row_name(method)] = pair_variant(drafting, AUTO_GATE)
        requests = full_requests(prompts, pair.tokenizer)
        variants = hf | {TARGET: pair_variant(pair.orchestrator, TARGET_ALONE)} | ours
        with counting_bar(log, "measuring", len(variants) * len(requests) * repeats) as on_turn:
            samples = await decode_in_turns(variants, requests, repeats, on_turn)
        served = pair.models
    # HuggingFace draws in its own way.
    same = (HF_LOOKUP,) if request.sampling.greedy else ()
    report = RowsReport(rows_of(samples, ROW_NAMES), promised_agreement(samples, requests, (*same, TARGET, *ours)))
    console = output_console()
    print_rows(console, report)
    console.print(against_lookup(report.rows), style="dim", soft_wrap=True)
    return {"models": served, **report.to_object()}


def against_lookup(rows: Sequence[Row]) -> str:
    """Return what suffix drafts bring over our target alone, over what prompt lookup brings over HuggingFace's."""
    rates = {row.name: row.rate.median for row in rows}
    names = (row_name(DraftMethod.SUFFIX), TARGET, HF_LOOKUP, TARGET_HF)
    if not all(rates.get(name) for name in names):
        return ""
    suffix, target, lookup, bare = (rates[name] for name in names)
    return f"{names[0]}: {suffix / target:.2f} × {TARGET}; {HF_LOOKUP}: {lookup / bare:.2f} × {TARGET_HF}"


@asynccontextmanager
async def _hf_variants(models: ModelOptions, pair: Pair) -> AsyncIterator[dict[str, Decode]]:
    """Start HuggingFace's loop of the target; yield its variants: alone, with prompt lookup, with the draft model."""
    core = pair.cores[1] if pair.cores else None
    target, draft = models.target_model or "", models.draft_model
    async with BareLoopProcess.like_services(models, target, cpu=core, assistant=draft) as loop:
        variants: dict[str, Decode] = {TARGET_HF: loop.run, HF_LOOKUP: partial(loop.run, schedule=LOOKUP)}
        if loop.has_assistant:
            variants[HF_ASSISTED] = partial(loop.run, schedule="default")
        yield variants
