"""The loading progress of replicas: reported to a named actor while somebody watches, else not at all."""

from collections.abc import Callable
from typing import Any

import ray
from ray import serve

NAMESPACE = "specgate"
OnStage = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done and how much there is; both are 0 for a notice."""
Stages = dict[str, tuple[str, int, int]]
"""Replica to the stage that it is in."""


class ProgressBoard:
    """Remembers the stage that every replica is in. Runs as an actor."""

    def __init__(self) -> None:
        self._stages: Stages = {}

    def report(self, replica: str, stage: str, done: int, total: int) -> None:
        """Store the stage of ``replica``."""
        self._stages[replica] = (stage, done, total)

    def read(self) -> Stages:
        """Return the stage of each replica."""
        return self._stages


def start_board(app_name: str) -> Any:
    """Return the actor that this application's replicas report to. It ends with the caller's process."""
    board = ray.remote(num_cpus=0)(ProgressBoard)
    return board.options(name=app_name, namespace=NAMESPACE, get_if_exists=True).remote()


def reporter() -> OnStage:
    """Return the function by which the calling replica reports its progress."""
    context = serve.get_replica_context()
    try:
        board = ray.get_actor(context.app_name, namespace=NAMESPACE)
    except ValueError:
        return _to_nobody
    name = f"{context.deployment} {context.replica_id.unique_id}"

    def report(stage: str, done: int, total: int) -> None:
        board.report.remote(name, stage, done, total)

    return report


def _to_nobody(stage: str, done: int, total: int) -> None:
    """Nobody watches."""
