"""Drafters beside the one of a running pair: of another source, or one that does not run ahead."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from rich.console import Console

from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.launch import Capacity, Pair, local_service, supervise
from orchestrator.local.local_services import LocalService
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.services.pool import StaticPool, grpc_health
from orchestrator.terminal.model_options import ModelOptions
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import DraftMethod


@asynccontextmanager
async def on_demand_drafter(
    pair: Pair, models: ModelOptions, capacity: Capacity, log: Console
) -> AsyncIterator[str | None]:
    """Start a drafter that does not run ahead, and yield its endpoint: beside it, running ahead can be measured.

    None where the pair's own drafter does not run ahead, or a service is somebody else's. Both drafters share a core,
    but only one of them works at a time.

    Raises:
        ServiceUnavailable: it does not start.
    """
    if models.drafter or models.verifier or models.draft_model is None or models.run_ahead == 0:
        yield None
        return
    service = drafter_service(pair, models, models.draft_model, capacity)
    async with started(service.with_settings(run_ahead=0), log) as endpoint:
        yield endpoint


def drafter_service(pair: Pair, models: ModelOptions, model: str, capacity: Capacity) -> LocalService:
    """Return what a drafter of this model is started with, on the core of the pair's own."""
    return local_service(models, "drafter", model, pair.cores[0] if pair.cores else None, capacity)


def source_service(
    pair: Pair, models: ModelOptions, method: DraftMethod, skip: str | None, capacity: Capacity
) -> LocalService:
    """Return what the drafter of a source is started with, on the core of the pair's own.

    Args:
        skip: file of the blocks that layer-skip leaves out.
    """
    given = {**models.service.given, "method": method}
    if method is DraftMethod.LAYER_SKIP:
        given["skip"] = skip
    model = {DraftMethod.SUFFIX: "", DraftMethod.LAYER_SKIP: models.target_model}.get(method, models.draft_model)
    own = replace(models, draft=None, service=GivenSettings(given))
    return drafter_service(pair, own, model or "", capacity)


@asynccontextmanager
async def with_drafter(pair: Pair, service: LocalService, log: Console) -> AsyncIterator[Orchestrator]:
    """Start a drafter and yield the pair's verifiers with it alone.

    Raises:
        ServiceUnavailable: it does not start or does not answer.
    """
    async with started(service, log) as endpoint, await connect(pair, endpoint) as orchestrator:
        yield orchestrator


@asynccontextmanager
async def started(service: LocalService, log: Console) -> AsyncIterator[str]:
    """Start a drafter and yield its endpoint. Raises ServiceUnavailable where it does not start."""
    async with AsyncExitStack() as stack:
        drafter = supervise(service, log, stack)
        await drafter.start(lambda *_: None)
        yield drafter.endpoint


async def connect(pair: Pair, *drafters: str, tls: ClientTlsFiles | None = None) -> Orchestrator:
    """Return an orchestrator of the pair's verifiers and the drafters at these endpoints."""
    verifiers = StaticPool(pair.verifiers, grpc_health(tls), field="verifier")
    pool = StaticPool(drafters, grpc_health(tls), field="drafter")
    return await Orchestrator.connect(verifiers, pool, pair.tokenizer, tls=tls, wrap_call=pair.wrap_call)
