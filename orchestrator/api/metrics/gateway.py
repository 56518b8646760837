"""All that one gateway counts, in one registry of its own."""

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge, Info, ProcessCollector

import specgate
from orchestrator.api.metrics.requests import RequestMetrics
from orchestrator.api.metrics.rounds import RoundMetrics


class QueueCounts(Protocol):
    """The source of the gauges."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...


class GatewayMetrics:
    """Counters of rounds and requests, and gauges of the queue.

    Args:
        max_running, max_queued: the limits of the queue.
        has_drafter: whether drafters are configured; they need not answer.
    """

    def __init__(
        self, model_name: str, queue: QueueCounts, max_running: int, max_queued: int, *, has_drafter: bool
    ) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics(self.registry, model_name)
        self.rounds = RoundMetrics(model_name)
        self.registry.register(self.rounds)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "num_requests_running": ("Requests that are being decoded.", lambda: queue.num_running),
            "num_requests_waiting": ("Requests that wait for their turn.", lambda: queue.num_waiting),
            "max_requests_running": ("Requests that may run at a time.", lambda: max_running),
            "max_requests_waiting": ("Requests that may wait.", lambda: max_queued),
            "drafter_configured": ("Whether there are drafters to be asked, 1 or 0.", lambda: has_drafter),
        }
        for name, (meaning, read) in gauges.items():
            gauge = Gauge(f"specgate_{name}", meaning, ["model_name"], registry=self.registry)
            gauge.labels(model_name).set_function(read)
        ProcessCollector(registry=self.registry)
        Info("specgate_build", "The gateway's version.", registry=self.registry).info({"version": specgate.__version__})
