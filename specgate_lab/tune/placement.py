"""``orchestrator tune placement``: who drafts for whom, predicted from what the services measured, with prices."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Pair, capacity_for, open_pair
from orchestrator.policy.auto.choice import RatedChoice, rate, search
from orchestrator.policy.auto.costs import Prices
from orchestrator.policy.auto.history import TokenHistory
from orchestrator.policy.gates import AUTO_GAMMA, Gate
from orchestrator.services.pool import StaticPool
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.prompts import Prompt, with_token_ids
from orchestrator.terminal.render import output_console
from orchestrator.terminal.request_options import DraftingOptions, SamplingOptions, request_for
from orchestrator.terminal.tables import table_of
from specgate.errors import InvalidArgument
from specgate_lab.options import PromptOptions, numbers_of
from specgate_lab.progress import counting_bar
from specgate_lab.report import ResultsFile

GAMMAS = (2, 6)
"""Drafted for each prompt: so the history knows agreement, and the costs know what a draft token takes."""


class Placed(NamedTuple):
    """A drafter for a verifier with so many sessions: what ``auto`` would choose, and what it brings.

    Attributes:
        rate: tokens per second of a session, times the target alone.
        per_price: tokens per price of both machines, times the target alone on the verifier.
    """

    verifier: str
    drafter: str
    sessions: int
    round_trip_ms: float
    choice: RatedChoice
    rate: float
    per_price: float

    @property
    def plan(self) -> str:
        """What is done, in words."""
        choice = self.choice.choice
        if not choice.drafts:
            return "no: the target alone"
        gate = f", above {choice.solo_below:g}" if choice.closed else ""
        return f"{'running' if choice.running else 'asked'}, γ {choice.gamma}{gate}"


_COLUMNS: tuple[tuple[str, Callable[[Placed], str]], ...] = (
    ("verifier", lambda one: one.verifier),
    ("drafter", lambda one: one.drafter),
    ("draft", lambda one: one.plan),
    ("sessions", lambda one: str(one.sessions)),
    ("ms away", lambda one: f"{one.round_trip_ms:.1f}"),
    ("× rate", lambda one: f"{one.rate:.2f}"),
    ("× per price", lambda one: f"{one.per_price:.2f}"),
)


@takes_groups
def placement(
    models: ModelOptions,
    sampling: SamplingOptions,
    prompts: PromptOptions,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT=PRICE", help="Price of a machine's second; 1 where none is given. Repeatable."),
    ] = None,
    sessions: Annotated[str, typer.Option(metavar="N,N,...", help="Requests at a time.")] = "1,4,16",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = None,
) -> None:
    """Predict for each drafter and verifier who should draft for whom, with which γ, and what it brings.

    It asks the services what their forwards take and how far away they are, and writes the prompts' answers once to see
    how often the draft is right. Without addresses it starts the pair here.
    """
    counts = numbers_of("sessions", sessions, int, 1, 1024)
    prices = dict(map(_price, price or []))
    request, log = request_for(models, DraftingOptions(), sampling), Console(stderr=True)
    file = ResultsFile(json_file, "json") if json_file else None
    rows = asyncio.run(_place(models, prompts.read(request), counts, prices, log))
    output_console().print(table_of(rows, _COLUMNS, num_names=3, style_of=lambda one: None if one.rate > 1 else "dim"))
    output_console().print(
        "Predicted, to the target alone with as many sessions. × per price counts both machines.", style="dim"
    )
    if file is not None:
        file.write({"rows": [to_object(one) for one in rows]})


def to_object(placed: Placed) -> dict[str, Any]:
    """Return the row as ``--json`` writes it."""
    return {**placed._asdict(), "choice": placed.choice.choice._asdict(), "plan": placed.plan}


def _price(pair: str) -> tuple[str, float]:
    endpoint, _, value = pair.rpartition("=")
    try:
        price = float(value)
    except ValueError:
        price = 0.0
    if not endpoint or not 0 < price < float("inf"):
        raise InvalidArgument("price", f"{pair!r} is not HOST:PORT=PRICE with a price above 0")
    return endpoint, price


async def _place(
    models: ModelOptions, prompts: Sequence[Prompt], counts: Sequence[int], prices: Mapping[str, float], log: Console
) -> list[Placed]:
    rows: list[Placed] = []
    async with open_pair(models, with_draft=True, capacity=capacity_for(prompts, 1), log=log) as pair:
        pairs = list(product(pair.verifiers, pair.drafters))
        for endpoint in prices:
            if endpoint not in (*pair.verifiers, *pair.drafters):
                raise InvalidArgument("price", f"{endpoint} is none of the services")
        with counting_bar(log, "drafting", len(pairs) * len(prompts) * len(GAMMAS)) as on_turn:
            for verifier, drafter in pairs:
                text, now = await _measured(models, pair, verifier, drafter, prompts, on_turn)
                price = prices.get(verifier, 1.0), prices.get(drafter, 1.0)
                rows += [placed(verifier, drafter, count, text, now, *price) for count in counts]
    return rows


async def _measured(
    models: ModelOptions,
    pair: Pair,
    verifier: str,
    drafter: str,
    prompts: Sequence[Prompt],
    on_turn: Callable[[], None],
) -> tuple[TokenHistory, Prices]:
    """Return what the answers to the prompts say of the draft, and what things cost now."""
    pools = StaticPool([verifier]), StaticPool([drafter])
    async with await Orchestrator.connect(*pools, pair.tokenizer, tls=models.client_tls) as orchestrator:
        for prompt, gamma in product(prompts, GAMMAS):
            request = with_token_ids(prompt, pair.tokenizer)
            async for _ in orchestrator.generate(_drafted(request, gamma)):
                pass
            on_turn()
        if orchestrator.draft_info is not None and not orchestrator.draft_info.draft_method.has_model:
            raise InvalidArgument("drafter", f"{drafter} copies: it costs nothing, wherever it is")
        mode = orchestrator.learner.mode(request)
        prices = mode.prices()
        if prices is None:
            raise InvalidArgument("verifier", f"{verifier} does not tell what its forwards take")
        return mode.text(), prices


def _drafted(request: GenerationRequest, gamma: int) -> GenerationRequest:
    return replace(request, gate=Gate.NONE, gamma=gamma, gate_threshold=None, draft_threshold=None)


def _best(text: TokenHistory, prices: Prices) -> RatedChoice:
    steps = search(text, prices, AUTO_GAMMA, None)
    while True:
        try:
            next(steps)
        except StopIteration as found:
            result: RatedChoice = found.value
            return result


def placed(
    verifier: str,
    drafter: str,
    sessions: int,
    text: TokenHistory,
    now: Prices,
    verifier_price: float,
    drafter_price: float,
) -> Placed:
    """Return what drafting brings with so many sessions, by the rule and the formulae of the gate ``auto``."""
    prices = now._replace(sessions=sessions, draft_us=now.draft_us * sessions)
    found = _best(text, prices)
    alone = rate(text, found.choice.alone, prices)
    gain = found.rate / alone
    both = verifier_price + drafter_price if found.choice.drafts else verifier_price
    return Placed(verifier, drafter, sessions, now.round_trip_us / 1000, found, gain, gain * verifier_price / both)
