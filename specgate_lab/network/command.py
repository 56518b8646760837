"""``orchestrator bench --added-delay-ms``: what a longer way between the orchestrator and its services costs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.child import Child
from orchestrator.local.launch import Pair, capacity_for, open_pair
from orchestrator.services.pool import StaticPool
from orchestrator.terminal.counting_bar import counting_bar
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from specgate.errors import ServiceUnavailable
from specgate_lab.drafters import on_demand_drafter
from specgate_lab.network.rows import NetworkRow, network_rows
from specgate_lab.network.table import draw_network, print_network
from specgate_lab.throughput.agreement import TextAgreement, promised_agreement
from specgate_lab.throughput.runs import Decode, measure
from specgate_lab.throughput.samples import PAIR_ROWS, Samples
from specgate_lab.throughput.traffic import Traffic
from specgate_lab.throughput.variants import ahead_ways, pair_ways
from specgate_lab.workload import full_length, request_object


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """The rows of all delays, what their requests had in common, and whether texts were equal where they must be."""

    request: GenerationRequest
    rows: Sequence[NetworkRow]
    agreement: TextAgreement | None
    models: Mapping[str, Any] = field(default_factory=dict)

    def to_object(self) -> dict[str, Any]:
        """Return all of it as ``--json`` writes it."""
        rows = [row.to_object() for row in self.rows]
        return {"request": request_object(self.request), "models": self.models, "rows": rows}


def run_network(
    models: ModelOptions,
    delays_ms: Sequence[float],
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    plots: Path | None,
) -> NetworkReport:
    """Start or reach the pair, measure it at every added round-trip delay, print the table and draw the plots."""
    report = asyncio.run(_run(models, delays_ms, prompts, request, repeats))
    print_network(output_console(), report.rows, report.agreement)
    if plots is not None:
        draw_network(plots, report.rows)
    return report


async def _run(
    models: ModelOptions,
    delays_ms: Sequence[float],
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
) -> NetworkReport:
    log, traffic = Console(stderr=True), Traffic()
    capacity = capacity_for(prompts, 1)
    async with (
        open_pair(models, with_draft=True, capacity=capacity, log=log, wrap_call=traffic.counted) as pair,
        on_demand_drafter(pair, models, capacity, log) as on_demand,
    ):
        requests = [full_length(with_token_ids(prompt, pair.tokenizer)) for prompt in prompts]
        async with delayed(pair, on_demand, delays_ms) as reached:
            ways = {
                _way(name, delay_ms): decode
                for delay_ms, over in zip(delays_ms, reached, strict=True)
                for name, decode in over.ways(models, request, traffic).items()
            }
            with counting_bar(log, "measuring", len(ways) * len(requests) * repeats) as on_turn:
                samples = await measure(ways, requests, repeats, on_turn)
        models_served = pair.models
    by_delay = {delay_ms: _at(samples, delay_ms) for delay_ms in delays_ms}
    together = {name: [one for own in by_delay.values() for one in own.get(name, ())] for name in PAIR_ROWS}
    return NetworkReport(request, network_rows(by_delay), promised_agreement(together, requests), models_served)


class Delayed(NamedTuple):
    """The pair as it is reached over one delay; ``on_demand`` has a drafter that waits to be asked."""

    orchestrator: Orchestrator
    on_demand: Orchestrator | None

    def ways(self, models: ModelOptions, request: GenerationRequest, traffic: Traffic) -> dict[str, Decode]:
        """Return the ways to decode over it."""
        if self.on_demand is None:
            return pair_ways(self.orchestrator, models, request, traffic)
        return ahead_ways(self.orchestrator, self.on_demand, models, request, traffic)


@asynccontextmanager
async def delayed(pair: Pair, on_demand: str | None, delays_ms: Sequence[float]) -> AsyncIterator[list[Delayed]]:
    """Yield, for each delay, the pair's services through proxies that add it.

    A delay of 0 goes through a proxy too, so that what the proxy itself costs is the same in all of them.

    Args:
        on_demand: the endpoint of one that waits to be asked.

    Raises:
        ServiceUnavailable: the proxies did not start, or a service does not answer through them.
    """
    services = (*pair.verifiers, *pair.drafters, *((on_demand,) if on_demand else ()))
    routes = [f"--route={endpoint},{delay_ms}" for delay_ms in delays_ms for endpoint in services]
    async with AsyncExitStack() as stack:
        child = await Child.start("specgate_lab.network.delay_proxy", routes)
        stack.push_async_callback(child.stop)
        ready = await child.next_event()
        if ready is None:
            raise ServiceUnavailable(f"the delaying proxy did not start:\n{child.last_words}")

        reached = []
        for index in range(len(delays_ms)):
            own = ready["endpoints"][index * len(services) : (index + 1) * len(services)]
            verifiers, drafters = own[: len(pair.verifiers)], own[len(pair.verifiers) :]
            ahead, asked = drafters[: len(pair.drafters)], drafters[len(pair.drafters) :]
            orchestrator = await stack.enter_async_context(await _through(pair, verifiers, ahead))
            other = await stack.enter_async_context(await _through(pair, verifiers, asked)) if asked else None
            reached.append(Delayed(orchestrator, other))
        yield reached


async def _through(pair: Pair, verifiers: Sequence[str], drafters: Sequence[str]) -> Orchestrator:
    pools = StaticPool(verifiers), StaticPool(drafters)
    return await Orchestrator.connect(*pools, pair.tokenizer, wrap_call=pair.wrap_call)


def _way(name: str, delay_ms: float) -> str:
    return f"{name} +{delay_ms:g} ms"


def _at(samples: Samples, delay_ms: float) -> Samples:
    return {name: samples[way] for name in PAIR_ROWS if (way := _way(name, delay_ms)) in samples}
