"""The part of the configuration that says what replicas log."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from orchestrator.api.settings.listen import StrictSettings
from specgate.logs import LogLevel


class LogSettings(StrictSettings):
    """What the replicas log. ``folder`` None is ``specgate.logs.default_folder`` of the user that runs a replica."""

    as_json: bool = False
    folder: Path | None = None
    level: LogLevel = LogLevel.INFO

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        if self.folder is not None and not self.folder.is_absolute():
            raise ValueError(f"folder {str(self.folder)!r} is relative, and replicas run elsewhere")
        return self


class TraceSettings(StrictSettings):
    """OpenTelemetry: where spans go, None for nowhere; ``sample`` of the requests whose client has not decided."""

    endpoint: str | None = Field(None, pattern=r"^https?://")
    sample: float = Field(0.01, ge=0, le=1)
