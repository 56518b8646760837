"""A cluster that does not answer is one plain error, whatever Ray makes of it."""

import threading
from unittest.mock import Mock

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayActorError

from orchestrator.cluster.answers import answer_within
from specgate.errors import ServiceUnavailable


def test_an_answer_is_handed_on() -> None:
    assert answer_within(30.0, lambda: 7) == 7


@pytest.mark.parametrize("error", [RayActorError(), ConnectionError("no GCS\n  trace"), RuntimeError("lost")], ids=repr)
def test_what_ray_raises_becomes_one_line(error: Exception) -> None:
    with pytest.raises(ServiceUnavailable, match=r"^the Ray cluster does not answer: [^\n]+$"):
        answer_within(30.0, Mock(side_effect=error))


def test_silence_is_no_answer() -> None:
    asked = threading.Event()
    with pytest.raises(ServiceUnavailable, match="the Ray cluster does not answer: TimeoutError"):
        answer_within(0.01, asked.wait)
    asked.set()


def test_our_own_mistakes_stay_what_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        answer_within(30.0, lambda: 1 // 0)
