"""Helm's own library, asked in a process of its own: it brings Go's runtime with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.containers import DEPLOY, Values, documents

CHART = DEPLOY / "helm" / "specgate"
PROGRAM = """
import json, sys
import helm_python as helm
chart, values = sys.argv[1], json.loads(sys.argv[2])
try:
    messages = helm.lint(chart, values, strict=True)["messages"]
    with helm.Chart.load(chart) as loaded:
        loaded.validate_schema(values)
        print(json.dumps([messages, loaded.render(values, name="demo", namespace="models")]))
except helm.HelmError as error:
    sys.exit(str(error))
"""
INFORMATION = 1


class RefusedByHelm(Exception):
    """What Helm says of a chart or of its values."""


class Rendered(NamedTuple):
    manifests: list[Values]
    notes: str

    def of(self, kind: str) -> Any:
        """Return the one manifest of this kind."""
        (found,) = (one for one in self.manifests if one["kind"] == kind)
        return found

    @property
    def pod(self) -> Any:
        return self.of("Deployment")["spec"]["template"]["spec"]

    @property
    def containers(self) -> dict[str, Any]:
        return {one["name"]: one for one in [*self.pod["initContainers"], *self.pod["containers"]]}


def rendered(values: Values | None = None, chart: Path = CHART) -> Rendered:
    """Return what ``helm template`` prints, as a mapping each; raises RefusedByHelm for all that lint warns of."""
    pytest.importorskip("helm_python", reason="no Helm: pip install helm-python-sdk")
    command = [sys.executable, "-c", PROGRAM, str(chart), json.dumps(values or {})]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RefusedByHelm(done.stderr)
    messages, files = json.loads(done.stdout)
    if told := [message["error"] for message in messages if message["severity"] > INFORMATION]:
        raise RefusedByHelm("; ".join(told))
    manifests = [one for name, text in files.items() if name.endswith(".yaml") for one in documents(text)]
    return Rendered(manifests, next(text for name, text in files.items() if name.endswith("NOTES.txt")))
