"""What a draft token costs, of both drafts' shapes."""

from collections.abc import Iterator
from itertools import product

import measure_forward as forwards
import torch

from gpu_day_steps.estimates import DRAFT_TOKEN_US
from gpu_day_steps.sizes import sizes
from gpu_day_steps.smoke import options
from gpu_day_steps.step import CheckFailed, Context
from specgate.runtime.cuda.decoder.drafting import launcher_on
from specgate.runtime.engine.chain import Link, run_chain
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import KVSequence
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows
from specgate.types import SamplingParams

GAMMAS, SEQUENCES, CONTEXTS = (4, 1, 8), (1, 4, 8), (512, 128, 1900)
USUAL = GAMMAS[0], SEQUENCES[0], CONTEXTS[0]
MARGIN_S = 5.0


def both_shapes(context: Context) -> str:
    """Fail where no draft is one call; return µs a token for both drafts."""
    of = sizes(context)
    told = [_shape(context, shape) for shape in (of.draft, of.thin_draft)]
    return "; ".join(told)


def _shape(context: Context, shape: dict[str, int]) -> str:
    layers, device = shape["num_hidden_layers"], torch.device(context.where.device)
    loaded = forwards.random_model(f"{layers} layers", shape, device, getattr(torch, context.where.dtype))
    runner = forwards.serving_runner(loaded, options(context), launcher_on(device) if device.type == "cuda" else None)
    context.row(layers=layers, drafts_by=runner.drafts_by)
    if context.where.dry:
        return f"{layers} layers by {runner.drafts_by}; dry: not checked"
    if runner.drafter is None:
        raise CheckFailed(f"a draft of {layers} layers is {runner.drafts_by}")
    usual_us = _token_us(context, runner, *USUAL)
    for gamma, sequences, cached in _cases():
        if context.left_s > MARGIN_S:
            _token_us(context, runner, gamma, sequences, cached)
    context.compare(f"µs of a draft token, {layers} layers", usual_us, DRAFT_TOKEN_US[layers])
    return f"{layers} layers {usual_us:.0f} µs by {runner.drafts_by}"


def _cases() -> Iterator[tuple[int, int, int]]:
    """Yield what differs from the usual case in one thing, γ, sequences or cached tokens."""
    for case in product(GAMMAS, SEQUENCES, CONTEXTS):
        if sum(one != usual for one, usual in zip(case, USUAL, strict=True)) == 1:
            yield case


def _token_us(context: Context, runner: ModelRunner, gamma: int, num_sequences: int, cached: int) -> float:
    sequences = [forwards.behind_context(runner, cached, 1, index, gamma) for index in range(num_sequences)]
    greedy = SamplingStep(SamplingParams(temperature=0.0), 0, cached + 1, runner.vocab_size)

    def draft() -> None:
        for sequence in sequences:
            _rewind(sequence, cached)
        run_chain(runner, [Link(Rows(one, 1, 1), greedy) for one in sequences], gamma)

    try:
        us = forwards.median_us(draft, runner.device, sizes(context).repeats) / gamma
    finally:
        for sequence in sequences:
            runner.pool.free(sequence)
    context.row(gamma=gamma, sequences=num_sequences, cached=cached, us_a_token=round(us, 1))
    return us


def _rewind(sequence: KVSequence, cached: int) -> None:
    sequence.truncate(cached + 1)
    sequence.num_cached = cached
