"""``orchestrator status``: the state of a running system."""

import asyncio
import json as json_format
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.api.settings.settings import Settings, load_settings, parse_set
from orchestrator.cli.serve_options import CONFIG, SET
from orchestrator.cli.status_tables import print_status
from orchestrator.local.pair_settings import PairModels
from orchestrator.services.status import SystemStatus, ask_endpoints
from orchestrator.terminal.render import output_console, warner
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.rpc.endpoint import join_endpoint
from specgate.rpc.tls import ClientTlsFiles


def status(
    config: Annotated[Path | None, CONFIG] = None,
    overrides: Annotated[list[str] | None, SET] = None,
    verifier: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Show this verifier. Repeatable.")
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Show this drafter. Repeatable.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show live figures from the metrics of all replicas, every 2 s.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Address of /metrics/targets for --watch; by default the gateway of the settings."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Join a Ray cluster without a token.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show replicas, sessions, KV, queues and nodes of named services, or of the system that `serve` runs."""
    named = PairModels(verifier=tuple(verifier or ()), drafter=tuple(drafter or ()))
    settings = load_settings(config, {**named.served_settings(), **parse_set(overrides or ())})
    if watch:
        from orchestrator.cli.watch import watch_replicas

        return watch_replicas(output_console(), url or _url(settings))
    endpoints = _endpoints(settings)
    found = asyncio.run(_of_services(settings, endpoints)) if endpoints else _on_ray(settings, insecure)
    if json:
        print(json_format.dumps(found.to_object(), indent=2))
    else:
        print_status(output_console(), found)
    if not found.answers:
        raise typer.Exit(1)


def _url(settings: Settings) -> str:
    """Return the metrics address of a gateway with these settings on this machine."""
    gateway = settings.gateway
    listen = gateway.operations or gateway.http
    if not listen.port:
        raise InvalidArgument("--url", "is needed where the gateway listens at any free port")
    return f"http{'s' if listen.tls else ''}://{join_endpoint(listen.host, listen.port)}"


def _endpoints(settings: Settings) -> dict[str, tuple[str, ...]]:
    services = {"verifier": settings.verifier, "drafter": settings.drafter}
    return {role: service.endpoints for role, service in services.items() if service is not None and service.endpoints}


async def _of_services(settings: Settings, endpoints: dict[str, tuple[str, ...]]) -> SystemStatus:
    tls = settings.services_tls
    files = ClientTlsFiles(tls.ca, tls.certificate, tls.key, tls.server_name) if tls else None
    asked = await asyncio.gather(*(ask_endpoints(role, named, files) for role, named in endpoints.items()))
    return SystemStatus(tuple(replica for replicas in asked for replica in replicas))


def _on_ray(settings: Settings, insecure: bool) -> SystemStatus:
    if find_spec("ray") is None:
        hint = "pip install 'specgate[ray]', or name services: --verifier HOST:PORT"
        raise ServiceUnavailable(f"what runs on Ray is asked through Ray: {hint}")
    from orchestrator.cluster.cluster import visiting_cluster
    from orchestrator.cluster.system_status import system_status

    with visiting_cluster(warner(Console(stderr=True)), insecure=insecure):
        return system_status(settings.app_name)
