"""A program: start a Ray as ``orchestrator serve`` does, tell what it has open, and look at it as another command does.

Its standard output is a JSON object.
"""

import json
import os
import subprocess
import sys

import ray

from orchestrator.cluster.cluster import on_cluster
from orchestrator.cluster.sockets import lines_of, open_ports

VISIT = "from orchestrator.cluster.cluster import visiting_cluster\nwith visiting_cluster(print): print('joined')"

if __name__ == "__main__":
    os.environ["RAY_ADDRESS"] = "local"
    with on_cluster(lambda line: None):
        ports = lines_of(open_ports())
        address = ray.get_runtime_context().gcs_address
        visited = subprocess.run(
            [sys.executable, "-c", VISIT],
            env=os.environ | {"RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    print(json.dumps({"open": ports, "visitor": visited.stdout.strip() or visited.stderr[-500:]}))
