"""A second drafter for the benchmark, that does not run ahead: what running ahead brings is seen beside it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from rich.console import Console

from orchestrator.commands.launch import Capacity, Pair, local_service, supervise
from orchestrator.commands.model_options import ModelOptions
from orchestrator.generator import Orchestrator
from orchestrator.pool import StaticPool, grpc_health


@asynccontextmanager
async def drafting_on_demand(
    pair: Pair, models: ModelOptions, capacity: Capacity, log: Console
) -> AsyncIterator[Orchestrator | None]:
    """Yield the pair's verifiers with a drafter that waits to be asked; None where the drafters are not our own.

    It runs where the pair's drafter does. Only one of the two works at a time, and the other then takes no core.

    Raises:
        ServiceUnavailable: it does not start or does not answer.
    """
    if models.drafter or models.verifier or models.draft_model is None:
        yield None
        return
    core = pair.cores[0] if pair.cores else None
    service = replace(local_service(models, "drafter", models.draft_model, core, capacity), run_ahead=0)
    async with AsyncExitStack() as stack:
        drafter = supervise(service, log, stack)
        await drafter.start(lambda *_: None)
        verifiers = StaticPool(pair.verifiers, grpc_health(None), field="verifier")
        drafters = StaticPool((drafter.endpoint,), grpc_health(None), field="drafter")
        async with await Orchestrator.connect(verifiers, drafters, pair.tokenizer) as orchestrator:
            yield orchestrator
