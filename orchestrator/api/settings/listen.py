"""The part of the configuration for what listens: its address and its TLS files."""

import socket
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specgate.rpc.endpoint import is_loopback

NODE = "node"
"""As a service's ``host``: the address by which Ray knows the replica's node, so that other nodes reach it."""


class StrictSettings(BaseModel):
    """No unknown key, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class TlsSettings(StrictSettings):
    """Files on the machine that uses them. ``client_ca`` asks clients for a certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ClientTlsSettings(StrictSettings):
    """How the gateway reaches services over TLS: who signed their certificates, and our own for mutual TLS."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""


class PlainListen(StrictSettings):
    """Where something listens in plain text. Beyond loopback it needs ``insecure: true``."""

    consent: ClassVar[str] = "insecure: true"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535)
    insecure: bool = False

    @property
    def has_tls(self) -> bool:
        """Whether what is sent is encrypted."""
        return False

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if not (is_loopback(self.host) or self.has_tls or self.insecure):
            raise ValueError(f"host {self.host!r} is beyond loopback: give {self.consent}")
        return self


class Listen(PlainListen):
    """Where something listens. Beyond loopback it needs ``tls`` or ``insecure: true``."""

    consent: ClassVar[str] = "tls, or insecure: true"
    tls: TlsSettings | None = None

    @property
    def has_tls(self) -> bool:
        return self.tls is not None

    @property
    def family(self) -> socket.AddressFamily:
        """The address family of ``host``."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


class HttpSettings(Listen):
    """The HTTP API. One address may hold half of ``max_connections``."""

    idle_timeout_s: int = Field(75, ge=1, le=86_400)
    max_connections: int = Field(1024, ge=1, le=1 << 20)
    hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*_-]+$")], ...] = ()
