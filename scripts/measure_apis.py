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
from dataclasses import replace
from operator import sub, truediv
from statistics import median

from rich.table import Table

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.local_services import LocalService, Supervised
from orchestrator.local.served_child import ServedEndpoints, served
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from specgate_lab.clients import GrpcClient
from specgate_lab.demo import OnDelta, read_http
from specgate_lab.experiment import Sample, Samples, Variant, measure
from specgate_lab.timeline import Arrival, RequestTimeline
from specgate_lab.variants import sample_of
from specgate_lab.workload import BENCH_PROMPTS

Way = Callable[[GenerationRequest, str, OnDelta], Awaitable[None]]


def timed(way: Way, request: GenerationRequest) -> Variant[str]:
    """Return the variant that asks for a text to be continued, and times what comes."""

    async def run(text: str) -> Sample:
        arrivals: list[Arrival] = []
        token_ids: list[int] = []

        def on_delta(delta: Delta) -> None:
            if delta.token_ids:
                arrivals.append(Arrival(time.perf_counter(), len(delta.token_ids)))
                token_ids.extend(delta.token_ids)

        due_s = time.perf_counter()
        await way(request, text, on_delta)
        return sample_of(RequestTimeline(due_s, tuple(arrivals), token_ids=tuple(token_ids)))

    return run


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


def table_of(samples: Samples) -> Table:
    """Return one line a way: medians, the spread of the middle half, and the median of what it took more, in pairs."""
    table = Table("way", "first token ms", "middle half", "more ms", "tokens/s", "middle half", "× first", "same text")
    first_ms = {name: [1e3 * (one.requests[0].ttft_s or 0.0) for one in own] for name, own in samples.items()}
    rates = {name: [one.tokens / one.seconds for one in own] for name, own in samples.items()}
    base = next(iter(samples))
    for name, own in samples.items():
        same = sum(ours.token_ids == theirs.token_ids for ours, theirs in zip(own, samples[base], strict=True))
        table.add_row(
            name,
            f"{median(first_ms[name]):.1f}",
            _middle_half(first_ms[name]),
            f"{median(map(sub, first_ms[name], first_ms[base])):.1f}",
            f"{median(rates[name]):.1f}",
            _middle_half(rates[name]),
            f"{median(map(truediv, rates[name], rates[base])):.3f}",
            f"{same} of {len(own)}",
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
        ways = {"in process": in_process(orchestrator, tokenizer), "HTTP": over_http(doors), "gRPC": over_grpc(client)}
        drafting = DraftingOptions(gate=Gate.TARGET_CONFIDENCE)
        request = request_for(ModelOptions(), drafting, SamplingOptions(), arguments.tokens)
        variants = {name: timed(way, request) for name, way in ways.items()}
        samples = await measure(variants, BENCH_PROMPTS, arguments.repeats, warm_up=BENCH_PROMPTS)
    output_console().print(f"orchestrator serve was ready after {doors.ready_s:.1f} s", table_of(samples), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128, help="tokens a request [default: 128]")
    parser.add_argument("--repeats", type=int, default=3, help="times that each prompt is asked [default: 3]")
    parser.add_argument("--same-services", action="store_true", help="no replicas and leases of Ray")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
