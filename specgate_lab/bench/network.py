"""``orchestrator bench --added-delay-ms``: what a longer way between the orchestrator and its services costs."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.child import Child
from orchestrator.local.launch import Pair, capacity_for, open_pair
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.prompts import Prompt
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import fixed_gamma
from orchestrator.terminal.tables import number, table_of
from specgate_lab.bench.row_names import PAIR_ROWS, SPEC_AHEAD, SPEC_AHEAD_AUTO, TARGET
from specgate_lab.bench.rows import Row, TextAgreement, promised_agreement, rows_of
from specgate_lab.bench.table import STYLES, agreement_line, interval
from specgate_lab.experiment import Samples
from specgate_lab.gate_choice import AUTO_GATE, TARGET_ALONE, GateChoice
from specgate_lab.options import numbers_of
from specgate_lab.peers.bare_loop import answer_of
from specgate_lab.progress import counting_bar
from specgate_lab.report import PlotLine, draw_lines, print_lost
from specgate_lab.variants import Traffic, decode_in_turns, pair_variant
from specgate_lab.workload import full_requests

MAX_DELAY_MS = 500.0
"""A draft may take a second at the least before it is given up."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Round-trip delays that are added between the orchestrator and both services.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    added_delay_ms: Annotated[
        str | None,
        typer.Option(
            metavar="MS,MS,...",
            help="Measure the network: added round-trip time between the orchestrator and both services, "
            "such as 0,1,5,20.",
            rich_help_panel="Network",
        ),
    ] = None

    def __post_init__(self) -> None:
        _ = self.delays_ms

    @property
    def is_wanted(self) -> bool:
        return self.added_delay_ms is not None

    @property
    def delays_ms(self) -> tuple[float, ...]:
        """All delays, as they were given."""
        return numbers_of("added_delay_ms", self.added_delay_ms, float, 0.0, MAX_DELAY_MS)


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """A row of the benchmark with ``added_ms`` of round trip; ``row.ratio_to_target`` is to the target as delayed.

    ``ratio_to_nearest`` is to the same row at the least delay.
    """

    added_ms: float
    row: Row
    ratio_to_nearest: float

    def to_object(self) -> dict[str, Any]:
        """Return the row as ``--json`` writes it."""
        return {"added_delay_ms": self.added_ms, "ratio_to_nearest": self.ratio_to_nearest, **self.row.to_object()}


Column = tuple[str, Callable[[NetworkRow], str]]
_COLUMNS: tuple[Column, ...] = (
    ("added ms", lambda one: f"{one.added_ms:g}"),
    ("row", lambda one: one.row.name),
    ("tokens/s", lambda one: f"{one.row.rate.median:.1f}"),
    ("min..max", lambda one: f"{one.row.rate.min:.0f}..{one.row.rate.max:.0f}"),
    ("× target", lambda one: number(one.row.ratio_to_target, ".2f")),
    ("95 %", lambda one: interval(one.row.ratio_to_target_95)),
    ("× nearest", lambda one: f"{one.ratio_to_nearest:.2f}"),
    ("tokens a forward", lambda one: number(one.row.tokens_per_forward, ".2f")),
    ("bytes a token", lambda one: number(one.row.bytes_per_token, ".0f")),
    ("messages", lambda one: number(one.row.messages_per_token, ".1f")),
)
_LEGEND = (
    "× target is to the target alone at the same delay, × nearest to the same row at the least one.\n"
    "All go through the delaying proxy, 0 ms too."
)


