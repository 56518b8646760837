"""The doctor's questions to services that are already running."""

from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.cli.findings import Finding, Status
from orchestrator.cli.model_checks import in_short
from orchestrator.cli.model_facts import ModelFacts
from orchestrator.decode.ports import Lease
from orchestrator.services.links import GrpcDialer
from orchestrator.services.pool import grpc_health
from orchestrator.services.streams import ChannelCache
from specgate.errors import SpecgateError
from specgate.rpc.tls import ClientTlsFiles
from specgate.types import ModelInfo

TIMEOUT_S = 5.0


class Answers(NamedTuple):
    """What came of asking; ``facts`` are the first answering service's, None where none answers."""

    findings: list[Finding]
    facts: ModelFacts | None


async def ask_services(subject: str, role: str, endpoints: Sequence[str], tls: ClientTlsFiles | None) -> Answers:
    """Ask each endpoint of a pool for its model and its health. All of one pool must serve the same model."""
    channels = ChannelCache(tls)
    dialer, healthy = GrpcDialer(channels, TIMEOUT_S), grpc_health(tls)
    findings: list[Finding] = []
    known: list[tuple[str, ModelInfo]] = []
    try:
        for endpoint in endpoints:
            try:
                info = await dialer.model_info(Lease(endpoint), role)
            except SpecgateError as error:
                findings.append(_unreachable(subject, endpoint, error))
                continue
            known.append((endpoint, info))
            findings.append(_service(subject, endpoint, info, serving=await healthy(endpoint)))
    finally:
        await channels.close()
    findings += _differences(subject, known)
    return Answers(findings, ModelFacts.of_service(subject, known[0][1]) if known else None)


def _unreachable(subject: str, endpoint: str, error: SpecgateError) -> Finding:
    advice = "is it running, is the port right, does it want TLS (--tls-ca)?"
    return Finding(subject, "service", Status.PROBLEM, f"{endpoint}: {error}", advice)


def _service(subject: str, endpoint: str, info: ModelInfo, *, serving: bool) -> Finding:
    invariant = ", batch-invariant" if info.batch_invariant else ""
    message = (
        f"{endpoint}: {info.model} ({info.architecture}, {in_short(info.num_parameters)} parameters) in {info.dtype} "
        f"on {info.device}{invariant}, context {info.context_length}, {info.active_sessions} of {info.max_sessions} "
        f"sessions, {info.free_kv_tokens} of {info.kv_tokens} KV tokens free"
    )
    if serving:
        return Finding(subject, "service", Status.OK, message)
    advice = "it is loading, draining, or its engine is dead; look at its log"
    return Finding(subject, "service", Status.PROBLEM, f"{message}; NOT SERVING", advice)


def _differences(subject: str, known: Sequence[tuple[str, ModelInfo]]) -> list[Finding]:
    findings = []
    for endpoint, info in known[1:]:
        first_endpoint, first = known[0]
        if (info.model, info.dtype) != (first.model, first.dtype):
            message = (
                f"{endpoint} serves {info.model} in {info.dtype}, "
                f"{first_endpoint} serves {first.model} in {first.dtype}"
            )
            advice = "a pool holds one model: after a failover the text would go on in another voice"
            findings.append(Finding(subject, "service", Status.WARNING, message, advice))
    return findings
