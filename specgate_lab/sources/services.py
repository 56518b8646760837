"""Drafters of every source beside a running pair."""

from dataclasses import replace

from orchestrator.local.launch import Capacity, Pair, local_service
from orchestrator.local.local_services import LocalService
from orchestrator.local.pair_settings import GivenSettings
from orchestrator.terminal.model_options import ModelOptions
from specgate.types import DraftMethod


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
    return local_service(own, "drafter", model or "", pair.cores[0] if pair.cores else None, capacity)
