"""Which models, and where they run: the flags of every command that needs the two services."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.terminal.service_flags import ServiceFlags
from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import MAX_PORT, split_endpoint
from specgate.types import DraftMethod

_MODELS = "Models and services"
_TLS = "TLS to named services"
_OF_STREAMS = ("first_message_s", "session_idle_s")
"""Settings of how long a client may say nothing."""


def check_model(flag: str, model: str | None) -> None:
    """Raise InvalidArgument for what can only be a folder, and is none; a hub id is the service's to look up."""
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
    """Services of our own on this machine, or services that are already there, and what reaches them; or both models
    in the command's own process.
    """

    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process",
            help="Both models in this process, without services: for one card. No run-ahead.",
            rich_help_panel=_MODELS,
        ),
    ] = False
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Keep drafter and verifier each on a core of its own.", rich_help_panel=_MODELS),
    ] = False
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate authority of the named services.", rich_help_panel=_TLS),
    ] = None
    tls_certificate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Our own certificate (mutual TLS).", rich_help_panel=_TLS)
    ] = None
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The key of our own certificate.", rich_help_panel=_TLS)
    ] = None

    def __post_init__(self) -> None:
        PairOptions.__post_init__(self)
        for name in ("run_ahead", "method", "skip"):
            if name in self.service.given and self.drafter:
                raise InvalidArgument(name, "is for a drafter that is started here")
        if self.draft and self.service.method in (DraftMethod.SUFFIX, DraftMethod.LAYER_SKIP):
            raise InvalidArgument("draft", f"{self.draft!r} is not for the method {self.service.method}")
        if self.pin and (threads := self.service.value("threads")) > 1:
            raise InvalidArgument("threads", f"{threads} do not go with --pin, which gives a service one core")
        self._check_in_process()
        self._check_tls()

    def _check_in_process(self) -> None:
        if not self.in_process:
            return
        for name in ("verifier", "drafter", "pin", "tls_ca", "tls_certificate", "tls_key"):
            if getattr(self, name):
                raise InvalidArgument(name, "does not go with --in-process, where there are no services")
        for name in _OF_STREAMS:
            if name in self.service.given:
                raise InvalidArgument(name, "does not go with --in-process, where there are no services")
        if ahead := self.service.given.get("run_ahead"):
            problem = f"{ahead} does not go with --in-process: guesses would take turns with what they run ahead of"
            raise InvalidArgument("run_ahead", problem)

    def _check_tls(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("tls_certificate", "goes with --tls-key; give both or neither")
        if self.tls_certificate is not None and self.tls_ca is None:
            raise InvalidArgument("tls_ca", "is needed beside --tls-certificate")
        if self.tls_ca is not None and not self.verifier:
            raise InvalidArgument("tls_ca", "is for services named by --verifier and --drafter; none is named")

    def check_has_services(self, what: str) -> None:
        """Raise InvalidArgument where there are to be no services, and ``what`` starts some."""
        if self.in_process:
            raise InvalidArgument("in_process", f"does not go with {what}, which starts services of its own")

    @property
    def run_ahead(self) -> int:
        """Outcomes that a drafter of our own drafts for ahead; none in one process, nor on one card unless it is asked
        for: there guesses take turns with the verification that they are to run ahead of.
        """
        on_one_card = str(self.service.value("device")).startswith("cuda") and not self.verifier
        is_off = self.in_process or (on_one_card and "run_ahead" not in self.service.given)
        return 0 if is_off else int(self.service.value("run_ahead"))

    @property
    def is_bundled_pair(self) -> bool:
        return not (self.target or self.draft or self.verifier or self.drafter)

    @property
    def target_model(self) -> str | None:
        """The target's files, None where a named verifier alone knows them."""
        return self.target or (None if self.verifier else BUNDLED_TARGET)

    @property
    def draft_model(self) -> str | None:
        """The draft's files; None where a named drafter alone knows them, drafts come from no model, or none was given
        beside --target.
        """
        if self.service.method is DraftMethod.LAYER_SKIP:
            return self.target_model
        own = self.drafter or self.target or not self.service.method.has_model
        return self.draft or (None if own else BUNDLED_DRAFT)

    @property
    def starts_drafter(self) -> bool:
        """Whether there is all that a drafter of our own needs."""
        return not self.drafter and (self.draft_model is not None or not self.service.method.has_model)

    def check_draft(self) -> None:
        """Raise InvalidArgument unless there is a draft to work with: a target of one's own needs one, too."""
        if self.service.method is DraftMethod.LAYER_SKIP and self.target_model is None:
            raise InvalidArgument("target", "is needed for the method layer-skip")
        if not self.drafter and not self.starts_drafter:
            raise InvalidArgument("draft", "is needed beside --target; or --gamma 0 for the target alone")


def check_endpoint(flag: str, endpoint: str) -> None:
    """Raise InvalidArgument, with the flag's name, unless ``endpoint`` is HOST:PORT."""
    try:
        port = split_endpoint(endpoint)[1]
    except InvalidArgument as error:
        raise InvalidArgument(flag, error.problem) from None
    if port == 0:
        raise InvalidArgument(flag, f"{endpoint!r} has port 0; a service listens on 1 to {MAX_PORT}")
