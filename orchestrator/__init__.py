"""The orchestrator: decode loop, gates, pools of services, APIs and commands.

A program that embeds it needs the names below. Each is imported when it is used, so ``import orchestrator`` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
    from orchestrator.generation.generation import Generation
    from orchestrator.generation.orchestrator import Orchestrator
    from orchestrator.local.open_orchestrator import open_orchestrator
    from orchestrator.policy.gates import Gate
    from specgate.types import SamplingParams, Verification

__all__ = [
    "Delta",
    "Gate",
    "Generation",
    "GenerationRequest",
    "GenerationStats",
    "Orchestrator",
    "SamplingParams",
    "Verification",
    "open_orchestrator",
]
_MODULES = {
    "Delta": "orchestrator.decode.request",
    "Gate": "orchestrator.policy.gates",
    "Generation": "orchestrator.generation.generation",
    "GenerationRequest": "orchestrator.decode.request",
    "GenerationStats": "orchestrator.decode.request",
    "Orchestrator": "orchestrator.generation.orchestrator",
    "SamplingParams": "specgate.types",
    "Verification": "specgate.types",
    "open_orchestrator": "orchestrator.local.open_orchestrator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
