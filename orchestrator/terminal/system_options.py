"""The flags that choose between models of this command and a running system."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.local.pair_settings import check_endpoint
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InvalidArgument
from specgate.rpc.tls import ClientTlsFiles

_server = partial(typer.Option, rich_help_panel="A running system")
_SOCKETS = ("ws", "wss")
_OF_BOTH = ("service", "tls_ca", "tls_certificate", "tls_key")
"""Fields of ``ModelOptions`` that are checked apart, or that are for a running system too."""


@dataclass(frozen=True, slots=True)
class SystemOptions(ModelOptions):
    """``ModelOptions``, or ``--server``: then the command loads no model and starts no service."""

    server: Annotated[
        str | None,
        _server(
            metavar="HOST:PORT",
            help="Use the gRPC API of a running system, with the key in SPECGATE_KEY. Its defaults hold for --gate "
            "and --gamma. ws://HOST:PORT and wss://HOST:PORT are the WebSocket of its HTTP API.",
        ),
    ] = None
    tls: Annotated[
        bool,
        _server("--tls", help="Use TLS and trust the machine's root certificates. Any --tls- flag implies it."),
    ] = False
    tls_server_name: Annotated[
        str | None, _server(metavar="NAME", help="Name in the server's certificate, if it is not HOST.")
    ] = None

    def __post_init__(self) -> None:
        if self.server is None:
            for name in ("tls", "tls_server_name"):
                if getattr(self, name):
                    raise InvalidArgument(name, "needs --server")
            ModelOptions.__post_init__(self)
            return
        check_endpoint("server", self.endpoint)
        own = [one.name for one in fields(ModelOptions) if one.name not in _OF_BOTH]
        given = [name for name in own if getattr(self, name)] + list(self.service.given)
        if given:
            raise InvalidArgument(given[0], "does not go with --server, which has its own models")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("tls_certificate", "goes with --tls-key; give both or neither")

    @property
    def is_bundled_pair(self) -> bool:
        """See ``PairSettings``; nobody here knows which pair runs elsewhere."""
        return self.server is None and not (self.target or self.draft or self.verifier or self.drafter)

    @property
    def endpoint(self) -> str:
        """HOST:PORT of ``--server``. Raises InvalidArgument for an address of another kind."""
        server = self.server or ""
        scheme, separator, rest = server.rpartition("://")
        if scheme.lower() in ("http", "https"):
            raise InvalidArgument(
                "server", f"{server!r} is an HTTP address; give the gRPC address, such as 127.0.0.1:8001"
            )
        if separator and scheme.lower() not in ("grpc", *_SOCKETS):
            raise InvalidArgument("server", f"{server!r} is not HOST:PORT, with grpc://, ws:// or wss:// before it")
        path = "/v1/stream" if scheme.lower() in _SOCKETS else ""
        return rest.removesuffix("/").removesuffix(path)

    @property
    def socket_url(self) -> str | None:
        """The URL of ``--server`` where it is a WebSocket's. TLS files make it one over TLS."""
        scheme = (self.server or "").partition("://")[0].lower()
        if scheme not in _SOCKETS:
            return None
        return f"{'ws' if scheme == 'ws' and self.server_tls is None else 'wss'}://{self.endpoint}"

    @property
    def server_tls(self) -> ClientTlsFiles | None:
        """The files that reach ``--server`` over TLS, None for plain text."""
        ca, certificate, key = (
            Path(name) if name else None for name in (self.tls_ca, self.tls_certificate, self.tls_key)
        )
        name = self.tls_server_name or ""
        return ClientTlsFiles(ca, certificate, key, name) if self.tls or ca or certificate or name else None
