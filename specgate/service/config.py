"""A service's configuration as a process: which model, where it listens, and its command line."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from specgate import __version__
from specgate.errors import InvalidArgument
from specgate.logs import LogLevel
from specgate.rpc.endpoint import check_exposure
from specgate.service.flags import add_flags, validated
from specgate.service.settings import DraftModelSettings, ModelSettings
from specgate.types import DraftMethod


class Drafting(NamedTuple):
    """How a service drafts. The defaults are a verifier's.

    ``skip_file``: the blocks that are left out. ``run_ahead_rows``: guesses that are drafted side by side.
    ``target_tokenizer``: see ``specgate.runtime.translation``.
    """

    method: DraftMethod = DraftMethod.MODEL
    skip_file: str | None = None
    run_ahead_rows: int = 0
    target_tokenizer: str | None = None


class ServiceConfig(ModelSettings):
    """One service: which model, where it listens, how much it may hold. Made by ``config_of``."""

    threads: int | None = Field(
        None, ge=1, le=1024, description="Torch threads on the CPU; torch's own choice if absent."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on; 0 picks a free one.")
    cpu: int | None = Field(None, description="Pin the process to this core.")
    tls_certificate: str | None = Field(None, description="PEM file of the server's certificate chain.")
    tls_key: str | None = Field(None, description="PEM file of the server's private key.")
    tls_client_ca: str | None = Field(None, description="PEM file; clients must show a certificate signed by it.")
    insecure: bool = Field(False, description="Allow addresses beyond loopback without TLS.")
    metrics_host: str = Field(
        "127.0.0.1", description="Address of /metrics, in plain text: beyond loopback it needs --insecure."
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65_535, description="Port of /metrics; 0 picks a free one; no metrics if absent."
    )
    drain_s: float = Field(
        30.0, ge=0, le=86_400, description="Seconds that running sessions have to end after SIGTERM."
    )
    traces_endpoint: str | None = Field(
        None, pattern=r"^https?://", description="OTLP collector for the spans of traced requests, http://HOST:PORT."
    )
    log_json: bool = Field(False, description="Log JSON, one object a line.")
    log_file: str | None = Field(None, description="Log to this file instead of standard error; the file rotates.")
    log_level: LogLevel = Field(LogLevel.INFO, description="Least severe level that is logged.")
    json_events: bool = Field(False, description="Print loading progress as JSON lines on standard output.")
    exit_with_stdin: bool = Field(
        False, description="Exit when standard input ends, because the parent process is gone."
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("--tls-certificate", "and --tls-key go together; one of them is missing")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise InvalidArgument("--tls-client-ca", "needs --tls-certificate and --tls-key")
        return self

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        hint = "give --insecure: /metrics is plain text, with TLS for sessions too"
        is_open = self.insecure or self.metrics_port is None
        check_exposure(self.metrics_host, has_tls=False, insecure=is_open, field="--metrics-host", hint=hint)
        return self

    @property
    def drafting(self) -> Drafting:
        return Drafting()


class DrafterConfig(ServiceConfig, DraftModelSettings):
    """A drafter as a process."""

    @property
    def drafting(self) -> Drafting:
        tokenizer = None if self.same_tokenizer else self.target_tokenizer
        return Drafting(self.method, self.skip, self.run_ahead, tokenizer)


def config_class(role: str) -> type[ServiceConfig]:
    """Return the configuration of "drafter" or "verifier"."""
    return DrafterConfig if role == "drafter" else ServiceConfig


def config_of(role: str, **values: object) -> ServiceConfig:
    """Return the configuration that these settings make.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """
    return validated(config_class(role), values)


def parse_flags(role: str, argv: Sequence[str] | None) -> ServiceConfig:
    """Return the configuration that the command line asks for; exits with code 2 on a flag it does not know.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """
    parser = argparse.ArgumentParser(
        prog=f"{role}-svc", description=f"Serve one HuggingFace model as a specgate {role} over gRPC."
    )
    parser.add_argument("--version", action="version", version=__version__)
    add_flags(parser, config_class(role))
    return config_of(role, **vars(parser.parse_args(argv)))
