"""The state of each part of a running system, and which parts do not answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer
from orchestrator.services.pool import grpc_health
from orchestrator.services.streams import ChannelCache
from specgate.errors import SpecgateError
from specgate.rpc.endpoint import split_endpoint
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import ModelInfo

ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much is used of how much there is: sessions, or tokens in KV pages."""

    used: int
    max: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The requests of one gateway that run and that wait, and the limits of both."""

    running: int
    waiting: int
    max_running: int
    max_queued: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One verifier, drafter or gateway. What it does not report is None; ``error`` says why.

    ``state`` is Ray Serve's word for it, or ``grpc.health.v1``'s for a service that somebody else has started.
    ``cards`` are those of its node that Ray shows it, by CUDA's names: replicas with the same one share it.
    ``metrics`` is HOST:PORT of its ``/metrics``, empty where there is none.
    """

    role: str
    name: str
    node: str
    state: str
    endpoints: tuple[str, ...] = ()
    uptime_s: float | None = None
    sessions: Load | None = None
    kv_tokens: Load | None = None
    queue: QueueStatus | None = None
    cards: tuple[str, ...] = ()
    metrics: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node of the Ray cluster, with what Ray's scheduler may give away there."""

    address: str
    alive: bool
    cpus: float
    gpus: float
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """All replicas, and the nodes of the cluster; ``uptime_s`` since it was deployed, None where nobody knows."""

    replicas: tuple[ReplicaStatus, ...]
    nodes: tuple[NodeStatus, ...] = ()
    uptime_s: float | None = None

    @property
    def answers(self) -> bool:
        """Whether any replica is there and says how it is."""
        return any(not replica.error for replica in self.replicas)

    def to_object(self) -> dict[str, Any]:
        """Return it as ``--json`` prints it."""
        return asdict(self)


def loads_of(info: ModelInfo) -> tuple[Load, Load]:
    """Return the sessions and the KV tokens that a service reports."""
    sessions = Load(info.active_sessions, info.max_sessions)
    return sessions, Load(info.kv_tokens - info.free_kv_tokens, info.kv_tokens)


async def ask_endpoints(role: str, endpoints: Sequence[str], tls: ClientTlsFiles | None) -> list[ReplicaStatus]:
    """Return the state of each service. All are asked at once; one without an answer within 5 s has an ``error``."""
    channels = ChannelCache(tls)
    dialer, healthy = GrpcDialer(channels, ANSWER_S), grpc_health(tls)

    async def ask(endpoint: str) -> ReplicaStatus:
        node = split_endpoint(endpoint)[0]
        try:
            info = await dialer.model_info(Lease(endpoint), role)
        except SpecgateError as error:
            return ReplicaStatus(role, endpoint, node, "UNKNOWN", (endpoint,), error=str(error))
        state = "SERVING" if await healthy(endpoint) else "NOT_SERVING"
        return ReplicaStatus(role, endpoint, node, state, (endpoint,), info.uptime_s, *loads_of(info))

    try:
        return await asyncio.gather(*(ask(endpoint) for endpoint in endpoints))
    finally:
        await channels.close()
