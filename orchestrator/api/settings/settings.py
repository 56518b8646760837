"""The served system's configuration: one YAML file, flags over it, every key checked by name.

Precedence is that of vLLM: command line, then file, then the defaults below.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

import specgate
from orchestrator.api.settings.keys import GONE, NOT_YAML, merge, nearest_key, one_line, overridden, read_yaml
from orchestrator.api.settings.listen import (
    NODE,
    ClientTlsSettings,
    HttpSettings,
    Listen,
    PlainListen,
    StrictSettings,
)
from orchestrator.api.settings.replicas import Autoscaling, LogSettings, Placement, TraceSettings
from orchestrator.policy.gates import DEFAULT_GATE, Gate, check_thresholds
from specgate.errors import InvalidArgument
from specgate.service.settings import DraftModelSettings, ModelSettings
from specgate.types import MAX_GAMMA, DraftMethod, Verification

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_PAIR = Path(specgate.__file__).parent / "demo_pair"
BUNDLED_TARGET = str(_PAIR / "target")
BUNDLED_DRAFT = str(_PAIR / "draft")
REPLICA_WAIT_S = 60.0
"""The time that a lost replica of a medium model takes to come back."""
ENDPOINTS_WAIT_S = 10.0
"""A fixed endpoint may not come back."""


class ServiceSettings(ModelSettings):
    """A pool of drafters or verifiers: replicas that Ray keeps, or ``endpoints`` that someone else started."""

    endpoints: tuple[str, ...] = ()
    replicas: int = Field(1, ge=1, le=1024)
    autoscaling: Autoscaling | None = None
    max_queued_sessions: int = Field(64, ge=0, le=1 << 20)
    listen: Listen = Listen()
    metrics: PlainListen | None = PlainListen()
    placement: Placement = Placement()


class DrafterSettings(ServiceSettings, DraftModelSettings):
    """A pool of drafters."""


class GatewaySettings(StrictSettings):
    """The doors. ``max_running`` requests are decoded at a time by a replica, ``max_queued`` more may wait.

    ``max_logprobs_per_answer`` counts those of all tokens in all choices. A prompt of 8,192 tokens with the 20
    likeliest ones of each has 172,032.
    """

    replicas: int = Field(1, ge=1, le=1024)
    autoscaling: Autoscaling | None = None
    http: HttpSettings = HttpSettings(port=8000)
    grpc: Listen = Listen(port=8001)
    operations: Listen | None = None
    keys_file: Path | None = None
    max_running: int = Field(16, ge=1, le=4096)
    max_queued: int = Field(64, ge=0, le=1 << 20)
    max_logprobs_per_answer: int = Field(200_000, ge=0)
    output_buffer: int = Field(64, ge=1, le=1 << 16)
    slow_reader_s: float = Field(5.0, gt=0, le=86_400)
    slow_reader_tokens_per_s: float = Field(5.0, gt=0, le=1e6)
    verifier_wait_s: float | None = Field(None, gt=0, le=86_400)
    tool_call_format: Literal["auto", "hermes", "llama3", "mistral"] = "auto"
    page: bool = True
    placement: Placement = Placement(num_gpus=0)

    @model_validator(mode="after")
    def _check_listeners(self) -> Self:
        if self.autoscaling is not None and self.autoscaling.min_replicas == 0:
            raise ValueError("autoscaling.min_replicas 0 would leave no door that a request could come to")
        for name, listen in (("http", self.http), ("grpc", self.grpc)):
            if listen.host == NODE:
                raise ValueError(f"{name}.host: 'node' is for services; name an address of the gateway's node")
        return self


class Defaults(StrictSettings):
    """Values for what a request leaves out. ``gamma`` and ``gate_threshold`` None are the gate's own.

    ``objective`` is what the gate ``auto`` is after: a request's rate, or cheap tokens. For these a second of the
    drafter costs ``drafter_price`` seconds of the verifier.
    """

    gamma: int | None = Field(None, ge=0, le=MAX_GAMMA)
    gate: Gate = DEFAULT_GATE
    gate_threshold: float | None = Field(None, ge=0, le=1)
    draft_threshold: float | None = Field(None, ge=0, le=1)
    verification: Verification = Verification.SHARED_NOISE
    max_tokens: int = Field(128, ge=1)
    objective: Literal["tokens_per_s", "cost"] = "tokens_per_s"
    drafter_price: float = Field(0.0, ge=0, le=1000)

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        try:
            check_thresholds(self.gate, self.gate_threshold, self.draft_threshold)
        except InvalidArgument as error:
            raise ValueError(str(error)) from None
        return self

    def thresholds_of(self, gate: Gate) -> tuple[float | None, float | None]:
        """Return ``gate_threshold`` and ``draft_threshold``: they belong to the default gate only."""
        return (self.gate_threshold, self.draft_threshold) if gate is self.gate else (None, None)


class Settings(StrictSettings):
    """Everything that ``orchestrator serve`` needs to know. ``drafter`` None serves the target alone."""

    model_name: str = "specgate"
    app_name: str = "specgate"
    verifier: ServiceSettings = ServiceSettings(model=BUNDLED_TARGET)
    drafter: DrafterSettings | None = DrafterSettings(model=BUNDLED_DRAFT)
    gateway: GatewaySettings = GatewaySettings()
    defaults: Defaults = Defaults()
    services_tls: ClientTlsSettings | None = None
    logs: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()
    drain_s: float = Field(30.0, ge=0, le=86_400)

    @property
    def verifier_wait_s(self) -> float:
        """Seconds that a request waits for a verifier: as set, else as long as a replacement may take."""
        if self.gateway.verifier_wait_s is not None:
            return self.gateway.verifier_wait_s
        return ENDPOINTS_WAIT_S if self.verifier.endpoints else REPLICA_WAIT_S

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        target, drafter = self.verifier, self.drafter
        own_target = target.model != BUNDLED_TARGET
        if own_target and drafter is not None and not drafter.endpoints and drafter.model == BUNDLED_DRAFT:
            hint = "give drafter.model, or drafter: null for the target alone"
            raise ValueError(f"the bundled draft does not go with the target {target.model}: {hint}")
        return self


def load_settings(
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    given_to: Callable[[str], Mapping[str, object]] = lambda role: {},
) -> Settings:
    """Return the settings of ``file``, with those of ``given_to`` over them, and ``overrides`` over both.

    Args:
        overrides: values by dotted key, such as ``verifier.replicas``.
        given_to: returns the settings of a "verifier" or a "drafter" by name. It adds no drafter.

    Raises:
        InvalidArgument: the file cannot be read, or keys are unknown or values out of range; names all of them.
    """
    values = {} if file is None else read_yaml(file)
    # The overrides may add or remove a drafter. They also win over what a flag gives to both services.
    asked = overridden(values, overrides or {})
    for role in ("verifier", "drafter"):
        # What is not a mapping is refused below; None is no drafter.
        if isinstance(asked.get(role, {}), dict):
            values = overridden(values, {f"{role}.{name}": value for name, value in given_to(role).items()})
    values = overridden(values, overrides or {})
    return settings_of(values)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Return the settings of a mapping, as a file or Ray Serve's ``args`` has it. What it leaves out gets its default.

    Raises:
        InvalidArgument: keys are unknown or values out of range; names all of them, ``field`` is the first.
    """
    merged = _with_draft_model(merge(Settings().model_dump(mode="json"), values), values)
    try:
        return Settings.model_validate(merged)
    except InvalidArgument as error:
        # A conflict between settings of a service; the error names the flag.
        role = "drafter" if merged["verifier"].get("model") else "verifier"
        raise InvalidArgument(f"{role}.{error.field.removeprefix('--').replace('-', '_')}", error.problem) from None
    except ValidationError as error:
        (field, problem), *others = map(_problem, error.errors(include_url=False))
        raise InvalidArgument(field, "; ".join((problem, *map(": ".join, others)))) from None


