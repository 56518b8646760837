"""A real Ray cluster on this machine, for tests: its own folder and ports, ended with the test session."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import ray
from ray import serve

from tests.support.patience import PATIENCE_S

# What Ray's own code does while a test looks on; ours stays an error.
RAY_WARNINGS = (
    "ignore::ResourceWarning",
    "ignore:Tip. In future versions of Ray:FutureWarning",
)
RAY_MARKS = [pytest.mark.filterwarnings(warning) for warning in RAY_WARNINGS]


class Cluster(NamedTuple):
    """Where the cluster is."""

    address: str


def _started(folder: Path, more_attempts: int = 2) -> Any:
    """Start Ray. It forks beside gRPC's threads, and now and then such a child never gets as far as its own program."""
    try:
        return ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=str(folder),
            # Ray's own is 15: beside another test's models its replicas would take a minute to load.
            _system_config={"worker_niceness": 0},
        )
    except Exception:
        ray.shutdown()
        if not more_attempts:
            raise
    return _started(folder, more_attempts - 1)


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start Ray and Ray Serve. The folder's path is short because Unix sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="sg", dir="/tmp"))
    # What replicas log by default goes there: Ray's processes inherit this.
    with patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state")):
        context = _started(folder)
    serve.start(proxy_location="Disabled")
    try:
        yield Cluster(context.address_info["gcs_address"])
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def replicas(app_name: str, deployment: str) -> dict[str, int]:
    """Return the pid of every replica of a deployment, by the name of its actor."""
    prefix = f"SERVE_REPLICA::{app_name}#{deployment}#"
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["name"].startswith(prefix)]
    return {name: pid for name in names if (pid := _pid(name)) is not None}


def _pid(name: str) -> int | None:
    try:
        actor: Any = ray.get_actor(name, namespace="serve")
        return int(ray.get(actor.is_allocated.remote(), timeout=PATIENCE_S)[0])
    except (ValueError, ray.exceptions.RayError):
        return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
