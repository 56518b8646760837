"""How large a draft is made: by what it and its target cost on this machine, measured by the services themselves."""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from orchestrator.local.launch import MIN_SESSIONS, Capacity, open_pair
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.policy.auto.costs import MeasuredCosts
from orchestrator.terminal.model_options import ModelOptions
from specgate.tokenizer import load_tokenizer
from specgate.types import ForwardCost
from specgate_lab.drafters import drafter_service, with_drafter
from specgate_lab.report import write_json
from specgate_lab.train.gain import Gain, share_of, tokens_at
from specgate_lab.train.recipe import Recipe
from specgate_lab.train.student import Head, new_draft, save

LARGEST_SHARE = 1 / 8
"""Of the target's forward that a draft's token may take: four of them make a round dearer by half."""
TRIED_LAYERS = (1, 4)
"""What a layer costs is the difference."""
ROOM_TOKENS = 512
LIKELY = (0.4, 0.5, 0.6, 0.7)
"""Agreements for which the gain is told before there is a draft."""

FILE = "form.json"

MeasureCosts = Callable[[str, Mapping[int, Path]], Mapping[int, MeasuredCosts]]
"""Called with the target and drafts by their number of layers; returns what forwards of each pair cost."""


def measured_costs(device: str, log: Console) -> MeasureCosts:
    """Return what measures forwards: each service does when it loads."""

    async def measured(target: str, drafts: Mapping[int, Path]) -> dict[int, MeasuredCosts]:
        models = ModelOptions(target=target, service=GivenSettings({"device": device}), pin=True)
        capacity, costs = Capacity(MIN_SESSIONS, ROOM_TOKENS), {}
        async with open_pair(models, with_draft=False, capacity=capacity, log=log) as pair:
            for layers, folder in drafts.items():
                service = drafter_service(pair, models, str(folder), capacity)
                async with with_drafter(pair, service, log) as orchestrator:
                    costs[layers] = orchestrator.measured_costs()
        return costs

    return lambda target, drafts: asyncio.run(measured(target, drafts))


class Form(NamedTuple):
    """How many layers a draft has, and what forwards of it and its target cost."""

    layers: int
    costs: MeasuredCosts


def chosen_form(recipe: Recipe, config: Any, work: Path, measure: MeasureCosts) -> Form:
    """Return the form of the draft of a target with this configuration; a resumed run finds it in ``work``.

    Raises as ``new_draft``, ``save`` and the services do: it also shows that such a draft can be served.
    """
    file = work / FILE
    if file.is_file():
        known = json.loads(file.read_text("utf-8"))
        target, draft = ([ForwardCost(*one) for one in known[role]] for role in ("target", "draft"))
        return Form(known["layers"], MeasuredCosts(target, draft))
    text, tokenizer = config.get_text_config(), load_tokenizer(recipe.target)
    depth = text.num_hidden_layers
    # Which tokens it has makes no difference to what it costs.
    head = Head(list(range(recipe.head_tokens)) if recipe.cuts_head(text.vocab_size) else None)
    tried = [recipe.layers] if recipe.layers else sorted({min(one, depth) for one in TRIED_LAYERS})
    drafts = {layers: work / f"form-{layers}" for layers in tried}
    for layers, folder in drafts.items():
        save(new_draft(recipe.target, deepcopy(config), layers), head, tokenizer, folder)
    costs_by_layers = measure(recipe.target, drafts)
    layers = recipe.layers or best_layers(costs_by_layers, depth)
    form = Form(layers, with_layers(costs_by_layers, layers))
    write_json(file, {"layers": layers, **form.costs._asdict()}, "out")
    for folder in drafts.values():
        shutil.rmtree(folder)
    return form


def with_layers(costs: Mapping[int, MeasuredCosts], layers: int) -> MeasuredCosts:
    """Return the costs of a draft of so many layers, on the line through the two that were measured."""
    if layers in costs:
        return costs[layers]
    (few, low), (many, high) = sorted(costs.items())
    share = (layers - few) / (many - few)
    draft = [
        # Measurement noise must not make a deeper draft faster.
        ForwardCost(a.rows, max(round(a.forward_us + share * max(b.forward_us - a.forward_us, 0)), 1))
        for a, b in zip(low.draft, high.draft, strict=True)
    ]
    return MeasuredCosts(low.target, draft)


def best_layers(costs: Mapping[int, MeasuredCosts], depth: int) -> int:
    """Return the most layers whose token takes at most ``LARGEST_SHARE`` of the target's forward; at least one.

    Not far more than were measured: the line is not known there.
    """
    most = min(depth - 1, 2 * max(costs))
    fitting = [layers for layers in range(1, most + 1) if share_of(with_layers(costs, layers)) <= LARGEST_SHARE]
    return max(fitting, default=1)


def prediction(form: Form) -> Sequence[str]:
    """Return what is told before a draft learns."""
    layers, costs = form
    gains = [f"{Gain.of(costs, tokens_at(share)).ratio:.2f} × where it agrees at {share:.0%}" for share in LIKELY]
    return (
        f"draft of {layers} layers: a token takes {share_of(costs):.0%} of a forward of the target",
        f"expected over the target alone, without the time between services: {', '.join(gains)}",
    )
