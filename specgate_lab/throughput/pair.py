"""All rows of the benchmark, measured beside a running pair."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.local.launch import Pair, capacity_for
from orchestrator.terminal.counting_bar import counting_bar
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from specgate_lab.drafters import drafting_on_demand
from specgate_lab.throughput.agreement import TextAgreement, promised_agreement
from specgate_lab.throughput.observed import Observe
from specgate_lab.throughput.rows import Row, rows_of
from specgate_lab.throughput.runs import measure
from specgate_lab.throughput.samples import SPEC_OBSERVED
from specgate_lab.throughput.traffic import Traffic
from specgate_lab.throughput.variants import ahead_ways, bare_ways, observed_way, pair_ways
from specgate_lab.workload import full_length


@dataclass(frozen=True, slots=True)
class ThroughputReport:
    """The rows, for how many prompts the texts were equal where they must be, and what was measured."""

    rows: list[Row]
    agreement: TextAgreement | None
    models: Mapping[str, Any] = field(default_factory=dict)

    def to_object(self) -> dict[str, Any]:
        """Return all of it as ``--json`` writes it."""
        return {
            "models": self.models,
            "rows": [row.to_object() for row in self.rows],
            "agreement": asdict(self.agreement) if self.agreement else None,
        }


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
) -> ThroughputReport:
    """Measure all rows that can run where the services are, beside a running pair; see ``measure`` for the budget.

    ``traffic`` counts what the pair's calls send and receive. Without ``assisted`` HuggingFace's own speculation is
    left out: it takes longer than all else together. With ``observe`` there is a row whose requests are observed.
    """
    requests = [full_length(with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
    capacity = capacity_for(prompts, 1)
    bare_loops = bare_ways(models, pair.cores, log, assisted=assisted)
    async with bare_loops as bare, drafting_on_demand(pair, models, capacity, log) as on_demand:
        ours = pair_ways(pair.orchestrator, models, request, traffic)
        if on_demand is not None:
            ours = ahead_ways(pair.orchestrator, on_demand, models, request, traffic)
        if observe is not None:
            alone = on_demand or pair.orchestrator
            ours[SPEC_OBSERVED] = observed_way(alone, models, request, traffic, observe)
        ways = bare | ours
        with counting_bar(log, "measuring", len(ways) * len(requests) * repeats) as on_turn:
            samples = await measure(ways, requests, repeats, on_turn, budget_s)
    return ThroughputReport(rows_of(samples), promised_agreement(samples, requests), pair.models)
