"""``orchestrator status``: the state of a running system."""

import asyncio
import json as json_format
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.api.settings.settings import Settings, load_settings, parse_set
from orchestrator.cli.status_tables import print_status
from orchestrator.local.pair_settings import check_endpoint
from orchestrator.services.status import SystemStatus, ask_endpoints
from orchestrator.terminal.option_groups import takes_groups
from orchestrator.terminal.render import output_console, warner
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.rpc.endpoint import join_endpoint
from specgate.rpc.tls import ClientTlsFiles

ROLES = ("verifier", "drafter")


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Which system to show: named services, or the one that runs on Ray."""

    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Configuration file of `serve`; it names the endpoints."),
    ] = None
    set: Annotated[
        tuple[str, ...],
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key of file and flags. Repeatable."),
    ] = ()
    verifier: Annotated[tuple[str, ...], typer.Option(metavar="HOST:PORT", help="Show this verifier. Repeatable.")] = ()
    drafter: Annotated[tuple[str, ...], typer.Option(metavar="HOST:PORT", help="Show this drafter. Repeatable.")] = ()
    watch: Annotated[
        bool, typer.Option("--watch", help="Show live figures from the metrics of all replicas, every 2 s.")
    ] = False
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Address of /metrics/targets for --watch; by default the gateway of the settings."
        ),
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Join a Ray cluster without a token.")] = False

    def __post_init__(self) -> None:
        for role in ROLES:
            for endpoint in getattr(self, role):
                check_endpoint(role, endpoint)

    def settings(self) -> Settings:
        """Return the settings of file and flags.

        Raises:
            InvalidArgument: see ``load_settings``.
        """
        named = {f"{role}.endpoints": getattr(self, role) for role in ROLES if getattr(self, role)}
        return load_settings(self.config, {**named, **parse_set(self.set)})


@takes_groups
def status(
    options: StatusOptions, json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False
) -> None:
    """Show replicas, sessions, KV, queues and nodes of named services, or of the system that `serve` runs."""
    settings = options.settings()
    if options.watch:
        from orchestrator.cli.watch import watch

        return watch(output_console(), options.url or _url(settings))
    endpoints = _endpoints(settings)
    found = asyncio.run(_of_services(settings, endpoints)) if endpoints else _on_ray(settings, options.insecure)
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
    services = {role: getattr(settings, role) for role in ROLES}
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
