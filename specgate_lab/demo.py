"""``orchestrator demo``: the bundled pair generates, is measured, and is served over HTTP and gRPC."""

import asyncio
import os
import sys
import time
import webbrowser
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from importlib.util import find_spec

import uvloop
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from orchestrator.api.settings.settings import Settings
from orchestrator.cli.answering import PairAnswerer
from orchestrator.cli.generate import show_prompts
from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.local.launch import capacity_for, open_pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import Painter, output_console, write
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.results import Collector
from specgate.errors import SpecgateError
from specgate_lab.bench.pair_variants import measure_pair
from specgate_lab.bench.table import print_rows
from specgate_lab.clients import GrpcClient, stream_completion
from specgate_lab.served_child import MODEL_NAME, ServedEndpoints, served, settings_for
from specgate_lab.variants import Traffic
from specgate_lab.workload import DEMO_PROMPTS, bench_request

DEMO_TOKENS = 64
DEMO_REPEATS = 2
DEMO_BUDGET_S = 30.0
"""One repeat keeps the demo within two minutes on a busy machine."""
ELSEWHERE = "The page that shows live who brought each token: `orchestrator serve`, then http://127.0.0.1:8000/"

OnDelta = Callable[[Delta], None]
Reader = Callable[[ServedEndpoints, GenerationRequest, str, OnDelta], Awaitable[None]]


@takes_groups
def demo(models: ModelOptions, drafting: DraftingOptions, sampling: SamplingOptions) -> None:
    """Show the bundled pair: coloured tokens, a benchmark, then HTTP and gRPC; in under two minutes."""
    models.check_has_services("demo")
    measured = bench_request(models, drafting, sampling, DEMO_TOKENS)
    shown = request_for(models, drafting, sampling, DEMO_TOKENS)
    failures = uvloop.run(_demo(models, [Prompt(shown, text) for text in DEMO_PROMPTS], measured))
    if failures:
        raise failures[0]


async def _demo(models: ModelOptions, prompts: Sequence[Prompt], measured: GenerationRequest) -> list[SpecgateError]:
    out, log = output_console(), Console(stderr=True)
    traffic, capacity = Traffic(), capacity_for(prompts, 1)
    async with open_pair(models, with_draft=True, capacity=capacity, log=log, wrap_call=traffic.counted) as pair:
        failures = await show_prompts(PairAnswerer(pair), prompts, 1, out, log)
        out.print("The same prompts again, in every way to decode, in turns:", style="bold")
        report = await measure_pair(
            pair, models, prompts, measured, DEMO_REPEATS, log, traffic, DEMO_BUDGET_S, assisted=False
        )
        print_rows(out, report)
    if not (models.verifier or models.drafter):
        await demo_serve(settings_for(models), prompts[0].request, DEMO_PROMPTS[0], pair.tokenizer, out)
    return failures


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
    settings: Settings, request: GenerationRequest, text: str, tokenizer: TextTokenizer | None, out: Console
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


async def show_page(endpoint: str, out: Console) -> None:
    """Open the page of a served system where there is a desktop; at a terminal serve it until Enter or Ctrl-C.

    Args:
        endpoint: HOST:PORT of the HTTP API.
    """
    if not (sys.stdin.isatty() and out.is_terminal):
        out.print(ELSEWHERE, markup=False, soft_wrap=True)
        return
    url = f"http://{endpoint}/"
    has_opened = has_desktop() and await asyncio.to_thread(webbrowser.open, url)
    out.print(f"The page is {'open' if has_opened else 'at'} {url}", style="bold", soft_wrap=True)
    out.print("Enter ends the demo.")
    await _enter()


def has_desktop() -> bool:
    """Return whether a browser opens in a window: elsewhere one of text would take the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


async def _enter() -> None:
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin)
        # Else the shell behind us reads it.
        if pressed.is_set():
            sys.stdin.readline()
