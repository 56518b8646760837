"""What the served system listens on, by its settings and by open sockets, and who can reach it."""

from collections.abc import Iterator
from importlib.util import find_spec

from orchestrator.api.settings.listen import NODE, Listen
from orchestrator.api.settings.settings import ServiceSettings, Settings
from orchestrator.cli.findings import Finding, Status
from specgate.errors import ServiceUnavailable
from specgate.rpc.endpoint import is_loopback, join_endpoint


def exposure(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each listener of these settings, then one for each that is open on this machine."""
    gateway = settings.gateway
    has_keys = gateway.keys_file is not None
    yield _door("http", gateway.http, has_keys=has_keys)
    yield _door("grpc", gateway.grpc, has_keys=has_keys)
    if gateway.operations is not None:
        yield _operations(gateway.operations)
    for role in ("verifier", "drafter"):
        service: ServiceSettings | None = getattr(settings, role)
        if service is not None and not service.endpoints:
            yield from _service(role, service)
    yield from _open_ports()


def _door(name: str, listen: Listen, *, has_keys: bool) -> Finding:
    message = f"{_where(listen)}, {_tls(listen)}, {'keys' if has_keys else 'no keys'}"
    mutual = listen.tls is not None and listen.tls.client_ca is not None
    if is_loopback(listen.host) or has_keys or mutual:
        open_text = listen.tls is None and not is_loopback(listen.host)
        advice = "anyone on the way reads prompts, answers and keys: give tls, or an edge" if open_text else ""
        return Finding("gateway", name, Status.WARNING if open_text else Status.OK, message, advice)
    advice = "anyone who reaches it may generate: give gateway.keys_file (`orchestrator keys add`), or tls.client_ca"
    return Finding("gateway", name, Status.WARNING, message, advice)


def _operations(listen: Listen) -> Finding:
    message = f"{_where(listen)}, {_tls(listen)}: /metrics, health and readiness"
    if is_loopback(listen.host):
        return Finding("gateway", "operations", Status.OK, message)
    return Finding(
        "gateway", "operations", Status.WARNING, message, "it asks for no key: let Prometheus alone reach it"
    )


def _service(role: str, service: ServiceSettings) -> Iterator[Finding]:
    listen = service.listen
    message = f"{_where(listen)}, {_tls(listen)}; each session needs a lease"
    if is_loopback(listen.host) or (listen.tls is not None and listen.tls.client_ca is not None):
        yield Finding(role, "grpc", Status.OK, message)
    else:
        advice = "others can read prompts and tokens, and connect: give tls with client_ca"
        yield Finding(role, "grpc", Status.WARNING, message, advice)
    if service.metrics is not None:
        is_here = is_loopback(service.metrics.host)
        message = f"{join_endpoint(service.metrics.host, service.metrics.port)}, plain text: counts, no text"
        advice = "" if is_here else "it asks for no key: let Prometheus alone reach it"
        yield Finding(role, "metrics", Status.OK if is_here else Status.WARNING, message, advice)


def _where(listen: Listen) -> str:
    port = str(listen.port) if listen.port else "any free port"
    return f"{'the node' if listen.host == NODE else listen.host}:{port}"


def _tls(listen: Listen) -> str:
    if listen.tls is None:
        return "plain text"
    return "mutual TLS" if listen.tls.client_ca is not None else "TLS"


def _open_ports() -> Iterator[Finding]:
    """Yield what this machine's Ray has open beyond loopback, where one runs that we may ask."""
    if find_spec("ray") is None:
        return
    from orchestrator.cluster.cluster import visiting_cluster
    from orchestrator.cluster.sockets import lines_of, open_ports

    try:
        with visiting_cluster(lambda line: None, insecure=True):
            ports = open_ports()
    except ServiceUnavailable as error:
        yield Finding("machine", "ports", Status.OK, f"no Ray is seen to run here: {error}")
        return
    advice = "Ray's own: its token keeps strangers from running code, a firewall keeps them out"
    for line in lines_of(ports):
        yield Finding("machine", "ports", Status.WARNING, f"open beyond loopback: {line}", advice)
