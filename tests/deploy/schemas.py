"""Whether a manifest is valid: by the schemas of Kubernetes, and for kinds of other operators by what we know of them.

The operators' own schemas (CustomResourceDefinitions) are not in this repository.
"""

from typing import Any

import jsonschema
import pytest

from tests.deploy.containers import Values

VERSIONS = ("1.29", "1.37")
"""Of Kubernetes: the oldest that the chart permits, and the newest that the library knows."""
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def closed(required: str = "", **properties: Any) -> Values:
    """Return the schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


STRING, BOOLEAN = {"type": "string"}, {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
POD_TEMPLATE = closed("spec", metadata={"type": "object"}, spec={"type": "object"})
_GROUP: Values = {"rayStartParams": TEXTS, "labels": TEXTS, "resources": TEXTS, "template": POD_TEMPLATE}
_COUNTS: Values = {"groupName": STRING, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT}
_CLUSTER = closed(
    "rayVersion headGroupSpec",
    rayVersion=STRING,
    enableInTreeAutoscaling=BOOLEAN,
    authOptions=closed(mode={"enum": ["disabled", "token"]}, secretName=STRING),
    headGroupSpec=closed("rayStartParams template", **_GROUP),
    workerGroupSpecs={
        "type": "array",
        "items": closed("groupName minReplicas maxReplicas rayStartParams template", **_COUNTS, **_GROUP),
    },
)
_SCALED_OBJECT = closed(
    "scaleTargetRef triggers",
    scaleTargetRef=closed("name", apiVersion=STRING, kind=STRING, name=STRING),
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    triggers={"type": "array", "items": closed("type metadata", type=STRING, metadata=TEXTS)},
)
_ENDPOINT = closed(port=STRING, honorLabels=BOOLEAN, relabelings={"type": "array", "items": {"type": "object"}})
SPECS: dict[tuple[str, str], Values] = {
    ("ray.io/v1", "RayService"): closed(
        "rayClusterConfig", excludeHeadPodFromServeSvc=BOOLEAN, serveConfigV2=STRING, rayClusterConfig=_CLUSTER
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED_OBJECT,
    ("monitoring.coreos.com/v1", "PodMonitor"): closed(
        "selector", selector={"type": "object"}, podMetricsEndpoints={"type": "array", "items": _ENDPOINT}
    ),
}


def check_manifest(manifest: Values) -> None:
    """Raise jsonschema.ValidationError for a manifest that Kubernetes, or the operator of its kind, would refuse."""
    kind = (manifest["apiVersion"], manifest["kind"])
    if kind not in SPECS:
        return _check_by_kubernetes(manifest)
    jsonschema.validate(manifest["spec"], SPECS[kind])


def check_pod(template: Values) -> None:
    """The same for the template of a pod inside of another manifest."""
    metadata = {"name": "pod", **template.get("metadata", {})}
    _check_by_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def _check_by_kubernetes(manifest: Values) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for version in VERSIONS:
        validator.validate(manifest, version, strict=True)
