"""The compose files, read as compose reads them: defaults for variables, and one file over another."""

import re
from pathlib import Path

import yaml

from tests.deploy.containers import DEPLOY, Values

FOLDER = DEPLOY / "docker"
FILES = ("compose.yaml", "compose.cuda.yaml", "compose.tls.yaml")


def services(*overrides: str) -> Values:
    """Return the services of compose.yaml under ``overrides``, with no variable set."""
    merged: Values = {}
    for name in ("compose.yaml", *overrides):
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (FOLDER / name).read_text())
        for service, values in yaml.safe_load(text)["services"].items():
            below = merged.get(service, {})
            # Of lists compose adds up those of volumes; where two stand at one place the later one counts.
            volumes = {"volumes": [*below.get("volumes", []), *values.get("volumes", [])]}
            merged[service] = {**below, **values, **volumes}
    return merged


def mounted(service: Values) -> dict[str, Path]:
    """Return what of this repository stands where in a service's container."""
    pairs = [volume.split(":")[:2] for volume in service["volumes"]]
    return {place: (FOLDER / source).resolve() for source, place in pairs if source.startswith(".")}
