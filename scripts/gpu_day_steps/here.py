"""Models in the step's own process: no service, and no gRPC between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from gpu_day_steps.serving import service
from gpu_day_steps.step import Context
from orchestrator.generation.orchestrator import Orchestrator
from orchestrator.local.in_process import InProcessDialer, InProcessPool
from specgate.service.config import config_of
from specgate.service.replica import load_served
from specgate_lab.proof.runs import PATIENT


@asynccontextmanager
async def loaded(context: Context, role: str, model: str, **options: Any) -> AsyncIterator[Any]:
    """Load a model and yield it; its engine ends with the block."""
    context.progress(f"loading {model}")
    settings = service(context, role, model, **options).settings
    config = config_of(role, **settings.model_dump())
    tell = partial(_tell, context, role)
    load = partial(load_served, role, config, lambda *stage: None, tell, exits_on_failure=False)
    served = await asyncio.to_thread(load)
    try:
        yield served
    finally:
        served.engine.stop()


async def joined(verifier: Any, drafter: Any = None) -> Orchestrator:
    """Return an orchestrator over loaded models."""
    served = {"verifier": verifier} | ({} if drafter is None else {"drafter": drafter})
    drafters = None if drafter is None else InProcessPool()
    return await Orchestrator.connect(InProcessPool(), drafters, None, timeouts=PATIENT, dialer=InProcessDialer(served))


def _tell(context: Context, role: str, notice: str) -> None:
    context.progress(f"{role}: {notice}")
