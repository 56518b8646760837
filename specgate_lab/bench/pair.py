"""All rows of the benchmark, measured beside a running pair."""

import math
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Pair, capacity_for
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from specgate_lab.bench.agreement import promised_agreement
from specgate_lab.bench.pair_variants import bare_variants, pair_variants
from specgate_lab.bench.rows import RowsReport, rows_of
from specgate_lab.drafters import connect, on_demand_drafter
from specgate_lab.progress import counting_bar
from specgate_lab.variants import Observe, Traffic, decode_in_turns
from specgate_lab.workload import full_length


async def measure_pair(
    pair: Pair,
    models: ModelOptions,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    log: Console,
    traffic: Traffic,
    budget_s: float = math.inf,
    assisted: bool = True,
    observe: Observe | None = None,
) -> RowsReport:
    """Measure all rows that can run beside a running pair; see ``measure`` for the budget.

    ``traffic`` counts what the pair's calls send and receive. Without ``assisted`` HuggingFace's own speculation is
    left out: it takes longer than all else together. With ``observe`` there is a row whose requests are observed.
    """
    requests = [full_length(with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(bare_variants(models, pair.cores, log, assisted=assisted))
        drafter = await stack.enter_async_context(on_demand_drafter(pair, models, capacity_for(prompts, 1), log))
        on_demand = await stack.enter_async_context(await connect(pair, drafter)) if drafter else None
        variants = bare | pair_variants(pair.orchestrator, on_demand, models, request, traffic, observe)
        with counting_bar(log, "measuring", len(variants) * len(requests) * repeats) as on_turn:
            samples = await decode_in_turns(variants, requests, repeats, on_turn, budget_s)
    return RowsReport(rows_of(samples), promised_agreement(samples, requests))
