"""The flags that say which models a command uses and where they run."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import typer

from orchestrator.local.pair_settings import PairModels, PairSettings
from orchestrator.services.timeouts import LOADING_S

_model = partial(typer.Option, rich_help_panel="Models and services")
_tls = partial(typer.Option, metavar="FILE", rich_help_panel="TLS to named services")


@dataclass(frozen=True, slots=True)
class PairOptions(PairModels):
    """``PairModels`` as flags."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        "target": _model(
            metavar="PATH", help="Target model, a folder, a hub id or a GGUF file.", show_default="bundled"
        ),
        "draft": _model(metavar="PATH", help="Draft model, a folder, a hub id or a GGUF file.", show_default="bundled"),
        "verifier": _model(metavar="HOST:PORT", help="Use this verifier and start none. Repeatable."),
        "drafter": _model(metavar="HOST:PORT", help="Use this drafter and start none. Repeatable."),
    }


@dataclass(frozen=True, slots=True)
class ModelOptions(PairSettings):
    """``PairSettings`` as flags."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **PairOptions.OPTIONS,
        "verifier_wait_s": _model(
            metavar="SECONDS", help="How long to wait for --verifier while it loads.", show_default=f"{LOADING_S:g}"
        ),
        "in_process": _model(
            "--in-process",
            help="Load both models in this process and start no service; for one card. Without run-ahead.",
        ),
        "pin": _model("--pin", help="Pin drafter and verifier to one core each."),
        "tls_ca": _tls(help="Certificate authority of the named services."),
        "tls_certificate": _tls(help="Certificate of this client, for mutual TLS."),
        "tls_key": _tls(help="Private key of --tls-certificate."),
    }
