"""Which two models answer, who serves them, and how. Commands make it from their flags, programs from arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.api.settings.settings import BUNDLED_DRAFT, BUNDLED_TARGET
from orchestrator.local.cores import num_usable_cores
from specgate.errors import InvalidArgument
from specgate.gguf.file import is_gguf
from specgate.rpc.endpoint import MAX_PORT, split_endpoint
from specgate.rpc.tls import ClientTlsFiles
from specgate.service.settings import DraftModelSettings, settings_class, settings_of
from specgate.tokenizer import is_path
from specgate.types import DraftMethod, check_range

MIN_WAIT_S, MAX_WAIT_S = 0.1, 86_400.0
"""From one look to a day."""
_OF_A_SERVICE = ("verifier", "drafter", "pin", "tls_ca", "tls_certificate", "tls_key")
_OF_STREAMS = ("first_message_s", "session_idle_s")
"""Settings of how long a client may say nothing."""


@dataclass(frozen=True, slots=True)
class GivenSettings:
    """The settings of ``specgate.service.settings`` that somebody gives; ``given`` holds no defaults.

    Raises:
        InvalidArgument: a value is outside its range; names the setting.
    """

    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        try:
            settings_of("drafter", model="given elsewhere" if self.method.has_model else "", **self.given)
        except InvalidArgument as error:
            raise InvalidArgument(error.field.removeprefix("--").replace("-", "_"), error.problem) from None

    @property
    def method(self) -> DraftMethod:
        """Where drafts come from."""
        given = self.given.get("method", DraftMethod.MODEL)
        # What is no method is refused with the other settings.
        return DraftMethod(given) if given in list(DraftMethod) else DraftMethod.MODEL

    def value(self, name: str) -> Any:
        """Return a setting as given, or its default.

        The default of ``run_ahead`` is 0 on a single core, where drafting ahead delays the target.
        """
        default = DraftModelSettings.model_fields[name].default
        if name == "run_ahead" and num_usable_cores() == 1 and not str(self.value("device")).startswith("cuda"):
            default = 0
        return self.given.get(name, default)

    def given_to(self, role: str) -> dict[str, Any]:
        """Return the given settings of a "drafter" or a "verifier"."""
        return {name: value for name, value in self.given.items() if name in settings_class(role).model_fields}


@dataclass(frozen=True, slots=True)
class PairModels:
    """A target and a draft, each a folder, a hub id or a GGUF file, or the addresses HOST:PORT of services that run.

    Raises:
        InvalidArgument: an address is none; names the field.
    """

    target: str | None = None
    draft: str | None = None
    verifier: tuple[str, ...] = ()
    drafter: tuple[str, ...] = ()
    service: GivenSettings = GivenSettings()

    def __post_init__(self) -> None:
        for name, endpoints in (("verifier", self.verifier), ("drafter", self.drafter)):
            for endpoint in endpoints:
                check_endpoint(name, endpoint)

    def served_settings(self) -> dict[str, object]:
        """Return what `serve` is to serve, by dotted key; without the settings that hold for both services."""
        values = {
            "verifier.model": self.target,
            "drafter.model": self.draft,
            "verifier.endpoints": self.verifier,
            "drafter.endpoints": self.drafter,
        }
        return {key: value for key, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class PairSettings(PairModels):
    """Services that start here, named services and their TLS files, or both models in this process.

    ``verifier_wait_s`` is how long a named verifier may load; None is ten minutes. ``pin`` gives each service a core.

    Raises:
        InvalidArgument: the values do not fit together; names the field.
    """

    verifier_wait_s: float | None = None
    in_process: bool = False
    pin: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        PairModels.__post_init__(self)
        for name in ("run_ahead", "method", "skip", "same_tokenizer"):
            if name in self.service.given and self.drafter:
                raise InvalidArgument(name, "needs a drafter that starts here; this one is named and runs")
        if "tokenizer" in self.service.given and not any(map(is_gguf, filter(None, (self.target, self.draft)))):
            raise InvalidArgument("tokenizer", "is for GGUF files; neither model is one")
        if self.draft and self.service.method in (DraftMethod.SUFFIX, DraftMethod.LAYER_SKIP):
            raise InvalidArgument("draft", f"{self.draft!r} is not for the method {self.service.method}")
        if self.pin and (threads := self.service.value("threads")) > 1:
            raise InvalidArgument("threads", f"{threads} do not go with pin, which gives each service one core")
        if self.verifier_wait_s is not None:
            check_range("verifier_wait_s", self.verifier_wait_s, MIN_WAIT_S, MAX_WAIT_S)
            self._check_named("verifier_wait_s")
        if self.in_process:
            self._check_in_process()
        self._check_tls()

    def _check_named(self, name: str) -> None:
        if not self.verifier:
            raise InvalidArgument(name, "needs a named verifier; none is named")

    def _check_in_process(self) -> None:
        given = [name for name in _OF_A_SERVICE if getattr(self, name)]
        given += [name for name in _OF_STREAMS if name in self.service.given]
        if given:
            raise InvalidArgument(given[0], "does not go with both models in one process: no service starts")
        if ahead := self.service.given.get("run_ahead"):
            problem = f"{ahead} does not go with both models in one process: drafting ahead needs a second one"
            raise InvalidArgument("run_ahead", problem)

    def _check_tls(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("tls_certificate", "goes with its key; give both or neither")
        if self.tls_certificate is not None and self.tls_ca is None:
            raise InvalidArgument("tls_ca", "is required with a certificate of the client")
        if self.tls_ca is not None:
            self._check_named("tls_ca")

    def check_has_services(self, what: str) -> None:
        """Raise InvalidArgument where both models are in this process, because ``what`` starts services."""
        if self.in_process:
            raise InvalidArgument("in_process", f"does not go with {what}, which starts services")

    @property
    def run_ahead(self) -> int:
        """Outcomes that a drafter which starts here drafts for ahead.

        0 in one process, and on one card unless it is given: there drafting ahead delays the verification.
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
    def tokenizer(self) -> str | None:
        """The folder or hub id whose tokenizer a GGUF file has; None: its own."""
        given: str | None = self.service.value("tokenizer")
        return given

    @property
    def draft_model(self) -> str | None:
        """The draft's folder or hub id; None if a named drafter knows it, or if there is no draft model."""
        if self.service.method is DraftMethod.LAYER_SKIP:
            return self.target_model
        own = self.drafter or self.target or not self.service.method.has_model
        return self.draft or (None if own else BUNDLED_DRAFT)

    @property
    def starts_drafter(self) -> bool:
        """Whether the settings suffice to start a drafter."""
        return not self.drafter and (self.draft_model is not None or not self.service.method.has_model)

    @property
    def client_tls(self) -> ClientTlsFiles | None:
        """The files that reach named services over TLS, None for plain text."""
        if self.tls_ca is None:
            return None
        certificate, key = (Path(name) if name else None for name in (self.tls_certificate, self.tls_key))
        return ClientTlsFiles(Path(self.tls_ca), certificate, key)

    def check_draft(self) -> None:
        """Raise InvalidArgument if there is nothing to draft with, or no way to it."""
        if self.service.method is DraftMethod.LAYER_SKIP and self.target_model is None:
            raise InvalidArgument("target", "is needed for the method layer-skip")
        if not self.drafter and not self.starts_drafter:
            raise InvalidArgument("draft", "is required with a target of your own; γ 0 decodes with the target alone")
        if self.tls_ca and not self.drafter:
            raise InvalidArgument(
                "tls_ca", "holds for both services, and a drafter that starts here has no TLS; name a drafter"
            )


def check_model(name: str, model: str | None) -> None:
    """Raise InvalidArgument if ``model`` is a path to nothing. The service looks up hub ids."""
    if model is not None and is_gguf(model):
        if not Path(model).is_file():
            raise InvalidArgument(name, f"there is no file {model!r}")
    elif model is not None and is_path(model) and not Path(model).is_dir():
        raise InvalidArgument(name, f"there is no folder {model!r}")


def check_endpoint(name: str, endpoint: str) -> None:
    """Raise InvalidArgument unless ``endpoint`` is HOST:PORT."""
    try:
        port = split_endpoint(endpoint)[1]
    except InvalidArgument as error:
        raise InvalidArgument(name, error.problem) from None
    if port == 0:
        raise InvalidArgument(name, f"{endpoint!r} has port 0; a service listens on 1 to {MAX_PORT}")
