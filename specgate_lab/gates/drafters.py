"""Drafters beside one verifier: the draft as it is, slowed down, and with its weights shuffled."""

import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate_lab.drafters import connect, drafter_service, started, with_drafter
from specgate_lab.gate_choice import TARGET_ALONE, GateChoice
from specgate_lab.gates.cases import DraftKind
from specgate_lab.variants import pair_variant

SLOW_SHARE = 1 / 3
"""Of a target forward: the time of a token of the slow draft."""
PROBE_GAMMA = 4
SLOW_SERVICE = "specgate_lab.gates.slow_service"


@dataclass(frozen=True, slots=True)
class Drafters:
    """Starts drafters beside a pair until ``stack`` closes; ``probe`` is a request to time a draft by."""

    pair: Pair
    models: ModelOptions
    capacity: Capacity
    probe: GenerationRequest
    stack: AsyncExitStack
    log: Console

    async def start(self, kind: DraftKind, *, on_demand: bool = False) -> tuple[str, ...]:
        """Return the endpoints of drafters of this kind: the pair's own, or that of one that is started.

        Args:
            on_demand: the drafter does not run ahead, unless a flag names it.

        Raises:
            InvalidArgument: a drafter that a flag names cannot be changed.
        """
        models = self.models
        if kind is DraftKind.GOOD and (models.draft_model is None or not on_demand):
            return self.pair.drafters
        if models.draft_model is None:
            raise InvalidArgument("drafts", f"{kind} needs a drafter of our own; leave --drafter out")
        service = drafter_service(self.pair, models, models.draft_model, self.capacity)
        if on_demand:
            service = service.with_settings(run_ahead=0)
        if kind is DraftKind.SLOW:
            # A prepared draft takes no time to answer, so its time says nothing.
            async with with_drafter(self.pair, service.with_settings(run_ahead=0), self.log) as unhurried:
                slow_us = await slowness_us(unhurried, self.probe)
            service = replace(service, program=(SLOW_SERVICE, "drafter", str(slow_us)))
            self.log.print(f"the slow draft waits {slow_us} µs a token besides")
        elif kind is DraftKind.RANDOM:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="specgate-random-"))
            shuffle_weights(Path(service.settings.model), Path(folder))
            service = service.with_settings(model=folder)
        return (await self.stack.enter_async_context(started(service, self.log)),)

    async def connect(self, drafters: tuple[str, ...]) -> Orchestrator:
        """Return an orchestrator of the pair's verifiers and these drafters; its gate ``auto`` has learned nothing."""
        return await connect(self.pair, *drafters, tls=self.models.client_tls)


async def slowness_us(on_demand: Orchestrator, probe: GenerationRequest) -> int:
    """Return the wait of a draft forward by which a draft token takes ``SLOW_SHARE`` of a token of the target alone.

    Args:
        on_demand: its drafter does not run ahead.

    Raises:
        InvalidArgument: the probe is too short to time a draft.
    """
    alone = await pair_variant(on_demand, TARGET_ALONE)(probe)
    drafting = await pair_variant(on_demand, GateChoice(Gate.NONE, PROBE_GAMMA))(probe)
    token_us = [
        us / length for stats in drafting.stats for us, length in zip(stats.draft_us, stats.draft_lengths, strict=True)
    ]
    if not alone.tokens or not token_us:
        raise InvalidArgument("max_tokens", f"{probe.max_tokens} of the first prompt are too few to time a draft by")
    return max(round(SLOW_SHARE * 1e6 * alone.seconds / alone.tokens - median(token_us)), 0)


def shuffle_weights(model: Path, folder: Path) -> None:
    """Copy a model with the numbers of every matrix in another order: as large, as fast, and it knows nothing.

    Raises:
        InvalidArgument: the model is no folder with safetensors.
    """
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise InvalidArgument("draft", f"{model} is no folder with safetensors, which the random draft is made of")
    # Here alone, because it takes seconds.
    import torch
    from safetensors.torch import load_file, save_file

    draw = torch.Generator().manual_seed(0)
    for file in model.iterdir():
        if file in files:
            weights = load_file(file)
            for name, one in weights.items():
                if one.ndim > 1:
                    weights[name] = one.flatten()[torch.randperm(one.numel(), generator=draw)].view(one.shape)
            save_file(weights, folder / file.name, metadata={"format": "pt"})
        elif file.is_file():
            shutil.copy(file, folder)
