"""``orchestrator bench`` under load: many requests at a time, with speculation off and on."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Capacity, Pair, capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from specgate.errors import InvalidArgument
from specgate_lab.bench.load.levels import Speculation, measure_levels
from specgate_lab.bench.load.neighbour import NEWCOMER_TOKENS, NeighbourRow, measure_neighbours, newcomer_of
from specgate_lab.bench.load.options import LoadOptions
from specgate_lab.bench.load.rows import LoadRow, load_rows
from specgate_lab.bench.load.table import draw, print_load, print_neighbours
from specgate_lab.gate_choice import GateChoice
from specgate_lab.progress import counting_bar
from specgate_lab.workload import full_requests


async def run_load(
    models: ModelOptions, load: LoadOptions, prompts: Sequence[Prompt], request: GenerationRequest, repeats: int
) -> dict[str, Any]:
    """Measure all that is asked for, print the tables and draw the plots; return the results."""
    log, out, choice = Console(stderr=True), output_console(), GateChoice.like(request)
    async with open_pair(models, with_draft=True, capacity=_capacity(load, prompts), log=log) as pair:
        requests = [choice.of(one) for one in full_requests(prompts, pair.tokenizer)]
        rows = await _levels(pair, load, requests, repeats, log) if load.levels else []
        neighbours = await _neighbours(pair, load, requests, repeats, log) if load.long_prompt else []
    if rows:
        print_load(out, rows)
    if neighbours:
        print_neighbours(out, neighbours)
    if load.plots is not None:
        draw(load.plots, rows)
    long_prompt = [asdict(row) for row in neighbours]
    return {"models": pair.models, "rows": [row.to_object() for row in rows], "long_prompt": long_prompt}


def _capacity(load: LoadOptions, prompts: Sequence[Prompt]) -> Capacity:
    capacity = capacity_for(prompts, load.num_sessions)
    longest = max(capacity.tokens_a_session, (load.long_prompt or 0) + NEWCOMER_TOKENS)
    return replace(capacity, tokens_a_session=longest)


async def _levels(
    pair: Pair, load: LoadOptions, requests: Sequence[GenerationRequest], repeats: int, log: Console
) -> list[LoadRow]:
    with counting_bar(log, "measuring", len(load.levels) * len(Speculation) * repeats) as on_turn:
        start, levels = pair.orchestrator.generate, load.levels
        return load_rows(levels, await measure_levels(start, requests, levels, repeats, load.requests, on_turn))


async def _neighbours(
    pair: Pair, load: LoadOptions, requests: Sequence[GenerationRequest], repeats: int, log: Console
) -> list[NeighbourRow]:
    newcomer = newcomer_of(requests, load.long_prompt or 1)
    limit = pair.orchestrator.target_info.context_length
    if len(newcomer.prompt_token_ids) + newcomer.max_tokens > limit:
        problem = (
            f"{load.long_prompt} tokens and {newcomer.max_tokens} more pass the target's context length of {limit}"
        )
        raise InvalidArgument("long_prompt", problem)
    sessions = [requests[index % len(requests)] for index in range(load.num_streams)]
    with counting_bar(log, "long prompt", 2 * len(Speculation) * repeats) as on_turn:
        return await measure_neighbours(pair.orchestrator.generate, sessions, newcomer, repeats, on_turn)
