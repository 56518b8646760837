"""``orchestrator serve`` as a child process: for the demo, and to measure the APIs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any

from orchestrator.api.settings.settings import Settings, load_settings, to_yaml
from orchestrator.local.child import Child
from orchestrator.local.pair_settings import PairModels
from specgate.errors import ServiceUnavailable

MODEL_NAME = "demo"
SILENT_S = 120.0
"""The longest time without progress: a start takes as long as its models load."""
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
    settings: Settings, on_notice: Callable[[str], None] = lambda text: None
) -> AsyncIterator[ServedEndpoints]:
    """Start ``orchestrator serve`` with these settings, and end it.

    ``on_notice`` gets the warning of a replica that serves its model more slowly than it could.

    Raises:
        ServiceUnavailable: it ended before it was ready, or reported no progress for ``SILENT_S``; with its last words.
    """
    start_s = time.monotonic()
    with NamedTemporaryFile("w", prefix="specgate-", suffix=".yaml", encoding="utf-8") as file:
        file.write(to_yaml(settings))
        file.flush()
        arguments = ["serve", "--json-events", "--config", file.name]
        # A Ray of our own, also where this machine has joined a cluster.
        child = await Child.start("orchestrator.cli", arguments, {"RAY_ADDRESS": "local"})
        try:
            ready = await _ready(child, on_notice)
            yield ServedEndpoints(
                ready["http"].removeprefix("http://"), ready["grpc"], time.monotonic() - start_s, child.pid
            )
        finally:
            await child.stop(STOP_WITHIN_S)


def settings_for(models: PairModels = PairModels(), values: Mapping[str, object] = MappingProxyType({})) -> Settings:
    """Return the settings that serve these models on free ports of this machine, under ``values`` by dotted key.

    Raises:
        InvalidArgument: a key is unknown or its value out of range; names the key.
    """
    own = {"model_name": MODEL_NAME, "gateway.http.port": 0, "gateway.grpc.port": 0, **models.served_settings()}
    return load_settings(None, {**own, **values}, models.service.given_to)


async def _ready(child: Child, on_notice: Callable[[str], None]) -> dict[str, Any]:
    """Return the event that has the endpoints."""
    try:
        while event := await asyncio.wait_for(child.next_event(), SILENT_S):
            if event.get("event") == "notice":
                on_notice(f"{event['replica']}: {event['text']}")
            if event.get("event") == "ready":
                return event
    except TimeoutError:
        raise ServiceUnavailable(f"orchestrator serve reported no progress for {SILENT_S:g} s") from None
    code = await child.wait()
    raise ServiceUnavailable(f"orchestrator serve ended with exit code {code}: {child.last_words}")
