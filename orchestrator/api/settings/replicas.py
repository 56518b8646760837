"""The part of the configuration for replicas: where they run, how many there are, what they log."""

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


class Placement(StrictSettings):
    """What one replica takes, and which nodes may carry it.

    ``num_gpus`` None is one GPU where the cluster has any, else none. ``resources`` are custom resources and
    ``node_labels`` labels, both as given to ``ray start``.
    """

    num_cpus: float = Field(0.2, ge=0)
    num_gpus: float | None = Field(None, ge=0)
    resources: dict[str, float] = Field({})
    node_labels: dict[str, str] = Field({})


class Autoscaling(StrictSettings):
    """Replicas follow live sessions, gateways their requests: ``target_sessions`` a replica."""

    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(1, ge=1)
    target_sessions: float = Field(8, gt=0)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        return self
