"""Drafters beside one verifier: the draft as it is, and with its weights shuffled."""

import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate_lab.drafters import connect, drafter_service, started
from specgate_lab.gates.cases import DraftKind


@dataclass(frozen=True, slots=True)
class Drafters:
    """Starts drafters beside a pair until ``stack`` closes."""

    pair: Pair
    models: ModelOptions
    capacity: Capacity
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
        if kind is DraftKind.RANDOM:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="specgate-random-"))
            shuffle_weights(Path(service.settings.model), Path(folder))
            service = service.with_settings(model=folder)
        return (await self.stack.enter_async_context(started(service, self.log)),)

    async def connect(self, drafters: tuple[str, ...]) -> Orchestrator:
        """Return an orchestrator of the pair's verifiers and these drafters; its gate ``auto`` has learned nothing."""
        return await connect(self.pair, *drafters, tls=self.models.client_tls)


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
