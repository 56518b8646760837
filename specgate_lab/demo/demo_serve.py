"""The serving part of the demo: the pair behind ``orchestrator serve``, one completion by HTTP and one by gRPC."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from importlib.util import find_spec

from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.served_child import MODEL_NAME, ServedEndpoints, served
from orchestrator.terminal.render import Painter, write
from orchestrator.terminal.results import Collector
from specgate_lab.clients import GrpcClient, stream_completion
from specgate_lab.demo.demo_page import show_page

OnDelta = Callable[[Delta], None]
Reader = Callable[[ServedEndpoints, GenerationRequest, str, OnDelta], Awaitable[None]]


async def read_http(apis: ServedEndpoints, request: GenerationRequest, text: str, on_delta: OnDelta) -> None:
    """Stream one completion of ``text`` over HTTP. Raises as ``stream_completion`` does."""

    def read() -> None:
        for delta in stream_completion(apis.http, MODEL_NAME, request, text):
            on_delta(delta)

    await asyncio.to_thread(read)


async def read_grpc(apis: ServedEndpoints, request: GenerationRequest, text: str, on_delta: OnDelta) -> None:
    """Stream one completion of ``text`` over gRPC. Raises as ``GrpcClient.stream`` does."""
    async with GrpcClient(apis.grpc) as client, aclosing(client.stream(request, text)) as deltas:
        async for delta in deltas:
            on_delta(delta)


_LISTENERS: dict[str, Reader] = {"HTTP, POST /v1/completions": read_http, "gRPC, GenerateStream": read_grpc}


async def demo_serve(
    settings: dict[str, object], request: GenerationRequest, text: str, tokenizer: TextTokenizer | None, out: Console
) -> None:
    """Serve the pair, continue ``text`` over both APIs, print what was measured, and end with the page.

    Raises:
        SpecgateError: the system did not start, refused the request, or broke off.
    """
    out.print("\nThe same pair behind `orchestrator serve`, on Ray:", style="bold")
    if find_spec("ray") is None:
        out.print("the serving part needs Ray: pip install 'specgate[ray]'", markup=False)
        return
    async with served(settings, on_notice=lambda text: out.print(text, style="yellow", markup=False)) as apis:
        out.print(f"ready after {apis.ready_s:.1f} s", end="\n\n")
        for name, reader in _LISTENERS.items():
            out.print(name, style="dim")
            write(out, [Segment(text, Style(bold=True))])
            out.print(await _shown(reader, apis, request, text, tokenizer, out), style="bold", end="\n\n")
        await show_page(apis.http, out)


async def _shown(
    reader: Reader,
    apis: ServedEndpoints,
    request: GenerationRequest,
    text: str,
    tokenizer: TextTokenizer | None,
    out: Console,
) -> str:
    """Stream one completion to ``out`` in colour; return what was measured, in one line."""
    painter = Painter(tokenizer.incremental(tokenizer.encode(text)) if tokenizer else None)
    collector = Collector()

    def show(delta: Delta) -> None:
        collector.add(delta, time.perf_counter())
        write(out, painter.paint(delta))

    start_s = time.perf_counter()
    await reader(apis, request, text, show)
    result = collector.result(GenerationStats())
    out.print()
    rate = f" · {result.tokens_per_s:.1f} tokens/s" if result.tokens_per_s else ""
    return f"{len(result.token_ids)} tokens{rate} · first after {(result.first_s - start_s) * 1e3:.0f} ms"
