#!/usr/bin/env python3
"""What the doors cost: the same requests in process, over HTTP and over gRPC, in turns.

    .venv/bin/python scripts/measure_apis.py                    # the doors over replicas and leases of Ray
    .venv/bin/python scripts/measure_apis.py --same-services    # the doors over the services of the first row

The first row is what `orchestrator generate` does: the decode loop in this process, over a drafter and a verifier of
its own. All rows serve the bundled pair greedily. The client shares the machine with all that it measures.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from operator import sub, truediv
from statistics import median

from rich.table import Table

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.decode.request import GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.local_services import LocalService, Supervised
from orchestrator.local.served_child import ServedEndpoints, served
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import Collector
from specgate_lab.clients import GrpcClient
from specgate_lab.demo.demo_serve import OnDelta, read_http
from specgate_lab.workload import BENCH_PROMPTS

Way = Callable[[GenerationRequest, str, OnDelta], Awaitable[None]]


@dataclass
class Row:
    """One way to ask, and what its requests took: seconds to the first token, tokens a second after it."""

    name: str
    way: Way
    first_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def forget(self) -> None:
        """Start anew."""
        self.first_s, self.rate, self.texts = [], [], []

    async def ask(self, request: GenerationRequest, text: str) -> None:
        """Make one request and put down what it took."""
        collector = Collector()
        start_s = time.perf_counter()
        await self.way(request, text, lambda delta: collector.add(delta, time.perf_counter()))
        result = collector.result(GenerationStats())
        self.first_s.append(result.first_s - start_s)
        self.rate.append(result.tokens_per_s or 0.0)
        self.texts.append(result.text)


@asynccontextmanager
async def local_pair() -> AsyncIterator[dict[str, str]]:
    """Start the bundled pair as two processes; yield their endpoints by role."""
    async with AsyncExitStack() as stack:
        endpoints = {}
        for role, model in (("verifier", BUNDLED_TARGET), ("drafter", BUNDLED_DRAFT)):
            service = Supervised(LocalService.of(role, model, kv_tokens=32_768), on_notice=print)
            stack.push_async_callback(service.stop)
            await service.start(lambda *_: None)
            endpoints[role] = service.endpoint
        yield endpoints


def in_process(orchestrator: Orchestrator, tokenizer: TextTokenizer) -> Way:
    """Ask without a door."""

    async def ask(request: GenerationRequest, text: str, on_delta: OnDelta) -> None:
        request = replace(request, prompt_token_ids=tokenizer.encode(text))
        async with orchestrator.generate(request) as generation:
            async for delta in generation:
                on_delta(delta)

    return ask


def over_http(doors: ServedEndpoints) -> Way:
    """Ask the HTTP door, over a new connection each time."""
    return lambda request, text, on_delta: read_http(doors, request, text, on_delta)


def over_grpc(client: GrpcClient) -> Way:
    """Ask the gRPC door, over one channel."""

    async def ask(request: GenerationRequest, text: str, on_delta: OnDelta) -> None:
        async with aclosing(client.stream(request, text)) as deltas:
            async for delta in deltas:
                on_delta(delta)

    return ask


async def measure(rows: list[Row], request: GenerationRequest, repeats: int) -> None:
    """Ask every row for every prompt, in turns; the first round warms up and does not count."""
    for repeat in range(repeats + 1):
        for text in BENCH_PROMPTS:
            for row in rows:
                await row.ask(request, text)
        if repeat == 0:
            for row in rows:
                row.forget()


def table_of(rows: list[Row]) -> Table:
    """Return one line a row: medians, the spread of the middle half, and the median of what it took more, in pairs."""
    table = Table("way", "first token ms", "middle half", "more ms", "tokens/s", "middle half", "× first", "same text")
    for row in rows:
        same = sum(ours == theirs for ours, theirs in zip(row.texts, rows[0].texts, strict=True))
        table.add_row(
            row.name,
            f"{median(row.first_s) * 1e3:.1f}",
            _middle_half([first * 1e3 for first in row.first_s]),
            f"{1e3 * median(map(sub, row.first_s, rows[0].first_s)):.1f}",
            f"{median(row.rate):.1f}",
            _middle_half(row.rate),
            f"{median(map(truediv, row.rate, rows[0].rate)):.3f}",
            f"{same} of {len(row.texts)}",
        )
    return table


def _middle_half(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 4]:.1f}..{ordered[3 * len(ordered) // 4]:.1f}"


async def run(arguments: argparse.Namespace) -> None:
    """Start everything, measure, print."""
    tokenizer = TextTokenizer.load(BUNDLED_TARGET)
    if tokenizer is None:
        raise SystemExit(f"{BUNDLED_TARGET} has no tokenizer")
    async with AsyncExitStack() as stack:
        endpoints = await stack.enter_async_context(local_pair())
        pools = {role: StaticPool((endpoint,), grpc_health(None), field=role) for role, endpoint in endpoints.items()}
        connecting = Orchestrator.connect(pools["verifier"], pools["drafter"], tokenizer)
        orchestrator = await stack.enter_async_context(await connecting)
        shared = {f"{role}.endpoints": f"[{endpoint}]" for role, endpoint in endpoints.items()}
        doors = await stack.enter_async_context(served(shared if arguments.same_services else {}))
        client = await stack.enter_async_context(GrpcClient(doors.grpc))
        rows = [
            Row("in process", in_process(orchestrator, tokenizer)),
            Row("HTTP", over_http(doors)),
            Row("gRPC", over_grpc(client)),
        ]
        drafting = DraftingOptions(gate=Gate.TARGET_CONFIDENCE)
        request = request_for(ModelOptions(), drafting, SamplingOptions(), arguments.tokens)
        await measure(rows, request, arguments.repeats)
    output_console().print(f"orchestrator serve was ready after {doors.ready_s:.1f} s", table_of(rows), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128, help="tokens a request [default: 128]")
    parser.add_argument("--repeats", type=int, default=3, help="times that each prompt is asked [default: 3]")
    parser.add_argument("--same-services", action="store_true", help="no replicas and leases of Ray")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
