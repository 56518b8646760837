"""The flags that say which models a command uses and where they run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import typer

from orchestrator.local.pair_settings import PairModels, PairSettings
from orchestrator.services.timeouts import LOADING_S

_MODELS = "Models and services"
_TLS = "TLS to named services"


@dataclass(frozen=True, slots=True)
class PairOptions(PairModels):
    """``PairModels`` as flags."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        "target": typer.Option(
            metavar="PATH", help="Target model, a folder or a hub id.", show_default="bundled", rich_help_panel=_MODELS
        ),
        "draft": typer.Option(
            metavar="PATH", help="Draft model, a folder or a hub id.", show_default="bundled", rich_help_panel=_MODELS
        ),
        "verifier": typer.Option(
            metavar="HOST:PORT", help="Use this verifier and start none. Repeatable.", rich_help_panel=_MODELS
        ),
        "drafter": typer.Option(
            metavar="HOST:PORT", help="Use this drafter and start none. Repeatable.", rich_help_panel=_MODELS
        ),
    }


@dataclass(frozen=True, slots=True)
class ModelOptions(PairSettings):
    """``PairSettings`` as flags."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {
        **PairOptions.OPTIONS,
        "verifier_wait_s": typer.Option(
            metavar="SECONDS",
            help="How long to wait for --verifier while it loads.",
            show_default=f"{LOADING_S:g}",
            rich_help_panel=_MODELS,
        ),
        "in_process": typer.Option(
            "--in-process",
            help="Load both models in this process and start no service; for one card. Without run-ahead.",
            rich_help_panel=_MODELS,
        ),
        "pin": typer.Option("--pin", help="Pin drafter and verifier to one core each.", rich_help_panel=_MODELS),
        "tls_ca": typer.Option(
            metavar="FILE", help="Certificate authority of the named services.", rich_help_panel=_TLS
        ),
        "tls_certificate": typer.Option(
            metavar="FILE", help="Certificate of this client, for mutual TLS.", rich_help_panel=_TLS
        ),
        "tls_key": typer.Option(metavar="FILE", help="Private key of --tls-certificate.", rich_help_panel=_TLS),
    }
