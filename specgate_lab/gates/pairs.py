"""One verifier and several drafters on it: the draft as it is, slowed down, and with its weights shuffled."""

import json
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.results import Collector
from specgate.errors import InvalidArgument
from specgate_lab.drafters import drafter_service, with_drafter
from specgate_lab.gates.cases import DraftKind

if TYPE_CHECKING:
    import numpy as np

SLOW_SHARE = 1 / 3
"""Of a target forward: what a token of the slow draft takes."""
PROBE_GAMMA = 4
SLOW_SERVICE = "specgate_lab.gates.slow_service"
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


async def starter_of(
    kind: DraftKind,
    pair: Pair,
    models: ModelOptions,
    capacity: Capacity,
    probe: GenerationRequest,
    stack: AsyncExitStack,
    log: Console,
    *,
    on_demand: bool = False,
) -> Orchestrator:
    """Return what runs requests with a draft of this kind: the pair itself, or its verifier with another drafter.

    Args:
        on_demand: its drafter does not run ahead, unless it is somebody else's.

    Raises:
        InvalidArgument: a drafter that somebody else started cannot be changed.
    """
    if kind is DraftKind.GOOD and (models.draft_model is None or not on_demand):
        return pair.orchestrator
    if models.draft_model is None:
        raise InvalidArgument("drafts", f"{kind} needs a drafter of our own; leave --drafter out")
    service = drafter_service(pair, models, models.draft_model, capacity)
    if on_demand:
        service = service.with_settings(run_ahead=0)
    if kind is DraftKind.SLOW:
        # What was prepared takes next to no time to answer, and would tell nothing of the draft.
        async with with_drafter(pair, service.with_settings(run_ahead=0), log) as unhurried:
            slow_us = await slowness_us(unhurried, probe)
        service = replace(service, program=(SLOW_SERVICE, "drafter", str(slow_us)))
        log.print(f"the slow draft waits {slow_us} µs a token besides")
    elif kind is DraftKind.RANDOM:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="specgate-random-"))
        shuffled = shuffle_weights(Path(service.settings.model), Path(folder))
        service = service.with_settings(model=str(shuffled))
    return await stack.enter_async_context(with_drafter(pair, service, log))


async def slowness_us(on_demand: Orchestrator, probe: GenerationRequest) -> int:
    """Return what a draft forward must wait for a draft token to take ``SLOW_SHARE`` of a token of the target alone.

    Args:
        on_demand: its drafter does not run ahead.

    Raises:
        InvalidArgument: the probe is too short to time a draft.
    """
    collector = Collector()
    async with on_demand.generate(replace(probe, gamma=0, gate=Gate.NONE)) as generation:
        async for delta in generation:
            collector.add(delta, time.perf_counter())
        rate = collector.result(generation.stats).tokens_per_s
    async with on_demand.generate(replace(probe, gamma=PROBE_GAMMA, gate=Gate.NONE)) as drafting:
        async for _ in drafting:
            pass
        stats = drafting.stats
    token_us = [us / length for us, length in zip(stats.draft_us, stats.draft_lengths, strict=True)]
    if rate is None or not token_us:
        raise InvalidArgument("max_tokens", f"{probe.max_tokens} of the first prompt are too few to time a draft by")
    return max(round(SLOW_SHARE * 1e6 / rate - median(token_us)), 0)


def shuffle_weights(model: Path, folder: Path, seed: int = 0) -> Path:
    """Copy a model with the numbers of every matrix in another order: as large, as fast, and it knows nothing.

    Raises:
        InvalidArgument: the model is no folder with safetensors of floating-point numbers.
    """
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise InvalidArgument("draft", f"{model} is no folder with safetensors, which the random draft is made of")
    import numpy as np

    draw = np.random.default_rng(seed)
    for file in model.iterdir():
        if file.is_file() and file not in files:
            shutil.copy(file, folder)
    for file in files:
        (folder / file.name).write_bytes(_shuffled(bytearray(file.read_bytes()), draw))
    return folder


def _shuffled(content: bytearray, draw: "np.random.Generator") -> bytes:
    import numpy as np

    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header = json.loads(content[_LENGTH_BYTES:start])
    for name, tensor in header.items():
        if name == "__metadata__" or len(tensor["shape"]) < 2:
            continue
        if tensor["dtype"] not in _ITEM_BYTES:
            raise InvalidArgument("draft", f"{name} is of the type {tensor['dtype']}; floating-point ones are shuffled")
        begin, end = tensor["data_offsets"]
        count = (end - begin) // _ITEM_BYTES[tensor["dtype"]]
        draw.shuffle(np.frombuffer(content, f"u{_ITEM_BYTES[tensor['dtype']]}", count, start + begin))
    return bytes(content)
