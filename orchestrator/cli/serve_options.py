"""The flags of ``orchestrator serve``, as overrides of its configuration file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.settings.settings import parse_set
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import PairOptions
from specgate.types import Verification

_LISTENERS = "Doors"
_DRAFTING = "Drafting, where a request does not say"
_KEYS = {
    "host": "gateway.http.host",
    "port": "gateway.http.port",
    "grpc_host": "gateway.grpc.host",
    "grpc_port": "gateway.grpc.port",
    "gamma": "defaults.gamma",
    "gate": "defaults.gate",
    "gate_threshold": "defaults.gate_threshold",
    "verification": "defaults.verification",
    "log_folder": "logs.folder",
}
"""Flag to setting."""
_DOOR_KEYS = ("gateway.http", "gateway.grpc")


@dataclass(frozen=True, slots=True)
class ServeOptions(PairOptions):
    """The configuration file and the flags that override it."""

    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file; a missing key has its default.")
    ] = None
    set: Annotated[
        tuple[str, ...],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override one key of file and flags, such as verifier.replicas=2. Repeatable.",
        ),
    ] = ()
    host: Annotated[str | None, typer.Option(help="Address of the HTTP API.", rich_help_panel=_LISTENERS)] = None
    port: Annotated[
        int | None, typer.Option(help="Port of the HTTP API; 0 picks a free one.", rich_help_panel=_LISTENERS)
    ] = None
    grpc_host: Annotated[str | None, typer.Option(help="Address of the gRPC API.", rich_help_panel=_LISTENERS)] = None
    grpc_port: Annotated[
        int | None, typer.Option(help="Port of the gRPC API; 0 picks a free one.", rich_help_panel=_LISTENERS)
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow APIs beyond loopback without TLS, and a Ray cluster without a token.",
            rich_help_panel=_LISTENERS,
        ),
    ] = False
    gamma: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Draft tokens per round; the gate auto picks at most N.", rich_help_panel=_DRAFTING
        ),
    ] = None
    gate: Annotated[Gate | None, typer.Option(help="When tokens are drafted.", rich_help_panel=_DRAFTING)] = None
    gate_threshold: Annotated[
        float | None,
        typer.Option(metavar="P", help="The gate closes below this confidence, 0 to 1.", rich_help_panel=_DRAFTING),
    ] = None
    verification: Annotated[
        Verification | None,
        typer.Option(
            help="How draft tokens are accepted. Both keep the target's distribution.", rich_help_panel=_DRAFTING
        ),
    ] = None
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, one object a line.")] = False
    log_folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the replicas' logs, on each node.", resolve_path=True),
    ] = None
    json_events: Annotated[
        bool, typer.Option("--json-events", help="Print progress and endpoints as JSON lines on standard output.")
    ] = False

    def overrides(self) -> dict[str, object]:
        """Return the settings that the flags change, by dotted key.

        Raises:
            InvalidArgument: a pair of ``--set`` is not KEY=VALUE.
        """
        given = {key: getattr(self, flag) for flag, key in _KEYS.items() if getattr(self, flag) is not None}
        insecure = {f"{listener}.insecure": True for listener in _DOOR_KEYS if self.insecure}
        logs = {"logs.as_json": True} if self.log_json else {}
        return {**self.served_settings(), **given, **insecure, **logs, **parse_set(self.set)}
