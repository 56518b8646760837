"""``orchestrator bench`` under load: many requests at a time, with speculation off and on."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Capacity, Pair, capacity_for, open_pair
from orchestrator.terminal.counting_bar import counting_bar
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate_lab.load.levels import Speculation
from specgate_lab.load.neighbour import NEWCOMER_TOKENS, NeighbourRow, measure_neighbours, newcomer_of
from specgate_lab.load.options import LoadOptions
from specgate_lab.load.plots import draw
from specgate_lab.load.summary import Summary, summaries
from specgate_lab.load.sweep import measure
from specgate_lab.load.table import print_load, print_neighbours
from specgate_lab.workload import full_length, mixed_prompts, request_object


@dataclass(frozen=True, slots=True)
class LoadReport:
    """All rows, and what the requests of the measurement had in common."""

    request: GenerationRequest
    rows: Sequence[Summary] = ()
    neighbours: Sequence[NeighbourRow] = ()
    models: Mapping[str, Any] = field(default_factory=dict)

    def to_object(self) -> dict[str, Any]:
        """Return all of it as ``--json`` writes it."""
        return {
            "request": request_object(self.request),
            "models": self.models,
            "rows": [row.to_object() for row in self.rows],
            "long_prompt": [row.to_object() for row in self.neighbours],
        }


def load_prompts(request: GenerationRequest) -> list[Prompt]:
    """Return the prompts where no file brings others."""
    return [Prompt(request, text) for text in mixed_prompts()]


def run_load(
    models: ModelOptions, load: LoadOptions, prompts: Sequence[Prompt], request: GenerationRequest, repeats: int
) -> LoadReport:
    """Start or reach the pair, measure all that is asked for, print the tables and draw the plots."""
    report = asyncio.run(_run(models, load, prompts, request, repeats))
    out = output_console()
    if report.rows:
        print_load(out, report.rows)
    if report.neighbours:
        print_neighbours(out, report.neighbours)
    if load.plots is not None:
        draw(load.plots, report.rows)
    return report


async def _run(
    models: ModelOptions, load: LoadOptions, prompts: Sequence[Prompt], request: GenerationRequest, repeats: int
) -> LoadReport:
    log = Console(stderr=True)
    async with open_pair(models, with_draft=True, capacity=_capacity(load, prompts), log=log) as pair:
        requests = [_like(request, with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
        rows = await _levels(pair, load, requests, repeats, log) if load.levels else []
        neighbours = await _neighbours(pair, load, requests, repeats, log) if load.long_prompt else []
        return LoadReport(request, rows, neighbours, pair.models)


def _like(request: GenerationRequest, own: GenerationRequest) -> GenerationRequest:
    """Return a prompt's own request with the γ and the gate that all share."""
    return full_length(replace(own, gamma=request.gamma, gate=request.gate, gate_threshold=request.gate_threshold))


def _capacity(load: LoadOptions, prompts: Sequence[Prompt]) -> Capacity:
    capacity = capacity_for(prompts, load.num_sessions)
    longest = max(capacity.tokens_a_session, (load.long_prompt or 0) + NEWCOMER_TOKENS)
    return replace(capacity, tokens_a_session=longest)


async def _levels(
    pair: Pair, load: LoadOptions, requests: Sequence[GenerationRequest], repeats: int, log: Console
) -> list[Summary]:
    with counting_bar(log, "measuring", len(load.levels) * len(Speculation) * repeats) as on_turn:
        runs = await measure(pair.orchestrator.generate, requests, load.levels, repeats, load.requests, on_turn)
    return summaries(runs)


async def _neighbours(
    pair: Pair, load: LoadOptions, requests: Sequence[GenerationRequest], repeats: int, log: Console
) -> list[NeighbourRow]:
    newcomer = newcomer_of(requests, load.long_prompt or 1)
    limit = pair.orchestrator.target_info.context_length
    if len(newcomer.prompt_token_ids) + newcomer.max_tokens > limit:
        told = f"{load.long_prompt} tokens and {newcomer.max_tokens} more pass the target's context length of {limit}"
        raise InvalidArgument("long_prompt", told)
    sessions = [requests[index % len(requests)] for index in range(load.num_streams)]
    with counting_bar(log, "long prompt", 2 * len(Speculation) * repeats) as on_turn:
        return await measure_neighbours(pair.orchestrator.generate, sessions, newcomer, repeats, on_turn)
