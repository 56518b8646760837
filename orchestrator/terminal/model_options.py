"""The flags that say which models a command uses and where they run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.services.timeouts import LOADING_S
from orchestrator.terminal.service_flags import ServiceFlags
from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import MAX_PORT, split_endpoint
from specgate.types import DraftMethod, check_range

_MODELS = "Models and services"
_TLS = "TLS to named services"
MIN_WAIT_S, MAX_WAIT_S = 0.1, 86_400.0
"""From one look to a day."""
_OF_STREAMS = ("first_message_s", "session_idle_s")
"""Settings of how long a client may say nothing."""


def check_model(flag: str, model: str | None) -> None:
    """Raise InvalidArgument if ``model`` is a path to no folder. The service looks up hub ids."""
    looks_like_path = model is not None and (model.startswith((".", "/", "~")) or model.count("/") > 1)
    if model is not None and looks_like_path and not Path(model).is_dir():
        raise InvalidArgument(flag, f"there is no folder {model!r}")


@dataclass(frozen=True, slots=True)
class PairOptions:
    """Which two models, served by whom, and how."""

    target: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Target model, a folder or a hub id.", show_default="bundled", rich_help_panel=_MODELS
        ),
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Draft model, a folder or a hub id.", show_default="bundled", rich_help_panel=_MODELS
        ),
    ] = None
    verifier: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="HOST:PORT", help="Use this verifier and start none. Repeatable.", rich_help_panel=_MODELS
        ),
    ] = ()
    drafter: Annotated[
        tuple[str, ...],
        typer.Option(metavar="HOST:PORT", help="Use this drafter and start none. Repeatable.", rich_help_panel=_MODELS),
    ] = ()
    service: ServiceFlags = ServiceFlags()

    def __post_init__(self) -> None:
        for flag, endpoints in (("verifier", self.verifier), ("drafter", self.drafter)):
            for endpoint in endpoints:
                check_endpoint(flag, endpoint)


@dataclass(frozen=True, slots=True)
class ModelOptions(PairOptions):
    """Services that the command starts, named services and their TLS files, or both models in this process."""

    verifier_wait_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait for --verifier while it loads.",
            show_default=f"{LOADING_S:g}",
            rich_help_panel=_MODELS,
        ),
    ] = None
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Load both models in this process and start no service; for one card. Without run-ahead.",
            rich_help_panel=_MODELS,
        ),
    ] = False
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Pin drafter and verifier to one core each.", rich_help_panel=_MODELS),
    ] = False
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate authority of the named services.", rich_help_panel=_TLS),
    ] = None
    tls_certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate of this client, for mutual TLS.", rich_help_panel=_TLS),
    ] = None
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Private key of --tls-certificate.", rich_help_panel=_TLS)
    ] = None

    def __post_init__(self) -> None:
        PairOptions.__post_init__(self)
        for name in ("run_ahead", "method", "skip"):
            if name in self.service.given and self.drafter:
                raise InvalidArgument(name, "needs a drafter that this command starts; --drafter names a running one")
        if self.draft and self.service.method in (DraftMethod.SUFFIX, DraftMethod.LAYER_SKIP):
            raise InvalidArgument("draft", f"{self.draft!r} is not for the method {self.service.method}")
        if self.pin and (threads := self.service.value("threads")) > 1:
            raise InvalidArgument("threads", f"{threads} do not go with --pin, which gives each service one core")
        self._check_wait()
        self._check_in_process()
        self._check_tls()

    def _check_wait(self) -> None:
        if self.verifier_wait_s is None:
            return
        check_range("verifier_wait_s", self.verifier_wait_s, MIN_WAIT_S, MAX_WAIT_S)
        if not self.verifier:
            raise InvalidArgument("verifier_wait_s", "needs a service named by --verifier; none is named")

    def _check_in_process(self) -> None:
        if not self.in_process:
            return
        for name in ("verifier", "drafter", "pin", "tls_ca", "tls_certificate", "tls_key"):
            if getattr(self, name):
                raise InvalidArgument(name, "does not go with --in-process, which starts no service")
        for name in _OF_STREAMS:
            if name in self.service.given:
                raise InvalidArgument(name, "does not go with --in-process, which starts no service")
        if ahead := self.service.given.get("run_ahead"):
            problem = f"{ahead} does not go with --in-process: drafting ahead needs a second process"
            raise InvalidArgument("run_ahead", problem)

    def _check_tls(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("tls_certificate", "goes with --tls-key; give both or neither")
        if self.tls_certificate is not None and self.tls_ca is None:
            raise InvalidArgument("tls_ca", "is required with --tls-certificate")
        if self.tls_ca is not None and not self.verifier:
            raise InvalidArgument("tls_ca", "needs a service named by --verifier; none is named")

    def check_has_services(self, what: str) -> None:
        """Raise InvalidArgument under --in-process, because ``what`` starts services."""
        if self.in_process:
            raise InvalidArgument("in_process", f"does not go with {what}, which starts services")

    @property
    def run_ahead(self) -> int:
        """Outcomes that a drafter of this command drafts for ahead.

        0 in one process, and on one card unless a flag says otherwise: there drafting ahead delays the verification.
        """
        on_one_card = str(self.service.value("device")).startswith("cuda") and not self.verifier
        is_off = self.in_process or (on_one_card and "run_ahead" not in self.service.given)
        return 0 if is_off else int(self.service.value("run_ahead"))

    @property
    def is_bundled_pair(self) -> bool:
        return not (self.target or self.draft or self.verifier or self.drafter)

    @property
    def target_model(self) -> str | None:
        """The target's folder or hub id; None if only a named verifier knows it."""
        return self.target or (None if self.verifier else BUNDLED_TARGET)

    @property
    def draft_model(self) -> str | None:
        """The draft's folder or hub id; None if a named drafter knows it, or if there is no draft model."""
        if self.service.method is DraftMethod.LAYER_SKIP:
            return self.target_model
        own = self.drafter or self.target or not self.service.method.has_model
        return self.draft or (None if own else BUNDLED_DRAFT)

    @property
    def starts_drafter(self) -> bool:
        """Whether the flags suffice to start a drafter."""
        return not self.drafter and (self.draft_model is not None or not self.service.method.has_model)

    def check_draft(self) -> None:
        """Raise InvalidArgument if there is nothing to draft with."""
        if self.service.method is DraftMethod.LAYER_SKIP and self.target_model is None:
            raise InvalidArgument("target", "is needed for the method layer-skip")
        if not self.drafter and not self.starts_drafter:
            raise InvalidArgument("draft", "is required with --target; or give --gamma 0 for the target alone")


def check_endpoint(flag: str, endpoint: str) -> None:
    """Raise InvalidArgument, with the flag's name, unless ``endpoint`` is HOST:PORT."""
    try:
        port = split_endpoint(endpoint)[1]
    except InvalidArgument as error:
        raise InvalidArgument(flag, error.problem) from None
    if port == 0:
        raise InvalidArgument(flag, f"{endpoint!r} has port 0; a service listens on 1 to {MAX_PORT}")