def _with_draft_model(merged: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``merged`` with the model that the drafter's method needs if ``values`` name none."""
    given = values.get("drafter")
    if not isinstance(given, dict) or "model" in given or not isinstance(merged.get("verifier"), dict):
        return merged
    models = {DraftMethod.SUFFIX: "", DraftMethod.LAYER_SKIP: merged["verifier"].get("model", "")}
    method = given.get("method")
    if not isinstance(method, str) or method not in models:
        return merged
    return merge(merged, {"drafter": {"model": models[DraftMethod(method)]}})


def parse_set(pairs: Sequence[str]) -> dict[str, object]:
    """Return the overrides for ``load_settings`` that ``KEY=VALUE`` pairs stand for; values are YAML.

    Raises:
        InvalidArgument: a pair has no ``=``, no key, or a value that is not YAML; names the pair.
    """
    return dict(map(_parse_pair, pairs))


def _parse_pair(pair: str) -> tuple[str, object]:
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        raise InvalidArgument("--set", f"{pair!r} is not KEY=VALUE")
    try:
        return key.strip(), yaml.safe_load(value)
    except NOT_YAML as error:
        raise InvalidArgument("--set", f"{pair!r}: the value is not YAML: {one_line(error)}") from None


def _problem(error: "ErrorDetails") -> tuple[str, str]:
    """Return a key, and what is wrong with it or its value, in one line."""
    path = tuple(str(part) for part in error["loc"])
    key = ".".join(path) or "config"
    if key in GONE:
        return key, f"is not a setting any more: {GONE[key]}"
    if error["type"] == "extra_forbidden":
        nearest = nearest_key(Settings, path)
        return key, f"is not a setting; did you mean {nearest}?" if nearest else "is not a setting"
    if error["type"] == "value_error":
        return key, str(error["ctx"]["error"])
    return key, f"{error['msg']}; it is {error['input']!r}"


def to_yaml(settings: Settings) -> str:
    """Return the settings as a file that ``load_settings`` reads."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
