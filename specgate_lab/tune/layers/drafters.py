"""Drafters of a target without some of its blocks, one at a time beside a running verifier."""

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.results import write_whole
from specgate.types import DraftMethod
from specgate_lab.drafters import source_service, with_drafter
from specgate_lab.tune.layers.blocks import Blocks, BlockSet


@dataclass(frozen=True, slots=True)
class SkipDrafters:
    """Starts them; ``fingerprint`` is of the target's weights."""

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


def write_skip(path: Path, skip: BlockSet, blocks: Blocks, fingerprint: str, **more: object) -> None:
    """Write a file that ``drafter-svc --skip`` takes. Raises InvalidArgument where that cannot be."""
    told = {"model": {"fingerprint": fingerprint, "num_layers": blocks.num_layers}, **skip.to_object(), **more}
    write_whole(path, json.dumps(told) + "\n", "out")
