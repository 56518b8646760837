"""What a user may set: in the YAML file that SPECGATE_CONFIG names, by variables, or in vLLM's configuration.

    SPECGATE_DRAFTERS=host1:7002,host2:7002 SPECGATE_TLS_CA=ca.pem
    --additional-config '{"specgate": {"drafters": ["host1:7002"], "wait_ms": 100}}'

Variables count more than the file, and vLLM's configuration more than both.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

CONFIG = "SPECGATE_CONFIG"
ENDPOINT = re.compile(r"(\[[\da-fA-F:.%]+\]|[^\s:]+):\d{1,5}")
LIMITS = {"wait_ms": 10_000.0, "stop_below": 1.0}


class InvalidSetting(ValueError):
    """A setting is unknown or out of its limits; the message names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one proposer; docs/vllm.md says what each means."""

    drafters: tuple[str, ...] = ()
    gate: str = "auto"
    wait_ms: float = 200.0
    stop_below: float = 0.0
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_name: str = ""
    cache_salt: str = ""
    stats: str = ""

    def __post_init__(self) -> None:
        for endpoint in self.drafters or ("",):
            _check(ENDPOINT.fullmatch(endpoint), "drafters", f"{endpoint!r} is not HOST:PORT")
        _check(self.gate in ("auto", "none"), "gate", f"{self.gate!r} is neither auto nor none")
        for name, most in LIMITS.items():
            value = getattr(self, name)
            _check(0 <= value <= most, name, f"{value:g} is outside [0, {most:g}]")
        for name in ("tls_ca", "tls_certificate", "tls_key"):
            file = getattr(self, name)
            _check(not file or os.access(file, os.R_OK), name, f"{file} cannot be read")
        _check(bool(self.tls_certificate) == bool(self.tls_key), "tls_certificate", "goes together with tls_key")


def read_settings(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of the file, of variables and of vLLM's configuration. Raises InvalidSetting."""
    names = {field.name: f"SPECGATE_{field.name.upper()}" for field in fields(Settings)}
    variables = {name: environ[variable] for name, variable in names.items() if variable in environ}
    file = _read_file(Path(environ[CONFIG])) if environ.get(CONFIG) else {}
    values = {**file, **variables, **given}
    for name in values:
        _check(name in names, name, f"there is no such setting; there are {', '.join(names)}")
    return Settings(**{name: _converted(name, value) for name, value in values.items()})


def _read_file(path: Path) -> dict[str, Any]:
    # vLLM brings it; who writes no file needs none.
    import yaml

    try:
        return dict(yaml.safe_load(path.read_text("utf-8")))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise InvalidSetting(f"{CONFIG}: {path} is no file of settings: {error}") from error


def _converted(name: str, value: Any) -> Any:
    if name == "drafters":
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else tuple(map(str, value))
    try:
        return float(value) if name in LIMITS else str(value)
    except (TypeError, ValueError):
        raise InvalidSetting(f"{name}: {value!r} is no number") from None


def _check(holds: object, name: str, problem: str) -> None:
    if not holds:
        raise InvalidSetting(f"{name}: {problem}")
