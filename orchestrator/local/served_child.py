"""``orchestrator serve`` as a child process: for the demo, and to measure the APIs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.local.child import Child
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import ServiceUnavailable

MODEL_NAME = "demo"
READY_WITHIN_S = 120.0
STOP_WITHIN_S = 60.0
"""The doors drain and Ray ends its processes, which takes some seconds."""


@dataclass(frozen=True, slots=True)
class ServedEndpoints:
    """HOST:PORT of both APIs, the seconds until the command was ready, and its process id."""

    http: str
    grpc: str
    ready_s: float
    pid: int = 0


@asynccontextmanager
async def served(
    settings: Mapping[str, object], on_notice: Callable[[str], None] = lambda text: None
) -> AsyncIterator[ServedEndpoints]:
    """Start ``orchestrator serve`` on free ports of this machine, with these settings by dotted key; and end it.

    ``on_notice`` hears what a replica says of a model that it serves more slowly than it could.

    Raises:
        ServiceUnavailable: it ended before it was ready, or was not ready in time; tells its last words.
    """
    values = {"model_name": MODEL_NAME, "gateway.http.port": 0, "gateway.grpc.port": 0, **settings}
    flags = [flag for key, value in values.items() for flag in ("--set", f"{key}={value}")]
    start_s = time.monotonic()
    # A Ray of our own, also where this machine has joined a cluster.
    child = await Child.start("orchestrator.cli", ["serve", "--json-events", *flags], {"RAY_ADDRESS": "local"})
    try:
        ready = await _ready(child, on_notice)
        yield ServedEndpoints(
            ready["http"].removeprefix("http://"), ready["grpc"], time.monotonic() - start_s, child.pid
        )
    finally:
        await child.stop(STOP_WITHIN_S)


def settings_for(models: ModelOptions) -> dict[str, object]:
    """Return the settings that serve the models of these flags, on this machine."""
    pair = {"verifier.model": models.target_model, "drafter.model": models.draft_model}
    settings: dict[str, object] = {key: model for key, model in pair.items() if model}
    for role in ("verifier", "drafter"):
        settings |= {f"{role}.{name}": value for name, value in models.service.given_to(role).items()}
    return settings


async def _ready(child: Child, on_notice: Callable[[str], None]) -> dict[str, Any]:
    """Return the event that tells the endpoints."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while event := await child.next_event():
                if event.get("event") == "notice":
                    on_notice(f"{event['replica']}: {event['text']}")
                if event.get("event") == "ready":
                    return event
    except TimeoutError:
        raise ServiceUnavailable(f"orchestrator serve was not ready within {READY_WITHIN_S:g} s") from None
    code = await child.wait()
    raise ServiceUnavailable(f"orchestrator serve ended with exit code {code}: {child.last_words}")