async def run_network(
    models: ModelOptions,
    delays_ms: Sequence[float],
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    repeats: int,
    plots: Path | None,
) -> dict[str, Any]:
    """Measure the pair at every added round-trip delay, print the table and draw the plots; return the results."""
    log, traffic, capacity = Console(stderr=True), Traffic(), capacity_for(prompts, 1)
    spec = GateChoice(Gate.NONE, fixed_gamma(models, request.gamma))
    choices = {TARGET: TARGET_ALONE, SPEC_AHEAD: spec, SPEC_AHEAD_AUTO: AUTO_GATE}
    async with (
        open_pair(models, with_draft=True, capacity=capacity, log=log, wrap_call=traffic.counted) as pair,
        delayed(pair, delays_ms) as reached,
    ):
        requests = full_requests(prompts, pair.tokenizer)
        variants = {
            _variant(name, delay_ms): pair_variant(orchestrator, choice, traffic)
            # Far away those that are asked for mostly wait, and whatever runs behind them finds a cold machine.
            for names in ((TARGET, SPEC_AHEAD_AUTO), (SPEC_AHEAD,))
            for delay_ms, orchestrator in zip(delays_ms, reached, strict=True)
            for name, choice in choices.items()
            if name in names
        }
        with counting_bar(log, "measuring", len(variants) * len(requests) * repeats) as on_turn:
            samples = await decode_in_turns(variants, requests, repeats, on_turn)
    by_delay = {delay_ms: _at(samples, delay_ms) for delay_ms in delays_ms}
    together = {name: [one for own in by_delay.values() for one in own.get(name, ())] for name in PAIR_ROWS}
    rows = network_rows(by_delay)
    print_network(output_console(), rows, promised_agreement(together, requests))
    if plots is not None:
        draw_network(plots, rows)
    return {"models": pair.models, "rows": [row.to_object() for row in rows]}


def _variant(name: str, delay_ms: float) -> str:
    return f"{name} +{delay_ms:g} ms"


def _at(samples: Samples, delay_ms: float) -> Samples:
    return {name: samples[own] for name in PAIR_ROWS if (own := _variant(name, delay_ms)) in samples}


def network_rows(samples: Mapping[float, Samples]) -> list[NetworkRow]:
    """Return the rows of every delay, in milliseconds, from the least to the largest."""
    rows = {added_ms: rows_of(samples[added_ms]) for added_ms in sorted(samples)}
    nearest = {row.name: row.rate.median for row in rows[min(rows)]}
    return [
        NetworkRow(added_ms, row, row.rate.median / (nearest[row.name] or float("inf")))
        for added_ms, own in rows.items()
        for row in own
    ]


def print_network(console: Console, rows: Sequence[NetworkRow], agreement: TextAgreement | None) -> None:
    """Print the table, and how many texts were equal over all rows and delays."""
    console.print(table_of(rows, _COLUMNS, num_names=2, style_of=lambda one: STYLES.get(one.row.name)))
    console.print(_LEGEND, style="dim")
    print_lost(console, sum(one.row.failures_survived for one in rows))
    if agreement:
        console.print(agreement_line([one.row for one in rows], agreement), soft_wrap=True)


def draw_network(folder: Path, rows: Sequence[NetworkRow]) -> list[Path]:
    """Write ``network_throughput.png`` and ``network_speedup.png``; return their paths.

    Raises:
        InvalidArgument: a file cannot be written.
    """
    label = "added round trip, ms"
    rates = _lines(rows, lambda one: one.row.rate.median)
    ratios = _lines(rows, lambda one: one.row.ratio_to_target)
    return [
        draw_lines(folder / "network_throughput.png", label, "tokens per second", rates),
        draw_lines(folder / "network_speedup.png", label, "times the target alone", ratios),
    ]


def _lines(rows: Sequence[NetworkRow], value: Callable[[NetworkRow], float | None]) -> list[PlotLine]:
    names = dict.fromkeys(one.row.name for one in rows)
    return [
        PlotLine(name, [(one.added_ms, y) for one in rows if one.row.name == name and (y := value(one)) is not None])
        for name in names
    ]


@asynccontextmanager
async def delayed(pair: Pair, delays_ms: Sequence[float]) -> AsyncIterator[list[Orchestrator]]:
    """Yield, for each delay, the pair through proxies that add it.

    A delay of 0 goes through a proxy too, so that the proxy itself costs the same in all of them.

    Raises:
        ServiceUnavailable: the proxies did not start, or a service does not answer through them.
    """
    services = (*pair.verifiers, *pair.drafters)
    routes = [f"--route={endpoint},{delay_ms}" for delay_ms in delays_ms for endpoint in services]
    async with AsyncExitStack() as stack:
        child = await Child.start("specgate_lab.network.delay_proxy", routes)
        stack.push_async_callback(child.stop)
        ready = await answer_of(child, "the delaying proxy")
        reached = []
        for index in range(len(delays_ms)):
            own = ready["endpoints"][index * len(services) : (index + 1) * len(services)]
            pools = StaticPool(own[: len(pair.verifiers)]), StaticPool(own[len(pair.verifiers) :])
            connecting = Orchestrator.connect(*pools, pair.tokenizer, wrap_call=pair.wrap_call)
            reached.append(await stack.enter_async_context(await connecting))
        yield reached
