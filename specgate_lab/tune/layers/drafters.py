"""Sets of blocks run for real: drafters of a target without them, one at a time beside a running verifier."""

import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import DraftMethod
from specgate_lab.drafters import source_service, with_drafter
from specgate_lab.gate_choice import GateChoice
from specgate_lab.report import write_whole
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Judged
from specgate_lab.tune.layers.report import Finalist
from specgate_lab.tune.versus_target import gain_of, measure_beside_target, texts_differ
from specgate_lab.variants import pair_variant

VARIANTS = 3
"""A set with its γ, a set under auto, and the target alone."""


class Confirmed(NamedTuple):
    """What a set brought, and the variants whose texts were not the target's."""

    finalist: Finalist
    texts_differ: list[str]


@dataclass(frozen=True, slots=True)
class SkipDrafters:
    """Starts the drafters; ``fingerprint`` is of the target's weights."""

    pair: Pair
    models: ModelOptions
    capacity: Capacity
    blocks: Blocks
    fingerprint: str
    log: Console

    @asynccontextmanager
    async def without(self, skip: BlockSet, run_ahead: int) -> AsyncIterator[Orchestrator]:
        """Yield the pair's verifier with a drafter that leaves these blocks out.

        Raises:
            ServiceUnavailable: it does not start.
        """
        with tempfile.TemporaryDirectory(prefix="specgate-tune-") as name:
            file = Path(name) / "skip.json"
            write_skip(file, skip, self.blocks, self.fingerprint)
            service = source_service(self.pair, self.models, DraftMethod.LAYER_SKIP, str(file), self.capacity)
            async with with_drafter(self.pair, service.with_settings(run_ahead=run_ahead), self.log) as orchestrator:
                yield orchestrator

    async def confirm(
        self, judged: Judged, requests: Sequence[GenerationRequest], repeats: int, on_turn: Callable[[], None]
    ) -> Confirmed:
        """Run a set with the γ that was predicted to be best, and under the gate auto.

        Raises:
            SpecgateError: the drafter does not start, or a request breaks off.
        """
        gates = {
            f"γ {judged.prediction.gamma}": GateChoice(Gate.NONE, judged.prediction.gamma),
            "auto": GateChoice(Gate.AUTO),
        }
        async with self.without(judged.skip, self.models.service.value("run_ahead")) as orchestrator:
            variants = {name: pair_variant(orchestrator, gate) for name, gate in gates.items()}
            samples = await measure_beside_target(variants, self.pair.orchestrator, requests, repeats, on_turn)
        fixed, auto = (gain_of(name, samples) for name in gates)
        return Confirmed(Finalist(judged, fixed, auto), texts_differ(samples))


def write_skip(path: Path, skip: BlockSet, blocks: Blocks, fingerprint: str, **more: object) -> None:
    """Write a file that ``drafter-svc --skip`` takes. Raises InvalidArgument where that cannot be."""
    model = {"fingerprint": fingerprint, "num_layers": blocks.num_layers}
    write_whole(path, json.dumps({"model": model, **skip.to_object(), **more}) + "\n", "out")
