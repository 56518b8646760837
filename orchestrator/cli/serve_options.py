"""The flags of ``orchestrator serve``, as overrides of its configuration file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.settings.settings import parse_set
from orchestrator.terminal.model_options import PairOptions

CONFIG = typer.Option("--config", metavar="FILE", help="YAML file of `serve`; a missing key has its default.")
SET = typer.Option("--set", metavar="KEY=VALUE", help="Override one key, such as verifier.replicas=2. Repeatable.")
_door = partial(typer.Option, rich_help_panel="Doors")
_KEYS = {
    "host": "gateway.http.host",
    "port": "gateway.http.port",
    "grpc_host": "gateway.grpc.host",
    "grpc_port": "gateway.grpc.port",
}
"""Flag to setting."""
_DOOR_KEYS = ("gateway.http", "gateway.grpc")


@dataclass(frozen=True, slots=True)
class ServeOptions(PairOptions):
    """The configuration file and the flags that override it."""

    config: Annotated[Path | None, CONFIG] = None
    set: Annotated[tuple[str, ...], SET] = ()
    host: Annotated[str | None, _door(help="Address of the HTTP API.")] = None
    port: Annotated[int | None, _door(help="Port of the HTTP API; 0 picks a free one.")] = None
    grpc_host: Annotated[str | None, _door(help="Address of the gRPC API.")] = None
    grpc_port: Annotated[int | None, _door(help="Port of the gRPC API; 0 picks a free one.")] = None
    insecure: Annotated[
        bool,
        _door("--insecure", help="Allow APIs beyond loopback without TLS, and a Ray cluster without a token."),
    ] = False
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
        return {**self.served_settings(), **given, **insecure, **parse_set(self.set)}
