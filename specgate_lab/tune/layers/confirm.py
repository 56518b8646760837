"""Sets of blocks run for real: a drafter without them, beside the target alone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate_lab.tune.layers.drafters import SkipDrafters
from specgate_lab.tune.layers.report import Finalist
from specgate_lab.tune.layers.study import Judged
from specgate_lab.tune.versus_target import gain_of, gated, measure_beside_target, texts_differ

WAYS = 3
"""A set with its γ, a set under auto, and the target alone."""


class Confirmed(NamedTuple):
    """What a set brought, and the ways whose texts were not the target's."""

    finalist: Finalist
    texts_differ: list[str]


async def confirm(
    drafters: SkipDrafters,
    judged: Judged,
    requests: Sequence[GenerationRequest],
    repeats: int,
    on_turn: Callable[[], None],
) -> Confirmed:
    """Run a set with the γ that was predicted to be best, and under the gate auto.

    Raises:
        SpecgateError: the drafter does not start, or a request breaks off.
    """
    run_ahead = drafters.models.service.value("run_ahead")
    gamma = judged.prediction(run_ahead=bool(run_ahead)).gamma
    fixed, auto = f"γ {gamma}", "auto"
    async with drafters.without(judged.skip, run_ahead) as orchestrator:
        ways = {fixed: (orchestrator, gated(Gate.NONE, gamma)), auto: (orchestrator, gated(Gate.AUTO))}
        samples = await measure_beside_target(ways, drafters.pair.orchestrator, requests, repeats, on_turn)
    return Confirmed(Finalist(judged, gain_of(fixed, samples), gain_of(auto, samples)), texts_differ(samples))
